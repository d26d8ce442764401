"""Follows a container's output across restarts of the service, without losing or repeating a byte.

The service marks where whole lines end. After a break the stream is opened again behind the last mark, and what came
behind that mark before is dropped, counted by stream: the output between two marks is the same each time it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.client import calls

OUTPUT: Final = 1
ERRORS: Final = 2
NOTICES: Final = 3
"""The stream of docker's format for words of the service's own."""
_MARKS: Final = 4
_WHOLE: Final = frozenset({NOTICES, _MARKS})
_HEAD: Final = 8


def demultiplexed(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield what the frames of docker's multiplexed stream hold, with the number of the stream.

    A frame that is still coming is yielded as far as it has come, but notices and marks whole.
    """
    rest = b""
    stream, left = 0, 0
    for piece in pieces:
        rest += piece
        while rest:
            if not left:
                if len(rest) < _HEAD:
                    break
                stream, left = rest[0], int.from_bytes(rest[4:_HEAD], "big")
                rest = rest[_HEAD:]
                continue
            if stream in _WHOLE and len(rest) < left:
                break
            data, rest = rest[:left], rest[left:]
            left -= len(data)
            yield stream, data


def output(service: calls.Calls, path: str, query: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of output with the numbers of their streams; where it is followed, across restarts of the service.

    Args:   path: of the container's logs.   query: of the request; `split` is added, where it is followed `marks`.
    Raises: as `Calls.stream`; Unavailable: the service did not come back in time, or breaks off again and again.
    """
    if query.get("follow") != "true":
        with service.stream("GET", path, params={**query, "split": "true"}) as pieces:
            yield from demultiplexed(pieces)
        return
    reader, interruption = _Reader(), calls.Interruption(service)
    while True:
        try:
            params = {**query, "split": "true", "marks": "true", "after": reader.mark or None}
            with service.stream("GET", path, params=params) as pieces:
                for stream, data in reader.read(pieces):
                    interruption.end()
                    yield stream, data
        except errors.Unavailable as error:
            interruption.wait(error)
        else:
            return


class _Reader:
    """Keeps the position in one output."""

    def __init__(self) -> None:
        self.mark = ""
        """The last position that the service gave; empty: none yet."""
        self._behind: Counter[int] = Counter()
        """Bytes of each stream that came behind the mark."""
        self._dropped: Counter[int] = Counter()
        """Bytes of each stream that come again and are still to be dropped."""

    def read(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield what is new of a stream that begins behind the mark."""
        self._dropped = self._behind.copy()
        for stream, data in demultiplexed(pieces):
            if stream == _MARKS:
                self.mark = data.decode()
                self._behind = self._dropped.copy()
                continue
            fresh = data if stream == NOTICES else data[self._dropped[stream] :]
            if stream != NOTICES:
                self._dropped[stream] -= len(data) - len(fresh)
                self._behind[stream] += len(fresh)
            if fresh:
                yield stream, fresh
