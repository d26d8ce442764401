"""One node with an NVLink board: shipped ledger, gate, specs and keeper; kernel, pods and Manager are a test's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.cdi import specfiles
from fairlead.node.fabric import keeper, memory
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, passthroughreset
from fairlead.node.vfio import thirdgate
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import overlap
from fairlead.plan.lease.row import State
from fairlead.plan.vfio import slot, slotoffer
from fairlead.silicon.fabric import address, agentclient, agentserver, connection, nvfm
from fairlead.silicon.fabric.agentserver import Whereabouts
from fairlead.silicon.fabric.reached import Reached
from tests.fabricstub import library
from tests.fabricstub.lattice import H100, Lattice
from tests.fabricstub.manager import Manager, switched_on

SECRET = b"s" * 32
NAMING = slot.Naming()
MODULES = (5, 7, 6, 8, 1, 3, 2, 4)
"""In PCI order, as a published board has them."""


def gpu(module: int, *, is_nvlink5: bool = False) -> PassthroughGPU:
    path = f"/dev/vfio/{module}"
    return PassthroughGPU(
        key=GPUUUID(f"pcie-{module}"),
        vendor=Vendor.NVIDIA,
        address=f"0000:{MODULES.index(module):02x}:00.0",
        model="GH100 [H100]",
        module=module,
        is_nvlink5=is_nvlink5,
        group_nodes=(DeviceNode(path=path, host_path=path, major=240, minor=module, mode=0o600),),
    )


@dataclass
class Hold:
    openers: dict[str, str]
    path: str

    def close(self) -> None:
        if self.path:
            assert self.openers.pop(self.path) == "agent"
        self.path = ""


@dataclass
class FabricNode:
    """A machine whose kernel, kubelet, tenants' machines and Fabric Manager a test is."""

    folder: Path
    stub: Path
    lattice: Lattice = H100
    timeout_s: float = 5.0
    is_nvlink5: bool = False
    service: Whereabouts | None = None
    """What an agent beside the Manager says of its machine; None: the library is loaded here."""
    versions: keeper.Versions | None = None
    resets: list[int] = field(default_factory=list)
    """Modules in the order in which they were reset."""
    openers: dict[str, str] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    """Pod by device id, as the kubelet lists them."""
    boot: str = "boot-1"
    gate: gates.Gate = field(init=False)
    keeper: keeper.PartitionKeeper = field(init=False)
    manager: Manager = field(init=False)
    violations: list[str] = field(default_factory=list)
    beside: agentserver.AgentServer | None = None
    starts: int = 0
    """How many Managers there have been."""
    reset_in: dict[int, int] = field(default_factory=dict)
    """Which of them was there when the last reset of a module began."""

    def __post_init__(self) -> None:
        self.gpus = tuple(self.gpu(module) for module in MODULES)
        self.socket = self.folder / "fm.sock"

    def gpu(self, module: int) -> PassthroughGPU:
        return gpu(module, is_nvlink5=self.is_nvlink5)

    # the Manager

    def start_manager(self, **options: object) -> Manager:
        self.manager = Manager(
            self.lattice.partitions,
            self.lattice.links,
            state=self.folder / "switches",
            **options,  # type: ignore[arg-type]  # its own
        )
        self.starts += 1
        self.manager.switched = self.switched
        self.manager.listen(f"unix:{self.socket}")
        return self.manager

    def switched(self, partition: int, is_on: bool) -> None:
        """Hold an activation against what NVLink 5 needs."""
        members = self.lattice.partitions[partition]
        if self.is_nvlink5 and is_on and any(self.reset_in.get(one, 0) < self.starts for one in members):
            self.violations.append(f"partition {partition} has a GPU that was not reset since the Manager began")

    def dial(self) -> nvfm.NVFM:
        return nvfm.NVFM(str(self.stub), address.parse(str(self.socket)), timeout_s=1)

    def serve(self) -> None:
        """Serve the Manager as the agent in its Service VM does, which outlives the node's own."""
        own = connection.Connection(f"{self.folder.name}-service", self.dial)
        made = agentserver.AgentServer(own, SECRET, timeout_s=1, is_allowed=lambda _: True, whereabouts=self.service)
        made.listen(address.parse(str(self.folder / "agent.sock")))
        self.beside = made

    # the kernel

    def take(self, one: PassthroughGPU) -> thirdgate.Hold:
        path = one.group_nodes[-1].host_path
        if path in self.openers:
            raise errors.Conflict(f"{path} is in use", reason="VFIONodeInUse")
        self.openers[path] = "agent"
        return Hold(self.openers, path)

    async def reset(self, one: PassthroughGPU) -> None:
        self.reset_in[one.module or 0] = self.starts
        assert self.openers[one.group_nodes[-1].host_path] == "agent", "nobody else may have it meanwhile"
        if any(one.module in self.lattice.partitions[active] for active in self.active if self.size(active) > 1):
            self.violations.append(f"I3 GPU {one.module} is cleaned in an active partition")
        self.resets.append(one.module or 0)

    @property
    def active(self) -> list[int]:
        """What the switches have, whatever a Manager believes."""
        return switched_on(self.folder / "switches")

    def size(self, partition: int) -> int:
        return len(self.lattice.partitions[partition])

    async def list_holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(namespace="team", pod=pod, container="main", resource=resource(name), ids=(DeviceID(name),))
            for name, pod in self.listed.items()
        )

    # the agent

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[gates.Gate]:
        third = thirdgate.ThirdGate(self.take)
        if self.service is not None and self.beside is None:
            self.serve()
        where = address.parse(str(self.folder / "agent.sock"))
        line = connection.Connection(
            self.folder.name,
            self.dial if self.beside is None else lambda: agentclient.AgentClient(where, SECRET, timeout_s=1),
        )
        reached = Reached(name="fm", is_agent=self.beside is not None, connection=line, timeout_s=self.timeout_s)
        kept = memory.FabricMemory(self.folder / "agent", self.boot)
        self.keeper = keeper.PartitionKeeper(
            reached,
            kept,
            gpus=lambda: third.gpus,
            ours=lambda: third.held,
            versions=self.versions,
            poll_s=0.05,
            retry_s=0.02,
        )
        seen = gpuholders.GPUHolders(
            self.list_holdings,
            known=None,
            find_openers=lambda *_: (),
            patience_s=0.0,
            passed=gpuholders.Passed(
                gate=third, naming=NAMING, obstacle=self.keeper.obstacle, is_due=self.keeper.resets.is_due
            ),
        )
        specs = specfiles.SpecFiles(self.folder / "cdi", boot_id=self.boot, naming=NAMING)
        specs.hide()
        self.gate = gates.Gate(self.folder / "lease", seen, specs, boot_id=self.boot)
        resetter = self.resetter(third)
        self.gate.reset_by(resetter, mark=resetter.mark)
        self.gate.keep_partitions(self.keeper)
        scanned = asyncio.Event()
        self.keeper.offered = scanned.set

        async def scan() -> None:
            while True:
                await specs.ensure(Inventory(), self.snapshot.drivers)
                self.gate.update(self.snapshot)
                await scanned.wait()
                scanned.clear()

        async def keep() -> None:
            await self.gate.opened.wait()
            await self.keeper.run()

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part) for part in (scan(), self.gate.run(), keep())]
            await self.gate.opened.wait()
            yield self.gate
            for one in running:
                one.cancel()
        line.close()
        with kept.writing:  # a process that ends takes its threads with it
            while any(one.name == f"fabric-{self.folder.name}" for one in threading.enumerate()):
                time.sleep(0.001)  # noqa: ASYNC251  (nothing of it may run on)

    def resetter(self, third: thirdgate.ThirdGate) -> passthroughreset.PassthroughReset:
        counted = self.keeper.resets.counting(self.reset)
        return passthroughreset.PassthroughReset(third.find, counted, node="n", boot_id=self.boot, limit_s=5)

    @property
    def snapshot(self) -> Snapshot:
        files = DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=self.gpus, partitions=self.keeper.sets)
        return Snapshot(drivers=(files,), is_scanned=True)

    def device(self, name: str) -> Device:
        ads, _ = slotoffer.plan_resources(NAMING.slots(self.gpus, self.keeper.sets), {}, ())
        return next(one for ad in ads for one in ad.devices if one.id == name)

    # what tests do

    async def give(self, name: str, pod: str = "a") -> None:
        await self.gate.hold(resource(name), [self.device(name)])
        self.listed[name] = pod

    def start(self, name: str) -> bool:
        """Start the machine of a slot: Kata resolves the CDI name, then opens every node; or returns that it failed."""
        if not self.is_shown(name) or any(self.openers.get(f"/dev/vfio/{one}") for one in modules(name)):
            return False
        for module in modules(name):
            self.check(name, module)
            self.openers[f"/dev/vfio/{module}"] = f"qemu of {name}"
        return True

    def check(self, name: str, module: int) -> None:
        for active in self.active:
            members = self.lattice.partitions[active]
            if module in members and sorted(members) != sorted(modules(name)):
                self.violations.append(f"I3 {name} starts while partition {active} is active")
        if len(modules(name)) > 1 and not any(
            sorted(self.lattice.partitions[active]) == sorted(modules(name)) for active in self.active
        ):
            self.violations.append(f"{name} starts without its partition")

    def stop(self, name: str) -> None:
        for module in modules(name):
            self.openers.pop(f"/dev/vfio/{module}", None)

    def state(self, module: int) -> State | None:
        return self.row(f"pcie-{module}")

    def row(self, key: str) -> State | None:
        row = self.gate.rows.value.get(key)
        return row.state if row is not None else None

    async def until(self, is_so: Callable[[], object], what: str = "") -> None:
        async with asyncio.timeout(20):
            while not is_so():
                self.gate.poke()
                await asyncio.sleep(0.005)

    async def until_free(self, *only: int) -> None:
        await self.until(lambda: all(self.state(one) is State.FREE for one in only or MODULES))

    async def until_known(self) -> None:
        await self.until(lambda: not self.keeper.problem)

    def published(self) -> set[str]:
        found: set[str] = set()
        for path in (self.folder / "cdi").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                document = json.loads(path.read_text())
                found |= {f"{document['kind']}={one['name']}" for one in document["devices"]}
        return found

    def is_shown(self, name: str) -> bool:
        return f"{resource(name)}={name}" in self.published()

    def overlaps(self) -> dict[str, tuple[str, str]]:
        found = NAMING.slots(self.gpus, self.keeper.sets)
        return overlap.plan_overlaps(
            found, self.gate.rows.value, unusable=self.keeper.unusable, lost=self.keeper.lost_slots()
        )


def modules(name: str) -> tuple[int, ...]:
    return tuple(int(one) for one in name.partition("-")[2].split("."))


def resource(name: str) -> str:
    return f"nvidia.com/h100-{name.partition('-')[0]}"


__all__ = ["FabricNode", "library", "modules", "resource"]
