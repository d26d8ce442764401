"""Writes to sysfs through a child process, each write with a deadline.

One child does all writes of one block, so a write costs no start of a program. Writes that are announced are one
message, so that they cost no turn each; the child stops at the first that is refused, and when this process ends. A
write that does not return in time has its child in the kernel, where no signal reaches it (state D): it is killed, not
waited for, and the next write has a child of its own. The killed one ends when the kernel lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from fairlead import command, errors, pipe

_PROGRAM: Final = Path(__file__).parents[2] / "kernel/programs/sysfswrite.py"
_END_S: Final = 1.0
_START_S: Final = 30.0
"""How long a child may take to begin, on a machine that may be very busy: no write's own limit counts that."""
_UP: Final = "UP"
_LONGEST: Final = 64
_ATOMIC: Final = 4096
"""Bytes that a pipe takes whole, or not at all. Source: pipe(7), PIPE_BUF."""


class Hung(Exception):
    """A write did not return in time; never leaves this package."""

    def __init__(self, pid: int, *, is_gone: bool) -> None:
        """Name the child."""
        super().__init__(pid)
        self.pid, self.is_gone = pid, is_gone


Write = tuple[Path, str]
"""A file, and the text that is written to it."""


class Writer(Protocol):
    """Writes to sysfs."""

    async def begin(self) -> None:
        """Start what writes, and return before it is ready: it starts while others look. The first write waits for it.

        That it cannot be started is raised by the first write.
        """
        ...

    async def announce(self, writes: Sequence[Write]) -> None:
        """Say which writes come next: they may be done from now on, in order, until one of them fails.

        `write` is then called for each of them in this order; what fails there is raised by it.
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
    said: bytes = b""
    """What was read of its answers and is not taken yet."""


class _Child:
    """Writes by one child at a time, which starts with `begin`, or with the first write."""

    def __init__(self) -> None:
        self._running: _Process | None = None
        self._announced: list[Write] = []
        """What the child has to do still, and has not answered."""

    async def begin(self) -> None:
        if self._running is None:
            with contextlib.suppress(errors.Unavailable, OSError):
                self._running = await _start()

    async def announce(self, writes: Sequence[Write]) -> None:
        if self._announced:
            await self.close()  # what it was to do is not wanted any more
        if len(writes) < 2 or any(map(_is_unclean, writes)) or len(_message(writes)) > _ATOMIC:
            return  # each is sent by its own `write`
        try:
            running = await self._ready()
            await running.orders.write(_message(writes))
        except (OSError, errors.Unavailable):
            await self.close()  # the first `write` says why
            return
        except BaseException:
            await asyncio.shield(self.close())
            raise
        self._announced = list(writes)

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        if _is_unclean((path, text)):
            raise OSError(errno.EINVAL, "a newline or NUL in what is to be written")
        if self._announced and self._announced[0] != (path, text):
            await self.close()
        running = await self._ready()
        try:
            async with asyncio.timeout(limit_s):
                if self._announced:
                    del self._announced[0]
                else:
                    await running.orders.write(_message([(path, text)]))
                word = await _read_word(running)
        except TimeoutError as error:
            await self.close()
            raise Hung(running.process.pid, is_gone=running.process.returncode is not None) from error
        except BaseException:
            await asyncio.shield(self.close())  # nobody waits for what it would do next
            raise
        if word != "OK":
            self._announced = []
            number = getattr(errno, word, errno.EIO) if word.startswith("E") else errno.EIO
            raise OSError(number, os.strerror(number) if word else "the writing process ended")

    async def _ready(self) -> _Process:
        """Return a child that reads. Raises: OSError, Unavailable: none can be started."""
        running = self._running = self._running or await _start()
        if not running.is_up:
            await self._until_up(running)
        return running

    async def _until_up(self, running: _Process) -> None:
        """Wait until the child reads. Raises: OSError: it did not begin."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                running.is_up = await _read_word(running) == _UP
        if not running.is_up:
            await self.close()
            raise OSError(errno.ETIMEDOUT, f"the writing process did not begin within {_START_S:g} s")

    async def close(self) -> None:
        self._announced = []
        running, self._running = self._running, None
        if running is None:
            return
        running.orders.close()
        running.answers.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await command.end(running.process, at_once=True)


def _is_unclean(write: Write) -> bool:
    return any(sign in f"{write[0]}{write[1]}" for sign in "\n\0")


def _message(writes: Sequence[Write]) -> bytes:
    return os.fsencode("\0".join(f"{path}\0{text}" for path, text in writes) + "\n")


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


async def _read_word(running: _Process) -> str:
    """Return the next line of the child's; empty, or what came of it: the child ended."""
    while b"\n" not in running.said and len(running.said) < _LONGEST and (piece := await running.answers.read()):
        running.said += piece
    line, _, running.said = running.said.partition(b"\n")
    return line.decode("ascii", "replace").strip()


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Writer]:
    """Give a writer for a block. Its writes raise Unavailable where no child can be started."""
    child = _Child()
    try:
        yield child
    finally:
        await child.close()
