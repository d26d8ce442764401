"""Implements `fairlead-runtime`: stands in for runc or crun, gives a new container its GPUs, executes the runtime.

`create` and `run` make a container: its config.json is edited first. Every other command is passed on untouched. The
process then turns into the runtime by exec, arguments as they came, so exit codes, signals and standard streams are
the runtime's own.

This module is the whole cost of most starts, so it imports `posix` and its own siblings and nothing else. What it can
decide from the cache (`cachereader`) it does; the first start after a spec changed, anything unusual and every
refusal are for `create`, which it loads then. A container that asks for nothing costs neither.
"""

import posix
import sys

from fairlead.inject import allocations, bundle, cachereader, commandline, policy
from fairlead.plan.shim import request

_MAKING = frozenset({"create", "run"})
_MARKS = (b"NVIDIA_", b"CUDA_VERSION", b"/nvidia-container-devices/", b"\\u")
"""A config.json without any of these asks for nothing; an escape may hide one."""
_COULD_NOT_EXEC = 127


def main(
    arguments: list[str] | None = None,
    *,
    config: str = policy.DEFAULT_PATH,
    hook: str = "",
    runtimes: tuple[str, ...] = (),
) -> int:
    """Edit the container that is made, if one is, then become the runtime; returns only when refused.

    Args: config: the operator's file.   hook, runtimes: our hook and what to become, where the file does not say.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    place = commandline.command_place(argv)
    try:
        settings = policy.load(config, hook=hook, runtimes=runtimes)
    except policy.PolicyError as error:
        commandline.tell(argv, "error", f"{config}: {error}")
        if place is not None and argv[place] in _MAKING:
            return 2
        # Stopping and removing containers must go on while the file is broken.
        settings = policy.Settings()
        settings.runtimes = runtimes or settings.runtimes
    if place is not None and argv[place] in _MAKING:
        rest = argv[place + 1 :]
        code = _make(argv, commandline.bundle_folder(rest), commandline.container_id(rest), settings)
        if code:
            return code
    return become(argv, settings.runtimes)


def _make(argv: list[str], folder: str, name: str, settings: policy.Settings) -> int:
    """Edit the bundle by the short way if there is one, else by the long one. Returns 0, or the exit code."""
    rules = settings.request
    try:
        marks = (*_MARKS, *(name.encode() for name in (*rules.annotation_prefixes, *rules.variables)))
        made = bundle.read(folder, marks)
        if made is None:
            return 0
        kept = allocations.KubeletCheckpoint(settings.allocations)
        asked = request.decide(request.read(made.config, name), rules, kept)
        if asked.note:
            commandline.tell(argv, "warning", asked.note)
        if asked.is_empty:
            return 0
        before = bundle.strip(made.config, asked, rules)
        given = None if asked.refusal else cachereader.inject(before, asked, settings)
        if given is not None and bundle.finish(before, given[0], asked, settings, known=given[1]) is None:
            bundle.write(made, given[0])
            return 0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # whatever it is (the cache may say anything), the long way says it in words
    # As `cli.core.lazygroup` loads a verb: what most starts never need is imported when it is.
    from fairlead.inject import create

    return create.edit(argv, folder, name, settings)


def become(argv: list[str], names: tuple[str, ...]) -> int:
    """Turn this process into the first of these runtimes that is there; returns 127 where none is."""
    for name in names:
        for path in candidates(name):
            try:
                posix.execve(path, [path, *argv], posix.environ)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:  # NUL or half a character in a name are ValueErrors
                commandline.tell(argv, "error", f"cannot run {path}: {getattr(error, 'strerror', error)}")
                return _COULD_NOT_EXEC
    wanted = ", ".join(names)
    commandline.tell(argv, "error", f"no runtime found (looked for {wanted}): install runc, or name one in the policy")
    return _COULD_NOT_EXEC


def candidates(name: str) -> list[str]:
    """Return the paths at which a runtime may be: itself, or its name in every folder of PATH."""
    if "/" in name:
        return [name]
    folders = posix.environ.get(b"PATH", b"").decode("utf-8", "surrogateescape").split(":")
    usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    # A relative folder of PATH would be looked up in the bundle.
    return [f"{folder}/{name}" for folder in [*folders, *usual] if folder.startswith("/")]
