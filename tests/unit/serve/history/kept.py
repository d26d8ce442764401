"""A recorder over the small machine, whose time goes on by hand."""

from __future__ import annotations

import time
from pathlib import Path

from fairlead.model.ids import GPUUUID
from fairlead.model.sample import Sample
from fairlead.plan.history import tier
from fairlead.serve.history.file import FILE, HistoryFile
from fairlead.serve.history.local import LocalHistory
from fairlead.serve.history.recorder import Machine, Recorder
from tests.unit.serve.world import GPU_COUNT, NODE, World

MOST = 64 << 20


class Kept:
    """Figures of a world."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.at = float(tier.floor(time.time(), 600) + 600)
        self.steady = 0.0
        self.file = HistoryFile(folder / FILE, days=14, most_bytes=MOST)
        self.recorder = self.opened()
        self.history = LocalHistory(
            self.recorder, scan=lambda: world.inventory, days=14, most_bytes=MOST, now=lambda: self.at
        )

    def opened(self) -> Recorder:
        """Return a recorder of the file, as after a start of the service."""
        world = self.world
        machine = Machine(
            store=world.store, node=NODE, engine=world.engine, scan=lambda: world.inventory, sampler=world
        )
        return Recorder(machine, self.file, now=lambda: self.at, clock=lambda: self.steady)

    def load(self, *percents: int | None) -> None:
        """Set the load of each GPU."""
        self.world.samples = tuple(
            Sample(gpu=GPUUUID(f"GPU-{index}"), utilization_percent=percent, memory_used_bytes=1 << 30)
            for index, percent in enumerate(percents)
        )

    async def tick(self, count: int = 1, *, wall_s: float = 10.0) -> None:
        """Sample; then time goes on."""
        for _ in range(count):
            await self.recorder.tick()
            assert not self.recorder.problem
            self.at += wall_s
            self.steady += 10


ALL = GPU_COUNT
