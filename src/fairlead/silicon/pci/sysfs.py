"""Implements the silicon port over a vendor's two scan functions, run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPU, GPUEvent, Inventory
from fairlead.model.sample import Sample
from fairlead.silicon import eventbus


class SysfsSilicon:
    """The Silicon port for vendors whose driver says everything in files and reports no events."""

    def __init__(
        self, root: Path, scan: Callable[[Path], Inventory], scan_driver: Callable[[Path], DriverFiles | None]
    ) -> None:
        """Args: root: where /dev, /proc and /sys lie.   scan, scan_driver: blocking readers below that root."""
        self._root = root
        self._scan = scan
        self._scan_driver = scan_driver
        self._events = eventbus.EventBus()

    async def scan(self) -> Inventory:
        """Read everything now; see the port."""
        return await asyncio.to_thread(self._scan, self._root)

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Return what the driver's files say of load, power and memory; see the port's Sampler."""
        try:
            async with asyncio.timeout(within_s):
                inventory = await self.scan()
        except TimeoutError:
            return ()
        return tuple(map(_sample, inventory.gpus))

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read device nodes and modules; see the port. The user space is the container's own."""
        files = await asyncio.to_thread(self._scan_driver, self._root)
        return () if files is None else (files,)

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Wait for ever: sysfs reports no events."""
        return self._events.subscribe()

    async def close(self) -> None:
        """Nothing is held."""


def _sample(gpu: GPU) -> Sample:
    health, used = gpu.health, gpu.health.memory_used_bytes
    return Sample(
        gpu=gpu.uuid,
        utilization_percent=health.utilization_percent,
        temperature_c=health.temperature_c,
        power_mw=health.power_mw,
        memory_total_bytes=gpu.memory_bytes or None,
        memory_used_bytes=used,
        memory_free_bytes=None if used is None or not gpu.memory_bytes else gpu.memory_bytes - used,
        ecc_double_bit=health.ecc_uncorrected,
    )
