"""Carries a WebSocket to a container's server: a handshake of its own on that side, and messages both ways.

The handshake with the container is made and judged by `websockets`, with a key of its own: a server cannot turn a
connection into something else by an answer that only looks like an upgrade. No extensions are offered, so that a small
frame stays small. A message from a container is held until it is whole, within a budget of all callers and of each.
Source: RFC 6455 sections 4, 5.4 and 7.4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from websockets import exceptions
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from fairlead import errors
from fairlead.serve.opened import heads, racing
from fairlead.serve.opened.upstream import Patience, Receive, Request, Send
from fairlead.store.subresource import Connection

_LARGEST: Final = 16 << 20
"""Bytes of a message from a container; from a browser it is 1 MiB (`serve.server`)."""
_LARGEST_REFUSAL: Final = 1 << 16
_HELD: Final = 128 << 20
"""Bytes of messages that are not whole yet, of all callers."""
_HELD_OF_ONE: Final = 32 << 20
_NORMAL, _LEAVES, _UNFIT, _POLICY, _LATER, _BROKEN = 1000, 1001, 1007, 1008, 1013, 1011
"""Source: RFC 6455 section 7.4.1; 1013: IANA WebSocket Close Code registry."""
_LONGEST_REASON: Final = 123
"""Bytes that a close frame has beside its code."""
_CLIENT, _ENDED = 1, 2


class Held:
    """Bytes of messages that are not whole yet; one event loop's."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.by: Counter[str] = Counter()

    def take(self, caller: str, size: int) -> bool:
        """Take room for bytes; returns whether there is any."""
        if self.by.total() + size > _HELD or self.by[caller] + size > _HELD_OF_ONE:
            return False
        self.by[caller] += size
        return True

    def give_back(self, caller: str, size: int) -> None:
        """Take back what `take` took."""
        self.by[caller] -= size
        if self.by[caller] <= 0:
            del self.by[caller]


@dataclass(slots=True)
class Carriage:
    """One WebSocket."""

    connection: Connection
    asked: Request
    offered: list[str]
    """Subprotocols."""
    receive: Receive
    send: Send
    patience: Patience
    held: Held
    caller: str
    has_begun: bool = False
    """Whether the browser's side is open, or was answered."""
    _server: ClientProtocol = field(init=False)
    _pieces: list[bytes] = field(init=False, default_factory=list)
    """Of the message that is not whole yet."""
    _is_text: bool = field(init=False, default=False)
    _size: int = field(init=False, default=0)
    """Bytes that are held."""
    _early: list[Any] = field(init=False, default_factory=list)
    """Frames that came with the handshake's answer."""
    _is_over: bool = field(init=False, default=False)
    """Whether the container sends no more."""
    _idle: asyncio.Timeout | None = field(init=False, default=None)
    """Ends a WebSocket by which nothing is carried; None: its handshakes go on."""

    def __post_init__(self) -> None:
        path, _, query = self.asked.target.decode("latin-1").partition("?")
        uri = WebSocketURI(secure=False, host="localhost", port=80, path=path, query=query)
        offered = [Subprotocol(one) for one in self.offered] or None
        self._server = ClientProtocol(uri, subprotocols=offered, max_size=_LARGEST)

    async def carry(self, ended: racing.Step) -> None:
        """Carry it until either side is over, or the grant ends.

        Args:   ended: returns once the grant has ended.
        Raises: ProtocolError: the server does not speak HTTP; TimeoutError: it does not answer; Unavailable: nobody
                listens (`PortRefused`), or the connection broke, before the browser's side is open.
        """
        try:
            async with asyncio.timeout(self.patience.head_s):
                answer = await self._handshake()
            if self._server.handshake_exc is not None:
                await self._refuse(answer)
                return
            await self._accept(answer)
            await self._both(ended)
        finally:
            self._let_go()

    async def _handshake(self) -> Response:
        request = self._server.connect()
        del request.headers["Host"]
        for name, value in self.asked.headers:
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._server.send_request(request)
        await self._flush()
        while True:
            answer, *self._early = self._server.events_received() or (None,)
            if isinstance(answer, Response):
                return answer
            if isinstance(self._server.handshake_exc, exceptions.InvalidMessage | exceptions.StatusLineTooLong):
                message = "what the container's server answered is not HTTP"
                raise errors.ProtocolError(message, reason="AnswerInvalid", hint="is it a web server?")
            await self._take()

    async def _take(self) -> None:
        """Read once, and answer what the protocol answers by itself: pings, and a close."""
        if data := await self.connection.read():
            self._server.receive_data(data)
            self._stir()
        else:
            self._is_over = True
            self._server.receive_eof()

    def _stir(self) -> None:
        """Begin to wait again for something to be carried."""
        if self._idle is not None:
            self._idle.reschedule(asyncio.get_running_loop().time() + self.patience.idle_s)

    async def _flush(self) -> None:
        for data in self._server.data_to_send():
            if data:
                await self.connection.write(data)

    def _headers(self, answer: Response) -> list[heads.Header]:
        given = answer.headers.raw_items()
        raw = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in given]
        return list(heads.response(raw, self.asked.host))

    async def _refuse(self, answer: Response) -> None:
        """Answer the browser's handshake as the container's server did."""
        headers = [one for one in self._headers(answer) if one[0] != b"content-length"]
        status = answer.status_code if answer.status_code >= 300 else 502  # a 101 that is none, or no upgrade at all
        body = bytes(answer.body or b"")[:_LARGEST_REFUSAL]
        self.has_begun = True
        await self.send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await self.send({"type": "websocket.http.response.body", "body": body})

    async def _accept(self, answer: Response) -> None:
        headers = [one for one in self._headers(answer) if one[0] == b"set-cookie"]
        chosen = self._server.subprotocol
        self.has_begun = True
        await self.send({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})

    async def _both(self, ended: racing.Step) -> None:
        place, code = 0, _BROKEN
        with contextlib.suppress(errors.Unavailable, TimeoutError, OSError):
            async with asyncio.timeout(self.patience.idle_s) as self._idle:
                place = await racing.first(self._from_container, self._from_browser, ended)
            code = _LEAVES if place == _CLIENT else _POLICY if place == _ENDED else self._code()
        with contextlib.suppress(exceptions.InvalidState):  # it was closed already
            self._server.send_close(code)
        with contextlib.suppress(errors.Unavailable, OSError):
            await self._flush()
        if place != _CLIENT:
            with contextlib.suppress(OSError):
                reason = "closed by Fairlead: open it again from the console" if place == _ENDED else self._reason()
                await self.send({"type": "websocket.close", "code": code, "reason": reason})

    def _code(self) -> int:
        """Return the code that the browser's side is closed with: the container's, if it is one that may be sent."""
        given = self._server.close_rcvd or self._server.close_sent
        if given is None or given.code in {1005, 1006, 1015}:
            return _NORMAL if given is not None else _BROKEN
        return int(given.code)

    def _reason(self) -> str:
        given = self._server.close_rcvd
        return given.reason.encode()[:_LONGEST_REASON].decode(errors="ignore") if given is not None else ""

    async def _from_container(self) -> None:
        """Pass the container's messages on until it closes."""
        while True:
            events, self._early = [*self._early, *self._server.events_received()], []
            for event in events:
                if isinstance(event, Frame) and not await self._got(event):
                    return
            await self._flush()
            if self._is_over or self._server.close_expected():
                return
            await self._take()
            if not self._hold(len(self._server.reader.buffer)):
                self._server.fail(_LATER, "too much is being carried")

    def _hold(self, unread: int) -> bool:
        """Count what is held of a message that is not whole; returns whether there is room for it."""
        size = unread + sum(map(len, self._pieces))
        if size > self._size and not self.held.take(self.caller, size - self._size):
            return False
        if size < self._size:
            self.held.give_back(self.caller, self._size - size)
        self._size = size
        return True

    def _let_go(self) -> None:
        if self._size:
            self.held.give_back(self.caller, self._size)
        self._size = 0

    async def _got(self, frame: Frame) -> bool:
        """Take in one frame; returns whether there may be another."""
        if frame.opcode is Opcode.CLOSE:
            return False
        if frame.opcode not in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
            return True
        if frame.opcode is not Opcode.CONT:
            self._is_text, self._pieces = frame.opcode is Opcode.TEXT, []
        self._pieces.append(bytes(frame.data))
        if not frame.fin:
            return True
        data, self._pieces = b"".join(self._pieces), []
        try:
            carried = {"text": data.decode()} if self._is_text else {"bytes": data}
        except UnicodeDecodeError:
            self._server.fail(_UNFIT, "a text is not UTF-8")
            return False
        await self.send({"type": "websocket.send", **carried})
        return True

    async def _from_browser(self) -> None:
        """Pass the browser's messages on until it leaves."""
        while True:
            message = await self.receive()
            self._stir()
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] != "websocket.receive":
                continue
            data, text = message.get("bytes"), message.get("text")
            if data is not None:
                self._server.send_binary(data)
            else:
                self._server.send_text(str(text or "").encode())
            await self._flush()
