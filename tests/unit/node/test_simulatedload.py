"""Simulated GPUs are used by whom the kubelet lists, but for pods that end and have no process left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlead import telemetry
from fairlead.kernel import openfiles
from fairlead.model.driver import DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node import simulatedload
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta

GPU0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU_NODE: openfiles.Number = ("c", 195, 0)
SHARED: openfiles.Number = ("c", 195, 255)


def snapshot() -> Snapshot:
    gpu = GPU(uuid=GPUUUID(GPU0), index=0, minor=0, pci_bus_id="0000:00:00.0", name="X", memory_bytes=1)
    nodes = tuple(
        DeviceNode(path=path, host_path=path, major=major, minor=minor, mode=0o666)
        for path, (_, major, minor) in (("/dev/nvidia0", GPU_NODE), ("/dev/nvidiactl", SHARED))
    )
    return Snapshot(
        drivers=(DriverFiles(vendor=Vendor.NVIDIA, version="550.1", nodes=nodes),),
        known={gpu.uuid: gpu},
        is_scanned=True,
    )


class Node:
    """A node with one pod that a kubelet lists with its GPU, and the processes that are found of it."""

    def __init__(self, store: MemoryStore, known: pods.Pods, pod: core.Pod, folder: Path) -> None:
        self.store, self.known, self.pod = store, known, pod
        self.loop = asyncio.get_running_loop()
        self.openers: tuple[openfiles.Opener, ...] = ()
        self.asked: latest.Latest[frozenset[str]] = latest.Latest(frozenset())
        """Which pods' processes were looked for last, by their cgroups."""
        self.looks = 0
        self.held: latest.Latest[Mapping[str, tuple[str, ...]]] = latest.Latest({})
        self.holdings = podresources.Holdings(folder / "no.sock")
        listed = Holding(namespace="team", pod="train", container="main", resource="x", ids=(DeviceID(GPU0),))
        self.holdings.latest.set((listed,))

    def hold(self, holders: Mapping[str, tuple[str, ...]]) -> None:
        self.held.set(dict(holders))

    def find(self, numbers: frozenset[openfiles.Number], groups: frozenset[str]) -> tuple[openfiles.Opener, ...]:
        assert numbers == {GPU_NODE}  # a process that could open what all GPUs share uses none yet
        self.looks += 1
        self.loop.call_soon_threadsafe(self.asked.set, groups)
        return self.openers

    def process(self, group: str, **kwargs: Any) -> openfiles.Opener:
        return openfiles.Opener(pid=9, name="sleep", cgroups=(f"/kubepods/{group}/c",), devices=(), **kwargs)

    async def until(self, wanted: Callable[[tuple[str, ...]], bool]) -> None:
        async with asyncio.timeout(20):
            while not wanted(self.held.value.get(GPU0, ())):
                await self.held.wait(self.held.version)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(simulatedload, "LOOK_S", 0.01)
    store = MemoryStore()
    pod = await store.create(
        core.Pod(
            metadata=meta.ObjectMeta(name="train", namespace="team"),
            spec=core.PodSpec(node_name="node-1", containers=(core.Container(name="main", image="x"),)),
        )
    )
    known = pods.Pods("node-1", store)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(known.run())
        await known.listed.wait()
        one = Node(store, known, pod, tmp_path)
        dead = simulatedload.DeadPods(known, one.find)
        load = tasks.create_task(
            simulatedload.run(one, one.holdings, latest.Latest(snapshot()), telemetry.UNMETERED, dead)
        )
        await one.until(bool)
        yield one
        following.cancel()
        load.cancel()


@pytest.mark.parametrize("form", ["pod{}", "pod{}.slice"])
async def test_a_pod_that_ends_uses_its_gpu_until_its_last_process_is_gone(node: Node, form: str) -> None:
    uid = node.pod.metadata.uid
    group = form.format(uid.replace("-", "_") if form.endswith("slice") else uid)
    node.openers = (node.process(group, reachable=(GPU_NODE,)), node.process(group))
    await node.store.delete(core.Pod, "train", "team", grace_s=0)
    async with asyncio.timeout(20):
        await node.asked.wait(0)
    await asyncio.sleep(0.05)
    assert node.held.value == {GPU0: ("team/train/main",)}
    node.openers = (node.process(group),)  # the pod's sandbox
    await node.until(lambda names: not names)


async def test_processes_of_other_pods_keep_no_gpu_for_a_pod_that_ends(node: Node) -> None:
    node.openers = (node.process("pod0a0a0a0a-0000-0000-0000-000000000001", reachable=(GPU_NODE,)),)
    await node.store.delete(core.Pod, "train", "team", grace_s=0)
    await node.until(lambda names: not names)


async def test_a_pod_that_lives_uses_its_gpu_whatever_its_processes_are(node: Node) -> None:
    before = node.held.version
    await asyncio.sleep(0.1)
    assert node.held.version == before
    assert node.looks == 0


async def test_the_next_pod_of_a_name_uses_the_gpu_that_the_last_one_had(node: Node) -> None:
    await node.store.delete(core.Pod, "train", "team", grace_s=0)
    await node.until(lambda names: not names)
    await node.store.create(
        core.Pod(
            metadata=meta.ObjectMeta(name="train", namespace="team"),
            spec=core.PodSpec(node_name="node-1", containers=(core.Container(name="main", image="x"),)),
        )
    )
    await node.until(lambda names: names == ("team/train/main",))
