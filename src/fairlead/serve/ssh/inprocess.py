"""Opens WebSockets of the API in this process, and asks it, as the account of an SSH key.

The door knows nothing but what `/v1` answers: who may enter a container, and what is written into the audit log, is
decided where it is decided for everybody else.
Source: ASGI specification, "WebSocket" and "Websocket Denial Response".
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve import peer
from fairlead.serve.accounts import sshkeys
from fairlead.wire.fairlead import problem

_QUEUED: Final = 4
"""Messages on their way in each direction."""
_LARGEST: Final = 1 << 16
"""Bytes of a refusal."""


@frozen
class Visitor:
    """Who is connected."""

    fingerprint: str
    address: str
    port: int


class Socket:
    """One WebSocket from its client's side."""

    def __init__(self) -> None:
        """Not connected yet: `opened` does that."""
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_QUEUED)
        self.outgoing: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_QUEUED)
        self.gone = asyncio.Event()
        self._refusal = bytearray()

    async def send(self, *, data: bytes | None = None, text: str | None = None) -> None:
        """Send a frame; waits while the application takes none."""
        await self.outgoing.put({"type": "websocket.receive", "bytes": data, "text": text})

    async def receive(self) -> bytes | str | None:
        """Return the next frame; None: it is over. Raises: FairleadError: the application refuses it."""
        while True:
            message = await self.incoming.get()
            match message["type"]:
                case "websocket.send":
                    data = message.get("bytes")
                    return bytes(data) if data is not None else str(message.get("text") or "")
                case "websocket.close":
                    return None
                case "websocket.http.response.body":
                    self._refusal += bytes(message.get("body", b""))[:_LARGEST]
                    if len(self._refusal) > _LARGEST or not message.get("more_body", False):
                        raise refused(bytes(self._refusal))


def refused(body: bytes) -> errors.FairleadError:
    """Return the error of a problem document."""
    with contextlib.suppress(msgspec.MsgspecError):
        return problem.error_of(msgspec.json.decode(body, type=problem.Problem))
    message, hint = "the service refused this and did not say why", "its log may"
    return errors.Unavailable(message, reason="AnswerInvalid", hint=hint)


def _scope(visitor: Visitor, path: str, gone: asyncio.Event) -> dict[str, Any]:
    return {
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "path": path,
        "raw_path": urllib.parse.quote(path).encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"ssh")],
        "client": (visitor.address, visitor.port),
        "server": ("ssh", 0),
        "state": {sshkeys.FINGERPRINT: visitor.fingerprint, peer.GONE: gone},
    }


async def asked(app: Any, visitor: Visitor, path: str) -> bytes:
    """Return what the API answers to a GET. Raises: FairleadError: as it says."""
    gone = asyncio.Event()
    status, body = 0, bytearray()
    is_asked = False

    async def receive() -> dict[str, Any]:
        nonlocal is_asked
        if is_asked:
            await gone.wait()
            return {"type": "http.disconnect"}
        is_asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = int(message.get("status", status))
        body.extend(message.get("body", b""))

    try:
        await app({**_scope(visitor, path, gone), "type": "http", "method": "GET", "scheme": "http"}, receive, send)
    finally:
        gone.set()
    if status != http.HTTPStatus.OK:
        raise refused(bytes(body))
    return bytes(body)


@contextlib.asynccontextmanager
async def opened(app: Any, visitor: Visitor, path: str, query: Sequence[tuple[str, str]] = ()) -> AsyncIterator[Socket]:
    """Give a WebSocket of the API; it is over with the block."""
    socket = Socket()
    scope = {
        **_scope(visitor, path, socket.gone),
        "type": "websocket",
        "scheme": "ws",
        "query_string": urllib.parse.urlencode(query).encode(),
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    is_connected = False

    async def receive() -> dict[str, Any]:
        nonlocal is_connected
        if not is_connected:
            is_connected = True
            return {"type": "websocket.connect"}
        return await socket.outgoing.get() or {"type": "websocket.disconnect", "code": 1001}

    async def served() -> None:
        try:
            await app(scope, receive, socket.incoming.put)
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                socket.incoming.put_nowait({"type": "websocket.close"})

    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(served(), name="SSH request")
        try:
            yield socket
        except Exception as error:  # noqa: BLE001 raised below: out of the group it would be in a group of its own
            failure = error
        finally:
            socket.gone.set()
            await _finished(task, socket)
    if failure is not None:
        raise failure


async def _finished(task: asyncio.Task[None], socket: Socket) -> None:
    """Have the application notice that its client left, and end: it closes what it opened."""
    while not task.done():
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                socket.incoming.get_nowait()
        with contextlib.suppress(asyncio.QueueFull):
            socket.outgoing.put_nowait(None)
        await asyncio.wait((task,), timeout=0.1)
