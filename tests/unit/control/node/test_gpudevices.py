"""GPUs whose node cannot speak for them: unknown, then gone, and the agent's again once it can."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from fairlead import errors
from fairlead.control import manager
from fairlead.control.node.gpudevice import GPUDevices
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice

RESOURCE = "nvidia.com/gpu"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@contextlib.asynccontextmanager
async def _running(store: MemoryStore, *, gone_s: float = 0.05, agent_s: float = 0.05) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        keeper = GPUDevices(store, gone_s=gone_s, agent_s=agent_s)
        task = tasks.create_task(manager.run_controllers(store, (keeper,)))
        yield
        task.cancel()


async def _add_gpu(
    store: MemoryStore, name: str, node: str, *, resource: str = "", health: str = gpudevice.HEALTHY
) -> None:
    spec = gpudevice.GPUDeviceSpec(
        node_name=node,
        index=0,
        minor=0,
        uuid=name,
        vendor="nvidia",
        product="H100",
        memory="80Gi",
        simulated=True,
        resource=resource,
    )
    made = await store.create(GPUDevice(metadata=meta.ObjectMeta(name=name), spec=spec))
    holder = gpudevice.Holder(namespace="default", pod="train")
    status = gpudevice.GPUDeviceStatus(health=health, holders=(holder,))
    await store.update_status(msgspec.structs.replace(made, status=status))


async def _set_ready(store: MemoryStore, name: str, status: str) -> None:
    with contextlib.suppress(errors.Conflict):
        await store.create(core.Node(metadata=meta.ObjectMeta(name=name)))
    node = await store.get(core.Node, name)
    ready = meta.Condition(type="Ready", status=status, reason="KubeletNotReady", message="runtime down")
    await store.update_status(msgspec.structs.replace(node, status=core.NodeStatus(conditions=(ready,))))


async def _offer(store: MemoryStore, name: str, count: int | None) -> None:
    """Have a ready node's kubelet offer so many GPUs; None: it knows no such resource."""
    await _set_ready(store, name, "True")
    node = await store.get(core.Node, name)
    amounts = {} if count is None else {RESOURCE: str(count)}
    await store.update_status(
        msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, allocatable=amounts))
    )


async def _until(store: MemoryStore, name: str, holds: Callable[[GPUDevice], bool]) -> GPUDevice:
    async with asyncio.timeout(50):
        async for change in store.watch(GPUDevice):
            if change.object.metadata.name == name and holds(change.object):
                return change.object
    raise AssertionError(name)


def _is_unknown(device: GPUDevice) -> bool:
    return device.status.health == gpudevice.UNKNOWN


async def test_gpus_of_a_node_that_is_not_ready_are_unknown_and_keep_their_holders(store: MemoryStore) -> None:
    await _set_ready(store, "away", "Unknown")
    await _set_ready(store, "here", "True")
    await _add_gpu(store, "gpu-away", "away")
    await _add_gpu(store, "gpu-here", "here")
    async with _running(store):
        device = await _until(store, "gpu-away", _is_unknown)
        assert device.status.reason == "NodeNotReady"
        assert device.status.message == "node away is not ready (KubeletNotReady: runtime down)"
        assert [item.pod for item in device.status.holders] == ["train"]
        assert [(item.type, item.status) for item in device.status.conditions] == [("Healthy", "Unknown")]
        await _set_ready(store, "here", "False")
        await _until(store, "gpu-here", _is_unknown)


async def test_what_the_agent_writes_once_its_node_is_ready_stays(store: MemoryStore) -> None:
    await _set_ready(store, "node", "False")
    await _add_gpu(store, "gpu", "node")
    await _set_ready(store, "second", "True")
    await _add_gpu(store, "other", "second")
    async with _running(store):
        device = await _until(store, "gpu", _is_unknown)
        await _set_ready(store, "node", "True")
        healthy = msgspec.structs.replace(device.status, health=gpudevice.HEALTHY, reason="")
        await store.update_status(msgspec.structs.replace(device, status=healthy))
        await _set_ready(store, "second", "False")
        await _until(store, "other", _is_unknown)
    assert not _is_unknown(await store.get(GPUDevice, "gpu"))


async def test_gpus_of_a_node_that_is_gone_are_unknown_then_removed(store: MemoryStore) -> None:
    await _add_gpu(store, "gpu", "nowhere")
    async with _running(store):
        device = await _until(store, "gpu", _is_unknown)
        assert (device.status.reason, device.status.message) == ("NodeGone", "node nowhere is gone")
        async with asyncio.timeout(50):
            async for change in store.watch(GPUDevice, since=device.metadata.resource_version):
                if change.kind is ChangeKind.DELETED:
                    break


async def test_a_node_that_comes_back_in_time_keeps_its_gpus(store: MemoryStore) -> None:
    await _add_gpu(store, "gpu", "late")
    keeper = GPUDevices(store, gone_s=3600)
    node_watch, gpu_watch = keeper.watches()
    device = await store.get(GPUDevice, "gpu")
    tuple(gpu_watch.keys(Change(kind=ChangeKind.ADDED, object=device)))
    left_s = await keeper.reconcile("late")
    assert left_s is not None
    assert 3590 < left_s <= 3600
    await _set_ready(store, "late", "True")
    node = await store.get(core.Node, "late")
    tuple(node_watch.keys(Change(kind=ChangeKind.ADDED, object=node)))
    assert await keeper.reconcile("late") is None
    assert await store.get(GPUDevice, "gpu")


async def test_nothing_is_written_twice(store: MemoryStore) -> None:
    await _set_ready(store, "node", "False")
    await _add_gpu(store, "gpu", "node")
    async with _running(store):
        await _until(store, "gpu", _is_unknown)
        before = await store.get(GPUDevice, "gpu")
        await _set_ready(store, "node", "Unknown")
        await _set_ready(store, "marker", "False")
        await _add_gpu(store, "last", "marker")
        await _until(store, "last", _is_unknown)
    assert (await store.get(GPUDevice, "gpu")).metadata.resource_version == before.metadata.resource_version


@pytest.mark.parametrize("count", [0, None])
async def test_gpus_that_their_kubelet_does_not_offer_are_unknown_because_their_agent_is_gone(
    store: MemoryStore, count: int | None
) -> None:
    await _offer(store, "node", 2)
    await _add_gpu(store, "gpu", "node", resource=RESOURCE)
    await _add_gpu(store, "ill", "node", resource=RESOURCE, health=gpudevice.UNHEALTHY)
    await _add_gpu(store, "split", "node")  # in MIG mode: not offered whole, so nothing follows from the count
    async with _running(store):
        await _offer(store, "node", count)
        device = await _until(store, "gpu", _is_unknown)
    assert device.status.reason == "AgentGone"
    assert device.status.message == "node node offers no nvidia.com/gpu: its agent is gone, or cannot reach the kubelet"
    assert [item.pod for item in device.status.holders] == ["train"]
    assert [(item.type, item.status) for item in device.status.conditions] == [("Healthy", "Unknown")]
    for name in ("ill", "split"):
        assert not _is_unknown(await store.get(GPUDevice, name))


async def test_an_agent_has_time_to_start_anew(store: MemoryStore) -> None:
    await _offer(store, "node", 0)
    await _add_gpu(store, "gpu", "node", resource=RESOURCE)
    keeper = GPUDevices(store, agent_s=3600)
    node_watch, gpu_watch = keeper.watches()
    tuple(gpu_watch.keys(Change(kind=ChangeKind.ADDED, object=await store.get(GPUDevice, "gpu"))))
    tuple(node_watch.keys(Change(kind=ChangeKind.ADDED, object=await store.get(core.Node, "node"))))
    left_s = await keeper.reconcile("node")
    assert left_s is not None
    assert 3590 < left_s <= 3600
    await _offer(store, "node", 1)
    tuple(node_watch.keys(Change(kind=ChangeKind.MODIFIED, object=await store.get(core.Node, "node"))))
    assert await keeper.reconcile("node") is None
    assert not _is_unknown(await store.get(GPUDevice, "gpu"))
