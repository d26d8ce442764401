"""Counts requests in token buckets, one a name, in bounded memory. Pure but for the clock that it is given.

A bucket that has filled up again is the same as none, so it may be forgotten. Once `most` buckets are in use, every
further name draws from one shared bucket, so that more names give a client no more requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from fairlead.frozen import frozen

MOST: Final = 10_000
"""Buckets that are kept; one takes some 200 bytes."""


@frozen
class Rate:
    """How often something may happen."""

    per_s: float
    """0: without limit."""
    burst: int
    """At once, after a pause."""

    @property
    def window_s(self) -> int:
        """Seconds in which an empty bucket fills up."""
        return math.ceil(self.burst / self.per_s) if self.per_s else 0


@frozen
class Level:
    """How a bucket stands."""

    tokens: float
    wait_s: float
    """Until the next request is allowed; 0: it is now."""
    full_s: float
    """Until it is full again."""


class Buckets:
    """Buckets of one rate."""

    def __init__(self, rate: Rate, *, now: Callable[[], float], most: int = MOST) -> None:
        """Args: now: monotonic seconds.   most: buckets that are kept."""
        self.rate = rate
        self._now = now
        self._most = most
        self._known: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens and when they were counted, the one that was used last at the end."""
        self._shared = (float(rate.burst), now())

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._known)

    def level(self, name: str) -> Level:
        """Return the level of a bucket, without taking a token."""
        if not self.rate.per_s:
            return Level(tokens=float(self.rate.burst), wait_s=0.0, full_s=0.0)
        is_shared = name not in self._known and len(self._known) >= self._most
        return self._level(self._tokens(self._shared if is_shared else self._known.get(name)))

    def take(self, name: str) -> Level:
        """Take a token, if there is one, and return how the bucket stands afterwards; `wait_s` above 0: none was."""
        if not self.rate.per_s:
            return self.level(name)
        self._forget_full()
        is_kept = name in self._known or len(self._known) < self._most
        before = self._tokens(self._known.get(name) if is_kept else self._shared)
        if before < 1:
            return self._level(before)
        after = (before - 1, self._now())
        if is_kept:
            self._known[name] = after
            self._known.move_to_end(name)
        else:
            self._shared = after
        return Level(tokens=before - 1, wait_s=0.0, full_s=(self.rate.burst - before + 1) / self.rate.per_s)

    def owe(self, name: str, count: int) -> None:
        """Take tokens whether they are there or not: what is missing is waited for before the next request."""
        if not self.rate.per_s or count <= 0:
            return
        if name in self._known or len(self._known) < self._most:
            self._known[name] = (self._tokens(self._known.get(name)) - count, self._now())
            self._known.move_to_end(name)
        else:
            self._shared = (self._tokens(self._shared) - count, self._now())

    def _level(self, tokens: float) -> Level:
        wait_s = max(0.0, (1 - tokens) / self.rate.per_s)
        return Level(tokens=tokens, wait_s=wait_s, full_s=(self.rate.burst - tokens) / self.rate.per_s)

    def _tokens(self, found: tuple[float, float] | None) -> float:
        if found is None:
            return float(self.rate.burst)
        tokens, at = found
        return min(float(self.rate.burst), tokens + (self._now() - at) * self.rate.per_s)

    def _forget_full(self) -> None:
        """Forget full buckets, the least recently used first, up to the first that is not full."""
        while self._known:
            oldest = next(iter(self._known.values()))
            if self._tokens(oldest) < self.rate.burst:
                return
            self._known.popitem(last=False)
