"""Possession of GPUs that are passed through: three gates over nodes that a test opens, with the shipped rules.

A node has one opener, as the kernel has it; everything else is the shipped ledger, rules, specs and gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.cdi import specfiles
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, passthroughreset
from fairlead.node.vfio import thirdgate
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import change
from fairlead.plan.lease.row import State
from fairlead.plan.vfio import slot, slotoffer

NAMING = slot.Naming()
RESOURCE = "nvidia.com/h100-x1"


def gpu(number: int) -> PassthroughGPU:
    path = f"/dev/vfio/{number}"
    return PassthroughGPU(
        key=GPUUUID(f"pcie-{number}"),
        vendor=Vendor.NVIDIA,
        address=f"0000:0{number}:00.0",
        model="GH100 [H100]",
        module=number,
        group_nodes=(DeviceNode(path=path, host_path=path, major=240, minor=number, mode=0o600),),
    )


GPUS = (gpu(1), gpu(2))
SNAPSHOT = Snapshot(drivers=(DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=GPUS),), is_scanned=True)


@dataclass
class Hold:
    """A node that the agent has open."""

    openers: dict[str, str]
    path: str

    def close(self) -> None:
        if self.path:
            assert self.openers.pop(self.path) == "agent"
        self.path = ""


@dataclass
class Node:
    """One machine, whose kernel, kubelet and tenants' machines a test is."""

    folder: Path
    openers: dict[str, str] = field(default_factory=dict)
    """Who has each node open."""
    listed: dict[str, str] = field(default_factory=dict)
    """Pod by device id, as the kubelet lists them."""
    resets: list[str] = field(default_factory=list)
    """Keys of the GPUs that were reset, in order."""
    fault: errors.FairleadError | None = None
    """What a reset ends in."""
    reset_s: float = 0.0
    boot: str = "boot-1"
    gate: gates.Gate = field(init=False)

    def take(self, one: PassthroughGPU) -> Hold:
        path = one.group_nodes[-1].host_path
        if path in self.openers:
            raise errors.Conflict(f"{path} is in use", reason="VFIONodeInUse")
        self.openers[path] = "agent"
        return Hold(self.openers, path)

    async def reset(self, one: PassthroughGPU) -> None:
        assert self.openers[one.group_nodes[-1].host_path] == "agent", "nobody else may have it meanwhile"
        self.resets.append(str(one.key))
        await asyncio.sleep(self.reset_s)
        if self.fault is not None:
            raise self.fault

    async def list_holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(namespace="team", pod=pod, container="main", resource=RESOURCE, ids=(DeviceID(name),))
            for name, pod in self.listed.items()
        )

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[gates.Gate]:
        third = thirdgate.ThirdGate(self.take)
        seen = gpuholders.GPUHolders(
            self.list_holdings,
            known=None,
            find_openers=lambda *_: (),
            patience_s=0.0,
            passed=gpuholders.Passed(gate=third, naming=NAMING),
        )
        specs = specfiles.SpecFiles(self.folder / "cdi", boot_id=self.boot, naming=NAMING)
        specs.hide()
        await specs.ensure(Inventory(), SNAPSHOT.drivers)
        self.gate = gates.Gate(self.folder / "lease", seen, specs, boot_id=self.boot)
        self.gate.reset_by(
            passthroughreset.PassthroughReset(third.find, self.reset, node="n", boot_id=self.boot, limit_s=5)
        )
        self.gate.update(SNAPSHOT)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.gate.run())
            await self.gate.opened.wait()
            yield self.gate
            task.cancel()

    async def give(self, number: int, pod: str = "a") -> None:
        await self.gate.hold(RESOURCE, [device(number)])
        self.listed[f"x1-{number}"] = pod

    def state(self, number: int) -> State | None:
        row = self.gate.rows.value.get(f"pcie-{number}")
        return row.state if row is not None else None

    async def until(self, number: int, state: State) -> None:
        async with asyncio.timeout(20):
            while self.state(number) is not state:
                self.gate.poke()
                await asyncio.sleep(0.005)

    async def until_held(self, number: int) -> None:
        """Wait until the agent has a GPU's node."""
        async with asyncio.timeout(20):
            while self.openers.get(f"/dev/vfio/{number}") != "agent":  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def published(self) -> set[str]:
        found: set[str] = set()
        for path in (self.folder / "cdi").glob("*.json"):
            document = json.loads(path.read_text())
            found |= {f"{document['kind']}={one['name']}" for one in document["devices"]}
        return found


def device(number: int) -> Device:
    (ad,), _ = slotoffer.plan_resources(NAMING.slots(GPUS), {}, ())
    return next(one for one in ad.devices if one.id == f"x1-{number}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(folder=tmp_path)


async def test_a_free_gpu_was_reset_is_held_by_the_agent_and_is_in_no_spec(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.until(2, State.FREE)
        assert sorted(node.resets) == ["pcie-1", "pcie-2"]
        assert node.openers == {"/dev/vfio/1": "agent", "/dev/vfio/2": "agent"}
        assert node.published() == set()


async def test_a_gpu_that_is_given_away_can_be_opened_and_is_named_by_its_resource(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.until(2, State.FREE)
        await node.give(1)
        assert node.openers == {"/dev/vfio/2": "agent"}
        assert node.published() == {f"{RESOURCE}=x1-1"}


async def test_a_machine_that_outlives_its_pod_keeps_its_gpu_from_reset_and_from_the_next_tenant(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
        node.openers["/dev/vfio/1"] = "qemu"
        node.gate.poke()
        await asyncio.sleep(0.05)
        before = list(node.resets)
        node.listed.clear()
        await node.until(1, State.RELEASING)
        with pytest.raises(errors.Unavailable) as caught:
            await node.give(1, pod="b")
        assert caught.value.reason == change.NOT_READY
        assert node.published() == set()
        assert node.resets == before, "no reset reaches a machine that runs"
        assert node.gate.problems.value["pcie-1"] == (
            "DeviceStillOpen",
            "given back, and not let go by /dev/vfio/1 is in use",
        )
        del node.openers["/dev/vfio/1"]
        await node.until(1, State.FREE)
        assert node.resets.count("pcie-1") == 2
        await node.give(1, pod="b")


async def test_a_program_that_has_a_free_gpu_open_before_the_agent_begins_keeps_it_from_tenants(node: Node) -> None:
    node.openers["/dev/vfio/1"] = "qemu of an administrator"
    async with node.agent():
        await node.until(2, State.FREE)
        assert node.state(1) in {None, State.UNKNOWN}
        with pytest.raises(errors.Unavailable):
            await node.give(1)
        del node.openers["/dev/vfio/1"]
        await node.until(1, State.FREE)
        assert node.resets.count("pcie-1") == 1


async def test_a_gpu_that_cannot_be_reset_is_given_to_nobody_and_says_why(node: Node) -> None:
    node.fault = errors.DeviceFault("its memory was not scrubbed within 5 s", reason="ScrubFlagMissing")
    async with node.agent():
        await node.until(1, State.DIRTY)
        async with asyncio.timeout(20):
            while "not scrubbed" not in node.gate.rows.value["pcie-1"].message:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        with pytest.raises(errors.Unavailable) as caught:
            await node.give(1)
        assert "not scrubbed" in caught.value.message


async def test_a_kubelet_that_gives_a_gpu_on_while_it_is_reset_waits_and_gets_it(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
        node.listed.clear()
        node.reset_s = 2.1  # longer than Allocate waits for anything else
        await node.give(1, pod="b")
        assert node.resets.count("pcie-1") == 2
        assert node.state(1) is State.HELD


async def test_a_reset_that_takes_too_long_is_not_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CLEANED_S", 0.2)
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
        node.listed.clear()
        node.reset_s = 1.0
        with pytest.raises(errors.Unavailable) as caught:
            await node.give(1, pod="b")
        assert caught.value.reason == change.NOT_READY


async def test_a_crashed_agent_finds_a_held_gpu_held_and_takes_no_node_of_it(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
    assert node.openers == {}
    node.openers["/dev/vfio/1"] = "qemu"
    async with node.agent():
        await node.until(2, State.FREE)
        assert node.state(1) is State.HELD
        await node.until_held(2)
        assert node.openers == {"/dev/vfio/1": "qemu", "/dev/vfio/2": "agent"}
        assert node.published() == {f"{RESOURCE}=x1-1"}
    assert node.resets.count("pcie-1") == 1


async def test_what_was_opened_while_no_agent_ran_is_found_by_the_first_allocate(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
    node.openers["/dev/vfio/1"] = "qemu of an administrator"
    async with node.agent():
        with pytest.raises(errors.Unavailable):
            await node.give(1)
        assert node.state(1) is State.UNKNOWN


async def test_after_a_reboot_every_gpu_is_reset_before_it_is_given_away(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
    node.boot = "boot-2"
    async with node.agent():
        await node.until(1, State.FREE)
    assert node.resets.count("pcie-1") == 2


async def test_a_lost_ledger_takes_a_gpu_in_use_for_held(node: Node) -> None:
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
    for path in (node.folder / "lease").iterdir():
        path.unlink()
    node.openers["/dev/vfio/1"] = "qemu"
    async with node.agent():
        await node.until(1, State.HELD)
        assert node.openers["/dev/vfio/1"] == "qemu"


async def test_a_lost_ledger_lets_a_pod_that_has_not_begun_yet_open_its_gpu(node: Node) -> None:
    """The kubelet lists the pod, and its machine has yet to open the node: the agent must not keep it shut."""
    async with node.agent():
        await node.until(1, State.FREE)
        await node.give(1)
    for path in (node.folder / "lease").iterdir():
        path.unlink()
    async with node.agent():
        await node.until(1, State.HELD)
        assert "/dev/vfio/1" not in node.openers
