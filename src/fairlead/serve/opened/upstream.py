"""Carries one request to a container's server and its answer back, as HTTP/1.1 over one connection of its own.

Both sides are parsed and written by h11: the service's server has read the request, this writes it again, and neither
passes on a byte that it did not understand. A connection carries one exchange and is closed, so that nothing that a
server sends beyond its answer can be taken for the answer to another request. Bodies go piece by piece, and a piece is
read once the one before it was taken.
Source: RFC 9112 sections 6, 9.6 and 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import h11

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.opened import heads, racing
from fairlead.store.subresource import Connection

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_LARGEST_HEAD: Final = 1 << 16
"""Bytes of an answer's head."""
_CLIENT: Final = 1
"""Place of what hears that the browser left."""


@frozen
class Patience:
    """How long what is carried may stand still."""

    head_s: float = 120.0
    """From the end of a request to the head of its answer."""
    body_s: float = 60.0
    """Between two pieces of a request's body."""
    idle_s: float = 3600.0
    """Between two pieces of an answer, or two messages of a WebSocket."""


@frozen
class Request:
    """One request, as the container's server is sent it."""

    method: str
    target: bytes
    headers: list[heads.Header]
    host: str


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    connection: Connection
    asked: Request
    receive: Receive
    send: Send
    patience: Patience
    has_begun: bool = False
    """Whether the browser has the head of an answer."""
    is_whole: bool = False
    """Whether it has all of it."""
    has_left: bool = False
    """Whether the browser hung up, or stopped sending."""
    _is_deaf: bool = False
    """Whether the server takes no more of the request."""
    _waiting: asyncio.Timeout = field(init=False, default_factory=lambda: asyncio.timeout(None))
    """For the head of the answer; begins to run with the end of the request."""

    async def carry(self, ended: racing.Step) -> None:
        """Carry it until it is over, the browser leaves, or the grant ends.

        Args:   ended: returns once the grant has ended.
        Raises: ProtocolError: the server does not speak HTTP; TimeoutError: it does not answer; Unavailable: the
                connection broke, or nobody listens (`PortRefused`).
        """
        server = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        asked, by = self.asked, (b"connection", b"close")
        head = h11.Request(method=asked.method, target=asked.target, headers=[*asked.headers, by])
        async with asyncio.timeout(self.patience.head_s):
            await self.connection.write(server.send(head) or b"")
        place = await racing.first(lambda: self._answer(server), lambda: self._feed(server), ended)
        self.has_left = place == _CLIENT

    async def _answer(self, server: h11.Connection) -> None:
        try:
            async with asyncio.timeout(None) as self._waiting:
                answer = await self._head(server)
            headers = list(heads.response(answer.headers, self.asked.host))
            self.has_begun = True
            await self.send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            while isinstance(event := await self._event(server, within_s=self.patience.idle_s), h11.Data):
                await self.send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        except h11.ProtocolError as error:
            message = f"what the container's server answered is not HTTP: {error}"
            raise errors.ProtocolError(message, reason="AnswerInvalid", hint="is it a web server?") from error
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})
        self.is_whole = True

    async def _head(self, server: h11.Connection) -> h11.Response:
        """Return the head of the answer itself; what comes before it (100, 103) is for the connection alone."""
        while not isinstance(event := await self._event(server, within_s=None), h11.Response):
            pass
        return event

    async def _event(self, server: h11.Connection, *, within_s: float | None) -> Any:
        """Return what the server sends next."""
        while (event := server.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(within_s):
                server.receive_data(await self.connection.read())
        return event

    async def _feed(self, server: h11.Connection) -> None:
        """Send the request's body; returns once the browser has left, or sends no more of what it announced."""
        is_read = False
        while True:
            try:
                async with asyncio.timeout(None if is_read else self.patience.body_s):
                    message = await self.receive()
            except TimeoutError:
                return
            if message["type"] != "http.request":
                return
            await self._pass(server, bytes(message.get("body", b"")))
            if not is_read and not message.get("more_body"):
                is_read = True
                await self._pass(server, None)
                self._waiting.reschedule(asyncio.get_running_loop().time() + self.patience.head_s)

    async def _pass(self, server: h11.Connection, data: bytes | None) -> None:
        """Send a piece of the body, None its end; a server that takes no more may have answered already."""
        if data == b"" or self._is_deaf:
            return
        try:
            event = h11.EndOfMessage() if data is None else h11.Data(data=data)
            await self.connection.write(server.send(event) or b"")
        except (errors.Unavailable, h11.LocalProtocolError):
            self._is_deaf = True
