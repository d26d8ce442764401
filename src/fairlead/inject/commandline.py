"""Parses the command line of an OCI runtime as far as a wrapper must, and finds where its errors are expected.

runc reads options as Go's `flag` package does: one dash or two, a value after `=` or in the next word. crun reads them
as `getopt_long` does: two dashes, and any beginning of a name that is the only one. Both readings are understood.
Engines read a runtime's last error from the file of `--log`, people from standard error: `tell` writes to both.
Source: runc(8), crun(1); Go flag, "Command line flag syntax"; containerd's shim and podman read the JSON's `msg`.
"""

import posix
import time

from fairlead.inject import fastjson

_WITH_VALUE = frozenset({"log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager"})
"""Options of runc and crun before the command that have a value."""
_ALONE = frozenset({"debug", "systemd-cgroup", "help", "h", "?", "usage", "version", "v", "V"})
_COMMANDS = frozenset({
    "checkpoint", "create", "delete", "events", "exec", "features", "init", "kill", "list", "mounts", "pause", "ps",
    "restore", "resume", "run", "spec", "start", "state", "update",
})  # fmt: skip
_LONGEST = 2000


def command_place(argv: list[str]) -> int | None:
    """Return where the command stands among the arguments; None: there is none."""
    is_value = False
    for place, word in enumerate(argv):
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if is_value:
            is_value = False
        elif word == "--":
            return place + 1 if following else None
        elif not word.startswith("-"):
            return place
        else:
            is_value = _takes(word, following)
    return None


def _takes(word: str, following: str) -> bool:
    """Return whether an option takes the next word as its value; an unknown one does, unless that is a command."""
    name, equals, _ = _named(word)
    if equals or name in _ALONE:
        return False
    return name in _WITH_VALUE or not (following.startswith("-") or following in _COMMANDS)


def _named(word: str) -> tuple[str, str, str]:
    """Return an option's name without its dashes, `=` where it has one, and what follows that."""
    return word[2 if word.startswith("--") else 1 :].partition("=")


def bundle_folder(argv: list[str]) -> str:
    """Return the bundle named among the arguments after the command; the current folder where none is."""
    found = "."
    for word, following in zip(argv, [*argv[1:], "."], strict=True):
        if word == "--":
            break
        if not word.startswith("-b") and not word.startswith("--b"):
            continue
        name, equals, value = _named(word)
        if "bundle".startswith(name):  # `b`, and what crun takes for the beginning of it
            found = value if equals else following
        elif not word.startswith("--"):
            found = word[2:]
    return found or "."


def container_id(argv: list[str]) -> str:
    """Return the id of the container among the arguments after the command; empty where they are none.

    Engines write it last. In another order something else is returned, which is not an id.
    """
    return argv[-1] if argv else ""


def tell(argv: list[str], level: str, message: str) -> None:
    """Write one line to the runtime's log where the engine named one, and to standard error.

    A warning is the operator's: standard error of a container that starts is the tenant's log, so it goes there only
    where there is no runtime's log.
    """
    if len(message) > _LONGEST:  # it names a value, and that may be megabytes
        message = f"{message[:_LONGEST]}… ({len(message) - _LONGEST} characters left out)"
    path, form = _option(argv, "log"), _option(argv, "log-format")
    if not (_is_logged(path, form, level, message) and level == "warning"):
        _append(2, f"fairlead-runtime: {message}\n")


def _is_logged(path: str, form: str, level: str, message: str) -> bool:
    """Write to the runtime's log; return whether it has one that can be written."""
    if not path:
        return False
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"level": level, "msg": f"fairlead-runtime: {message}", "time": stamp}
    line = fastjson.encode(entry).decode() if form == "json" else f'time="{stamp}" level={level} msg={message!r}'
    try:
        handle = posix.open(path, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC, 0o600)
    except OSError:
        return False  # standard error has it
    _append(handle, f"{line}\n")
    posix.close(handle)
    return True


def _append(handle: int, text: str) -> None:
    try:
        posix.write(handle, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return  # standard error is closed; the exit code still says it


def _option(argv: list[str], wanted: str) -> str:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = _named(word)
        if word.startswith("-") and name == wanted:
            return value if equals else following
    return ""
