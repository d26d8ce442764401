"""Computes back-off: how long to wait between attempts that keep failing, for every loop of the program.

`doubled` is the bare rule for callers that count failures themselves; `Backoff` keeps the count and spreads the waits,
so that many clients of one server do not return together. Neither sleeps: the caller knows what else may end the wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_MOST_DOUBLINGS: Final = 64
"""Beyond it every last wait is reached, and a float could overflow."""


def doubled(failures: int, *, first_s: float, last_s: float) -> float:
    """Return the wait in seconds after so many failures before this one: `first_s`, twice that, …, at most `last_s`."""
    return min(last_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS))


class Backoff:
    """Waits that double from `first_s` to `last_s`; each is shortened at random by up to `jitter` of itself.

    `chance` returns 0 to 1; 1 leaves the whole wait.
    """

    def __init__(
        self, *, first_s: float, last_s: float, jitter: float = 0.5, chance: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._jitter = jitter
        self._chance = chance
        self._failures = 0

    def next(self) -> float:
        """Return how long to wait now, in seconds."""
        wait_s = doubled(self._failures, first_s=self._first_s, last_s=self._last_s)
        self._failures += 1
        return wait_s * (1 - self._jitter + self._jitter * self._chance())

    def reset(self) -> None:
        """Begin again: something went well."""
        self._failures = 0
