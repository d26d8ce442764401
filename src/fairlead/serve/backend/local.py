"""Composes the backend on one machine: its hardware, its engine's containers and images, its own kubelet."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fairlead import errors, files
from fairlead.engine.access import Access
from fairlead.engine.port import ContainerState, Engine, Image, Images, ImageStore, Recipe
from fairlead.kernel.network import netns
from fairlead.model import replica
from fairlead.model.device import gpus_by_device
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPU, Inventory
from fairlead.model.neighbour import Neighbour
from fairlead.model.sample import Sample
from fairlead.plan.claim.life import lifecycle as claimlife
from fairlead.plan.dra import devicestatus, offered
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.lease.row import State
from fairlead.plan.metering.price import Pricing
from fairlead.plan.pod import machine, podstate
from fairlead.serve.backend import (
    deviceclaims,
    hardware,
    neighbours,
    passthrough,
    place,
    port,
    vgpus,
    volumes,
    workloads,
)
from fairlead.serve.backend.containers import devicechange, enginepods, lifecycle, podaccess, podchanges
from fairlead.serve.backend.faults import LocalFaults
from fairlead.serve.backend.tenancy import localsecrets
from fairlead.serve.metering import leases
from fairlead.silicon.port import Faults, Sampler
from fairlead.store import sealing
from fairlead.store.port import AdmittingStore, Selector, Store
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.text import timestamp

_REAL: Final = port.Absent(
    kind=errors.Conflict,
    message="the silicon is real: it is not broken on command",
    reason="SiliconReal",
    hint="start one with `fairlead up --simulate h100x8`",
)


_NO_TENANCIES: Final = port.Absent(
    kind=errors.Unavailable,
    message="nothing keeps tenancies here",
    reason="TenanciesAbsent",
    hint="`fairlead up` does",
)
_SAMPLE_S: Final = 1.0
"""A GPU that takes longer to say how it is shows what it said before."""
_READINGS: Final = ("utilization_percent", "memory_used_bytes", "power_mw", "temperature_c")


class EngineAndImages(Engine, Access, Images, ImageStore, Protocol):
    """What runs containers, leads into them, and what they are run from."""


async def dial(state: ContainerState, number: int) -> netns.Connection:
    """Connect to a port of a running container through its network namespace."""
    if state.pid is None:
        message = f'container "{state.name}" has no process to connect to'
        raise errors.Conflict(message, reason="ContainerNotRunning", hint="it has just ended: `fairlead ps -a`")
    return await netns.connect(state.pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Where a machine's hardware is read."""

    scan: Callable[[], Inventory]
    """Returns the latest scan."""
    drivers: Callable[[], tuple[DriverFiles, ...]]
    leases: Callable[[], Mapping[str, str] | None] = lambda: None
    """Returns the state of each GPU that the node's ledger has looked at, by UUID; None: there is no ledger."""
    neighbours: Callable[[], Mapping[str, tuple[Neighbour, ...]]] = dict
    """Returns the programs on each GPU that Fairlead did not start, by UUID."""
    advertised: Callable[[], tuple[advertise.Advertisement, ...]] = tuple
    """Returns what the device plugin offers."""
    sampler: Sampler | None = None
    """Reads load, power and memory now; None: those of the latest scan are shown."""


def backend(
    *,
    store: AdmittingStore,
    engine: EngineAndImages,
    node: str,
    readings: Readings,
    faults: Faults | None,
    state_folder: Path,
    living: lifecycle.LocalLifecycle | None = None,
    dial: enginepods.Dial = dial,
) -> port.Backend:
    """Compose the backend of one machine.

    Args:    faults: None where the silicon is real.   state_folder: where the store keeps its file, and volumes lie.
             living: what makes and ends pods; None: one of its own.   dial: how a container's port is reached.
    """
    living = living or lifecycle.LocalLifecycle(store=store, here=machine.Here(node=node))
    images = LocalImages(engine=engine, kept=engine)
    return port.Backend(
        places=place.Everywhere(),
        hardware=LocalHardware(
            store=store,
            images=engine,
            node=node,
            readings=readings,
            state_folder=state_folder,
        ),
        lifecycle=living,
        logs=enginepods.EngineLogs(engine=engine),
        streams=enginepods.EngineStreams(engine=engine, access=engine, dial=dial),
        access=podaccess.EngineAccess(engine=engine, access=engine),
        volumes=volumes.LocalVolumes(store=store, folder=state_folder / "volumes"),
        secrets=localsecrets.LocalSecrets(store=store, seal=sealing.Seal(state_folder / sealing.KEY_FILE)),
        images=images,
        image_building=images,
        manifests=living,
        workloads=workloads.LocalWorkloads(store=store, here=living.here),
        changes=podchanges.LocalPodChanges(store=store, resource=living.here.resource),
        devices=devicechange.LocalDeviceChanges(store=store, scan=readings.scan),
        faults=_REAL if faults is None else LocalFaults(faults=faults, node=node),
        tenancies=_NO_TENANCIES,
        metering=leases.StoreMetering(store=store, pricing=Pricing()),
        requests=living.requests,
        claims=deviceclaims.LocalDeviceClaims(store=store),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalImages:
    """A `port.Images` and `port.ImageBuilding` over the engine's."""

    engine: Images
    kept: ImageStore

    async def list_images(self) -> tuple[hardware.ImageView, ...]:
        """See `port.Images.list_images`."""
        return tuple(map(_image_view, await self.engine.list_images()))

    async def import_root(self, source: Path, name: str, *, command: tuple[str, ...] = ()) -> hardware.ImageView:
        """See `port.ImageBuilding.import_root`."""
        return _image_view(await self.engine.import_root(source, name, command=command))

    def build(self, context: Path, name: str, recipe: Recipe) -> AsyncGenerator[bytes, None]:
        """See `port.ImageBuilding.build`."""
        return self.engine.build(context, name, recipe)

    async def remove_image(self, name: str) -> None:
        """See `port.ImageBuilding.remove_image`."""
        await self.engine.remove_image(name)


def _image_view(image: Image) -> hardware.ImageView:
    created_at = timestamp.emit(image.created_at)
    return hardware.ImageView(id=image.id, names=image.names, size_bytes=image.size_bytes, created_at=created_at)


def _holders(inventory: Inventory, every: Iterable[hardware.Holder]) -> dict[str, list[hardware.Holder]]:
    """Return holders by GPU: a device is the GPU itself, a MIG device on it, or a replica `ID::N` of either."""
    gpus = gpus_by_device(inventory.gpus)
    result: dict[str, list[hardware.Holder]] = {}
    for holder in every:
        if (uuid := gpus.get(replica.origin(holder.device))) is not None:
            result.setdefault(uuid, []).append(holder)
    return result


async def _samples(sampler: Sampler) -> dict[str, Sample]:
    """Read the counters of whole GPUs that answer soon, by UUID; the others keep what the latest scan read."""
    return {one.gpu: one for one in await sampler.sample(within_s=_SAMPLE_S) if one.mig is None}


def _sampled(gpu: GPU, samples: Mapping[str, Sample]) -> GPU:
    found = samples.get(gpu.uuid)
    if found is None:
        return gpu
    now = {name: getattr(found, name) for name in _READINGS}
    known = {name: value for name, value in now.items() if value is not None}
    return dataclasses.replace(gpu, health=dataclasses.replace(gpu.health, **known))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHardware:
    """A `port.Hardware`: readings are live, the verdict on each GPU is the agent's, holders are the kubelet's."""

    store: Store
    images: Images
    node: str
    readings: Readings
    state_folder: Path

    async def list_gpus(self) -> hardware.GPUListing:
        """See `port.Hardware.list_gpus`."""
        found = self.readings.scan()
        granted, claimed = await self._granted(), await self._claimed()
        holders = _holders(found, (*granted, *claimed))
        verdicts = await self._verdicts()
        samples = {} if self.readings.sampler is None else await _samples(self.readings.sampler)
        return hardware.GPUListing(
            gpus=tuple(self._shown(_sampled(gpu, samples), holders, verdicts) for gpu in found.gpus),
            unreadable=found.unreadable,
            drivers=found.drivers,
            is_simulated=found.is_simulated,
            vgpus=vgpus.list_vgpus(
                self.readings.drivers(), found.gpus, self.readings.advertised(), granted, node=self.node
            ),
            lenders=vgpus.list_lenders(self.readings.drivers()),
            passthrough=passthrough.list_passthrough(
                self.readings.drivers(),
                node=self.node,
                holders=passthrough.holders_by_gpu(self.readings.advertised(), granted, claimed),
                states=self.readings.leases(),
            ),
        )

    def _shown(
        self, gpu: GPU, holders: dict[str, list[hardware.Holder]], verdicts: dict[str, GPUDevice]
    ) -> hardware.GPUView:
        verdict, states = verdicts.get(gpu.uuid), self.readings.leases()
        return hardware.GPUView(
            gpu=gpu,
            node=self.node,
            holders=tuple(holders.get(gpu.uuid, ())),
            health=verdict.status.health if verdict else "",
            reason=verdict.status.reason if verdict else "",
            message=verdict.status.message if verdict else "",
            since=hardware.judged_since(verdict) if verdict else None,
            resource=verdict.spec.resource if verdict else "",
            sharing=verdict.spec.sharing if verdict else "",
            replicas=verdict.spec.replicas if verdict else 0,
            lease="" if states is None else states.get(gpu.uuid, State.UNKNOWN.value),
            neighbours=tuple(map(neighbours.view_of, self.readings.neighbours().get(gpu.uuid, ()))),
        )

    async def _verdicts(self) -> dict[str, GPUDevice]:
        mine = Selector(fields={"spec.nodeName": self.node})
        return {one.spec.uuid: one for one in (await self.store.list(GPUDevice, mine)).items}

    async def _claimed(self) -> tuple[hardware.Holder, ...]:
        """Return every device of this machine's own driver that a claim of a pod has, as the claim's status says it."""
        claims = (await self.store.list(ResourceClaim)).items
        if not any(one.status.devices for one in claims):
            return ()
        here = Selector(fields={"spec.nodeName": self.node})
        pods = {one.metadata.uid: one for one in (await self.store.list(core.Pod, here)).items}
        mine = f"{offered.DRIVER}/{self.node}/"
        return tuple(
            hardware.Holder(
                device=report.mig_device or report.gpu,
                resource=offered.DRIVER,
                namespace=claim.metadata.namespace,
                container=pod.metadata.name,
                since=pod.status.start_time or pod.metadata.creation_timestamp,
                claim=claim.metadata.name,
                enforced_by=report.enforced_by,
            )
            for claim in claims
            for report in devicestatus.reports(claim)
            if report.gpu and report.device.startswith(mine) and not report.is_admin
            for user in claimlife.pod_users(claim)
            if (pod := pods.get(user.uid)) is not None and not podstate.is_final(pod)
        )

    async def _granted(self) -> tuple[hardware.Holder, ...]:
        """Return every device that a pod of this machine has, in order."""
        result: list[hardware.Holder] = []
        for pod in (await self.store.list(core.Pod, Selector(fields={"spec.nodeName": self.node}))).items:
            if podstate.is_final(pod):
                continue
            granted = podstate.granted_devices(pod)
            for resource, device in ((resource, device) for resource, ids in granted.items() for device in ids):
                result.append(
                    hardware.Holder(
                        device=device,
                        resource=resource,
                        namespace=pod.metadata.namespace,
                        container=pod.metadata.name,
                        since=pod.status.start_time or pod.metadata.creation_timestamp,
                    )
                )
        return tuple(result)

    async def list_topologies(self) -> hardware.TopologyList:
        """See `port.Hardware`."""
        found = self.readings.scan()
        return hardware.TopologyList(items=(hardware.Topology(node=self.node, gpus=found.gpus, links=found.links),))

    async def describe(self) -> hardware.BackendStatus:
        """See `port.Hardware`."""
        found = self.readings.scan()
        return hardware.BackendStatus(
            is_simulated=found.is_simulated,
            engine=await self._engine(),
            gpus={"found": len(found.gpus), "unreadable": len(found.unreadable)},
            problems=tuple(text for driver in self.readings.drivers() for text in driver.problems),
        )

    async def _engine(self) -> hardware.EngineView:
        try:
            found = await self.images.info()
        except errors.FairleadError as error:
            return hardware.EngineView(problem=error.message, hint=error.hint)
        return hardware.EngineView(
            name=found.name,
            version=found.version,
            runtime=found.runtime,
            cdi_ceiling=found.cdi_ceiling,
            cgroup_version=found.cgroup_version,
            notes=found.notes,
        )

    async def check_ready(self) -> None:
        """See `port.Hardware.check_ready`: its node has registered and is ready, and its state can be written."""
        files.check_room(self.state_folder)
        try:
            node = await self.store.get(core.Node, self.node)
        except errors.NotFound as error:
            message = f'node "{self.node}" has not registered yet'
            raise errors.Unavailable(message, reason="NodeNotReady", hint="`fairlead status`") from error
        ready = meta.find_condition(node.status.conditions, "Ready")
        if ready is None or ready.status != "True":
            why = (ready.reason if ready else "") or "no reason given"
            message = f'node "{self.node}" is not ready: {why}'
            raise errors.Unavailable(message, reason="NodeNotReady", hint="`fairlead doctor`")
