"""Taking back what agents published, over a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import errors
from fairlead.control.node import withdraw
from fairlead.plan.gpu import label
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Selector
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline, FirmwareBaselineSpec
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice, GPUDeviceSpec
from fairlead.wire.kubernetes.gpulease import GPULease, GPULeaseSpec

_AGENTS = Selector(namespace="fairlead", labels={"app.kubernetes.io/component": "agent"})

_LEASE = GPULeaseSpec(node_name="one", gpu="GPU-1", gpu_device="one-gpu-1", epoch=1, held_at="2026-11-27T12:00:00Z")


async def _publish(store: MemoryStore, node: str) -> None:
    await store.create(core.Node(metadata=meta.ObjectMeta(name=node, labels={"kubernetes.io/os": "linux"})))
    about = meta.ObjectMeta(name=node, labels={"nvidia.com/gpu.count": "8", label.SIMULATED: "true"})
    await store.apply(core.Node(metadata=about), manager=label.MANAGER)
    spec = GPUDeviceSpec(
        node_name=node, index=0, minor=0, uuid="GPU-1", vendor="nvidia", product="H100", memory="80Gi", simulated=True
    )
    await store.create(GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-gpu-1"), spec=spec))


async def test_objects_and_labels_go_and_what_others_set_stays() -> None:
    store = MemoryStore()
    for node in ("one", "two"):
        await _publish(store, node)
    await store.create(core.Node(metadata=meta.ObjectMeta(name="plain", labels={"kubernetes.io/os": "linux"})))
    spec = FirmwareBaselineSpec(node_name="one", board="233010de")
    await store.create(FirmwareBaseline(metadata=meta.ObjectMeta(name="one.1"), spec=spec))
    for epoch in range(20):  # more than are removed at once
        about = meta.ObjectMeta(name=f"one-gpu-1.{epoch}")
        await store.create(GPULease(metadata=about, spec=_LEASE))

    done = await withdraw.withdraw(store)

    assert done == withdraw.Withdrawn(devices=("one-gpu-1", "two-gpu-1"), leases=20, nodes=("one", "two"))
    assert not (await store.list(GPULease)).items
    assert not (await store.list(GPUDevice)).items
    assert not (await store.list(FirmwareBaseline)).items
    for found in (await store.list(core.Node)).items:
        assert found.metadata.labels == {"kubernetes.io/os": "linux"}
    assert await withdraw.withdraw(store) == withdraw.Withdrawn()


async def test_agents_that_live_are_waited_for() -> None:
    store = MemoryStore()
    about = meta.ObjectMeta(name="agent-1", namespace="fairlead", labels=dict(_AGENTS.labels))
    await store.create(core.Pod(metadata=about))
    with pytest.raises(errors.Unavailable, match=r"agents are left .*agent-1") as caught:
        await withdraw.until_ended(store, _AGENTS, within_s=0.01)
    assert caught.value.reason == "AgentsLeft"

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(50):
        tasks.create_task(withdraw.until_ended(store, _AGENTS, within_s=5))
        await store.delete(core.Pod, "agent-1", "fairlead", grace_s=0)


class WithoutKinds(MemoryStore):
    """A cluster whose definitions of our kinds were removed before `withdraw` ran."""

    async def list(self, kind: type[Any], selector: Selector = Selector()) -> Any:  # noqa: B008 (frozen)
        if kind.API_VERSION.startswith("fairlead.dev/"):
            raise errors.NotFound(f"the server has no {kind.PLURAL}", reason="KindUnknown")
        return await super().list(kind, selector)


async def test_labels_go_where_the_kinds_are_gone_already() -> None:
    store = WithoutKinds()
    await _publish(store, "one")
    assert await withdraw.withdraw(store) == withdraw.Withdrawn(nodes=("one",))
    (node,) = (await store.list(core.Node)).items
    assert node.metadata.labels == {"kubernetes.io/os": "linux"}


async def test_what_helm_test_left_goes_and_nothing_else_of_the_namespace() -> None:
    store = MemoryStore()
    labels = {"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/component": "test"}
    for name, space, given in (
        ("test-gpu", "fairlead", labels),
        ("mine", "fairlead", {"app.kubernetes.io/component": "test"}),
        ("test-gpu", "other", labels),
    ):
        await store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace=space, labels=given)))
    await withdraw.remove_tests(store, "fairlead")
    left = {
        (pod.metadata.namespace, pod.metadata.name)
        for pod in (await store.list(core.Pod)).items
        if not pod.metadata.deletion_timestamp
    }
    assert left == {("fairlead", "mine"), ("other", "test-gpu")}
