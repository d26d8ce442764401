"""Plays `engine.access` for the fake engine: input of first processes, signals, files kept as tars."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fairlead import errors
from fairlead.engine import access
from fairlead.engine.fake import shell
from fairlead.model.container.output import ErrorOutput

_END_OF_TRANSMISSION: Final = b"\x04"
TITLES: Final = ("USER", "PID", "PPID", "%CPU", "ELAPSED", "TTY", "TIME", "COMMAND")


class FakeInput:
    """An `access.Input` of a fake process."""

    def __init__(self, feed: asyncio.Queue[bytes], process: shell.Process, *, has_terminal: bool) -> None:
        self._feed = feed
        self._process = process
        self._has_terminal = has_terminal
        self._is_open = True

    async def write(self, data: bytes) -> None:
        """See `access.Input.write`."""
        if self._is_open:
            self._feed.put_nowait(b"" if data == _END_OF_TRANSMISSION else data)
            self._is_open = bool(data) or self._has_terminal

    async def resize(self, rows: int, columns: int) -> None:
        """See `access.Input.resize`."""
        if self._has_terminal:
            self._process.size = (rows, columns)

    async def close(self) -> None:
        """See `access.Input.close`."""
        if self._is_open and not self._has_terminal:
            self._feed.put_nowait(b"")
        self._is_open = False


class FakeCopy:
    """A `port.ExecSession` that gives a tar, or takes one and keeps it."""

    def __init__(self, data: bytes | None, keep: Callable[[bytes], None], *, missing: str = "") -> None:
        """Take what is given; None: what is written is kept at its end."""
        self._given = data
        self._keep = keep
        self._missing = missing
        self._parts: list[bytes] = []
        self._is_whole = asyncio.Event()

    async def read(self) -> bytes:
        """See `port.ExecSession.read`."""
        if self._missing:
            text, self._missing = self._missing, ""
            self._parts = [b"failed"]
            self._is_whole.set()
            return ErrorOutput(text.encode())
        if self._given is None:
            await self._is_whole.wait()
            return b""
        data, self._given = self._given, b""
        return data

    async def write(self, data: bytes) -> None:
        """See `port.ExecSession.write`."""
        if data:
            self._parts.append(data)
        else:
            self._keep(b"".join(self._parts))
            self._is_whole.set()

    async def resize(self, rows: int, columns: int) -> None:
        """See `port.ExecSession.resize`."""

    async def wait(self) -> int:
        """See `port.ExecSession.wait`."""
        return 1 if self._parts == [b"failed"] else 0

    async def close(self) -> None:
        """See `port.ExecSession.close`."""


def usage(process: shell.Process, started_at: float | None) -> access.Usage:
    """Return what a fake process uses: a tenth of one CPU, 1 MiB."""
    ran_s = time.time() - (started_at or time.time())
    return access.Usage(
        cpu_ns=int(ran_s * 1e8),
        memory_bytes=1 << 20,
        memory_limit_bytes=process.memory_limit_bytes,
        processes=1,
        received_bytes=0,
        sent_bytes=0,
    )


def stdin_closed(name: str) -> errors.Conflict:
    """Say that a container was started with its standard input closed."""
    message = f'the standard input of container "{name}" is not open'
    return errors.Conflict(message, reason="StdinClosed", hint="`fairlead exec -it` runs a shell beside it")
