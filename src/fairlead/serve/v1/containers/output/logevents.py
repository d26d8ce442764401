"""Turns a container's output into events, one a line, or into bytes with marks: with ids to resume from.

An id is the time that the line was written at, and its number among those of the same moment, which engines give to all
lines of one read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.container.output import ErrorOutput, Mark, Notice
from fairlead.serve.api.eventstream import Message, end
from fairlead.serve.backend.containers import pods
from fairlead.serve.closing import closing
from fairlead.serve.v1.containers import view
from fairlead.store.port import Store
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

_ID: Final = re.compile(r"([0-9]{1,10})\.([0-9]{9})-([0-9]{1,9})")
"""Ten digits of seconds: until 2286, and never a year of which no time can be written."""
_BEFORE_S: Final = 0.001
"""Output is read again from so long before, since engines compare times as floats, with rounding."""
_LONGEST_HEAD: Final = 64
"""A line whose first bytes are not a time is not waited for."""
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


def read(last: str, name: str = "Last-Event-ID") -> Position | None:
    """Return the position of an id; None: there is none. Raises: RequestError (`LastEventIDInvalid`)."""
    if not last:
        return None
    if (found := _ID.fullmatch(last)) is None:
        message = f'{name} "{errors.readable(last[:80])}" is no id of this output'
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

    @property
    def position(self) -> Position:
        """Of the line that was read last, never one before where reading goes on."""
        return self._last or self._now

    def message(self, stream: str, line: bytes) -> Message | None:
        text = self.begin(line)
        if text is None:
            return None
        data = {"at": self._at, "stream": stream, "text": text.decode(errors="replace")}
        return Message(data=data, id=str(self._now))

    def begin(self, line: bytes) -> bytes | None:
        """Return the text of the next line, its time taken off; None: it was read before.

        The line may be a beginning, with its whole time.
        """
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
        return text


async def messages(
    store: Store, pod: core.Pod, pieces: AsyncIterator[bytes], last: Position | None
) -> AsyncIterator[Message]:
    """Yield an event for each line, `notice` where a run begins again, and `end` with how the container ended.

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


@dataclass(slots=True)
class _Open:
    """The line of one stream that has begun and not ended."""

    head: bytes = b""
    """Its time, as far as it has come."""
    is_begun: bool = False
    is_new: bool = False
    """It is sent: it was not read before."""


class _Marked:
    """Takes the times off output, leaves out what was read before, and marks where whole lines end."""

    def __init__(self, last: Position | None, *, keeps_times: bool) -> None:
        self._reader = _Reader(last)
        self._keeps_times = keeps_times
        self._open = {bytes: _Open(), ErrorOutput: _Open()}
        self._marked = self._reader.position

    def feed(self, piece: bytes) -> list[bytes]:
        """Return what is sent of a piece, and a mark where no line is open behind it."""
        kind = ErrorOutput if isinstance(piece, ErrorOutput) else bytes
        *whole, rest = piece.split(b"\n")
        lines = [*(line + b"\n" for line in whole), *([rest] if rest else [])]
        sent = b"".join(self._line(self._open[kind], line) for line in lines)
        found = [kind(sent)] if sent else []
        is_between = not any(one.is_begun or one.head for one in self._open.values())
        if is_between and self._reader.position != self._marked:
            self._marked = self._reader.position
            found.append(Mark(str(self._marked).encode()))
        return found

    def end(self) -> list[bytes]:
        """Return what is left of lines that have no time."""
        found = [kind(self._begin(one, one.head)) for kind, one in self._open.items() if one.head]
        return [one for one in found if one]

    def _line(self, line: _Open, data: bytes) -> bytes:
        is_end = data.endswith(b"\n")
        if not line.is_begun:
            data = line.head + data
            if not is_end and b" " not in data and len(data) < _LONGEST_HEAD:
                line.head = data
                return b""
            data = self._begin(line, data)
        sent = data if line.is_new else b""
        if is_end:
            line.is_begun = False
        return sent

    def _begin(self, line: _Open, data: bytes) -> bytes:
        text = self._reader.begin(data)
        line.head, line.is_begun, line.is_new = b"", True, text is not None
        return b"" if text is None else data if self._keeps_times else text


def behind(options: LogOptions, last: Position | None) -> LogOptions:
    """Return what to read, with times, so that it holds all behind a position."""
    if last is None:
        return replace(options, timestamps=True)
    return replace(options, timestamps=True, since=last.since, tail=None)


async def marked(pieces: AsyncIterator[bytes], last: Position | None, *, keeps_times: bool) -> AsyncIterator[bytes]:
    """Yield output behind a position, with a `Mark` behind whole lines; notices as they are.

    Args: pieces: output with times.   keeps_times: they stay before their lines.
    """
    lines = _Marked(last, keeps_times=keeps_times)
    async with closing(pieces) as found:
        async for piece in found:
            for one in [piece] if isinstance(piece, Notice) else lines.feed(piece):
                yield one
    for one in lines.end():
        yield one


async def _ended(store: Store, pod: core.Pod) -> Message:
    try:
        shown = view.container_view(await pods.find_pod(store, pod.metadata.name, pod.metadata.namespace))
    except errors.NotFound:
        return end("ContainerGone", state="gone", exit_code=None)
    reason = "ContainerEnded" if shown.state in view.ENDED else "Ended"
    return end(reason, state=shown.state, exit_code=shown.exit_code)
