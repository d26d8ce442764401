"""Limits how fast we ask an API server: one rate for all requests, and a circuit breaker while it fails.

Both run on the event loop's clock, so a test with a virtual clock sees every wait without living through it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fairlead.backoff import Backoff

LONGEST_S: Final = 30.0
"""Longest wait that a server may ask for; after this it is tried again."""


class RateLimiter:
    """So many requests a second, with a burst; those that come too early wait in the order they came."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._interval_s = 1.0 / per_s
        self._credit_s = (burst - 1) * self._interval_s
        self._next = float("-inf")

    async def take(self) -> None:
        """Return when one more request may go; a cancelled wait keeps its turn taken."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._credit_s)
        wait_s = self._next - now
        self._next += self._interval_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class CircuitBreaker:
    """While a server fails, few requests of the process get through, however many want to; the others wait.

    Each that goes is a question whether the server is well again, and the next may go after a wait that grows. The
    first good answer lets every caller through. So a process with many loops asks a server that is away no more often
    than one with a single loop.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_at = 0.0
        self._well: asyncio.Event | None = None
        """Set when the server is well again; None: it is."""

    async def enter(self) -> None:
        """Return when a request may go."""
        clock = asyncio.get_running_loop()
        while (well := self._well) is not None:
            now = clock.time()
            if now >= self._next_at:
                self._next_at = now + self._backoff.next()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_at):
                    await well.wait()

    def succeeded(self) -> None:
        """Note an answer that says that the server is well."""
        if self._well is not None:
            self._well.set()
            self._well = None

    def failed(self, wait_s: float | None) -> None:
        """Note that the server did not answer, or failed; `wait_s`: how long it asks to be left alone."""
        now = asyncio.get_running_loop().time()
        if self._well is None:
            self._well = asyncio.Event()
            self._backoff.reset()
            self._next_at = now + self._backoff.next()
        if wait_s is not None:
            self._next_at = max(self._next_at, now + min(wait_s, LONGEST_S))
