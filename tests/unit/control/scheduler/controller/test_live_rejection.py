"""A kubelet that refuses a pod is not asked again at once by the next one of its shape."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.schedule import waiting
from fairlead.serve.v1.containers import waitview
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Change, Listing, Selector, Store, T
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice, GPUDeviceSpec, GPUDeviceStatus, GPULink
from tests.unit.control.scheduler.plane import GPU, Plane


async def _refuse(plane: Plane, name: str, node: str, gpus: int) -> None:
    pod = await plane.add_pod(name, gpus, node_name=node)
    status = core.PodStatus(phase="Failed", reason="TopologyAffinityError", start_time=meta.now())
    await plane.store.update_status(msgspec.structs.replace(pod, status=status))


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_pod_goes_elsewhere_than_to_the_node_that_refused_its_like(policy: str) -> None:
    plane = Plane()
    if policy:
        plane.choose(policy)
    await plane.add_node("a", 2)  # the best by far: it would be full
    await plane.add_node("b", 8)
    await _refuse(plane, "refused", "a", 2)
    async with plane.running():
        await plane.add_pod("like", 2)
        await plane.add_pod("other", 1)
        assert await plane.until_bound(["like", "other"]) == {"refused": "a", "like": "b", "other": "a"}


async def test_with_no_other_node_it_waits_and_says_so_until_the_refused_pod_is_removed() -> None:
    plane = Plane()
    await plane.add_node("a", 2)
    await _refuse(plane, "refused", "a", 2)
    async with plane.running():
        await plane.add_pod("like", 2)
        words = await plane.until_said("like", "lately refused")
        assert words == "0/1 nodes are available: 1 node(s) lately refused such a pod (TopologyAffinityError)."
        nodes, pods = await plane.store.list(core.Node), await plane.store.list(core.Pod)
        like = await plane.store.get(core.Pod, "like", "default")
        assert waiting.why(like, nodes.items, pods.items, ours="fairlead") == words
        told = waitview.describe(
            like, waitview.Census(nodes.items, pods.items, ours="fairlead"), now=dt.datetime.now(dt.UTC)
        )
        assert told is not None
        assert told.message == "it does not fit: lately refused such a pod (TopologyAffinityError)"
        await plane.end("refused")
        await plane.until_bound(["like"])


class _Shy(MemoryStore):
    """A store that denies GPUs at first, as an API server does that starts."""

    denials = 2

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        if kind is GPUDevice and self.denials:
            self.denials -= 1
            raise errors.Denied("not yet", reason="Forbidden")
        return await super().list(kind, selector)

    async def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        async for change in super().watch(kind, selector, since=since):
            yield change


async def _add_gpus(store: Store, node: str, way: str) -> None:
    for index in (0, 1):
        link = GPULink(kind=way, gpus=(f"0000:0{1 - index}:00.0",))
        spec = GPUDeviceSpec(
            node_name=node,
            index=index,
            minor=index,
            uuid=f"{node}-{index}",
            vendor="nvidia",
            product="paper",
            memory="1Gi",
            simulated=True,
            pci_bus_id=f"0000:0{index}:00.0",
            resource=GPU,
            links=(link,),
        )
        one = await store.create(GPUDevice(metadata=meta.ObjectMeta(name=f"{node}-{index}"), spec=spec))
        await store.update_status(msgspec.structs.replace(one, status=GPUDeviceStatus(health="Healthy")))


async def test_the_first_decision_knows_gpus_that_may_not_be_read_at_first() -> None:
    plane = Plane(store=_Shy())
    for name, way in (("a", "SYS"), ("joined", "NV")):
        await plane.add_node(name, 2)
        await _add_gpus(plane.store, name, way)
    await plane.add_pod("pair", 2)
    async with plane.running(), asyncio.timeout(20):
        assert await plane.until_bound(["pair"]) == {"pair": "joined"}
