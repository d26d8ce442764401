"""Reads from the kernel which process is at the other end of a unix socket, and whether that process is stopped.

A process that is stopped still has its socket, and the kernel accepts connections for it: a connection alone does not
say that an answer will come.
Source: unix(7), SO_PEERCRED (the credentials of the process that called connect, or listen); proc(5),
/proc/PID/status, State.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Final, Protocol

from fairlead.frozen import frozen

_CREDENTIALS: Final = struct.Struct("iII")
_CONNECT_S: Final = 1.0


@frozen
class Peer:
    """The process at the other end, with its ids in our own user namespace."""

    pid: int
    """0: it is of another PID namespace, or the kernel does not say."""
    uid: int
    gid: int


@frozen
class Server:
    """The process that serves a socket."""

    pid: int
    """As a `Peer`'s."""
    state: str
    """The kernel's letter and word, `S (sleeping)`; empty: not known."""

    @property
    def is_stopped(self) -> bool:
        """Say whether a signal or a debugger has stopped the process."""
        return self.state[:1] in {"T", "t"}


class Connection(Protocol):
    """What is needed of a socket: asyncio wraps its own."""

    @property
    def family(self) -> int:
        """The address family."""
        ...

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Read a socket option."""
        ...


def read(connection: Connection) -> Peer | None:
    """Return who is at the other end of a connection; None where it is not a unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return Peer(pid=pid, uid=uid, gid=gid)


def find_server(path: Path, *, proc: Path = Path("/proc")) -> Server | None:
    """Return who serves a socket; None: no process does, or it may not be opened."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
            peer = read(probe)
        except OSError:
            return None
    return Server(pid=peer.pid, state=_state(proc / str(peer.pid) / "status")) if peer else None


def _state(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), "")
