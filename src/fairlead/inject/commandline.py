"""Parses the command line of an OCI runtime as far as a wrapper must, and finds where its errors are expected.

Engines read a runtime's last error from the file of `--log`, people from standard error: `tell` writes to both.
Source: runc(8), crun(1); containerd's shim and podman read `level` and `msg` of the JSON form.
"""

import posix
import time

from fairlead.inject import fastjson

_WITH_VALUE = frozenset({"--log", "--log-format", "--root", "--criu", "--rootless", "--cgroup-manager"})
"""Options of runc and crun before the command that may take a value of their own."""
_LONGEST = 2000
_BUNDLE = frozenset({"-b", "--bundle", "-bundle"})


def command_place(argv: list[str]) -> int | None:
    """Return where the command stands among the arguments; None: there is none."""
    is_value = False
    for place, word in enumerate(argv):
        if is_value:
            is_value = False
        elif not word.startswith("-"):
            return place
        else:
            is_value = word in _WITH_VALUE
    return None


def bundle_folder(argv: list[str]) -> str:
    """Return the bundle named among the arguments after the command; the current folder where none is."""
    found = "."
    for word, following in zip(argv, [*argv[1:], "."], strict=True):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in _BUNDLE:
            found = value if equals else following
        elif word.startswith("-b") and name != "-bundle":
            found = word[2:]
    return found or "."


def container_id(argv: list[str]) -> str:
    """Return the id of the container among the arguments after the command; empty where they are none.

    Engines write it last. Of another order something else is returned, which is nobody's id.
    """
    return argv[-1] if argv else ""


def tell(argv: list[str], level: str, message: str) -> None:
    """Write one line to standard error, and to the runtime's log where the engine named one."""
    if len(message) > _LONGEST:  # it names a value, and that may be megabytes
        message = f"{message[:_LONGEST]}… ({len(message) - _LONGEST} characters left out)"
    _append(2, f"fairlead-runtime: {message}\n")
    path, form = _option(argv, "--log"), _option(argv, "--log-format")
    if not path:
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"level": level, "msg": f"fairlead-runtime: {message}", "time": stamp}
    line = fastjson.encode(entry).decode() if form == "json" else f'time="{stamp}" level={level} msg={message!r}'
    try:
        handle = posix.open(path, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC, 0o600)
    except OSError:
        return  # standard error has it
    _append(handle, f"{line}\n")
    posix.close(handle)


def _append(handle: int, text: str) -> None:
    try:
        posix.write(handle, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return  # nobody listens; the exit code still tells


def _option(argv: list[str], wanted: str) -> str:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == wanted:
            return value if equals else following
    return ""
