"""A clock that jumps: an event loop whose time passes only while everything in it waits for time.

Sockets of the same process still work: before time jumps, the loop looks for real events for a moment.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    def __init__(self, moment_s: float) -> None:
        super().__init__()
        self.now = 1000.0
        self._moment_s = moment_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(min(timeout, self._moment_s))
        if not ready:
            # Past what was waited for, rounding included, as a real clock is.
            self.now += timeout + 2 * math.ulp(self.now)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, moment_s: float) -> None:
        self._virtual = _Selector(moment_s)
        super().__init__(self._virtual)

    def time(self) -> float:
        # asyncio fires timers that are due within the clock's resolution. What looks at the time then must find that it
        # has come, or it would wait again for ever: this clock does not move while timers fire.
        self._clock_resolution = math.ulp(self._virtual.now)
        return self._virtual.now


def run(scenario: Coroutine[Any, Any, T], *, moment_s: float = 0.004) -> T:
    """Run a scenario to its end in its own time; `moment_s` is how long real events are looked for, 0 without any."""
    with asyncio.Runner(loop_factory=lambda: _Loop(moment_s)) as runner:
        return runner.run(scenario)


def now() -> float:
    """Return the scenario's time in seconds."""
    return asyncio.get_running_loop().time()
