"""Serves applications on a unix socket that only its owner, or a group, may open, or on an address.

Each request on a unix socket carries who connected (`peer`). Signals are left to the caller: cancelling the task ends
the service, open requests get two seconds. Who connects and does not ask, or asks byte by byte, is hung up on
(`sockets.Limits`). This is the API's server; a few pages of plain HTTP are served by `plainserver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import h11
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.websockets import websockets_sansio_impl

from fairlead import telemetry
from fairlead.kernel import heap, socketpeer
from fairlead.serve import accepted, bodies, onelength, peer, sockets, stopping

_GRACE_S: Final = 2
_CHANGES_S: Final = 1.5
"""How long requests that change something go on; uvicorn cancels what is left after `_GRACE_S`, and logs each."""
_PING_S = 20.0
_LARGEST_MESSAGE: Final = 1 << 20
"""Bytes of one WebSocket message; clients send pieces of 64 KiB."""


class _Connection(h11_impl.H11Protocol):
    """One connection: hung up on if a request does not come to its end in time, refused if there are too many.

    Uvicorn's own timeouts begin after an answer, so without these a client that sends a byte now and then would keep a
    connection, and a file descriptor, for ever. How many there are is counted by socket (`accepted`).
    """

    among: ClassVar[accepted.Connections] = accepted.Connections(sockets.LIMITS)
    """What is open beside it; each server has its own."""
    _waits_for: Any = None
    """The state of the client's side that the timer was set for."""
    _timer: asyncio.TimerHandle | None = None
    _takes_long: bool = False
    """Whether the application bounds the time of this request's body itself."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        caller = None if connection is None else socketpeer.read(connection)
        self.app_state = {
            **self.app_state,
            peer.KEY: caller,
            peer.HANG_UP: transport.abort,
            peer.TAKES_LONG: self._let_take_long,
        }
        counted = accepted.of(transport)
        if counted is not None:
            counted.establish()
        if counted is not None and self._is_one_too_many(counted.holder, caller):
            self._refuse(b"503 Service Unavailable")
        else:
            self._watch()

    def _is_one_too_many(self, holder: accepted.Holder, caller: socketpeer.Peer | None) -> bool:
        limits, own, now = self.among.limits, self.among.by.of(holder), len(self.among.by)
        if caller is None:
            return own > limits.per_address or now > limits.connections
        if caller.uid in {0, os.geteuid()}:
            return now > limits.connections
        return own > limits.per_user or now > limits.connections - limits.reserved

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def _let_take_long(self) -> None:
        self._takes_long = True
        self._watch()

    def on_response_complete(self) -> None:
        self._takes_long = False
        super().on_response_complete()
        self._unwatch()  # the server's own timeout has begun

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer for the part of the request that is awaited; a timer for the same part runs on."""
        owed = h11.DONE if self._takes_long else self.conn.their_state
        given_s = {h11.IDLE: self.among.limits.head_s, h11.SEND_BODY: self.among.limits.body_s}.get(owed)
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


class _Session(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """One WebSocket, whose handler hears of its end while it waits for something else than the next frame."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._gone = asyncio.Event()
        self.app_state = {**self.app_state, peer.GONE: self._gone}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone.set()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_unix(
    app: Any,
    path: Path,
    *,
    ready: asyncio.Event | None = None,
    limits: sockets.Limits = sockets.LIMITS,
    group: int | None = None,
    meter: telemetry.Meter = telemetry.UNMETERED,
) -> None:
    """Serve an ASGI application at `path` until cancelled, then remove the socket.

    Args:    ready: set as soon as clients can connect.   limits: on its clients.   group: as `sockets.listen`.
    Raises:  as `sockets.listen`.
    """
    with sockets.bound(path, group=group) as listener:
        if ready is not None:
            ready.set()
        await _serve(app, listener, limits=limits, meter=meter, door="socket")


async def serve_tls(
    app: Any,
    listener: socket.socket,
    context: ssl.SSLContext,
    *,
    limits: sockets.Limits = sockets.LIMITS,
    meter: telemetry.Meter = telemetry.UNMETERED,
    before: Callable[[Any], Any] = lambda app: app,
) -> None:
    """Serve an application on a listening socket over TLS until cancelled, and close the socket.

    Args: context: a server's; what is loaded into it later holds for later connections.   before: puts an application
          before the one that is given: its requests' bodies are neither held nor counted.
    """
    heap.return_large()  # each connection has 256 KiB to read into (asyncio.sslproto)
    with contextlib.closing(listener):
        await _serve(app, listener, limits=limits, context=context, meter=meter, door="tls", before=before)


async def _serve(
    app: Any,
    listener: socket.socket,
    *,
    limits: sockets.Limits = sockets.LIMITS,
    context: ssl.SSLContext | None = None,
    meter: telemetry.Meter = telemetry.UNMETERED,
    door: str = "socket",
    before: Callable[[Any], Any] = lambda app: app,
) -> None:
    connections = accepted.Connections(limits, lambda count: meter.set(telemetry.CONNECTIONS, count, door))
    requests = stopping.Stopping(onelength.ensure(before(bodies.ensure(app))))
    config = uvicorn.Config(
        requests,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
        http=type("Connection", (_Connection,), {"among": connections}),
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # else clients on this machine could name any address in X-Forwarded-For
        server_header=False,
        ws=_Session,
        # A ping that cannot be sent shows that a client is gone; no pong is awaited, as it queues behind unread frames.
        ws_ping_interval=_PING_S,
        ws_ping_timeout=None,
        ws_per_message_deflate=False,  # 60 KB would become 16 MB before the caller is known
        ws_max_size=_LARGEST_MESSAGE,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    counted = accepted.Listener(listener, connections, is_tls=context is not None)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[counted]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            requests.begin()
            last = asyncio.get_running_loop().call_later(_CHANGES_S, requests.end)
            server.should_exit = True
            await serving
            last.cancel()
            raise
