"""Serves applications on a unix socket that only its owner, or a group, may open, or on an address.

The unix socket is made beside its final name, given its group and mode and renamed into place, so that no client can
connect to it before they are right, and a socket that a dead service left behind is replaced in the same step. Each
request on it carries who connected (`peer`). Signals are left to the caller: cancelling the task ends the service, open
requests get two seconds. Who connects and does not ask, or asks byte by byte, is hung up on (`Limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import h11
import uvicorn
from uvicorn.protocols.http import h11_impl

from fairlead import errors
from fairlead.kernel import socketpeer
from fairlead.serve import peer
from fairlead.serve.limits import address as addresses

_LONGEST: Final = 107  # sun_path holds 108 bytes with its closing NUL (unix(7))
_BESIDE: Final = len("/.s12345678/s")
_GRACE_S: Final = 2


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
    """Of those, one user's who is not root."""
    reserved: int = 256
    """Of those, kept for root: users cannot shut the administrator out."""
    per_address: int = 256
    """Of a socket of TLS, one address' of the network; a /64 of IPv6 is one."""


LIMITS: Final = Limits()


class _Connection(h11_impl.H11Protocol):
    """One connection: hung up on if a request does not come to its end in time, refused if there are too many.

    The server's own timeouts begin after an answer. A client that sends a byte now and then would keep a connection,
    and a file descriptor, for ever.
    """

    limits = LIMITS
    _waits_for: Any = None
    """The state of the client's side that the timer was set for."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        caller = None if connection is None else socketpeer.read(connection)
        self.app_state = {**self.app_state, peer.KEY: caller}
        if self._is_one_too_many(caller):
            self._refuse(b"503 Service Unavailable")
        else:
            self._watch()

    def _is_one_too_many(self, caller: socketpeer.Peer | None) -> bool:
        limits, now = self.limits, len(self.connections)
        if caller is None and self.client is not None:
            clients = (getattr(one, "client", None) for one in self.connections)
            network = addresses.network(self.client[0])
            same = sum(one is not None and addresses.network(one[0]) == network for one in clients)
            return same > limits.per_address or now > limits.connections
        if caller is None or caller.uid in {0, os.geteuid()}:
            return now > limits.connections
        known = (peer.of_state(getattr(one, "app_state", {})) for one in self.connections)
        own = sum(one is not None and one.uid == caller.uid for one in known)
        return own > limits.per_user or now > limits.connections - limits.reserved

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unwatch()  # the server's own timeout has begun

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer for what the client owes now; what it owes already goes on counting."""
        owed = self.conn.their_state
        given_s = {h11.IDLE: self.limits.head_s, h11.SEND_BODY: self.limits.body_s}.get(owed)
        if given_s is None or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._unwatch()
        elif owed is not self._waits_for:
            self._unwatch()
            self._waits_for = owed
            self._timer = self.loop.call_later(given_s, self._late)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._waits_for = None

    def _late(self) -> None:
        self._timer = None
        if self._waits_for is h11.IDLE:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()


_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


def _with_one_length(app: Any) -> Any:
    """Refuse a request that states the length of its body twice, and end its connection.

    h11 believes Transfer-Encoding. A proxy that believes the other sees another request behind it.
    Source: RFC 9112 section 6.1.
    """

    async def judged(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not {name for name, _ in scope["headers"]} >= _LENGTHS:
            await app(scope, receive, send)
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return judged


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        with tempfile.TemporaryDirectory(prefix=".s", dir=path.parent) as folder:
            temporary = Path(folder) / "s"
            listener.bind(str(temporary))
            if group is not None:
                os.chown(temporary, -1, group)
            temporary.chmod(0o600 if group is None else 0o660)
            listener.listen(128)
            temporary.rename(path)
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


async def serve_unix(
    app: Any,
    path: Path,
    *,
    ready: asyncio.Event | None = None,
    limits: Limits = LIMITS,
    group: int | None = None,
    has_websockets: bool = True,
) -> None:
    """Serve an ASGI application at `path` until cancelled, then remove the socket.

    Args:    ready: set as soon as clients can connect.   limits: on its clients.   group: as `listen`.
             has_websockets: False: plain HTTP alone, and 3 MB less are loaded.
    Raises:  as `listen`.
    """
    listener = listen(path, group=group)
    mine = _inode(path)
    try:
        if ready is not None:
            ready.set()
        await _serve(app, listener, ws="websockets-sansio" if has_websockets else "none", limits=limits)
    finally:
        _remove(path, mine)


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
    except OSError as error:
        message = f"cannot listen at {address}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="AddressUnusable", hint="choose another address") from error
    listener.setblocking(False)
    return listener


async def serve_at(app: Any, listener: socket.socket) -> None:
    """Serve a plain HTTP application on a listening socket until cancelled, and close it."""
    with contextlib.closing(listener):
        await _serve(app, listener, ws="none")


async def serve_tls(app: Any, listener: socket.socket, context: ssl.SSLContext, *, limits: Limits = LIMITS) -> None:
    """Serve an application on a listening socket over TLS until cancelled, and close the socket.

    Args: context: a server's; what is loaded into it later holds for later connections.
    """
    with contextlib.closing(listener):
        await _serve(app, listener, ws="websockets-sansio", limits=limits, context=context)


async def _serve(
    app: Any,
    listener: socket.socket,
    *,
    ws: Literal["none", "websockets-sansio"],
    limits: Limits = LIMITS,
    context: ssl.SSLContext | None = None,
) -> None:
    config = uvicorn.Config(
        _with_one_length(app),
        ssl_context_factory=None if context is None else lambda _config, _default: context,
        http=type("Connection", (_Connection,), {"limits": limits}),
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # else who connects from this machine is who X-Forwarded-For says
        server_header=False,
        ws=ws,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    """Remove the socket unless a later service has put its own there."""
    with contextlib.suppress(FileNotFoundError):
        if _inode(path) == inode:
            path.unlink()
