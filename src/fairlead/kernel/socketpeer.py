"""Says which process serves a unix socket, and whether that process runs or is stopped.

A process that is stopped still has its socket, and the kernel accepts connections for it: a connection alone does not
say that an answer will come.
Source: unix(7), SO_PEERCRED (the credentials of the process that called listen); proc(5), /proc/PID/status, State.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("iII")
_CONNECT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who serves a socket."""

    pid: int
    """0: it is of another PID namespace, or the kernel does not say."""
    state: str
    """The kernel's letter and word, `S (sleeping)`; empty: not known."""

    @property
    def is_stopped(self) -> bool:
        """Tell whether a signal or a debugger has stopped the process."""
        return self.state[:1] in {"T", "t"}


def find(path: Path, *, proc: Path = Path("/proc")) -> Peer | None:
    """Return who serves a socket; None: no process does, or it may not be opened."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
            data = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid = _CREDENTIALS.unpack(data)[0]
    return Peer(pid=pid, state=_state(proc / str(pid) / "status"))


def _state(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), "")
