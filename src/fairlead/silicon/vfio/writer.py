"""Writes to sysfs through a child process, each write with a deadline.

One child does all writes of one block, so a write costs no start of a program. A write that does not return in time has
its child in the kernel, where no signal reaches it (state D): it is killed, not waited for, and the next write has a
child of its own. The killed one ends when the kernel lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

from fairlead import command, pipe

_PROGRAM: Final = Path(__file__).parents[2] / "kernel/programs/sysfswrite.py"
_END_S: Final = 1.0
_START_S: Final = 30.0
"""How long a child may take to begin, on a machine that may be very busy: no write's own limit counts that."""
_UP: Final = "UP"
_LONGEST: Final = 64


class Hung(Exception):
    """A write did not return in time; never leaves this package."""

    def __init__(self, pid: int, *, is_gone: bool) -> None:
        """Name the child."""
        super().__init__(pid)
        self.pid, self.is_gone = pid, is_gone


class Writer(Protocol):
    """Writes to sysfs."""

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        """Write a text and a newline.

        Raises: OSError: the kernel's refusal.   Hung: it did not return within the limit.
        """
        ...


class _Child:
    """Writes by one child at a time, which starts with the first write."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._orders: pipe.Pipe | None = None
        self._answers: pipe.Pipe | None = None

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        if "\n" in f"{path}{text}" or "\0" in f"{path}{text}":
            raise OSError(errno.EINVAL, "a newline or NUL in what is to be written")
        process, orders, answers = await self._started()
        try:
            async with asyncio.timeout(limit_s):
                await orders.write(os.fsencode(f"{path}\0{text}\n"))
                word = await _read_word(answers)
        except TimeoutError as error:
            await self.close()
            raise Hung(process.pid, is_gone=process.returncode is not None) from error
        if word != "OK":
            number = getattr(errno, word, errno.EIO) if word.startswith("E") else errno.EIO
            raise OSError(number, os.strerror(number) if word else "the writing process ended")

    async def _started(self) -> tuple[asyncio.subprocess.Process, pipe.Pipe, pipe.Pipe]:
        if self._process is not None and self._orders is not None and self._answers is not None:
            return self._process, self._orders, self._answers
        theirs, ours = os.pipe()
        self._orders = pipe.Pipe(ours)
        ours, output = os.pipe()
        self._answers = pipe.Pipe(ours)
        argv = [sys.executable, "-I", "-S", str(_PROGRAM)]
        try:
            self._process = await command.started(argv, env={}, stdin=theirs, output=output)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(theirs)
            os.close(output)
        await self._until_up(self._answers)
        return self._process, self._orders, self._answers

    async def _until_up(self, answers: pipe.Pipe) -> None:
        """Wait until the child reads. Raises: OSError: it did not begin."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                if await _read_word(answers) == _UP:
                    return
        await self.close()
        raise OSError(errno.ETIMEDOUT, f"the writing process did not begin within {_START_S:g} s")

    async def close(self) -> None:
        process, self._process = self._process, None
        self._close_pipes()
        if process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await command.end(process, at_once=True)

    def _close_pipes(self) -> None:
        for one in (self._orders, self._answers):
            if one is not None:
                one.close()
        self._orders = self._answers = None


async def _read_word(answers: pipe.Pipe) -> str:
    """Return one line of the child's; empty, or what came of it: the child ended."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _LONGEST and (piece := await answers.read()):
        said += piece
    return said.decode("ascii", "replace").strip()


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Writer]:
    """Give a writer for a block. Its writes raise Unavailable where no child can be started."""
    child = _Child()
    try:
        yield child
    finally:
        await child.close()
