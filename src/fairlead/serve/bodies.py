"""Gives request bodies a budget of memory, before they cost any: what is read, and what is made of it.

A body of 1.5 MB becomes some 60 MB of objects while it is judged, whatever the verdict. So the bytes that are being
read have a limit, in all and for each caller, beyond which a caller is asked to come again; and of what has been read,
so much at a time is handed to the application that its objects stay within bounds. Each caller has one such body in
turn, so that many from one delay those of another by one at most. Small bodies and requests without one pass untouched.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from fairlead.serve import peer
from fairlead.serve.limits import address as addresses

SMALL: Final = 16 << 10
"""Bytes of a body that need no turn: all connections of an address together make less of them than one large body."""
LARGEST: Final = 3 << 19
"""Bytes of the largest body, what etcd takes of one object; the application refuses what is larger."""
_READ: Final = 64 << 20
_READ_BY_ONE: Final = 8 * LARGEST
_IN_TURN: Final = 2 * LARGEST
"""Bytes of bodies that are judged at once."""
_TURN_S: Final = 5.0
"""A turn ends by then: a request that waits for a container keeps what it has made, and no other from its turn."""
_PAUSE_S: Final = 0.5
"""A turn is followed by a pause of its own length, at most so long: what is made of a large body takes the event loop
some 0.4 s, and a small request comes back to the loop a few times before its answer."""
_BUSY: Final = {
    "type": "urn:fairlead:error:BodiesBusy",
    "title": "Service Unavailable",
    "status": 503,
    "reason": "BodiesBusy",
    "detail": "more request bodies are being read than there is memory for; send it again in a second",
}


@dataclass(eq=False, slots=True)
class Turn:
    """One body whose objects count now, or that waits for it."""

    caller: object
    size: int
    begun: asyncio.Future[None]
    begun_at: float = 0.0
    """By the event loop's clock."""
    is_over: bool = False


class Budget:
    """What is read and judged now; one event loop's."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.read: Counter[object] = Counter()
        self._judged: list[Turn] = []
        self._waiting: list[Turn] = []
        self._pause: asyncio.TimerHandle | None = None
        """Runs after a turn: none begins meanwhile."""

    def reserve(self, caller: object, size: int) -> bool:
        """Take room for bytes to be read; returns whether there is any."""
        if self.read.total() + size > _READ or self.read[caller] + size > _READ_BY_ONE:
            return False
        self.read[caller] += size
        return True

    def give_back(self, caller: object, size: int) -> None:
        """Take back what `reserve` took."""
        self.read[caller] -= size
        if self.read[caller] <= 0:
            del self.read[caller]

    @property
    def judged(self) -> int:
        """Bytes of the bodies whose turn it is."""
        return sum(turn.size for turn in self._judged)

    async def begin(self, caller: object, size: int) -> Turn:
        """Wait until there is room for what is made of a body, one of each caller at a time."""
        turn = Turn(caller, size, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._wake()
        try:
            await turn.begun
        except asyncio.CancelledError:
            self.end(turn)
            raise
        return turn

    def end(self, turn: Turn) -> None:
        """Let others have a turn's room; idempotent."""
        if turn.is_over:
            return
        turn.is_over = True
        if turn in self._judged:
            self._judged.remove(turn)
            loop = asyncio.get_running_loop()
            if self._pause is not None:
                self._pause.cancel()
            self._pause = loop.call_later(min(loop.time() - turn.begun_at, _PAUSE_S), self._resume)
        else:
            self._waiting.remove(turn)
            self._wake()

    def _resume(self) -> None:
        self._pause = None
        self._wake()

    def _wake(self) -> None:
        """Begin turns in their order; who has one already lets others pass, who needs more room does not."""
        if self._pause is not None:
            return
        for turn in tuple(self._waiting):
            if any(other.caller == turn.caller for other in self._judged):
                continue
            if self._judged and self.judged + turn.size > _IN_TURN:
                return
            self._waiting.remove(turn)
            self._judged.append(turn)
            turn.begun_at = asyncio.get_running_loop().time()
            turn.begun.set_result(None)


def ensure(app: Any) -> Any:
    """Return an application whose large bodies are read and judged within a budget of its own."""
    budget = Budget()

    async def budgeted(scope: Any, receive: Any, send: Any) -> None:
        size = _size(scope) if scope["type"] == "http" else 0
        if size <= SMALL or size > LARGEST:  # what says that it is too large is refused without being read
            await app(scope, receive, send)
            return
        caller = _caller(scope)
        if not budget.reserve(caller, size):
            await _refuse(receive, send)
            return
        try:
            body, is_whole = await _read(receive)
            if is_whole:
                await _judge(budget, caller, body, (app, scope, receive, send))
        finally:
            budget.give_back(caller, size)

    return budgeted


async def _judge(budget: Budget, caller: object, body: bytes, call: tuple[Any, Any, Any, Any]) -> None:
    """Call the application with a body in its turn; the turn ends with the answer's beginning, or after a while."""
    app, scope, receive, send = call
    turn = await budget.begin(caller, len(body))
    late = asyncio.get_running_loop().call_later(_TURN_S, budget.end, turn)

    async def heard(message: Any) -> None:
        budget.end(turn)
        await send(message)

    try:
        await app(scope, _again(body, receive), heard)
    finally:
        late.cancel()
        budget.end(turn)


def _size(scope: Any) -> int:
    """Return how long a body says that it will be; one that does not say counts as the largest."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return LARGEST
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def _caller(scope: Any) -> object:
    found = peer.of_state(scope.get("state", {}))
    if found is not None:
        return found.uid
    client = scope.get("client")
    return addresses.network(client[0]) if client else None


async def _read(receive: Any) -> tuple[bytes, bool]:
    """Return a body, up to the largest and a byte, and whether the caller has stayed until its end."""
    parts, size = [], 0
    while size <= LARGEST:
        message = await receive()
        if message["type"] != "http.request":
            return b"", False
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            break
    return b"".join(parts), True


def _again(body: bytes, receive: Any) -> Any:
    """Return a `receive` that gives the body once, and then what comes after it."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(receive: Any, send: Any) -> None:
    """Let a body pass without keeping any of it, so that the caller hears the answer, and ask it to come again."""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        if not message.get("more_body"):
            break
    body = json.dumps(_BUSY).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
