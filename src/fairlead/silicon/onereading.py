"""Reads counters once for all who ask at about the same time: a hundred clients cost a GPU no more than one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fairlead.model.sample import Sample
from fairlead.silicon.port import Sampler

_FRESH_S: Final = 0.2
"""Age up to which a reading is given again; a person sees no difference to a new one."""


class OneReading:
    """A `Sampler` over another; who finds a reading under way waits for it and is told the same."""

    def __init__(self, silicon: Sampler, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._silicon, self._clock = silicon, clock
        self._reading = asyncio.Lock()
        self._latest: tuple[Sample, ...] = ()
        self._ended_at = float("-inf")

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """See `port.Sampler`; a reading that is under way keeps the time that its first asker gave it."""
        async with self._reading:
            if self._clock() - self._ended_at > _FRESH_S:
                self._latest = await self._silicon.sample(within_s=within_s)
                self._ended_at = self._clock()
            return self._latest
