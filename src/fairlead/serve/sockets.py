"""Makes the sockets that a process listens on, and says how long and how often clients may keep a server waiting.

A unix socket is made beside its final name, given its group and mode and renamed into place, so that no client can
connect to it before they are right, and a socket that a dead service left behind is replaced in the same step.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, temporary

_LONGEST: Final = 107  # sun_path holds 108 bytes with its closing NUL (unix(7))
_OTHER_FILES: Final = 512
_BESIDE: Final = len("/.s12345678/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how often clients may keep a server waiting."""

    head_s: float = 10.0
    """From the connection, or from the first byte of a later request, to the end of the request's headers."""
    body_s: float = 60.0
    """From there to the end of its body, which has a few MB at most."""
    connections: int = 2048
    """Open at once; each open stream is one."""
    per_user: int = 128
    """Of those, for each user but root and the user of the service."""
    reserved: int = 256
    """Of those, kept for root and the user of the service: others cannot shut the administrator out."""
    per_address: int = 256
    """On TCP, for each address; a /64 of IPv6 counts as one."""
    handshakes: int = 256
    """TLS handshakes open at once, which cost 256 KiB each; further connections are closed."""
    handshakes_per_address: int = 64
    handshake_s: float = 10.0
    """From the connection to the end of its TLS handshake."""


LIMITS: Final = Limits()


def make_room(connections: int) -> None:
    """Raise this process's limit of open files so that it can hold connections, as far as its hard limit allows.

    Raises: Invalid (`ConnectionsInvalid`): it does not allow so many, or fewer than one is asked for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if connections < 1 or (hard != resource.RLIM_INFINITY and wanted > hard):
        message = f"api.connections is {connections}: this process may open {hard} files, {_OTHER_FILES} for other uses"
        hint = "set LimitNOFILE= in its unit, or `ulimit -n`; or fewer connections"
        raise errors.Invalid(message, reason="ConnectionsInvalid", hint=hint)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(path: Path, *, group: int | None = None) -> socket.socket:
    """Return a socket that listens at `path`; whatever a dead service left there is replaced.

    Args:   group: id of the group that may connect; None: its owner alone.
    Raises: Conflict (`ServiceRunning`): another service answers there, or the path is not a socket.
            Invalid: the path is longer than the kernel takes.   Unavailable: the folder cannot be written.
    """
    if max(len(str(path).encode()), len(str(path.parent).encode()) + _BESIDE) > _LONGEST:
        message = f"socket path {path} is too long for the kernel"
        raise errors.Invalid(message, reason="SocketPathTooLong", hint="choose another --api-socket")
    _refuse_living(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.sweep((temporary.SOCKET,), path.parent)
        with temporary.folder(temporary.SOCKET, path.parent) as folder:
            unbound = folder / "s"
            listener.bind(str(unbound))
            if group is not None:
                os.chown(unbound, -1, group)
            unbound.chmod(0o600 if group is None else 0o660)
            listener.listen(128)
            unbound.rename(path)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="SocketUnusable", hint="choose another --api-socket") from error
    listener.setblocking(False)
    return listener


def _refuse_living(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        message = f"{path} is in the way: it is not a socket"
        raise errors.Conflict(message, reason="SocketPathTaken", hint="remove it, or choose another --api-socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1)
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            probe.connect(str(path))
            message = f"another service answers at {path}"
            raise errors.Conflict(
                message, reason="ServiceRunning", hint="`fairlead status` asks it; `fairlead down` ends it"
            )


@contextlib.contextmanager
def bound(path: Path, *, group: int | None = None) -> Iterator[socket.socket]:
    """Give a socket that listens at `path`, and remove it afterwards unless a later service put its own there.

    Raises: as `listen`.
    """
    listener = listen(path, group=group)
    mine = path.stat().st_ino
    try:
        yield listener
    finally:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == mine:
                path.unlink()


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at `host:port`; no host means every address of the machine.

    Raises: Invalid: the address is none.   Unavailable: it is taken, or not this machine's.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        hint = "write host:port, for example 127.0.0.1:9400 or :9400"
        raise errors.Invalid(f'"{address}" is not an address to listen at', reason="AddressInvalid", hint=hint)
    bare = host.removeprefix("[").removesuffix("]")
    try:
        # Without a host both families, where the kernel has both.
        dual = not bare and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in bare else socket.AF_INET
        listener = socket.create_server((bare, int(port)), family=family, dualstack_ipv6=dual)
        # Connections inherit it; asyncio's own setting is left out for sockets whose protocol is not named. Without,
        # the body of an answer waits 40 ms for the acknowledgement of its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        message = f"cannot listen at {address}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="AddressUnusable", hint="choose another address") from error
    listener.setblocking(False)
    return listener
