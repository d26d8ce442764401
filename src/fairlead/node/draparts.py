"""Composes the agent's part that gives GPUs away by ResourceClaims, and says by which door each GPU is given away.

It is there where the agent has a store and a ledger: a claim's GPUs are possessed like any others. The driver itself is
loaded and served once a GPU is to go to claims, or a claim has one still: most nodes never need its megabytes, and it
would stand beside another driver of its name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from fairlead import telemetry
from fairlead.model.ids import GPUUUID
from fairlead.node.dra import standby
from fairlead.node.dra.around import Around
from fairlead.plan.dra import attribute
from fairlead.plan.gpu import door
from fairlead.plan.lease.row import Row, State
from fairlead.plan.sharing import mps
from fairlead.settings import Settings
from fairlead.wire.kubelet import pluginregistration

_OPENING_S: Final = 0.5
"""A ledger that takes longer to open is most likely another agent's."""
_HAD: Final = frozenset({State.HELD, State.RELEASING})


class DRAPart:
    """Follows the doors of the node's GPUs, and runs the driver where claims get some."""

    def __init__(self, settings: Settings, around: Around) -> None:
        """Compose; nothing runs yet."""
        self._settings, self._around = settings, around
        self.daemons: Mapping[GPUUUID, mps.Daemon] = {}
        """Control daemons that claims need."""
        self._allocated: frozenset[GPUUUID] | None = None

    def doors(self) -> door.Facts:
        """Return who has GPUs now, for the supply."""
        held = {GPUUUID(key): _door_of(row) for key, row in self._around.gate.rows.value.items() if row.state in _HAD}
        return door.Facts(held=held, allocated=self._allocated)

    async def run(self, meter: telemetry.Meter) -> None:
        """Give GPUs away by claims, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._around.gate.rows.follow(lambda _: self._move()), name="dra: doors")
            tasks.create_task(self._serve(meter), name="dra: driver")

    def _move(self) -> None:
        """Have the doors planned again where a GPU is to change its own, and may have come back."""
        doors = self._around.supply.value.doors
        if doors.leaving or doors.awaited:
            self._around.changed()

    async def _serve(self, meter: telemetry.Meter) -> None:
        around, supply = self._around, self._around.supply
        await self._until_opened()
        while not (supply.value.doors.claimed or around.gate.notes):
            await supply.wait(supply.version)
        from fairlead.node.dra import serving

        served = serving.Claims(
            self._settings, around, set_daemons=self._set_daemons, set_allocated=self._set_allocated
        )
        await served.run(meter)

    async def _until_opened(self) -> None:
        """Wait for the ledger; where another agent has it, that one is shown that this one takes over."""
        opened = self._around.gate.opened
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_S):
                await opened.wait()
                return
        folder = self._settings.kubelet_folder.parent / pluginregistration.PLUGINS / attribute.DRIVER
        with standby.stand_by(folder):
            await opened.wait()

    def _set_daemons(self, wanted: Mapping[GPUUUID, mps.Daemon]) -> None:
        self.daemons = dict(wanted)
        self._around.changed()

    def _set_allocated(self, found: frozenset[GPUUUID] | None) -> None:
        if found != self._allocated:
            self._allocated = found
            self._around.changed()


def _door_of(row: Row) -> str:
    return door.CLAIMS if any(one.holder for one in row.claims) else door.PLUGIN
