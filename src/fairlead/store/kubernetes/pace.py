"""How fast we ask an API server: a rate for all requests together, and waits that grow after failures.

Both run on the event loop's clock, so a test with a virtual clock sees every wait without living through it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable


class Bucket:
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


class Backoff:
    """Waits that double, each shortened by up to half at random so that clients do not return together."""

    def __init__(self, *, first_s: float, last_s: float, chance: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._chance = chance
        self._next_s = first_s

    def next(self) -> float:
        """Return how long to wait now, in seconds."""
        wait_s = self._next_s
        self._next_s = min(self._last_s, wait_s * 2)
        return wait_s * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Begin again: something went well."""
        self._next_s = self._first_s
