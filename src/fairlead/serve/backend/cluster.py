"""The home in a cluster, seen through its API server alone: what its agents publish, what its kubelets keep of output.

GPUs are `GPUDevice` objects of all nodes. Nothing is filled in that nobody publishes: no temperature, no links between
GPUs, no device nodes. What only the machine itself can do is refused, with the tool that does it on a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

from fairlead import errors
from fairlead.model.gpu import GPU, Driver, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.serve.api import stream
from fairlead.serve.backend import attempt, port
from fairlead.serve.v1 import machineview, pods, view
from fairlead.store.port import ChangeKind, Store
from fairlead.wire.kubernetes import core, gpudevice, quantity
from fairlead.wire.kubernetes.gpudevice import GPUDevice


class Server(Protocol):
    """What an API server answers beside objects."""

    @property
    def address(self) -> str:
        """Where it is."""
        ...

    async def version(self) -> str:
        """Return its version, `v1.36.2`. Raises: Unavailable, Denied."""
        ...

    def logs(
        self, namespace: str, pod: str, container: str, *, follow: bool, tail: int | None, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """Yield what the newest run of a container wrote.

        Raises: Conflict (`ContainerNotStarted`); NotFound; Denied; Unavailable: its node does not answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBackend:
    """A `home.Home`."""

    store: Store
    server: Server

    @property
    def is_own(self) -> bool:
        """See `home.Home`."""
        return False

    def machine(self, asked: str, *, instead: str) -> port.Machine:
        """See `home.Home`: there is none."""
        message = f"`{asked}` works on one machine that runs `fairlead up`, not on the cluster at {self.server.address}"
        raise errors.RequestError(message, reason="NotOnCluster", hint=instead)

    async def list_gpus(self) -> machineview.GPUListing:
        """See `home.Home`."""
        found = await self._devices()
        drivers = {_driver(one) for one in found if one.spec.driver_version}
        return machineview.GPUListing(
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

    async def list_topologies(self) -> machineview.TopologyList:
        """See `home.Home`: which GPUs are in which node, at which NUMA node; links are not published."""
        by_node: dict[str, list[GPU]] = {}
        for one in await self._devices():
            by_node.setdefault(one.spec.node_name, []).append(gpu_of(one))
        return machineview.TopologyList(
            items=tuple(machineview.Topology(node=node, gpus=tuple(gpus), links=None) for node, gpus in by_node.items())
        )

    async def describe(self) -> machineview.HomeStatus:
        """See `home.Home`."""
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
        return machineview.HomeStatus(
            is_simulated=any(one.spec.simulated for one in found),
            cluster=machineview.ClusterView(server=self.server.address, version=version),
            gpus={"found": len(found), "unreadable": health[gpudevice.LOST], **dict(sorted(health.items()))},
            problems=tuple(problems),
        )

    async def latest_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """See `home.Home`; the first bytes are waited for, so that a refusal is an answer and no broken stream."""
        if not pod.spec.node_name:
            raise attempt.not_started(pod)
        about = pod.metadata
        chunks = self.server.logs(
            about.namespace, about.name, container, follow=False, tail=tail, timestamps=timestamps
        )
        first = await anext(chunks, b"")
        return _from(first, chunks)

    async def follow_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool, once: bool
    ) -> AsyncIterator[bytes]:
        """See `home.Home`; a run that ended before it was seen is known by its id only, its output is the kubelet's."""
        about, seen = pod.metadata, set[str]()
        async with stream.closing(pods.follow_pod(self.store, pod)) as changes:
            async for change in changes:
                run = _run_id(change.object, container)
                if run and run not in seen and change.kind is not ChangeKind.DELETED:
                    limit = None if seen else tail
                    logs = self.server.logs(
                        about.namespace, about.name, container, follow=True, tail=limit, timestamps=timestamps
                    )
                    async with stream.closing(logs) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    seen.add(run)
                if (once and seen) or change.kind is ChangeKind.DELETED or view.is_final(change.object):
                    return


def gpu_view(device: GPUDevice) -> machineview.GPUView:
    """Describe a GPU from its object."""
    spec, status = device.spec, device.status
    return machineview.GPUView(
        gpu=gpu_of(device),
        node=spec.node_name,
        holders=tuple(
            machineview.Holder(device=spec.uuid, namespace=one.namespace, container=one.pod, part=one.container)
            for one in status.holders
        ),
        health=status.health,
        reason=status.reason,
        message=status.message,
    )


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
        memory_bytes=int(quantity.parse_quantity(spec.memory)),
        serial=spec.serial or None,
        compute_capability=(capability[0], capability[1]) if len(capability) == 2 else None,
        brand=spec.brand or None,
        numa_node=spec.numa_node,
        mig_enabled=spec.mig_mode == "Enabled",
        mig_capable=spec.mig_mode in {"Enabled", "Disabled"},
    )


def _driver(device: GPUDevice) -> Driver:
    parts = tuple(int(part) for part in device.spec.cuda_version.split(".") if part.isdecimal())
    cuda = (parts[0], parts[1]) if len(parts) == 2 else None
    return Driver(vendor=Vendor(device.spec.vendor), version=device.spec.driver_version, cuda_version=cuda)


def _run_id(pod: core.Pod, container: str) -> str:
    """Return the id of a container's newest run that has begun; empty before the first."""
    for status in _statuses(pod):
        if status.name == container and (status.state.running or status.state.terminated):
            return status.container_id
    return ""


def _statuses(pod: core.Pod) -> Iterator[core.ContainerStatus]:
    yield from pod.status.container_statuses
    yield from pod.status.init_container_statuses


async def _from(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with stream.closing(rest) as chunks:
        if first:
            yield first
        async for chunk in chunks:
            yield chunk
