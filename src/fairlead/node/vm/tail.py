"""Keeps the end of what a program writes: all of it is read, and the last of it kept, whatever its size."""

from __future__ import annotations

from typing import Final

from fairlead import pipe

_PANIC: Final = "Kernel panic"
KEPT: Final = 16 << 10
"""Bytes: some two hundred lines of a kernel's console."""


class Tail:
    """The last bytes of one output."""

    def __init__(self, output: pipe.Pipe, kept: int = KEPT) -> None:
        """Read nothing yet. Args: kept: bytes of the end."""
        self._output, self._kept = output, kept
        self._data = bytearray()

    async def run(self) -> None:
        """Read to the end of the output: a program whose output nobody reads would stop."""
        while data := await self._output.read():
            self._data += data
            del self._data[: -self._kept]

    @property
    def text(self) -> str:
        """Return it as lines of printable characters: a guest writes escapes for a terminal, or anything else."""
        lines = self._data.decode(errors="replace").replace("\r", "\n").split("\n")
        cleaned = ("".join(one for one in line if one.isprintable()).rstrip() for line in lines)
        return "\n".join(line for line in cleaned if line)

    @property
    def verdict(self) -> str:
        """Return the line by which a kernel says that it panics, which much follows, else the last line."""
        panics = [line for line in self.text.split("\n") if _PANIC in line]
        return panics[-1] if panics else self.last_line

    @property
    def last_line(self) -> str:
        """Return the last line that says something; empty: none."""
        return self.text.rpartition("\n")[2]
