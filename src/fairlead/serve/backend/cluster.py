"""Composes the backend on a cluster from its API server alone: what agents publish, what kubelets offer.

GPUs are `GPUDevice` objects of all nodes, images what nodes report. Nothing is filled in that is not published: no
temperature, no links between GPUs, no device nodes. What only one machine can do is absent, and its refusal names the
tool that does it on a cluster.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from fairlead import errors
from fairlead.model import replica
from fairlead.model.gpu import GPU, Driver, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.metering.price import Pricing
from fairlead.serve.backend import hardware, idempotency, place, port, volumes
from fairlead.serve.backend.containers import firstoutput, lifecycle, podaccess
from fairlead.serve.backend.faults import AgentFaults
from fairlead.serve.backend.tenancy import clustersecrets, credentials, trial
from fairlead.serve.history.port import History
from fairlead.serve.metering import leases
from fairlead.store import subresource
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, gpudevice, quantity
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.node.nodeimages import NodeImages


class Server(Protocol):
    """What an API server says of itself."""

    @property
    def address(self) -> str:
        """Where it is."""
        ...

    async def version(self) -> str:
        """Return its version, `v1.36.2`. Raises: Unavailable, Denied."""
        ...


class Pods(
    subresource.Placement,
    subresource.Trial,
    subresource.Recreation,
    subresource.Logs,
    subresource.Streams,
    Protocol,
):
    """Every subresource of its pods."""


def backend(
    *, store: Store, server: Server, pods: Pods, pricing: Pricing, history: History | port.Absent = port.NO_HISTORY
) -> port.Backend:
    """Compose the backend over an API server. Args: history: who answers questions about figures over time."""

    def absent(asked: str, instead: str) -> port.Absent:
        refusal = subresource.not_on_cluster(f"`{asked}`", instead, address=server.address)
        return port.Absent(message=refusal.message, reason=refusal.reason, hint=instead)

    living = lifecycle.ClusterLifecycle(store=store, placement=pods, trial=pods, recreation=pods)
    return port.Backend(
        places=place.Everywhere(),
        hardware=ClusterHardware(store=store, server=server),
        lifecycle=living,
        logs=pods,
        first_outputs=firstoutput.LogFirstOutputs(logs=pods),
        streams=pods,
        access=podaccess.ExecAccess(streams=pods),
        images=ClusterImages(store=store),
        image_building=absent("image", "push it to a registry that the nodes pull from, and run it by that name"),
        volumes=volumes.ClusterVolumes(store=store),
        secrets=clustersecrets.ClusterSecrets(store=store),
        manifests=living,
        devices=absent("attach", "on the node of the pod: `fairlead attach --pid PID GPU`, or `detach` as well"),
        faults=AgentFaults(store=store, streams=pods),
        tenancies=trial.ClusterTrial(store, pods),
        credentials=credentials.ClusterCredentials(store),
        metering=leases.StoreMetering(store=store, pricing=pricing),
        history=history,
        requests=idempotency.ClusterRequests(store=store),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImages:
    """A `port.Images` of what nodes report: of each the largest of its images, 50 by default."""

    store: Store

    async def list_images(self) -> tuple[hardware.ImageView, ...]:
        """See `port.Images.list_images`; one image is one digest, wherever it is."""
        found: dict[str, hardware.ImageView] = {}
        for node in (await self.store.list(NodeImages)).items:
            for image in node.status.images:
                digest = next((name.partition("@")[2] for name in image.names if "@" in name), "")
                tags = tuple(name for name in image.names if "@" not in name)
                key = digest or next(iter(tags), "")
                known = found.get(key)
                found[key] = hardware.ImageView(
                    id=digest,
                    names=tuple(dict.fromkeys((*(known.names if known else ()), *(tags or image.names)))),
                    size_bytes=image.size_bytes,
                    created_at=None,
                    nodes=(*(known.nodes if known else ()), node.metadata.name),
                )
        return tuple(sorted(found.values(), key=lambda one: one.names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHardware:
    """A `port.Hardware` over an API server's objects."""

    store: Store
    server: Server

    async def list_gpus(self) -> hardware.GPUListing:
        """See `port.Hardware`."""
        found = await self._devices()
        drivers = {_driver(one) for one in found if one.spec.driver_version}
        return hardware.GPUListing(
            gpus=tuple(gpu_view(one) for one in found),
            unreadable=(),
            drivers=tuple(sorted(drivers, key=lambda one: (one.vendor.value, one.version))),
            is_simulated=any(one.spec.simulated for one in found),
        )

    async def _devices(self) -> list[GPUDevice]:
        try:
            items = (await self.store.list(GPUDevice)).items
        except errors.NotFound as error:
            message = "the cluster does not know GPUDevices: Fairlead's definitions are not installed"
            hint = "`fairlead manifests | kubectl apply -f -` installs them; `fairlead doctor` checks the rest"
            raise errors.NotFound(message, reason=error.reason, hint=hint) from error
        return sorted(items, key=lambda one: (one.spec.node_name, one.spec.vendor, one.spec.index))

    async def list_topologies(self) -> hardware.TopologyList:
        """See `port.Hardware`: which GPUs are in which node, at which NUMA node; links are not published."""
        by_node: dict[str, list[GPU]] = {}
        for one in await self._devices():
            by_node.setdefault(one.spec.node_name, []).append(gpu_of(one))
        return hardware.TopologyList(
            items=tuple(hardware.Topology(node=node, gpus=tuple(gpus), links=None) for node, gpus in by_node.items())
        )

    async def describe(self) -> hardware.BackendStatus:
        """See `port.Hardware`."""
        problems: list[str] = []
        version, found = "", list[GPUDevice]()
        try:
            version = await self.server.version()
        except errors.FairleadError as error:
            problems.append(errors.sentence(error))
        try:
            found = await self._devices()
        except errors.FairleadError as error:
            problems.append(errors.sentence(error))
        health = Counter(one.status.health or gpudevice.UNKNOWN for one in found)
        return hardware.BackendStatus(
            is_simulated=any(one.spec.simulated for one in found),
            cluster=hardware.ClusterView(server=self.server.address, version=version),
            gpus={"found": len(found), "unreadable": health[gpudevice.LOST], **dict(sorted(health.items()))},
            problems=tuple(problems),
        )

    async def check_ready(self) -> None:
        """See `port.Hardware.check_ready`: the server answers."""
        await self.store.list(core.Node)


def gpu_view(device: GPUDevice) -> hardware.GPUView:
    """Describe a GPU from its object."""
    spec, status = device.spec, device.status
    return hardware.GPUView(
        gpu=gpu_of(device),
        node=spec.node_name,
        holders=tuple(
            hardware.Holder(
                device=device, namespace=one.namespace, container=one.pod, resource=one.resource, part=one.container
            )
            for one in status.holders
            for device in _devices(spec.uuid, one)
        ),
        health=status.health,
        reason=status.reason,
        message=status.message,
        since=hardware.judged_since(device),
        resource=spec.resource,
        sharing=spec.sharing,
        replicas=spec.replicas,
    )


def _devices(gpu: str, holder: gpudevice.Holder) -> tuple[str, ...]:
    """Return the replicas and MIG devices of a GPU that containers have; otherwise the GPU itself."""
    parts = {gpu, *holder.mig_devices}
    return tuple(one for one in holder.devices if replica.origin(one) in parts) or holder.mig_devices or (gpu,)


def gpu_of(device: GPUDevice) -> GPU:
    """Return the hardware that an object describes; what it does not say stays unknown."""
    spec = device.spec
    capability = tuple(int(part) for part in spec.compute_capability.split(".") if part.isdecimal())
    return GPU(
        uuid=GPUUUID(spec.uuid),
        vendor=Vendor(spec.vendor),
        index=spec.index,
        minor=spec.minor,
        pci_bus_id=spec.pci_bus_id,
        name=spec.product,
        memory_bytes=int(quantity.parse_quantity(spec.memory or "0")),
        serial=spec.serial or None,
        compute_capability=(capability[0], capability[1]) if len(capability) == 2 else None,
        brand=spec.brand or None,
        numa_node=spec.numa_node,
        mig_enabled=spec.mig_mode == "Enabled",
        mig_capable=spec.mig_mode in {"Enabled", "Disabled"},
        mig_devices=tuple(map(_mig_device, spec.mig_devices)),
    )


def _mig_device(one: gpudevice.MIGSlice) -> MIGDevice:
    return MIGDevice(
        uuid=MIGUUID(one.uuid),
        index=one.index,
        profile=one.profile,
        gpu_instance=one.gpu_instance,
        compute_instance=one.compute_instance,
        placement_start=one.start,
        placement_size=one.size,
        memory_bytes=int(quantity.parse_quantity(one.memory or "0")),
    )


def _driver(device: GPUDevice) -> Driver:
    parts = tuple(int(part) for part in device.spec.cuda_version.split(".") if part.isdecimal())
    cuda = (parts[0], parts[1]) if len(parts) == 2 else None
    return Driver(vendor=Vendor(device.spec.vendor), version=device.spec.driver_version, cuda_version=cuda)
