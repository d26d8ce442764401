"""Serves small applications over plain HTTP: probes, figures, an extender's calls, faults of simulated silicon.

The API's server (`server`) would take 3 MB of every agent for three pages. This one has neither TLS nor WebSockets: h11
reads the requests, one task answers a connection, and no connection outlives the server. Slow clients, and connections
beyond the limits, are refused as the API's server does (`sockets.Limits`).

Source: ASGI specification, "HTTP"; RFC 9112.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import h11

from fairlead import telemetry
from fairlead.serve import onelength, sockets
from fairlead.serve.limits import address as addresses
from fairlead.serve.limits.places import Places

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_LARGEST_HEAD: Final = 16 << 10
_READ: Final = 64 << 10
_FULL_S: Final = 1.0
"""Wait before the next accept after one failed, as when this process may open no more files."""


async def serve_at(app: App, listener: socket.socket, *, limits: sockets.Limits = sockets.LIMITS) -> None:
    """Serve an application on a listening socket until cancelled; then close it and every connection."""
    loop, places, judged = asyncio.get_running_loop(), Places(), onelength.ensure(app)

    async def answer(connection: socket.socket, client: str) -> None:
        place = places.take(client)
        is_full = len(places) > limits.connections or places.of(client) > limits.per_address
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                with contextlib.suppress(_Gone):
                    await _Connection(reader, writer, judged, limits).run(is_full=is_full)
            finally:
                writer.close()
        finally:
            place.give_back()

    with contextlib.closing(listener):
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:
                    telemetry.log.warning("connection not accepted", error=str(error))
                    await asyncio.sleep(_FULL_S)
                else:
                    client = addresses.network(address[0]) if isinstance(address, tuple) else ""
                    tasks.create_task(answer(connection, client), name="connection")
                    await asyncio.sleep(0)  # a task that is cancelled before its first step closes nothing


async def serve_unix(
    app: App, path: Path, *, ready: asyncio.Event | None = None, limits: sockets.Limits = sockets.LIMITS
) -> None:
    """Serve an application on a unix socket that its owner alone may open, until cancelled, then remove the socket.

    Args:    ready: set as soon as clients can connect.
    Raises:  as `sockets.listen`.
    """
    with sockets.bound(path) as listener:
        if ready is not None:
            ready.set()
        await serve_at(app, listener, limits=limits)


class _Gone(Exception):
    """The client has ended the connection, or takes nothing in: there is no one to answer."""


class _Refused(Exception):
    """The request is answered with a status alone, and the connection is closed."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Connection:
    """One client's requests, one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, app: App, limits: sockets.Limits
    ) -> None:
        self._reader, self._writer, self._app, self._limits = reader, writer, app, limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        self._body_due = 0.0
        """When the request's body must be whole, on the loop's clock."""

    async def run(self, *, is_full: bool) -> None:
        """Answer until either side ends it. Args: is_full: there are too many connections to answer this one."""
        if is_full:
            await self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            while (request := await self._request()) is not None:
                await self._answer(request)
                if not self._is_whole():
                    return
                self._http.start_next_cycle()
        except _Refused as refused:
            await self._refuse(refused.status)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)

    async def _request(self) -> h11.Request | None:
        """Wait for a request's head; None: the client has ended the connection. Raises: _Refused: it took too long."""
        try:
            async with asyncio.timeout(self._limits.head_s):
                event = await self._event()
        except TimeoutError:
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT) from None
        self._body_due = asyncio.get_running_loop().time() + self._limits.body_s
        return event if isinstance(event, h11.Request) else None

    def _is_whole(self) -> bool:
        """Return whether request and answer have ended, so that another request may follow."""
        while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
            pass  # body that has come and the application did not read: the end, most often
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                self._http.receive_data(await self._reader.read(_READ))
            except OSError as error:
                raise _Gone from error
        return event

    async def _receive(self) -> Message:
        """Give the application the next part of the body, as ASGI has it."""
        if self._http.their_state is h11.SEND_BODY:
            with contextlib.suppress(TimeoutError, h11.RemoteProtocolError, _Gone):
                async with asyncio.timeout_at(self._body_due):
                    event = await self._event()
                body = bytes(event.data) if isinstance(event, h11.Data) else b""
                return {"type": "http.request", "body": body, "more_body": isinstance(event, h11.Data)}
        return {"type": "http.disconnect"}

    async def _answer(self, request: h11.Request) -> None:
        path, _, query = request.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "path": urllib.parse.unquote(path.decode("ascii")),
            "query_string": query,
            "headers": list(request.headers),
        }
        try:
            await self._app(scope, self._receive, self._send)
        except _Gone:
            raise
        except Exception as error:
            telemetry.log.error("request failed by a bug", method=scope["method"], path=scope["path"], exc_info=error)
            raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from error

    async def _send(self, message: Message) -> None:
        """Write what the application answers, as ASGI has it."""
        if message["type"] == "http.response.start":
            await self._write(h11.Response(status_code=message["status"], headers=[*message["headers"], *_dated()]))
        else:
            await self._write(h11.Data(data=message.get("body", b"")))
            if not message.get("more_body"):
                await self._write(h11.EndOfMessage())

    async def _refuse(self, status: int) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [("connection", "close"), ("content-length", "0"), *_dated()]
            await self._write(h11.Response(status_code=status, headers=headers))
            await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Event) -> None:
        """Write to the client. Raises: _Gone."""
        self._writer.write(self._http.send(event) or b"")
        try:
            async with asyncio.timeout(self._limits.body_s):
                await self._writer.drain()
        except OSError as error:  # TimeoutError is one
            self._writer.transport.abort()
            raise _Gone from error


def _dated() -> tuple[tuple[str, str]]:
    """Return the header that every answer needs. Source: RFC 9110, 6.6.1 and 5.6.7."""
    return (("date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),)
