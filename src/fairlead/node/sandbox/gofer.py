"""Reads which files and device nodes a container on gVisor can reach: those of its gofer.

The process that an engine knows is the sandbox: gVisor's kernel in user space, in an empty root. It opens files by its
gofer alone, a process in the container's mount namespace whose /dev has the device nodes of the runtime spec and no
others. gVisor sets no device rules in the cgroup, so the gofer's nodes are the whole of what can be opened.

A container that joins its pod's sandbox has a gofer of its own, which the handler holds in a hook: its mounts and nodes
are made below the container's root, which is not the gofer's own yet. The process that the engine knows is the
handler's watcher, from which that gofer descends (`plan.engineconfig.gvisorpod`).
Source: gVisor runsc/cmd/sandboxsetup/gofer_mount.go, SetupRootFS and SetupDev.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.kernel import readback

SANDBOX: Final = "runsc-sandbox"
_GOFER: Final = "runsc-gofer"
_UNREAD: Final = "GoferUnread"
_FAR: Final = 6
"""Between them are `runsc start` and what lays nodes over /dev before it."""
_LIMIT: Final = (
    "device rules: gVisor sets none in the cgroup; its kernel in user space opens the nodes that are listed, through "
    "the gofer, and no others",
)


@dataclass(frozen=True, slots=True)
class Gofer:
    """The process that opens files for one container on gVisor."""

    pid: int
    root: str = ""
    """Where the container's root is below the gofer's own; empty: it is the gofer's own."""

    def folder(self, path: str, proc: Path = Path("/proc")) -> Path:
        """Return where a folder of the container is found on the host. Args: path: absolute."""
        return Path(f"{proc / str(self.pid) / 'root'}{self.root}{path}")


def find(pid: int, proc: Path = Path("/proc")) -> Gofer:
    """Return the gofer beside a sandbox: its sibling, started by the same `runsc create`.

    Args:    pid: of the sandbox.
    Raises:  Unavailable (`GoferUnread`): there is none, so that nothing is known of what it may open.
    """
    parent, bundle = _parent(proc / str(pid)), _bundle(proc / str(pid), SANDBOX)
    if parent and bundle:
        for process in proc.iterdir():
            if process.name.isdecimal() and _parent(process) == parent and _bundle(process, _GOFER) == bundle:
                return Gofer(int(process.name))
    message = f"process {pid} is no sandbox of gVisor with a gofer beside it: its device nodes cannot be read"
    raise errors.Unavailable(message, reason=_UNREAD, hint="is another runtime configured as gvisor?")


def find_joined(pid: int, container: str, proc: Path = Path("/proc")) -> Gofer:
    """Return the gofer of a container that joined its pod's sandbox: held below its watcher, or let go and beside it.

    Args:    pid: of the watcher.   container: id, which the engine has the bundle's folder named after.
    Raises:  Unavailable (`GoferUnread`): as `find`.
    """
    is_own = bool(_bundle(proc / str(pid), SANDBOX))  # it would be a sandbox beside the pod's
    engine = "" if is_own else _parent(proc / str(pid))
    for process in proc.iterdir():
        bundle = Path(_bundle(process, _GOFER)) if process.name.isdecimal() else Path()
        if container not in bundle.parts:
            continue
        if pid in _ancestors(process, proc):
            return Gofer(int(process.name), _root(bundle))
        if engine and _parent(process) == engine:  # who started it has ended, and the engine's monitor reaps orphans
            return Gofer(int(process.name))
    message = f"process {pid} has no gofer of gVisor for {container[:12]}: its device nodes cannot be read"
    hint = "was gVisor's handler written by an older fairlead? `fairlead runtime configure --engine podman --gvisor`"
    raise errors.Unavailable(message, reason=_UNREAD, hint=hint)


def read(gofer: Gofer, proc: Path = Path("/proc")) -> readback.Isolation:
    """Return the device nodes that a gofer hands on. Raises: Unavailable (`GoferUnread`)."""
    try:
        nodes = readback.list_nodes(gofer.folder("/dev", proc))
    except OSError as error:
        message = f"/dev of gofer {gofer.pid} cannot be read: {error.strerror}"
        raise errors.Unavailable(message, reason=_UNREAD, hint="it is tried again") from error
    return readback.Isolation(rules=(), in_force=None, nodes=nodes, opens={}, unread=_LIMIT)


def _ancestors(process: Path, proc: Path) -> set[int]:
    """Return the pids that a process descends from, as far as the watcher of its container may be."""
    found: list[int] = []
    while len(found) < _FAR and (parent := _parent(process)).isdecimal():
        found.append(int(parent))
        process = proc / parent
    return {*found}


def _root(bundle: Path) -> str:
    """Return the container's root as the runtime spec names it. Raises: Unavailable (`GoferUnread`)."""
    try:
        return msgspec.json.decode((bundle / "config.json").read_bytes(), type=_Spec).root.path.rstrip("/")
    except (OSError, msgspec.MsgspecError) as error:
        message = f"{bundle}/config.json cannot be read: {error}"
        raise errors.Unavailable(message, reason=_UNREAD, hint="it is tried again") from error


class _Root(msgspec.Struct):
    path: str


class _Spec(msgspec.Struct):
    root: _Root


def _parent(process: Path) -> str:
    try:
        # The name may hold blanks and parentheses; what follows the last one does not.
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        return ""


def _bundle(process: Path, name: str) -> str:
    """Return the bundle in the command line of a process of gVisor's; empty: it is none of that name."""
    try:
        words = files.read_beginning(process / "cmdline").decode(errors="replace").split("\0")
    except OSError:
        return ""
    if words[0] != name:
        return ""
    for at, word in enumerate(words):
        if word.startswith("--bundle"):
            return word.partition("=")[2] or "".join(words[at + 1 : at + 2])
    return ""
