"""Reads which files and device nodes a container on gVisor can reach: those of its gofer.

The process that an engine knows is the sandbox: gVisor's kernel in user space, in an empty root. It opens files by its
gofer alone, a process in the container's mount namespace whose /dev has the device nodes of the runtime spec and no
others. gVisor sets no device rules in the cgroup, so the gofer's nodes are the whole of what can be opened.
Source: gVisor runsc/cmd/sandboxsetup/gofer_mount.go, SetupRootFS and SetupDev.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel import readback

SANDBOX: Final = "runsc-sandbox"
_GOFER: Final = "runsc-gofer"
_LIMIT: Final = (
    "device rules: gVisor sets none in the cgroup; its kernel in user space opens the nodes that are listed, through "
    "the gofer, and no others",
)


def find(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the pid of the gofer beside a sandbox: its sibling, started by the same `runsc create`.

    Args:    pid: of the sandbox.
    Raises:  Unavailable (`GoferUnread`): there is none, so that nothing is known of what it may open.
    """
    parent, bundle = _parent(proc / str(pid)), _bundle(proc / str(pid), SANDBOX)
    if parent and bundle:
        for process in proc.iterdir():
            if process.name.isdecimal() and _parent(process) == parent and _bundle(process, _GOFER) == bundle:
                return int(process.name)
    message = f"process {pid} is no sandbox of gVisor with a gofer beside it: its device nodes cannot be read"
    raise errors.Unavailable(message, reason="GoferUnread", hint="is another runtime configured as gvisor?")


def read(pid: int, proc: Path = Path("/proc")) -> readback.Isolation:
    """Return the device nodes that a sandbox's gofer hands on. Raises: Unavailable (`GoferUnread`).

    Args:    pid: of the gofer.
    """
    try:
        nodes = readback.list_nodes(proc / str(pid) / "root/dev")
    except OSError as error:
        message = f"/dev of gofer {pid} cannot be read: {error.strerror}"
        raise errors.Unavailable(message, reason="GoferUnread", hint="it is tried again") from error
    return readback.Isolation(rules=(), in_force=None, nodes=nodes, opens={}, unread=_LIMIT)


def _parent(process: Path) -> str:
    try:
        # The name may hold blanks and parentheses; what follows the last one does not.
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        return ""


def _bundle(process: Path, name: str) -> str:
    """Return the bundle in the command line of a process of gVisor's; empty: it is none of that name."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    if words[0] != name:
        return ""
    for at, word in enumerate(words):
        if word.startswith("--bundle"):
            return word.partition("=")[2] or "".join(words[at + 1 : at + 2])
    return ""
