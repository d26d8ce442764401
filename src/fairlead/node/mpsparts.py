"""Composes the agent's part that shares GPUs by MPS: silicon, the kubelet's list, the plugins.

The part is there where the silicon has compute modes. The core plans by its `facts`, and has it keep the daemons that
the supply needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead import errors, telemetry
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.sharing import mps as daemons
from fairlead.node.sharing import mpsdaemon
from fairlead.plan import supply
from fairlead.plan.gpu import deviceids
from fairlead.plan.sharing import amounts, mps
from fairlead.silicon.port import ComputeModes, MPSProgram, MPSSilicon
from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the part keeps things."""

    state: Path
    """Records of the daemons."""
    daemons: Path
    """The daemons' own folders."""


class MPSPart:
    """Runs the daemons between the kubelet's list, which wakes them, and the plugins, which keep devices back."""

    def __init__(
        self,
        folders: Folders,
        modes: ComputeModes,
        find_program: Callable[[], MPSProgram | None],
        *,
        boot_id: str,
        holdings: podresources.Holdings,
        changed: Callable[[], None],
        told: daemons.Told,
        is_standing_by: Callable[[], bool],
    ) -> None:
        """Compose the daemons; nothing runs yet. The arguments are those of `compose`."""
        self._root, self._holdings, self._changed = folders.daemons, holdings, changed
        self._gpus: Mapping[GPUUUID, GPU] = {}
        machine = daemons.Machine(
            state=folders.state,
            root=self._root,
            boot_id=boot_id,
            modes=modes,
            program=find_program,
            held=self._held,
            is_standing_by=is_standing_by,
        )
        self.daemons = daemons.Daemons(machine, told=told)
        self._of_claims: frozenset[GPUUUID] = frozenset()
        self._let_go: frozenset[GPUUUID] = frozenset()
        """GPUs whose claim is being unprepared: its pods have ended, whatever the kubelet lists."""

    def want(self, of_supply: Mapping[GPUUUID, mps.Daemon], of_claims: Mapping[GPUUUID, mps.Daemon]) -> None:
        """Have these daemons and no others from now on; those of claims end with their claim."""
        ending = self._of_claims - of_claims.keys()
        self._of_claims = frozenset(of_claims)
        self._let_go = (self._let_go | ending) - self._of_claims
        self.daemons.want({**of_supply, **of_claims})

    def folders(self, gpus: Iterable[GPUUUID]) -> Mapping[str, tuple[str, str]]:
        """Return of each GPU the folder of its daemon's pipes, and what is /dev/shm for its clients."""
        found = {uuid: mpsdaemon.folders_of(self._root, uuid) for uuid in gpus}
        return {str(uuid): (str(one.pipe), str(one.shm)) for uuid, one in found.items()}

    def facts(self, gpus: Mapping[GPUUUID, GPU]) -> supply.MPSFacts:
        """Return what the supply is planned by. Args: gpus: every GPU read so far."""
        self._gpus = gpus
        folders = self.folders(gpus)
        return supply.MPSFacts(folders={uuid: folders[str(uuid)] for uuid in gpus}, states=self.daemons.states.value)

    def _held(self) -> frozenset[GPUUUID] | None:
        if self._holdings.is_awaited or not self._gpus:
            return None
        table = deviceids.make_table(self._gpus.values())
        held = frozenset(
            part.gpu
            for one in self._holdings.latest.value or ()
            for name in one.ids
            for part in deviceids.find_parts(one.resource, name, table)
        )
        return held - self._let_go

    def _note_states(self, states: daemons.States) -> None:
        self._let_go &= states.keys()
        self._changed()

    async def run(self, meter: telemetry.Meter) -> None:
        """Keep the daemons, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.daemons.run(meter), name="mps")
            tasks.create_task(self.daemons.states.follow(self._note_states), name="mps: states")
            tasks.create_task(self._holdings.latest.follow(lambda _: self.daemons.poke()), name="mps: holders")


def compose(
    folders: Folders,
    silicon: object,
    *,
    boot_id: str,
    holdings: podresources.Holdings,
    changed: Callable[[], None],
    told: daemons.Told,
    is_standing_by: Callable[[], bool],
) -> MPSPart | None:
    """Return who shares GPUs by MPS; None: no GPU of this silicon has compute modes.

    Args: changed: called whenever other devices are kept back, or none any more.   told: see `mps.Told`.
          is_standing_by: whether another agent serves, whose daemons they are then.
    """
    if not isinstance(silicon, MPSSilicon) or (modes := silicon.compute_modes()) is None:
        return None
    return MPSPart(
        folders,
        modes,
        silicon.mps_program,
        boot_id=boot_id,
        holdings=holdings,
        changed=changed,
        told=told,
        is_standing_by=is_standing_by,
    )


class StartCheck:
    """Asks the kubelet, right before a container with amounts of MPS starts, whether it has all that it needs."""

    def __init__(self, holdings: podresources.Holdings) -> None:
        """Take the kubelet's list."""
        self._holdings = holdings

    async def check(self, resource: str, ids: tuple[DeviceID, ...]) -> None:
        """Return if the container may start. Raises: RequestError: an amount is missing; Unavailable: no answer."""
        problem = amounts.find_problem(resource, ids, await self._holdings.read())
        if problem:
            hint = f"ask for {' and '.join(sorted(MPS_AMOUNTS))} in the container's limits"
            raise errors.RequestError(problem, reason="MPSAmountMissing", hint=hint)
