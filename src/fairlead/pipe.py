"""Reads and writes file descriptors on the event loop: pipes and the master side of terminals.

asyncio's own pipe transports treat the EIO that ends a terminal as a failure and close what they were given at times of
their own; sessions and followed logs need a plain read, a plain write and an owner. Read with back-pressure: nothing is
read from the descriptor before a reader asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final

_CHUNK: Final = 65536


class Pipe:
    """One non-blocking descriptor, owned: `close` closes it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._is_open = True
        self._waiting: set[asyncio.Future[None]] = set()

    async def read(self) -> bytes:
        """Return what there is, waiting for the first byte; b"" at the end, or once closed."""
        loop = asyncio.get_running_loop()
        while self._is_open:
            try:
                return os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                await self._ready(loop.add_reader, loop.remove_reader)
            except OSError:  # EIO: the last holder of the terminal's other side is gone
                return b""
        return b""

    def take(self) -> bytes | None:
        """Return what there is without waiting; None: nothing yet, b"": the end, or closed."""
        if not self._is_open:
            return b""
        try:
            return os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def watch(self, future: asyncio.Future[None]) -> None:
        """Resolve the future once there is something to read, or the pipe is closed."""
        asyncio.get_running_loop().add_reader(self._descriptor, _resolve, future)
        self._waiting.add(future)

    def unwatch(self, future: asyncio.Future[None]) -> None:
        """Leave the future alone from now on."""
        self._waiting.discard(future)
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self._descriptor)

    async def write(self, data: bytes) -> None:
        """Write all of `data`; a reader that is gone is not an error: the data is dropped."""
        loop = asyncio.get_running_loop()
        left = memoryview(data)
        while left and self._is_open:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                await self._ready(loop.add_writer, loop.remove_writer)
            except OSError:
                return

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        add(self._descriptor, _resolve, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if self._is_open:
                remove(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; a `read` or `write` under way ends. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        loop = asyncio.get_running_loop()
        for remove in (loop.remove_reader, loop.remove_writer):
            with contextlib.suppress(OSError, ValueError):
                remove(self._descriptor)
        os.close(self._descriptor)
        for future in self._waiting:
            _resolve(future)

    @property
    def descriptor(self) -> int:
        """The number, for ioctls."""
        return self._descriptor


async def read_any(pipes: Sequence[Pipe]) -> tuple[int, bytes]:
    """Return what the first pipe that has something has, and its number; b"" where that one is at its end.

    Waits for the first byte or the first end. Back-pressure is as of `Pipe.read`: nothing else is taken.
    """
    loop = asyncio.get_running_loop()
    while True:
        for number, one in enumerate(pipes):
            if (data := one.take()) is not None:
                return number, data
        news: asyncio.Future[None] = loop.create_future()
        for one in pipes:
            one.watch(news)
        try:
            await news
        finally:
            for one in pipes:
                one.unwatch(news)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
