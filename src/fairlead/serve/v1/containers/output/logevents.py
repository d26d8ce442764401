"""Turns a container's output into events, one a line, each with an id after which a client can resume.

An id is the time that the line was written at, and its number among those of the same moment, which engines give to all
lines of one read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.output import ErrorOutput, Notice
from fairlead.serve.api.eventstream import Message, end
from fairlead.serve.backend.containers import pods
from fairlead.serve.closing import closing
from fairlead.serve.v1.containers import view
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

_ID: Final = re.compile(r"([0-9]{1,10})\.([0-9]{9})-([0-9]{1,9})")
"""Ten digits of seconds: until 2286, and never a year of which no time can be written."""
_BEFORE_S: Final = 0.001
"""Output is read again from so long before, since engines compare times as floats, with rounding."""
_LONGEST: Final = 1 << 16
"""A line that never ends is sent in parts of so many bytes."""


@frozen
class Position:
    """Which line was read last."""

    moment: int
    """Nanoseconds since 1970."""
    number: int
    """Of the lines of that moment, from 1."""

    @property
    def since(self) -> float:
        """From when on output is read to find it."""
        return self.moment / 1e9 - _BEFORE_S

    def __str__(self) -> str:
        """Return the id."""
        return f"{self.moment // 10**9}.{self.moment % 10**9:09}-{self.number}"


def read(last: str) -> Position | None:
    """Return the position of an id; None: there is none. Raises: RequestError (`LastEventIDInvalid`)."""
    if not last:
        return None
    if (found := _ID.fullmatch(last)) is None:
        message = f'Last-Event-ID "{errors.readable(last[:80])}" is no id of this output'
        raise errors.RequestError(message, reason="LastEventIDInvalid", hint="leave it out to read from the beginning")
    seconds, fraction, number = found.groups()
    return Position(moment=int(seconds + fraction), number=int(number))


class _Lines:
    """Puts pieces together to lines that begin with a time."""

    def __init__(self) -> None:
        self._rest = {"stdout": b"", "stderr": b""}

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        stream = "stderr" if isinstance(piece, ErrorOutput) else "stdout"
        *whole, rest = (self._rest[stream] + piece).split(b"\n")
        if len(rest) > _LONGEST:
            # What follows has no time of its own: it keeps the time of the line's beginning.
            head = rest.partition(b" ")[0]
            whole, rest = [*whole, rest], head + b" "
        self._rest[stream] = rest
        return [(stream, line) for line in whole]

    def end(self) -> list[tuple[str, bytes]]:
        """Return what has no end of line."""
        found = [(stream, rest) for stream, rest in self._rest.items() if rest.partition(b" ")[2]]
        self._rest = dict.fromkeys(self._rest, b"")
        return found


class _Reader:
    """Gives lines their ids, and leaves out those that were read before."""

    def __init__(self, last: Position | None) -> None:
        self._last, self._now, self._at = last, Position(moment=0, number=0), ""

    def message(self, stream: str, line: bytes) -> Message | None:
        head, _, text = line.partition(b" ")
        at = head.decode(errors="replace")
        moment = timestamp.nanoseconds(at)
        if moment is None:  # from an engine that stamps each write, not each line: the line keeps the time before it
            at, text, moment = self._at, line, self._now.moment
        self._at = at
        number = self._now.number + 1 if moment == self._now.moment else 1
        self._now = Position(moment=moment, number=number)
        if (last := self._last) is not None:
            if moment < last.moment or (moment == last.moment and number < last.number):
                return None
            self._last = None  # from here on all is new, though a clock may be set back
            if self._now == last:
                return None
        data = {"at": at, "stream": stream, "text": text.decode(errors="replace")}
        return Message(data=data, id=str(self._now))


async def messages(
    store: Store, pod: core.Pod, pieces: AsyncIterator[bytes], last: Position | None
) -> AsyncIterator[Message]:
    """Yield an event for each line, `notice` where a run begins anew, and `end` with how the container ended.

    Args: pieces: output with times.
    """
    lines, reader = _Lines(), _Reader(last)
    async with closing(pieces) as found:
        async for piece in found:
            is_notice = isinstance(piece, Notice)
            for stream, line in lines.end() if is_notice else lines.feed(piece):
                if (one := reader.message(stream, line)) is not None:
                    yield one
            if is_notice:
                yield Message(event="notice", data={"text": piece.decode(errors="replace").strip()})
    for stream, line in lines.end():
        if (one := reader.message(stream, line)) is not None:
            yield one
    yield await _ended(store, pod)


async def _ended(store: Store, pod: core.Pod) -> Message:
    try:
        shown = view.container_view(await pods.find_pod(store, pod.metadata.name, pod.metadata.namespace))
    except errors.NotFound:
        return end("ContainerGone", state="gone", exit_code=None)
    reason = "ContainerEnded" if shown.state in view.ENDED else "Ended"
    return end(reason, state=shown.state, exit_code=shown.exit_code)
