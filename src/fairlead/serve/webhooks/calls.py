"""Runs calls that may hang, names and mail servers, in threads of their own: nothing of the service waits for them.

Whoever names a receiver chooses who answers for its name, and a mail server may say one byte a minute for ever. A
pool's threads would be used up by such, and joined at the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead import daemonthread

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of one sort."""

    name: str
    """Of their threads."""
    most: int
    """Threads at a time, abandoned ones included."""
    longest_s: float
    """How long is waited for one, its thread included."""
    _taken: set[object] = field(default_factory=set)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call. Raises: TimeoutError: it has not ended in time, and goes on without us; what the call raises."""
        loop, place = asyncio.get_running_loop(), object()

        def ended() -> None:
            # The loop is closed where the service has ended before the call.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._free, place)

        async with asyncio.timeout(self.longest_s):
            while len(self._taken) >= self.most:
                self._freed.clear()
                await self._freed.wait()
            self._taken.add(place)
            return await asyncio.wrap_future(daemonthread.start(self.name, call, ended=ended))

    def _free(self, place: object) -> None:
        self._taken.discard(place)
        self._freed.set()
