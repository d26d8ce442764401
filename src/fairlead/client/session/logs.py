"""Reads what a container wrote, line by line, as it comes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

Opening = Callable[[], AbstractContextManager[Iterator[bytes]]]

_LONGEST: Final = 1 << 20
"""A line that never ends is given in parts of so many characters."""


class Logs:
    """What a container wrote: an iterable of lines, each without its end.

    The request is made anew for each iteration. `text()` is the whole, and a notebook shows lines as they come.
    """

    def __init__(self, opening: Opening, name: str) -> None:
        """Take what opens the answer, and the container's name."""
        self._opening = opening
        self._name = name

    def __iter__(self) -> Iterator[str]:
        """Yield the lines."""
        rest = ""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self._opening() as pieces:
            for piece in pieces:
                *whole, rest = (rest + decoder.decode(piece)).split("\n")
                yield from whole
                if len(rest) > _LONGEST:
                    yield rest
                    rest = ""
        if rest:
            yield rest

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes as they come."""
        with self._opening() as pieces:
            yield from pieces

    def text(self) -> str:
        """Return all of it; with `follow`, once the container has ended."""
        return str(self)

    def __str__(self) -> str:
        """Return all of it; with `follow`, once the container has ended."""
        return b"".join(self.pieces()).decode(errors="replace")

    def __repr__(self) -> str:
        """Name the container."""
        return f"<logs of {self._name}: iterate over them, or .text() them>"

    def _ipython_display_(self) -> None:
        """Print the lines as they come, where a notebook shows this as a cell's value."""
        for line in self:
            print(line, flush=True)  # noqa: T201 a notebook asked for it
