"""Finds which process listens on a port of the host, so that who asks for the port is told.

A row of /proc/net has the socket's inode, and the process that holds that inode has it among its descriptors.
Source: proc_pid_net(5) (tcp, tcp6, udp: `local_address`, `st`, `inode`), proc_pid_fd(5); linux
include/net/tcp_states.h. conmon holds the published ports of podman's containers, and its `-n` is the container's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.kernel import processid

_LISTENING: Final = {"tcp": "0A", "udp": "07"}
"""TCP_LISTEN, and TCP_CLOSE, which is the state of a bound datagram socket."""
_ADDRESS, _STATE, _INODE = 1, 3, 9
_MONITOR: Final = "conmon"
_LONGEST, _LONGEST_NAME = 1 << 16, 255
"""Bytes of a command line that are read, and of the name in it that are shown: any process may call itself conmon."""


def find_listener(port: int, protocol: str = "TCP", *, proc: Path = Path("/proc")) -> str:
    """Return who listens on a port, `process 812 (nginx)` or `podman's container "web"`; empty: not found.

    Reads the network namespace of the caller; processes that the caller may not look into are not found.
    """
    inodes = set(_inodes(port, protocol.lower(), proc))
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return ""
    for process in sorted(proc.glob("[0-9]*"), key=lambda one: int(one.name)):
        if _holds(process, wanted):
            return _described(process)
    return ""


def _inodes(port: int, protocol: str, proc: Path) -> Iterator[str]:
    state = _LISTENING.get(protocol, "")
    for name in (protocol, f"{protocol}6"):
        try:
            rows = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in map(str.split, rows):
            if len(row) > _INODE and row[_STATE] == state and int(row[_ADDRESS].rpartition(":")[2], 16) == port:
                yield row[_INODE]


def _holds(process: Path, wanted: set[str]) -> bool:
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if str(link.readlink()) in wanted:
                return True
        except OSError:
            continue
    return False


def _described(process: Path) -> str:
    name = processid.read_name(process)
    if name == _MONITOR and (container := _container_of(process)):
        return f'podman\'s container "{container}"'
    return f"process {process.name} ({name})" if name else f"process {process.name}"


def _container_of(process: Path) -> str:
    """Return the name of the container that a monitor is of; "": it says none."""
    try:
        with (process / "cmdline").open("rb") as file:
            words = file.read(_LONGEST).decode(errors="replace").split("\0")
    except OSError:
        return ""
    return processid.plain(words[words.index("-n") + 1])[:_LONGEST_NAME] if "-n" in words[:-1] else ""
