"""The home on one machine: live readings of its hardware, its engine's containers and images."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fairlead import errors
from fairlead.engine.port import Engine, Images
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPU, Inventory
from fairlead.serve.backend import attempt, port
from fairlead.serve.v1 import machineview, view
from fairlead.silicon.port import Faults
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBackend:
    """A `home.Home`, and the `home.Machine` of it."""

    store: Store
    engine: Engine
    images: Images
    node: str
    scan: Callable[[], Inventory]
    """The latest scan."""
    drivers: Callable[[], tuple[DriverFiles, ...]]
    faults: Faults | None

    @property
    def is_own(self) -> bool:
        """See `home.Home`."""
        return True

    def inventory(self) -> Inventory:
        """See `home.Machine`."""
        return self.scan()

    def machine(self, asked: str, *, instead: str) -> port.Machine:  # noqa: ARG002 it is always had here
        """See `home.Home`."""
        return self

    async def list_gpus(self) -> machineview.GPUListing:
        """See `home.Home`: readings are live, the verdict on each GPU is the agent's, holders are the kubelet's."""
        found = self.scan()
        holders = await self._holders(found)
        verdicts = await self._verdicts()
        return machineview.GPUListing(
            gpus=tuple(self._shown(gpu, holders, verdicts) for gpu in found.gpus),
            unreadable=found.unreadable,
            drivers=found.drivers,
            is_simulated=found.is_simulated,
        )

    def _shown(
        self, gpu: GPU, holders: dict[str, list[machineview.Holder]], verdicts: dict[str, GPUDevice]
    ) -> machineview.GPUView:
        verdict = verdicts.get(gpu.uuid)
        return machineview.GPUView(
            gpu=gpu,
            node=self.node,
            holders=tuple(holders.get(gpu.uuid, ())),
            health=verdict.status.health if verdict else "",
            reason=verdict.status.reason if verdict else "",
            message=verdict.status.message if verdict else "",
        )

    async def _verdicts(self) -> dict[str, GPUDevice]:
        mine = Selector(fields={"spec.nodeName": self.node})
        return {one.spec.uuid: one for one in (await self.store.list(GPUDevice, mine)).items}

    async def _holders(self, inventory: Inventory) -> dict[str, list[machineview.Holder]]:
        """Return holders by GPU: a device is the GPU itself, a MIG device on it, or a replica `ID::N` of either."""
        board = {str(gpu.uuid): str(gpu.uuid) for gpu in inventory.gpus}
        board |= {str(mig.uuid): str(gpu.uuid) for gpu in inventory.gpus for mig in gpu.mig_devices}
        result: dict[str, list[machineview.Holder]] = {}
        for pod in (await self.store.list(core.Pod, Selector(fields={"spec.nodeName": self.node}))).items:
            if view.is_final(pod):
                continue
            for device in (device for ids in view.granted_devices(pod).values() for device in ids):
                uuid = board.get(device.partition("::")[0])
                if uuid is not None:
                    holder = machineview.Holder(
                        device=device, namespace=pod.metadata.namespace, container=pod.metadata.name
                    )
                    result.setdefault(uuid, []).append(holder)
        return result

    async def list_topologies(self) -> machineview.TopologyList:
        """See `home.Home`."""
        found = self.scan()
        return machineview.TopologyList(
            items=(machineview.Topology(node=self.node, gpus=found.gpus, links=found.links),)
        )

    async def describe(self) -> machineview.HomeStatus:
        """See `home.Home`."""
        found = self.scan()
        return machineview.HomeStatus(
            is_simulated=found.is_simulated,
            engine=await self._engine(),
            gpus={"found": len(found.gpus), "unreadable": len(found.unreadable)},
            problems=tuple(text for driver in self.drivers() for text in driver.problems),
        )

    async def _engine(self) -> machineview.EngineView:
        try:
            found = await self.images.info()
        except errors.FairleadError as error:
            return machineview.EngineView(problem=error.message, hint=error.hint)
        return machineview.EngineView(
            name=found.name,
            version=found.version,
            runtime=found.runtime,
            cdi_ceiling=found.cdi_ceiling,
            cgroup_version=found.cgroup_version,
            notes=found.notes,
        )

    async def latest_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """See `home.Home`."""
        return await attempt.latest_logs(self.engine, pod, container, tail=tail, timestamps=timestamps)

    def follow_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool, once: bool
    ) -> AsyncIterator[bytes]:
        """See `home.Home`."""
        wanted = attempt.Wanted(container=container, tail=tail, timestamps=timestamps, once=once)
        return attempt.follow_logs(self.store, self.engine, pod, wanted)
