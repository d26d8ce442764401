"""Waits in the event loop for driver calls that run in threads of `callthread`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from fairlead.silicon.nvidia import callthread

T = TypeVar("T")


class AsyncCallThreads(callthread.CallThreads):
    """Call threads whose calls can be awaited."""

    async def run(self, target: str, call: Callable[[], T], *, timeout_s: float) -> T:
        """Await one call; raises what the call raises, and DeviceFault (`Timeout`) when it takes too long."""
        answer = (await self.run_all({target: call}, timeout_s=timeout_s))[target]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run_all(self, calls: Mapping[str, Callable[[], T]], *, timeout_s: float) -> dict[str, T | Exception]:
        """Run calls side by side, each in its target's thread; return each one's result or error, in their order."""
        started = {
            target: item if isinstance(item, Exception) else asyncio.wrap_future(item)
            for target, item in self.start(calls).items()
        }
        waiting = [item for item in started.values() if not isinstance(item, Exception)]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        return {target: callthread.outcome(target, item) for target, item in started.items()}
