"""Marks of running pods and holders of GPUs, written where they belong and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from fairlead.model.gpu import GPU, Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.node.publish import podcondition
from fairlead.plan.gpu import health
from fairlead.plan.gpu import podcondition as plan
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.supply import Supply
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from tests import devices

RESOURCE = "nvidia.com/gpu"
UUID = GPUUUID("GPU-a")
PATIENCE_S = 50.0
SICK = health.Verdict(state=health.State.FAULTY, reason="XID79", message="XID 79: fell off the bus")


@dataclass
class Node:
    """One node with one GPU, and a kubelet that a test plays."""

    store: MemoryStore = field(default_factory=MemoryStore)
    holdings: podresources.Holdings = field(default_factory=lambda: podresources.Holdings(Path("/nowhere")))

    def __post_init__(self) -> None:
        gpu = GPU(uuid=UUID, index=0, minor=0, pci_bus_id="0000:01:00.0", name="X", memory_bytes=1)
        self.snapshots = latest.Latest(
            Snapshot(
                inventory=Inventory(gpus=(gpu,)), known={UUID: gpu}, verdicts={UUID: health.Verdict()}, is_scanned=True
            )
        )
        offered = advertise.Advertisement(resource=RESOURCE, vendor=Vendor.NVIDIA, devices=(devices.gpu(UUID),))
        self.uids: latest.Latest[Mapping[str, str]] = latest.Latest({})
        self.supply = latest.Latest(Supply(resources=(offered,)))

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        followed = pods.Pods("node-1", self.store)
        part = podcondition.PodConditions(
            node="node-1",
            store=self.store,
            pods=followed,
            holdings=self.holdings,
            snapshots=self.snapshots,
            supply=self.supply,
            uids=self.uids,
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part.run()), tasks.create_task(followed.run())]
            yield
            for task in running:
                task.cancel()

    def judge(self, verdict: health.Verdict) -> None:
        self.snapshots.set(dataclasses.replace(self.snapshots.value, verdicts={UUID: verdict}))

    def hold(self, *names: str) -> None:
        self.holdings.latest.set(
            tuple(
                Holding(namespace="team", pod=name, container="main", resource=RESOURCE, ids=(DeviceID(UUID),))
                for name in names
            )
        )

    async def run(self, name: str) -> core.Pod:
        asked = core.ResourceRequirements(limits={RESOURCE: 1})
        made = await self.store.create(
            core.Pod(
                metadata=meta.ObjectMeta(name=name, namespace="team"),
                spec=core.PodSpec(node_name="node-1", containers=(core.Container(name="main", resources=asked),)),
            )
        )
        ready = meta.Condition(type="Ready", status="True")
        status = core.PodStatus(phase="Running", conditions=(ready,))
        return await self.store.update_status(msgspec.structs.replace(made, status=status))

    async def make_device(self) -> GPUDevice:
        spec = gpudevice.GPUDeviceSpec(
            node_name="node-1", index=0, minor=0, uuid=UUID, vendor="nvidia", product="X", memory="1", simulated=False
        )
        metadata = meta.ObjectMeta(name=gpudevice.object_name(UUID, "node-1", simulated=False))
        made = await self.store.create(GPUDevice(metadata=metadata, spec=spec))
        status = gpudevice.GPUDeviceStatus(health=gpudevice.HEALTHY)
        self.uids.set({made.metadata.name: made.metadata.uid})
        return await self.store.update_status(msgspec.structs.replace(made, status=status))

    async def until_pod(self, name: str, check: Callable[[meta.Condition | None], bool]) -> core.Pod:
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(core.Pod):
                if change.object.metadata.name == name and check(mark(change.object)):
                    return change.object
        raise AssertionError("a watch does not end")

    async def until_holders(self, *names: str) -> GPUDevice:
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(GPUDevice):
                if tuple(one.pod for one in change.object.status.holders) == names:
                    return change.object
        raise AssertionError("a watch does not end")


def mark(pod: core.Pod) -> meta.Condition | None:
    return next((item for item in pod.status.conditions if item.type == plan.CONDITION), None)


@pytest.fixture
def node() -> Node:
    return Node()


async def test_holders_are_named_in_an_object_that_was_made_again(node: Node) -> None:
    await node.run("train")
    node.hold("train")
    first = await node.make_device()
    async with node.agent():
        await node.until_holders("train")
        await node.store.delete(GPUDevice, first.metadata.name)
        again = await node.make_device()
        assert (await node.until_holders("train")).metadata.uid == again.metadata.uid != first.metadata.uid


async def test_a_running_pod_is_marked_and_warned_and_unmarked_again(node: Node) -> None:
    pod = await node.run("train")
    node.hold("train")
    async with node.agent():
        node.judge(SICK)
        marked = await node.until_pod("train", lambda found: found is not None and found.status == "False")
        assert [item.type for item in marked.status.conditions] == ["Ready", plan.CONDITION]
        node.judge(health.Verdict())
        await node.until_pod("train", lambda found: found is not None and found.status == "True")
    steps = await tracerecorder.list_steps(node.store, tracerecorder.reference(pod))
    assert [(step.reason, step.is_warning) for step in steps] == [("GPUUnhealthy", True), ("GPURecovered", False)]
    assert "GPU-a" in steps[0].message
    assert steps[0].facts["gpus"] == [{"gpu": "GPU-a", "reason": "XID79"}]


async def test_a_pod_that_comes_to_a_sick_gpu_is_marked_and_its_neighbour_is_not(node: Node) -> None:
    node.judge(SICK)
    async with node.agent():
        await node.run("neighbour")
        await node.run("train")
        node.hold("train")
        await node.until_pod("train", lambda found: found is not None)
    assert mark(await node.store.get(core.Pod, "neighbour", "team")) is None


async def test_an_agent_that_starts_anew_marks_nothing_twice(node: Node) -> None:
    pod = await node.run("train")
    node.hold("train")
    node.judge(SICK)
    async with node.agent():
        marked = await node.until_pod("train", lambda found: found is not None)
    async with node.agent():
        node.judge(health.Verdict())
        await node.until_pod("train", lambda found: found is not None and found.status == "True")
    steps = await tracerecorder.list_steps(node.store, tracerecorder.reference(pod))
    assert [step.reason for step in steps] == ["GPUUnhealthy", "GPURecovered"]
    assert mark(marked) is not None


async def test_a_kubelet_that_lists_nothing_for_a_moment_unmarks_nobody(node: Node) -> None:
    await node.run("train")
    node.hold("train")
    node.judge(SICK)
    async with node.agent():
        await node.until_pod("train", lambda found: found is not None)
        node.hold()
        await node.make_device()
        node.hold("other")
        await node.until_holders("other")
    found = mark(await node.store.get(core.Pod, "train", "team"))
    assert found is not None
    assert found.status == "False"


async def test_holders_are_written_beside_what_others_wrote(node: Node) -> None:
    await node.make_device()
    pod = await node.run("train")
    async with node.agent():
        node.hold("train")
        held = await node.until_holders("train")
        assert held.status.health == gpudevice.HEALTHY
        assert held.status.holders[0].pod_uid == pod.metadata.uid
        assert held.status.held_by == f"{pod.metadata.namespace}/train"
        node.hold()
        await node.until_holders()


async def test_holders_wait_for_an_object_that_is_made_later(node: Node) -> None:
    await node.run("train")
    node.hold("train")
    async with node.agent():
        await node.make_device()
        await node.until_holders("train")


async def test_a_gpu_that_goes_from_hand_to_hand_is_named_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podcondition, "_SOON_S", 1.0)
    await node.make_device()
    named: list[tuple[str, ...]] = []
    async with node.agent():
        node.hold("one")
        await asyncio.sleep(0.02)
        node.hold("two")
        async with asyncio.timeout(PATIENCE_S):
            async for change in node.store.watch(GPUDevice):
                named.append(tuple(one.pod for one in change.object.status.holders))
                if any(named):
                    break
    assert named[-1] == ("two",)
