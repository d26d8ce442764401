"""Gives the page of figures of one machine: its GPUs', and those of the service itself.

What is held for what is gone is looked for when a scraper asks, at most every half minute: it asks the engine.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from fairlead import settings
from fairlead.node import leftovers
from fairlead.serve import monitor
from fairlead.store.port import Store

_FRESH_S: Final = 30.0


class MachinePage:
    """The page, and the meter that its service counts with."""

    def __init__(self, config: settings.Settings, engine: leftovers.Engine, store: Store) -> None:
        """Take what is asked."""
        self.meter = monitor.PrometheusMeter()
        self._config, self._engine, self._store = config, engine, store
        self._counted_at = -_FRESH_S

    async def expose(self, gpus: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the page in Prometheus' text format. Args: gpus: gives the GPUs' part."""
        if time.monotonic() - self._counted_at >= _FRESH_S:
            self._counted_at = time.monotonic()
            await leftovers.count(self._config, self._engine, self._known, now=time.time(), meter=self.meter)
        return await gpus() + self.meter.expose()

    async def _known(self) -> leftovers.Known:
        return await leftovers.known(self._store)
