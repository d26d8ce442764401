"""Leaves out of an output that is replayed what was written before its session broke off.

A service that restarts breaks off the sessions of `run -it`, and the container goes on. The client joins it again, gets
its output from the beginning, since that is what the engine keeps, and writes what is new of it.
"""

from __future__ import annotations


class Replay:
    """Counts the bytes of each stream; a frame's first byte names its stream."""

    def __init__(self) -> None:
        """Nothing was written yet."""
        self._written: dict[bytes, int] = {}
        self._known: dict[bytes, int] = {}

    def begin_again(self) -> None:
        """Expect the output from its beginning."""
        self._known = dict(self._written)

    def fresh(self, frame: bytes) -> bytes:
        """Return a frame without what was written before; only its first byte: all of it was."""
        stream, data = frame[:1], frame[1:]
        known = min(self._known.get(stream, 0), len(data))
        self._known[stream] = self._known.get(stream, 0) - known
        self._written[stream] = self._written.get(stream, 0) + len(data) - known
        return stream + data[known:]
