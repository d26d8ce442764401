"""One machine's claims over simulated silicon: real ledger, files, partitions and inventory; a test is the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fairlead import errors
from fairlead.kernel import openfiles
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition
from fairlead.node.cdi import specfile, specfiles
from fairlead.node.dra import adopter, claimfile, hardware, journal, preparer
from fairlead.node.dra.preparer import ClaimRef
from fairlead.node.inventory import latest, monitor
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, passthroughreset
from fairlead.node.vfio import thirdgate
from fairlead.plan.dra import offered, preparation, share
from fairlead.plan.dra.devicestatus import Progress
from fairlead.plan.dra.preparation import Node
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease.row import Row, State
from fairlead.plan.sharing import mps
from fairlead.plan.vfio import slot
from fairlead.settings import NodeSettings
from fairlead.silicon.sim import silicon as simulation
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Listing, Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.request import OpaqueDeviceConfiguration
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from fairlead_cdi import parse
from fairlead_cdi import spec as cdi
from tests import nodehold

DRIVER, POOL = "gpu.nvidia.com", "here"
_IOMMU = DeviceNode(path="/dev/iommu", host_path="/dev/iommu", major=10, minor=9, mode=0o600)


def config(kind: str, requests: Sequence[str] = (), *, source: str = "FromClaim", **more: Any) -> Any:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **more}
    opaque = OpaqueDeviceConfiguration(driver=DRIVER, parameters=parameters)
    return DeviceAllocationConfiguration(source=source, requests=tuple(requests), opaque=opaque)


def result(device: str, *, request: str = "gpus", pool: str = POOL, **more: Any) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(request=request, driver=DRIVER, pool=pool, device=device, **more)


def claim(
    name: str,
    *results: DeviceRequestAllocationResult,
    uid: str = "",
    pods: Sequence[str] = ("a",),
    configs: Sequence[DeviceAllocationConfiguration] = (),
) -> ResourceClaim:
    devices = DeviceAllocationResult(results=tuple(results), config=tuple(configs))
    users = tuple(ResourceClaimConsumerReference(resource="pods", name=pod, uid=f"uid-{pod}") for pod in pods)
    return ResourceClaim(
        metadata=ObjectMeta(namespace="team", name=name, uid=uid or f"uid-of-{name}"),
        status=ResourceClaimStatus(allocation=AllocationResult(devices=devices), reserved_for=users),
    )


def passed(number: int, **changes: Any) -> PassthroughGPU:
    """Return a GPU that is bound to VFIO, with both ways to open it."""
    own = PassthroughGPU(
        key=GPUUUID(f"pcie-{number}"),
        vendor=Vendor.NVIDIA,
        address=f"0000:8{number}:00.0",
        model="GH100 [H100 SXM5 80GB]",
        module=number,
        number=number,
        vendor_id=0x10DE,
        device_id=0x2330,
        pcie_root="pci0000:80",
        numa_node=1,
        addressable_bytes=256 << 30,
        driver="vfio-pci",
        group=str(40 + number),
        group_nodes=(vfio_node("vfio", 0), vfio_node(str(40 + number), number)),
        iommufd_nodes=(_IOMMU, vfio_node(f"devices/vfio{number}", 100 + number)),
    )
    return dataclasses.replace(own, **changes)


def vfio_node(name: str, minor: int) -> DeviceNode:
    return DeviceNode(path=f"/dev/vfio/{name}", host_path=f"/dev/vfio/{name}", major=240, minor=minor, mode=0o600)


class ClaimStore(MemoryStore):
    """Gives the claims that a test wrote, as an API server has them: allocation and UID are set."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, ResourceClaim] = {}
        self.is_away = False

    def write(self, made: ResourceClaim) -> ClaimRef:
        """Have a claim; returns how a kubelet names it."""
        self.claims[made.metadata.name] = made
        return ClaimRef(namespace="team", name=made.metadata.name, uid=made.metadata.uid)

    async def list(self, kind: type[Any], selector: Selector = EVERYTHING) -> Any:
        if kind is not ResourceClaim:
            return await super().list(kind, selector)
        if self.is_away:
            raise errors.Unavailable("no API server", reason="StoreUnavailable")
        return Listing(items=tuple(self.claims.values()), resource_version="1")

    async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        if kind is not ResourceClaim:
            return await super().get(kind, name, namespace)
        if self.is_away:
            raise errors.Unavailable("no API server", reason="StoreUnavailable")
        found = self.claims.get(name)
        if found is None:
            raise errors.NotFound(f"{kind.PLURAL} {namespace}/{name} not found", reason="NotFound")
        return msgspec.json.decode(msgspec.json.encode(found), type=kind)


@dataclass
class ClaimNode:
    """A node with simulated GPUs whose claims a test writes."""

    folder: Path
    profile: str = "h100x8"
    boot: str = "boot-1"
    patience_s: float = 0.0
    shares: share.Shares | None = None
    """How claims share whole GPUs; None: they do not, and each GPU can be divided."""
    passed: tuple[PassthroughGPU, ...] = ()
    """GPUs that are bound to VFIO."""
    listed: list[Holding] = field(default_factory=list)
    """What the kubelet's list of devices has."""
    resets: list[str] = field(default_factory=list)
    """Keys of those that were reset, in order."""
    openers: list[openfiles.Opener] = field(default_factory=list)
    pods: list[core.Pod] = field(default_factory=list)
    said: list[tuple[str, str, str]] = field(default_factory=list)
    told: list[tuple[str, Progress | None]] = field(default_factory=list)
    """How far claims are, by name; None: unprepared."""
    store: ClaimStore = field(default_factory=ClaimStore)
    daemons: dict[GPUUUID, mps.Daemon] = field(default_factory=dict)
    restoring: asyncio.Task[None] | None = None
    """Sets up again what an earlier run left half there."""
    _offered: tuple[object, dict[str, offered.OfferedDevice]] | None = None
    _hardware_of: tuple[Snapshot, object] | None = None

    def __post_init__(self) -> None:
        self.silicon = simulation.SimulatedSilicon(self.folder / "sim", self.profile)
        self.partitioner = self.silicon.partitioner()
        self.watch = monitor.InventoryMonitor(self.silicon, rescan_s=60)
        self.daemon_states: latest.Latest[Mapping[GPUUUID, mps.DaemonState]] = latest.Latest({})
        self.watch.beside = self._scan_passed
        self.third = thirdgate.ThirdGate(self.take)

    @contextlib.asynccontextmanager
    async def running(self, *, restores: bool = True) -> AsyncIterator[preparer.Preparer]:
        """Run what of the agent prepares claims. Args: restores: beside what the test does; else a test has it done."""
        seen = gpuholders.GPUHolders(
            self._list_holdings,
            known=None,
            find_openers=lambda *_: tuple(self.openers),
            patience_s=0,
            passed=gpuholders.Passed(gate=self.third, naming=slot.Naming()),
        )
        recipe = specfile.allocation_recipe_of(NodeSettings())
        specs = specfiles.SpecFiles(self.folder / "cdi", recipe=recipe, stamping="none")
        self.gate = gates.Gate(self.folder / "lease", seen, specs, boot_id=self.boot)
        cleaning = passthroughreset.PassthroughReset(
            self.third.find, self._reset, node="n", boot_id=self.boot, limit_s=5
        )
        self.gate.reset_by(cleaning)
        self.journal = journal.Journal(self.gate, self.folder / "lease")
        place = claimfile.Place(
            folder=self.folder / "cdi",
            recipe=recipe,
            boot_id=self.boot,
            driver=DRIVER,
            plugin_folder=self.folder / "plugin",
        )
        self.files = claimfile.ClaimFiles(place, self.watch.snapshots, self._mps_folders)
        parts = hardware.Parts(
            snapshots=self.watch.snapshots,
            ask_scan=functools.partial(self.watch.ask_scan, is_urgent=True),
            partitioner=self.partitioner,
            time_slices=self.silicon.time_slices(),
            daemon_states=self.daemon_states,
            set_daemons=self._set_daemons,
        )
        self._hardware = hardware.Hardware(parts)
        self.renew()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.watch.run()), tasks.create_task(self.gate.run())]
            running.append(tasks.create_task(self.watch.snapshots.follow(self.gate.update)))
            async with asyncio.timeout(20):
                await self.gate.opened.wait()
                while not self.watch.snapshots.value.is_scanned:
                    await self.watch.snapshots.wait(self.watch.snapshots.version)
            self.partitions = await self.partitioner.list_partitions()
            await self.preparer.start()
            if restores:
                self.restoring = tasks.create_task(self.preparer.restore())
                running.append(self.restoring)
            yield self.preparer
            for one in running:
                one.cancel()

    def renew(self) -> None:
        """Make the preparer again, with what a test has changed."""
        around = preparer.Surroundings(
            node=lambda: Node(driver=DRIVER, pool=POOL, devices=self.offered(), boot_id=self.boot),
            pods=lambda: self.pods,
            said=lambda *said: self.said.append(said),
            told=self.tell,
            patience_s=self.patience_s,
        )
        self.preparer = preparer.Preparer(self.store, self.gate, self.journal, (self.files, self._hardware), around)
        self.adopter = self.make_adopter(self.folder / "plugin")

    def tell(self, ref: ClaimRef, progress: Progress | None) -> None:
        """Take in how far a claim is."""
        self.told.append((ref.name, progress))

    def make_adopter(self, folder: Path) -> adopter.Adopter:
        """Make what takes over the claims of a checkpoint in a folder."""
        return adopter.Adopter(
            adopter.Parts(
                store=self.store,
                possession=self.gate,
                journal=self.journal,
                files=self.files,
                folder=folder,
                node=lambda: Node(driver=DRIVER, pool=POOL, devices=self.offered(), boot_id=self.boot),
                said=lambda *said: self.said.append(said),
            )
        )

    async def close(self) -> None:
        await self.silicon.close()

    async def prepare(self, made: ResourceClaim) -> list[str]:
        """Write and prepare a claim; returns the CDI names of its devices."""
        return [names[0] for _, names in await self.preparer.prepare(self.store.write(made))]

    async def unprepare(self, made: ResourceClaim) -> None:
        await self.preparer.unprepare(ClaimRef(namespace="team", name=made.metadata.name, uid=made.metadata.uid))

    def row(self, index: int) -> Row:
        key = str(self.watch.snapshots.value.inventory.gpus[index].uuid)
        return self.gate.rows.value.get(key) or Row(key=key)

    def spec(self, made: ResourceClaim) -> cdi.Spec | None:
        """Return the CDI file of a claim as an engine reads it."""
        path = self.files.path(made.metadata.uid)
        return parse.parse_spec(path.read_bytes()) if path.exists() else None

    def nodes(self, made: ResourceClaim) -> set[str]:
        """Return the device nodes of GPUs and their parts that a claim's containers get."""
        found = self.spec(made)
        devices = found.devices if found is not None else ()
        return {node.path for one in devices for node in one.edits.device_nodes}

    async def partition(self, index: int) -> Partition:
        return (await self.partitioner.list_partitions())[index]

    def offered(self) -> dict[str, offered.OfferedDevice]:
        """Return what the node offers: each GPU, and every MIG device that it can be divided into."""
        snapshot = self.watch.snapshots.value
        gpus = snapshot.inventory.gpus
        if self._hardware_of is None or self._hardware_of[0] is not snapshot:  # the driver compares once a snapshot
            self._hardware_of = snapshot, (monitor.without_readings(snapshot.inventory), snapshot.passthrough)
        made = preparation.find_made(self.journal.all(), gpus)
        every = frozenset(gpu.uuid for gpu in gpus)
        choice = offered.Choice(partitioned=every, made=made)
        if self.shares is not None:
            choice = offered.Choice(shares=dict.fromkeys(every, self.shares))
        # As the driver does: what the hardware and the choice are the same for is planned once.
        facts = (self._hardware_of[1], snapshot.known.keys(), self.partitions, choice)
        if self._offered is None or self._offered[0] != facts:
            found = offered.plan_devices(snapshot, self.partitions, choice)
            self._offered = (facts, {one.name: one for one in found})
        return self._offered[1]

    def take(self, gpu: PassthroughGPU) -> nodehold.NodeHold:
        """Open the node of a GPU that is passed through, as its user. Raises: Conflict: somebody has it."""
        folder = self.folder / "vfio"
        folder.mkdir(exist_ok=True)
        return nodehold.hold(folder / str(gpu.key), str(gpu.key), may_make=True)

    def passed_row(self, gpu: PassthroughGPU) -> Row:
        return self.gate.rows.value.get(str(gpu.key)) or Row(key=str(gpu.key))

    async def until_passed(self, gpu: PassthroughGPU, state: State) -> None:
        async with asyncio.timeout(20):
            while self.passed_row(gpu).state is not state:
                self.gate.poke()
                await asyncio.sleep(0.005)

    async def change_passed(self, *gpus: PassthroughGPU) -> None:
        """Have the bus show other GPUs that are bound to VFIO, and the agent see that."""
        self.passed = gpus
        seen = self.watch.snapshots.version
        self.watch.ask_scan(is_urgent=True)
        async with asyncio.timeout(20):
            while self.watch.snapshots.value.passthrough != gpus:
                seen = await self.watch.snapshots.wait(seen)

    async def _scan_passed(self) -> tuple[DriverFiles, ...]:
        return (DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=self.passed),) if self.passed else ()

    async def _reset(self, gpu: PassthroughGPU) -> None:
        assert str(gpu.key) in self.third.held, "nobody else may have it meanwhile"
        self.resets.append(str(gpu.key))

    async def _list_holdings(self) -> tuple[Holding, ...]:
        return tuple(self.listed)

    def _set_daemons(self, wanted: Mapping[GPUUUID, mps.Daemon]) -> None:
        self.daemons = dict(wanted)
        self.daemon_states.set({gpu: mps.DaemonState() for gpu in wanted})

    def _mps_folders(self) -> dict[str, tuple[str, str]]:
        return {
            str(gpu.uuid): (f"/mps/{gpu.uuid}/pipe", f"/mps/{gpu.uuid}/shm")
            for gpu in self.watch.snapshots.value.inventory.gpus
        }
