"""Ends the requests of a server that is being stopped, so that their clients can go on with the next one.

What only reads is ended at once: before its answer begins with 503 and `Retry-After`, a stream with a last line or
event that says why, and a stream of bytes, which has no such end, by cutting its connection. What changes something
gets more time, and its wait for a state (`patience`) ends as if its client had hung up: the change is answered as it is
by then.
A cancelled request is an ordinary end here, so none is logged as a failure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.serve import peer
from fairlead.wire.fairlead import problem

REASON: Final = "ServiceStopping"
RETRY_S: Final = 2
"""How soon a client may come again; another service is up by then, or a few seconds later."""
_READING: Final = frozenset({"GET", "HEAD"})
_LINES, _EVENTS = b"application/x-ndjson", b"text/event-stream"


def _problem() -> problem.Problem:
    message, hint = "the service is being stopped", "it goes on once the service is started again"
    return problem.problem_of(errors.Unavailable(message, reason=REASON, hint=hint))


class Stopping:
    """An application whose requests can be ended."""

    def __init__(self, app: Any) -> None:
        """Take the application that answers until then."""
        self._app = app
        self._is_stopping = False
        self._running: dict[asyncio.Task[Any], _Exchange] = {}

    def begin(self) -> None:
        """End what reads and what waits, and refuse what comes from now on."""
        self._is_stopping = True
        for task, exchange in list(self._running.items()):
            if exchange.method in _READING:
                task.cancel()
            else:
                exchange.end_wait()

    def end(self) -> None:
        """End what is still there."""
        for task in list(self._running):
            task.cancel()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request or a WebSocket."""
        task = asyncio.current_task()
        if task is None or scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        if self._is_stopping and scope["type"] == "http":
            await exchange.close()
            return
        self._running[task] = exchange
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            task.uncancel()
            try:
                await exchange.close()
            except asyncio.CancelledError:
                exchange.hang_up()  # its client takes nothing in
        finally:
            del self._running[task]


@dataclass(slots=True)
class _Exchange:
    """One request: how far its answer is."""

    scope: Any
    _receive: Any
    _send: Any
    _kind: bytes | None = None
    """Media type of the answer that has begun; empty: it names none."""
    _is_read: bool = False
    _is_whole: bool = False
    _waiting: asyncio.Task[Any] | None = None
    """Waits for the client to hang up."""
    _is_ended: bool = False

    @property
    def method(self) -> str:
        return str(self.scope.get("method", ""))

    async def receive(self) -> Any:
        if not self._is_read:
            message = await self._receive()
            self._is_read = message["type"] == "http.request" and not message.get("more_body")
            return message
        if self._is_ended:
            return {"type": "http.disconnect"}
        self._waiting = task = asyncio.current_task()
        try:
            return await self._receive()
        except asyncio.CancelledError:
            # `end_wait` has cancelled it, and forgot it; a second cancellation beside ours is another's.
            if task is None or task is self._waiting or task.uncancel():
                raise
            return {"type": "http.disconnect"}
        finally:
            self._waiting = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            found = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
            self._kind = found[0].partition(b";")[0] if found else b""
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_whole = True

    def end_wait(self) -> None:
        """Have what waits for the client's end believe that it came."""
        self._is_ended = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def close(self) -> None:
        """Finish the answer, in the way that its form allows."""
        if self._is_whole or self.scope["type"] != "http":
            return  # a WebSocket is closed by its server, with 1012
        if self._kind is None:
            await self._refuse()
        elif self._kind == _LINES:
            last = msgspec.json.encode({"problem": _problem()}) + b"\n"
            await self._send({"type": "http.response.body", "body": last})
        elif self._kind == _EVENTS:
            said = b"retry: %d000\nevent: problem\ndata: %b\n\n" % (RETRY_S, msgspec.json.encode(_problem()))
            await self._send({"type": "http.response.body", "body": said})
        else:
            await self._cut()

    async def _refuse(self) -> None:
        body = msgspec.json.encode(_problem())
        headers = [
            (b"content-type", problem.MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", str(RETRY_S).encode()),
            (b"connection", b"close"),
        ]
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _cut(self) -> None:
        """Cut the connection, so that the reader sees that the answer is not whole."""
        if self.hang_up():
            while (await self._receive())["type"] != "http.disconnect":
                pass

    def hang_up(self) -> bool:
        """Drop the connection; False: the server offers no way to."""
        hang_up = (self.scope.get("state") or {}).get(peer.HANG_UP)
        if hang_up is not None:
            hang_up()
        return hang_up is not None
