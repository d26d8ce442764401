"""Writes to sysfs through a child process, each write with a deadline.

One child does all writes of one block, so a write costs no start of a program. A write that does not return in time has
its child in the kernel, where no signal reaches it (state D): it is killed, not waited for, and the next write has a
child of its own. The killed one ends when the kernel lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

from fairlead import command, errors, pipe

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

    async def begin(self) -> None:
        """Start what writes, and return before it is ready: it starts while others look. The first write waits for it.

        That it cannot be started is raised by the first write.
        """
        ...

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        """Write a text and a newline.

        Raises: OSError: the kernel's refusal.   Hung: it did not return within the limit.
        """
        ...


@dataclasses.dataclass(slots=True)
class _Process:
    """A child that was started."""

    process: asyncio.subprocess.Process
    orders: pipe.Pipe
    answers: pipe.Pipe
    is_up: bool = False
    """Whether it reads."""


class _Child:
    """Writes by one child at a time, which starts with `begin`, or with the first write."""

    def __init__(self) -> None:
        self._running: _Process | None = None

    async def begin(self) -> None:
        if self._running is None:
            with contextlib.suppress(errors.Unavailable, OSError):
                self._running = await _start()

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        if "\n" in f"{path}{text}" or "\0" in f"{path}{text}":
            raise OSError(errno.EINVAL, "a newline or NUL in what is to be written")
        running = self._running = self._running or await _start()
        if not running.is_up:
            await self._until_up(running)
        try:
            async with asyncio.timeout(limit_s):
                await running.orders.write(os.fsencode(f"{path}\0{text}\n"))
                word = await _read_word(running.answers)
        except TimeoutError as error:
            await self.close()
            raise Hung(running.process.pid, is_gone=running.process.returncode is not None) from error
        if word != "OK":
            number = getattr(errno, word, errno.EIO) if word.startswith("E") else errno.EIO
            raise OSError(number, os.strerror(number) if word else "the writing process ended")

    async def _until_up(self, running: _Process) -> None:
        """Wait until the child reads. Raises: OSError: it did not begin."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                running.is_up = await _read_word(running.answers) == _UP
        if not running.is_up:
            await self.close()
            raise OSError(errno.ETIMEDOUT, f"the writing process did not begin within {_START_S:g} s")

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.orders.close()
        running.answers.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await command.end(running.process, at_once=True)


async def _start() -> _Process:
    """Start a child, and do not wait until it reads. Raises: Unavailable: it cannot be started."""
    theirs, ours = os.pipe()
    orders = pipe.Pipe(ours)
    ours, output = os.pipe()
    answers = pipe.Pipe(ours)
    try:
        process = await command.started(
            [sys.executable, "-I", "-S", str(_PROGRAM)], env={}, stdin=theirs, output=output
        )
    except BaseException:
        orders.close()
        answers.close()
        raise
    finally:
        os.close(theirs)
        os.close(output)
    return _Process(process=process, orders=orders, answers=answers)


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
