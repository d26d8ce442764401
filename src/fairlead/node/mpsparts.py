"""Composes the agent's part that shares GPUs by MPS: silicon, the kubelet's list, the plugins.

The part is there where the silicon has compute modes. `plan` is what the core calls, and does no work: it adds to the
advertisements what clients of MPS need, and leaves to the part which daemons are wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from fairlead import errors, telemetry
from fairlead.model.device import Device
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.sharing import mps as daemons
from fairlead.node.sharing import mpsdaemon
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sharing import amounts, mps, replicate
from fairlead.settings import Settings
from fairlead.silicon.port import ComputeModes, MPSProgram, MPSSilicon
from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS


class MPSPart:
    """Runs the daemons between the kubelet's list, which wakes them, and the plugins, which keep devices back."""

    def __init__(
        self,
        settings: Settings,
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
        self._root, self._holdings, self._changed = settings.mps_root, holdings, changed
        self._gpus: Mapping[GPUUUID, GPU] = {}
        machine = daemons.Machine(
            state=settings.state.folder,
            root=self._root,
            boot_id=boot_id,
            modes=modes,
            program=find_program,
            held=self._held,
            is_standing_by=is_standing_by,
        )
        self.daemons = daemons.Daemons(machine, told=told)

    def plan(
        self, offered: Sequence[advertise.Advertisement], gpus: Mapping[GPUUUID, GPU]
    ) -> tuple[advertise.Advertisement, ...]:
        """Return the advertisements with what their replicas give, and have the daemons that they need."""
        self._gpus = gpus
        folders = {uuid: mpsdaemon.folders_of(self._root, uuid) for uuid in gpus}
        dressed = mps.plan_clients(offered, gpus, {uuid: (str(f.pipe), str(f.shm)) for uuid, f in folders.items()})
        self.daemons.want(mps.plan_daemons(dressed))
        return dressed

    def problem(self, means: str, device: Device) -> tuple[str, str] | None:
        """Return reason and message why a device must not be given away now, None where it may.

        Args: means: by which its resource is shared.
        """
        state = self.daemons.states.value.get(device.gpu)
        if means == replicate.MPS and device.replica_of is not None:
            found = state or daemons.State(daemons.STARTING, "its MPS control daemon has not answered yet")
            return (found.reason, found.message) if found.reason else None
        if state is None:
            return None
        return daemons.DRAINING, state.message if state.reason == daemons.DRAINING else "its MPS daemon is being ended"

    def _held(self) -> frozenset[GPUUUID] | None:
        if self._holdings.is_awaited or not self._gpus:
            return None
        table = deviceids.make_table(self._gpus.values())
        return frozenset(
            part.gpu
            for one in self._holdings.latest.value or ()
            for name in one.ids
            for part in deviceids.find_parts(one.resource, name, table)
        )

    async def run(self, meter: telemetry.Meter) -> None:
        """Keep the daemons, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.daemons.run(meter), name="mps")
            tasks.create_task(self.daemons.states.follow(lambda _: self._changed()), name="mps: states")
            tasks.create_task(self._holdings.latest.follow(lambda _: self.daemons.poke()), name="mps: holders")


def compose(
    settings: Settings,
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
        settings,
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
