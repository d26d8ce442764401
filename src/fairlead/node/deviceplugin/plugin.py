"""Serves the device plugin API for one resource, from memory, on a unix socket of its own.

`Plugin` is the servicer. It holds the last advertisement and answers every call from it: no call reads hardware or
disk, so none can hang the kubelet. Streams get full lists, only when something changed, and a slow one skips to the
newest. Allocate names devices in the way the node's settings say (`plan.gpu.allocation.answer`), by default as CDI
names; what those mean is in the spec that `node.cdi` wrote before they were advertised. Unknown and unhealthy ids are
refused, never guessed.

`Endpoint` is the socket: bound, then dialled once to be sure, before the kubelet gets its name. When to bind again and
registering with kubelets is `node.deviceplugin.registration`'s part.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import grpc.aio

from fairlead import errors, telemetry
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import taken as takens
from fairlead.node.inventory import latest
from fairlead.plan.gpu import attribution
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sharing import amounts, mps
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS
from fairlead.wire.proto import deviceplugin_pb2 as pb

DIAL_TIMEOUT_S: Final = 5.0
_ROOTS: Final = 0o600
SOCKET_START: Final = "fairlead-"
"""How the names of our plugins' sockets begin."""
SWEPT: Final = "PluginSocketSwept"
"""Why a socket is not served: its folder was emptied between bind and rename."""
FOLDER_GONE: Final = "PluginFolderGone"
"""Why a socket can never be served again by this process: its mount shows a folder that was deleted."""
LONGEST_SOCKET_PATH: Final = 107
"""Bytes. Source: unix(7), sun_path without its final NUL."""


Prefer = Callable[[Iterable[DeviceID], Collection[DeviceID], int], tuple[DeviceID, ...]]
"""Chooses slots of passed-through GPUs. Args: available, must be included, how many. Returns fewer: it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the plugin answers from; replaced as a whole."""

    devices: Mapping[DeviceID, Device] = field(default_factory=dict)
    vendor: Vendor = Vendor.NVIDIA
    topology: choose.Topology = field(default_factory=choose.Topology)
    nodes: Mapping[str, DeviceNode] = field(default_factory=dict)
    rule: advertise.SharingRule = advertise.UNSHARED
    clients: Mapping[GPUUUID, advertise.MPSClient] = field(default_factory=dict)


class Gate(Protocol):
    """What possession asks of a device plugin (`node.lease.gate`)."""

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give all devices away or raise."""
        ...


class Plugin:
    """Servicer of `v1beta1.DevicePlugin` for one resource."""

    def __init__(
        self,
        resource: str,
        *,
        allocate_options: answer.AllocateOptions = answer.DEFAULT,
        told: Callable[[attribution.Call], None] | None = None,
        meter: telemetry.Meter = telemetry.UNMETERED,
    ) -> None:
        """Take the resource's name and how to answer; `told` is called with every answered part of an Allocate."""
        self.resource = resource
        self.allocate_options = allocate_options
        """How Allocate answers; the configuration may set another one at any time."""
        self._meter = meter
        self._told = told
        self._preference: attribution.Preference | None = None
        self._offer = Offer()
        self._devices: latest.Latest[tuple[Device, ...]] = latest.Latest(())
        self._reasons: set[str] = set()
        self._streams = 0
        self.gate: Gate | None = None
        """What must agree before a device is given away; None: there is no ledger."""
        self.taken: takens.Taken | None = None
        """What containers have; None: the kubelet's count is relied upon."""
        self.prefer: Prefer | None = None
        """Chooses among slots; None: there are none of several GPUs."""
        self.refusal: errors.Unavailable | None = None
        """Why no Allocate is answered now: the engine would, or may, start containers without their devices."""
        self.pairing = amounts.Pairing()
        """Shared by the resources of which a container must have both."""
        self.before_start: Callable[[str, tuple[DeviceID, ...]], Awaitable[None]] | None = None
        """Called with the devices of a container that is about to start; what it raises keeps the container from it."""
        self.on_unwatched: Callable[[], None] | None = None
        """Called when the last stream of the list has ended, from whichever side."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """What is advertised now, in order."""
        return self._devices.value

    @property
    def is_watched(self) -> bool:
        """Whether ListAndWatch has a reader, as it has from a kubelet's registration to its end."""
        return self._streams > 0

    def update(
        self,
        advertisement: advertise.Advertisement,
        topology: choose.Topology,
        *,
        nodes: Iterable[DeviceNode] = (),
    ) -> bool:
        """Answer from this now on; returns whether the advertised list differs and was sent.

        Args: nodes: the driver's device nodes, for answers that list them.
        """
        devices = {device.id: device for device in advertisement.devices}
        self._offer = Offer(
            devices=devices,
            vendor=advertisement.vendor,
            topology=topology,
            nodes={node.path: node for node in nodes},
            rule=advertisement.rule,
            clients=advertisement.clients,
        )
        healthy = sum(device.is_healthy for device in advertisement.devices)
        self._meter.set(telemetry.DEVICES, len(advertisement.devices), self.resource, "advertised")
        self._meter.set(telemetry.DEVICES, healthy, self.resource, "healthy")
        self._count_reasons(advertisement.devices)
        return self._devices.set(advertisement.devices)

    def _count_reasons(self, devices: Iterable[Device]) -> None:
        """Show how many devices are kept back for each reason; a reason that has ended stays, at zero."""
        counts = Counter(device.reason or "unknown" for device in devices if not device.is_healthy)
        self._reasons |= counts.keys()
        for reason in self._reasons:
            self._meter.set(telemetry.UNHEALTHY_DEVICES, counts[reason], self.resource, reason)

    async def options(self) -> pb.DevicePluginOptions:
        """Preferred allocation is worth asking for; before a start only amounts are checked."""
        return pb.DevicePluginOptions(
            get_preferred_allocation_available=True, pre_start_required=self.resource in MPS_AMOUNTS
        )

    async def list_and_watch(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Yield the full list now and whenever it changed."""
        self._streams += 1
        try:
            async for devices in self._devices.changes():
                yield pb.ListAndWatchResponse(devices=[_message(device) for device in devices])
        finally:
            self._streams -= 1
            if not self._streams and self.on_unwatched is not None:
                self.on_unwatched()

    async def preferred_allocation(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        """Suggest neighbours. Raises: Insufficient, RequestError."""
        with telemetry.timed("devices preferred", resource=self.resource) as timing:
            answers = [self._prefer(r) for r in request.container_requests]
        if answers:
            # Kept for the trace: a kubelet calls Allocate for the same container right afterwards.
            self._preference = attribution.Preference(
                available=tuple(request.container_requests[-1].available_deviceIDs),
                preferred=tuple(answers[-1].deviceIDs),
                at=time.time(),
                duration_s=timing.duration_s,
            )
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Return what tells an engine the devices; equal ids get equal answers while the configuration is the same.

        Raises: NotFound: unknown id; DeviceFault: unhealthy id; RequestError: a sharing rule forbids these ids;
                Unavailable: see `refusal`, or what is to come beside a GPU is missing; what `Gate.hold` raises.
        """
        if (why := self.refusal) is not None:
            raise errors.Unavailable(why.message, reason=why.reason, hint=why.hint)
        with telemetry.timed("devices allocated", resource=self.resource) as timing:
            answers = [self._give(tuple(map(DeviceID, r.devices_ids))) for r in request.container_requests]
            if self._offer.rule.amount_of:
                for asked in request.container_requests:
                    self._pair(tuple(map(DeviceID, asked.devices_ids)))
            wanted = [DeviceID(item) for r in request.container_requests for item in r.devices_ids]
            if self.gate is not None:
                await self.gate.hold(self.resource, [self._offer.devices[item] for item in wanted])
        if self.taken is not None:
            self.taken.give(self.resource, wanted)
        self._meter.observe(telemetry.ALLOCATE, timing.duration_s, self.resource)
        telemetry.log.info("devices allocated", resource=self.resource, count=len(answers))
        self._tell(request, answers, timing.duration_s)
        return pb.AllocateResponse(container_responses=answers)

    def _tell(
        self, request: pb.AllocateRequest, answers: list[pb.ContainerAllocateResponse], duration_s: float
    ) -> None:
        preference, self._preference = self._preference, None
        if self._told is None:
            return
        for asked, given in zip(request.container_requests, answers, strict=True):
            ids = tuple(map(DeviceID, asked.devices_ids))
            is_about_these = preference is not None and set(ids) <= set(preference.available)
            self._told(
                attribution.Call(
                    resource=self.resource,
                    ids=ids,
                    answer=given,
                    at=time.time(),
                    duration_s=duration_s,
                    preference=preference if is_about_these else None,
                )
            )

    def recall(self, ids: Sequence[DeviceID]) -> pb.ContainerAllocateResponse | None:
        """Return what Allocate would answer for these ids now; None: it would refuse."""
        try:
            return self._give(tuple(ids))
        except errors.FairleadError:
            return None

    async def pre_start_container(
        self,
        request: pb.PreStartContainerRequest,
    ) -> pb.PreStartContainerResponse:
        """Refuse the start of a container that has one amount of MPS without the other.

        Raises: RequestError: an amount is missing; Unavailable: the kubelet does not say what the container has.
        """
        if self.before_start is not None:
            await self.before_start(self.resource, tuple(map(DeviceID, request.devices_ids)))
        return pb.PreStartContainerResponse()

    def _prefer(self, request: pb.ContainerPreferredAllocationRequest) -> pb.ContainerPreferredAllocationResponse:
        available = tuple(map(DeviceID, request.available_deviceIDs))
        needed = tuple(map(DeviceID, request.must_include_deviceIDs))
        taken = self._taken_of(frozenset(available).difference(needed))
        if self.prefer is not None:
            slots = self.prefer([item for item in available if item not in taken], needed, request.allocation_size)
            if len(slots) == request.allocation_size:
                return pb.ContainerPreferredAllocationResponse(deviceIDs=slots)
        chosen = choose.choose_devices(
            available,
            needed,
            request.allocation_size,
            devices=self._offer.devices,
            topology=self._offer.topology,
            rule=self._offer.rule,
            near=self.pairing.near(self.resource, time.monotonic()),
            taken=taken,
        )
        return pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)

    def _taken_of(self, offered: frozenset[DeviceID]) -> frozenset[DeviceID]:
        found = self.taken.find(self.resource) & offered if self.taken is not None else frozenset[DeviceID]()
        if found:
            devices = ", ".join(sorted(found))
            why = "the kubelet offers what a pod that lives has, or was given a moment ago; others are preferred"
            telemetry.log.info("devices offered twice", resource=self.resource, device=devices, error=why)
        return found

    def _give(self, ids: tuple[DeviceID, ...]) -> pb.ContainerAllocateResponse:
        offer = self._offer
        for item in ids:
            self._assert_allocatable(item, offer)
        self._assert_shareable(ids, offer)
        # Order follows the advertisement, so equal sets get equal answers.
        wanted = frozenset(ids)
        chosen = [device for item, device in offer.devices.items() if item in wanted]
        given = answer.plan_answer(
            chosen, resource=self.resource, vendor=offer.vendor, options=self.allocate_options, nodes=offer.nodes
        )
        mps.add_client(given, chosen, offer.clients)
        return given

    def _pair(self, ids: tuple[DeviceID, ...]) -> None:
        """Note of which GPU an amount was given. Raises: RequestError: the container's other amount is of another."""
        for gpu in {self._offer.devices[item].gpu for item in ids}:
            self.pairing.give(self.resource, gpu, time.monotonic())

    def _assert_shareable(self, ids: tuple[DeviceID, ...], offer: Offer) -> None:
        """Refuse what the configuration does not let one container have of a shared resource."""
        replicas = [offer.devices[item] for item in ids if offer.devices[item].replica_of is not None]
        if offer.rule.fails_above_one and replicas and len(ids) > 1:
            message = f"request for {len(ids)} of {self.resource} is too large: of a shared resource one is the most"
            hint = "replicas are no larger share: ask for 1, or set failRequestsGreaterThanOne to false"
            raise errors.RequestError(message, reason="SharedRequestTooLarge", hint=hint)
        gpus = {offer.devices[item].gpu for item in ids}
        least = max((offer.clients[gpu].least for gpu in gpus if gpu in offer.clients), default=0)
        if len(ids) < least:
            message = f"{len(ids)} of {self.resource} is too little: on this GPU {least} is the least"
            hint = "MPS serves so many clients of a GPU and no more; smaller amounts could not all be served"
            raise errors.RequestError(message, reason="MPSAmountTooSmall", hint=hint)
        if offer.rule.needs_one_gpu and replicas and len(gpus) > 1:
            message = f"{len(ids)} of {self.resource} for one container are of {len(gpus)} GPUs, and MPS serves one"
            hint = "a client of MPS has one daemon, that of its GPU: ask for fewer, or wait for pods to end"
            raise errors.RequestError(message, reason="MPSSeveralGPUs", hint=hint)
        if offer.rule.needs_different_gpus and len({device.gpu for device in replicas}) < len(replicas):
            message = f"{len(ids)} of {self.resource} for one container must be of different GPUs, and are not"
            hint = "too few GPUs have a free replica: ask for fewer, or wait for pods to end"
            raise errors.RequestError(message, reason="SharedGPUTwice", hint=hint)

    def _assert_allocatable(self, item: DeviceID, offer: Offer) -> None:
        device = offer.devices.get(item)
        if device is None:
            message = f'device "{item}" is none of the {len(offer.devices)} devices of {self.resource}'
            hint = "the list has changed since it was allocated: the pod must be placed again"
            raise errors.NotFound(message, reason="DeviceUnknown", hint=hint, device=item)
        if not device.is_healthy:
            message = f'device "{item}" of {self.resource} is unhealthy: {device.reason}'
            raise errors.DeviceFault(message, reason="DeviceUnhealthy", hint="see the node's events", device=item)


def _message(device: Device) -> pb.Device:
    health = wire.HEALTHY if device.is_healthy else wire.UNHEALTHY
    if device.numa_node is None:
        return pb.Device(ID=device.id, health=health)
    return pb.Device(ID=device.id, health=health, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa_node)]))


Identity = tuple[int, int, int]


def identify(path: Path) -> Identity | None:
    """Return the identity of this socket file, which one made later at the same path lacks; None: there is none."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns  # not ctime: a chmod makes no new socket


def assert_path_fits(path: Path) -> None:
    """Return if a socket can have this path. Raises: Unavailable (`SocketPathTooLong`)."""
    if (size := len(bytes(path))) > LONGEST_SOCKET_PATH:
        message = f"socket path {path} has {size} bytes, {LONGEST_SOCKET_PATH} are allowed"
        hint = "set --node-kubelet-folder or --state-run to a shorter path"
        raise errors.Unavailable(message, reason="SocketPathTooLong", hint=hint, path=str(path))


async def answers(path: Path) -> bool:
    """Return whether a process accepts on a socket, in time; one that a process left behind has none."""
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class Endpoint:
    """The plugin's socket in the kubelet's folder."""

    def __init__(self, plugin: Plugin, folder: Path) -> None:
        self.plugin = plugin
        self.path = folder / f"{SOCKET_START}{plugin.resource.replace('/', '_')}.sock"
        self._server: grpc.aio.Server | None = None
        self._identity: Identity | None = None

    def is_present(self) -> bool:
        """Return whether the socket that we bound is still the one at its path."""
        return self._identity is not None and identify(self.path) == self._identity

    async def is_taken(self) -> bool:
        """Return whether another process answers at the path; a socket that one left behind does not."""
        return not self.is_present() and await answers(self.path)

    async def start(self) -> None:
        """Serve on a fresh socket and dial it; an earlier server is stopped first.

        Raises: Unavailable: the folder refuses a socket (for ever: `FOLDER_GONE`), or the socket does not answer.
        """
        await self.stop()
        assert_path_fits(self.path)
        await asyncio.to_thread(self._assert_folder_lives)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([wire.device_plugin_handlers(self.plugin)])
        # Made beside its path and moved there once it answers: at no moment is there no plugin at the path.
        fresh = self.path.with_suffix(".new")
        self._server = server  # from now on `stop` ends it, wherever this is cancelled
        try:
            fresh.unlink(missing_ok=True)
            server.add_insecure_port(wire.target(fresh))
            await server.start()
            fresh.chmod(_ROOTS)  # who reaches it could have devices allocated
            fresh.replace(self.path)
        except (OSError, RuntimeError) as error:
            message = f"cannot listen on {self.path}: {error}"
            await self.stop()
            is_swept = isinstance(error, FileNotFoundError) and self.path.parent.is_dir()
            reason = SWEPT if is_swept else "PluginSocketFailed"
            raise errors.Unavailable(message, reason=reason, path=str(self.path)) from error
        self._identity = identify(self.path)
        async with grpc.aio.insecure_channel(wire.target(self.path), options=wire.CHANNEL_OPTIONS) as channel:
            await wire.DevicePluginStub(channel).options(timeout_s=DIAL_TIMEOUT_S)

    def _assert_folder_lives(self) -> None:
        """Refuse a folder that has no name any more.

        A path leads to one only through a mount, as a container has it: the node's folder was deleted and made again,
        and the mount goes on showing the old one. The kernel takes no file there (ENOENT).
        """
        try:
            links = self.path.parent.stat().st_nlink
        except OSError:
            return
        if links == 0:
            message = f"{self.path.parent} was deleted on the node; this process's mount still shows the deleted folder"
            hint = "the agent ends, so that its container is started again with the folder that is there now"
            raise errors.Unavailable(message, reason=FOLDER_GONE, hint=hint, path=str(self.path.parent))

    async def stop(self) -> None:
        """End all streams and remove the socket if it is ours; idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        is_ours = self.is_present()
        self._identity = None
        await asyncio.shield(server.stop(None))  # streams never end by themselves: no grace would help
        if is_ours:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
