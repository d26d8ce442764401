"""Says who is at the other end of a unix socket, as the kernel noted it when the connection was made.

The server puts the answer into the ASGI scope's `state`, which no byte of a request can reach.
Source: unix(7), SO_PEERCRED; ASGI specification, "Lifespan State".
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "peer"
"""Of the scope's state."""
_UCRED: Final = struct.Struct("iII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The process that connected; ids are those of our own user namespace."""

    pid: int
    uid: int
    gid: int


def of_socket(connection: Any) -> Peer | None:
    """Return who connected to a socket; None where it is not a unix socket."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid=pid, uid=uid, gid=gid)


def of_state(state: Mapping[str, Any]) -> Peer | None:
    """Return whom the server noted; None where it noted no caller."""
    found = state.get(KEY)
    return found if isinstance(found, Peer) else None
