"""Composes the agent's part that gives GPUs away by ResourceClaims, and says by which door each GPU is given away.

It is there where the agent has a store and a ledger: a claim's GPUs are possessed like any others. The driver itself is
loaded and served once a GPU is to go to claims, or a claim has one still: most nodes never need its megabytes, and it
would stand beside another driver of its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairlead import telemetry
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import latest, monitor, pods
from fairlead.plan import supply as supplies
from fairlead.plan.gpu import door
from fairlead.plan.lease.row import Row, State
from fairlead.plan.sharing import mps
from fairlead.settings import Settings
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes import core

if TYPE_CHECKING:
    from fairlead.node.lease import gate

_HAD: Final = frozenset({State.HELD, State.RELEASING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the part stands on."""

    node: str
    store: PatchingStore
    silicon: object
    boot_id: str
    watch: monitor.InventoryMonitor
    supply: latest.Latest[supplies.Supply]
    gate: gate.Gate
    pods: pods.Pods
    node_object: latest.Latest[core.Node | None]
    """None: the store has not listed it."""
    daemons: latest.Latest[Mapping[GPUUUID, mps.DaemonState]] | None
    """Control daemons of MPS; None: no GPU can be shared by it."""
    daemon_folders: Callable[[Iterable[GPUUUID]], Mapping[str, tuple[str, str]]]
    """Of each GPU: the folder of its daemon's pipes, and what is /dev/shm for its clients."""
    changed: Callable[[], None]
    """Called whenever other GPUs can be given away, or other daemons are wanted, than before."""
    said: Callable[[str, str, str], None]
    """Called with a claim, a reason and what a person should know."""


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
        await around.gate.opened.wait()
        while not (supply.value.doors.claimed or around.gate.notes):
            await supply.wait(supply.version)
        from fairlead.node.dra import serving

        found = serving.Around(
            node=around.node,
            store=around.store,
            silicon=around.silicon,
            boot_id=around.boot_id,
            watch=around.watch,
            supply=supply,
            gate=around.gate,
            pods=around.pods,
            node_object=around.node_object,
            daemons=around.daemons,
            daemon_folders=around.daemon_folders,
            set_daemons=self._set_daemons,
            set_allocated=self._set_allocated,
            said=around.said,
        )
        await serving.Claims(self._settings, found).run(meter)

    def _set_daemons(self, wanted: Mapping[GPUUUID, mps.Daemon]) -> None:
        self.daemons = dict(wanted)
        self._around.changed()

    def _set_allocated(self, found: frozenset[GPUUUID] | None) -> None:
        if found != self._allocated:
            self._allocated = found
            self._around.changed()


def _door_of(row: Row) -> str:
    return door.CLAIMS if any(one.holder for one in row.claims) else door.PLUGIN
