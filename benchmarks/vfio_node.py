"""What passthrough costs a node: an Allocate of four GPUs beside one of a GPU with a driver, memory, placement.

Allocates go by the shipped ledger, gates and specs on the disk of /var/tmp;
nodes are held by nothing, as opening them is the kernel's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fairlead import settings
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node import vfioparts
from fairlead.node.cdi import specfiles
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, passthroughreset
from fairlead.node.vfio import thirdgate
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease.row import State
from fairlead.plan.schedule import reference
from fairlead.plan.vfio import slot, slotoffer
from tests import gpus

ROUNDS = 40
X4, WHOLE = "x4-1.2.3.4", "nvidia.com/gpu"
_NAMING = slot.Naming()


def placement_ms(nodes: int) -> float:
    """Return milliseconds of one decision for a slot of four, over nodes each of whose slots' sizes is a resource."""
    unit = reference.UNIT
    known = [
        reference.NodeInfo(
            name=f"n{at:03}",
            allocatable={"cpu": 128 * unit, "pods": 110 * unit}
            | {f"nvidia.com/h100-sxm5-80gb-x{size}": 8 // size * unit for size in (1, 2, 4, 8)},
            taken={"nvidia.com/h100-sxm5-80gb-x4": at % 3 * unit},
        )
        for at in range(nodes)
    ]
    need = reference.PodInfo(requests={"pods": unit, "nvidia.com/h100-sxm5-80gb-x4": unit})
    took = list[float]()
    for _ in range(10):
        began = time.perf_counter()
        assert reference.place(need, known).node
        took.append(time.perf_counter() - began)
    return min(took) * 1e3


class _Nothing:
    def close(self) -> None:
        """Hold nothing."""


class Holder:
    """A node with a GPU that has a driver and four that are passed through, one slot; its kubelet is this program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed: dict[str, str] = {}
        """Resource by device."""
        self.inventory, drivers = gpus.driven(1)
        self.gpu = self.inventory.gpus[0]
        passed = tuple(
            PassthroughGPU(
                key=GPUUUID(f"pcie-{number}"),
                vendor=Vendor.NVIDIA,
                address=f"0000:{number:02x}:00.0",
                model="GH100 [H100 SXM5 80GB]",
                module=number,
                group_nodes=(_node("vfio"), _node(str(number))),
            )
            for number in range(1, 5)
        )
        own = DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=passed, partitions=((1, 2, 3, 4),))
        self.snapshot = Snapshot(
            inventory=self.inventory, known={self.gpu.uuid: self.gpu}, drivers=(*drivers, own), is_scanned=True
        )
        slots = _NAMING.slots(passed, ((1, 2, 3, 4),))
        self.four = next(
            (ad.resource, one)
            for ad in slotoffer.plan_resources(slots, {}, ())[0]
            for one in ad.devices
            if one.id == X4
        )
        self.whole = (
            WHOLE,
            Device(id=DeviceID(self.gpu.uuid), cdi_name=f"fairlead.dev/gpu={self.gpu.uuid}", gpu=self.gpu.uuid),
        )

    async def _list(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(namespace="team", pod="a", container="main", resource=resource, ids=(DeviceID(name),))
            for name, resource in self.listed.items()
        )

    async def _reset(self, gpu: PassthroughGPU) -> None:
        """Find every GPU clean."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[gates.Gate]:
        """Run the gate."""
        third = thirdgate.ThirdGate(lambda _: _Nothing())
        seen = gpuholders.GPUHolders(
            self._list,
            known=None,
            find_openers=lambda *_: (),
            patience_s=0.0,
            passed=gpuholders.Passed(gate=third, naming=_NAMING),
        )
        # As an agent's: the GPU with a driver is in a file while it is held, and so is the slot.
        chosen = settings.NodeSettings(cdi_folder=self.folder / "cdi", vfio=vfioparts.BOUND)
        specs = specfiles.SpecFiles.of_node(chosen, "b")
        specs.hide()
        await specs.ensure(self.inventory, self.snapshot.drivers)
        gate = gates.Gate(self.folder / "lease", seen, specs, boot_id="b")
        gate.reset_by(passthroughreset.PassthroughReset(third.find, self._reset, node="n", boot_id="b", limit_s=5))
        gate.update(self.snapshot)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(gate.run())
            await gate.opened.wait()
            yield gate
            task.cancel()

    async def measure(self) -> tuple[list[float], list[float]]:
        """Return seconds of each Allocate of four GPUs, and of one of the GPU with a driver, turn by turn."""
        fours, wholes = list[float](), list[float]()
        async with self.running() as gate:
            await _until(gate, free=5)
            for _ in range(ROUNDS):
                for (resource, device), took in ((self.four, fours), (self.whole, wholes)):
                    began = time.perf_counter()
                    await gate.hold(resource, [device])
                    took.append(time.perf_counter() - began)
                    self.listed[str(device.id)] = resource
                    await _until(gate, free=5, named=True)
                    self.listed.clear()
                    await _until(gate, free=5)
        return fours, wholes


async def _until(gate: gates.Gate, *, free: int, named: bool = False) -> None:
    async with asyncio.timeout(30):
        while True:
            rows = gate.rows.value.values()
            held = [row for row in rows if row.state is State.HELD]
            if named and held and all(claim.pod for row in held for claim in row.claims):
                return
            if not named and sum(row.state is State.FREE for row in rows) == free:
                return
            gate.poke()
            await asyncio.sleep(0.002)


def _node(name: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/vfio/{name}", host_path=f"/dev/vfio/{name}", major=511, minor=1, mode=0o600)


def allocate_ms() -> tuple[Sequence[float], Sequence[float]]:
    """Return milliseconds of the Allocates that `Holder.measure` makes."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir="/var/tmp") as name:
        fours, wholes = asyncio.run(Holder(Path(name)).measure())
    return [one * 1e3 for one in fours], [one * 1e3 for one in wholes]


def agent_mib(tree: Path, *, vfio: str, fabric: tuple[str, ...] = ()) -> float:
    """Return the memory of an agent that has started on a machine's tree.

    Args: vfio: the setting `node.vfio`.   fabric: library and address of a Fabric Manager; none: without NVLink.
    """
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        argv = [sys.executable, "-m", "benchmarks.agent_process", name, "h100x8", str(tree), vfio, *fabric]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            while json.loads(agent.stdout.readline())["event"] != "ready":
                pass
            time.sleep(2)  # the first scans
            agent.stdin.write(b"memory\n")
            agent.stdin.flush()
            said = json.loads(agent.stdout.readline())
            agent.stdin.close()
            agent.wait()
    return float(said["bytes"]) / (1 << 20)
