"""Possession of vGPUs: a board's row, and a node of each vGPU that a test opens, with the shipped ledger and gates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import VGPU, DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import GPU, Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.cdi import specfiles
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders
from fairlead.node.vfio import lentgate
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import change
from fairlead.plan.lease.row import State
from tests import gpus

BOARD = "0000:07:00.0"
RESOURCE, WHOLE = "nvidia.com/NVIDIA_L40S-12Q", "nvidia.com/gpu"
FIRST, SECOND = "0000:07:00.4", "0000:07:00.5"


def vgpu(name: str) -> VGPU:
    number = int(name[-1])
    path = f"/dev/vfio/{number}"
    node = DeviceNode(path=path, host_path=path, major=240, minor=number, mode=0o600)
    return VGPU(id=name, parent=BOARD, type="NVIDIA L40S-12Q", group=str(number), nodes=(node,))


class Hold:
    """A node that the agent has open."""

    def __init__(self, openers: dict[str, str], name: str) -> None:
        self.openers, self.name = openers, name

    def close(self) -> None:
        if self.name:
            assert self.openers.pop(self.name) == "agent"
        self.name = ""


@dataclass
class Node:
    """One machine that lends two vGPUs of one board."""

    folder: Path
    gpu: GPU
    openers: dict[str, str] = field(default_factory=dict)
    """Who has each vGPU open."""
    listed: dict[str, str] = field(default_factory=dict)
    """Pod by device id, as the kubelet lists them."""
    refusal: errors.FairleadError | None = None
    """Why no vGPU can be held."""
    gate: gates.Gate = field(init=False)
    lent: lentgate.LentGate = field(init=False)

    def take(self, one: PassthroughGPU) -> Hold:
        if self.refusal is not None:
            raise self.refusal
        if one.address in self.openers:
            raise errors.Conflict(f"/dev/vfio/{one.address[-1]} is in use", reason="VFIONodeInUse")
        self.openers[one.address] = "agent"
        return Hold(self.openers, one.address)

    async def list_holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(
                namespace="team",
                pod=pod,
                container="main",
                resource=RESOURCE if ":" in name else WHOLE,
                ids=(DeviceID(name),),
            )
            for name, pod in self.listed.items()
        )

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[gates.Gate]:
        self.lent = lentgate.LentGate(self.take)
        seen = gpuholders.GPUHolders(
            self.list_holdings, known=None, find_openers=lambda *_: (), patience_s=0.0, lent=self.lent
        )
        drivers = (DriverFiles(vendor=Vendor.NVIDIA, version="580.1", vgpus=(vgpu(FIRST), vgpu(SECOND))),)
        snapshot = Snapshot(
            inventory=Inventory(gpus=(self.gpu,)), known={self.gpu.uuid: self.gpu}, drivers=drivers, is_scanned=True
        )
        specs = specfiles.SpecFiles(self.folder / "cdi", boot_id="boot-1")
        specs.hide()
        await specs.ensure(snapshot.inventory, drivers)
        self.gate = gates.Gate(self.folder / "lease", seen, specs, boot_id="boot-1")
        self.gate.update(snapshot)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.gate.run())
            await self.gate.opened.wait()
            yield self.gate
            task.cancel()

    async def give(self, name: str, pod: str = "a") -> None:
        await self.gate.hold(RESOURCE, [self.device(name)])
        self.listed[name] = pod

    def device(self, name: str) -> Device:
        return Device(id=DeviceID(name), cdi_name=f"fairlead.dev/vgpu={name}", gpu=self.gpu.uuid, vgpu=name)

    def whole(self) -> Device:
        return Device(id=DeviceID(self.gpu.uuid), cdi_name=f"nvidia.com/gpu={self.gpu.uuid}", gpu=self.gpu.uuid)

    @property
    def state(self) -> State | None:
        row = self.gate.rows.value.get(str(self.gpu.uuid))
        return row.state if row is not None else None

    async def until(self, state: State, openers: dict[str, str]) -> None:
        async with asyncio.timeout(20):
            while (self.state, self.openers) != (state, openers):
                self.gate.poke()
                await asyncio.sleep(0.005)

    async def until_named(self, *names: str) -> None:
        async with asyncio.timeout(20):
            while {one.device for row in self.gate.rows.value.values() for one in row.claims if one.pod} != set(names):
                self.gate.poke()
                await asyncio.sleep(0.005)

    def shown(self) -> set[str]:
        path = self.folder / "cdi/fairlead.dev-vgpu.json"
        return {one["name"] for one in json.loads(path.read_text())["devices"]} if path.exists() else set()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(folder=tmp_path, gpu=gpus.gpu(0, pci_bus_id=BOARD))


AGENT = {FIRST: "agent", SECOND: "agent"}


async def test_vgpus_that_nobody_has_are_kept_open_and_in_no_spec(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        assert node.shown() == set()
    assert node.openers == {}


async def test_a_vgpu_that_is_given_away_is_let_go_and_the_other_is_not(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        await node.give(FIRST)
        assert node.openers == {SECOND: "agent"}
        assert node.shown() == {FIRST}
        await node.give(SECOND, pod="b")
        assert node.openers == {}
        assert node.shown() == {FIRST, SECOND}


async def test_a_vgpu_whose_machine_outlives_its_pod_is_withheld_beside_one_that_goes_on(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        await node.give(FIRST)
        await node.give(SECOND, pod="b")
        node.openers |= {FIRST: "qemu a", SECOND: "qemu b"}
        await node.until_named(FIRST, SECOND)
        del node.listed[FIRST]
        await node.until_named(SECOND)
        async with asyncio.timeout(20):
            while FIRST not in node.gate.problems.value or node.shown() != {SECOND}:
                node.gate.poke()
                await asyncio.sleep(0.005)
        assert node.gate.problems.value[FIRST] == (
            lentgate.STILL_OPEN,
            "no container has it, and /dev/vfio/4 is in use",
        )
        with pytest.raises(errors.Unavailable, match="still open") as caught:
            await node.give(FIRST, pod="c")
        assert caught.value.reason == change.NOT_READY
        assert node.state is State.HELD
        del node.openers[FIRST]
        await node.until(State.HELD, {FIRST: "agent", SECOND: "qemu b"})
        async with asyncio.timeout(20):
            while FIRST in node.gate.problems.value:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await node.give(FIRST, pod="c")


async def test_a_board_waits_for_all_its_vgpus_before_it_is_cleaned(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        await node.give(FIRST)
        node.openers[FIRST] = "qemu"
        await node.until_named(FIRST)
        node.listed.clear()
        await node.until(State.RELEASING, {FIRST: "qemu", SECOND: "agent"})
        assert node.shown() == set()
        del node.openers[FIRST]
        await node.until(State.FREE, AGENT)


async def test_a_board_and_its_vgpus_are_never_both_given_away(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        await node.gate.hold(WHOLE, [node.whole()])
        node.listed[str(node.gpu.uuid)] = "whole"
        with pytest.raises(errors.Conflict):
            await node.give(FIRST)
        assert node.openers == AGENT
        await node.until_named(str(node.gpu.uuid))
        node.listed.clear()
        await node.until(State.FREE, AGENT)
        await node.give(FIRST)
        with pytest.raises(errors.Conflict):
            await node.gate.hold(WHOLE, [node.whole()])


async def test_a_vgpu_that_a_program_has_keeps_its_board_from_being_given_whole(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
    node.openers[SECOND] = "qemu of an administrator"
    async with node.agent():
        with pytest.raises(errors.FairleadError):
            await node.gate.hold(WHOLE, [node.whole()])


async def test_a_killed_agent_takes_no_node_of_a_vgpu_that_is_held(node: Node) -> None:
    async with node.agent():
        await node.until(State.FREE, AGENT)
        await node.give(FIRST)
    node.openers[FIRST] = "qemu"
    async with node.agent():
        await node.until(State.HELD, {FIRST: "qemu", SECOND: "agent"})
        assert node.shown() == {FIRST}


async def test_where_the_kernel_lets_no_vgpu_be_held_the_other_gates_stand(node: Node) -> None:
    node.refusal = errors.NotFound("/dev/vfio/4 is not VFIO's", reason="VFIONodeGone")
    async with node.agent():
        await node.until(State.FREE, {})
        await node.give(FIRST)
        assert node.gate.problems.value == {}
        assert node.shown() == {FIRST}


def test_a_node_of_another_driver_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "4"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which would be opened
    found = DeviceNode(path="/dev/vfio/4", host_path=str(path), major=1, minor=5, mode=0o600)
    one = PassthroughGPU(key=GPUUUID(FIRST), vendor=Vendor.NVIDIA, address=FIRST, group_nodes=(found,))
    take = lentgate.take_hold_below(tmp_path)
    with pytest.raises(errors.NotFound, match=r"\(1:5\) is not VFIO's"):
        take(one)
    (tmp_path / "sys/dev/char/1:5").mkdir(parents=True)
    (tmp_path / "sys/dev/char/1:5/subsystem").symlink_to("../../../class/vfio")
    take(one).close()
