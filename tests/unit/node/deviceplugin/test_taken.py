"""A kubelet that lost count offers what a container has; the plugin prefers free GPUs (W16 of possession-proof.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead.model.gpu import Vendor
from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.deviceplugin import podresources, taken
from fairlead.node.inventory import pods
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.offer import advertise
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests import devices

RESOURCE = "nvidia.com/gpu"
NAMES = tuple(f"GPU-{number}" for number in range(4))


@dataclass
class Beside:
    """A plugin beside a kubelet whose list, pods and clock a test sets."""

    store: MemoryStore = field(default_factory=MemoryStore)
    holdings: podresources.Holdings = field(default_factory=lambda: podresources.Holdings(Path("/nowhere")))
    now: float = 100.0

    def __post_init__(self) -> None:
        self.heard = asyncio.Event()
        self.pods = pods.Pods("n0", self.store)
        self.pods.listen(lambda *_: self.heard.set())
        self.plugin = deviceplugin.Plugin(RESOURCE)
        self.taken = self.plugin.taken = taken.Taken(self.holdings, self.pods, clock=lambda: self.now)
        offered = tuple(devices.gpu(name) for name in NAMES)
        advertised = advertise.Advertisement(resource=RESOURCE, vendor=Vendor.NVIDIA, devices=offered)
        self.plugin.update(advertised, choose.Topology())

    async def prefer(self, size: int, *, of: tuple[str, ...] = NAMES, must: tuple[str, ...] = ()) -> list[str]:
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=of, must_include_deviceIDs=must, allocation_size=size
        )
        made = await self.plugin.preferred_allocation(pb.PreferredAllocationRequest(container_requests=[asked]))
        return list(made.container_responses[0].deviceIDs)

    async def allocate(self, *names: str) -> None:
        asked = pb.ContainerAllocateRequest(devices_ids=names)
        await self.plugin.allocate(pb.AllocateRequest(container_requests=[asked]))

    def list(self, **ids: str) -> None:
        """Have the kubelet list which pod has which device."""
        self.holdings.latest.set(
            tuple(
                Holding(namespace="team", pod=pod, container="main", resource=RESOURCE, ids=(DeviceID(name),))
                for pod, name in ids.items()
            )
        )

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.pods.run())
        try:
            await self.pods.listed.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def has(self, name: str, *, phase: str = "Running", began: bool = True) -> None:
        """Have the store know a pod of this node, and the agent hear of it."""
        pod = core.Pod(
            metadata=meta.ObjectMeta(name=name, namespace="team"),
            spec=core.PodSpec(node_name="n0", containers=(core.Container(name="main"),)),
        )
        status = core.PodStatus(phase=phase, start_time="2026-01-01T00:00:00Z" if began else None)
        await self.store.update_status(msgspec.structs.replace(await self.store.create(pod), status=status))
        async with asyncio.timeout(10):
            while all((pod.metadata.name, pod.status) != (name, status) for pod in self.pods.all()):
                self.heard.clear()
                await self.heard.wait()


async def test_what_a_living_pod_has_is_preferred_last() -> None:
    beside = Beside()
    async with beside.following():
        await beside.has("a")
        beside.list(a="GPU-0")
        assert await beside.prefer(1) == ["GPU-1"]
        assert await beside.prefer(3) == ["GPU-1", "GPU-2", "GPU-3"]
        assert len(await beside.prefer(4)) == 4
        assert await beside.prefer(2, of=("GPU-0", "GPU-2", "GPU-3"), must=("GPU-3",)) == ["GPU-2", "GPU-3"]


async def test_where_too_few_are_free_all_of_them_are_among_the_preferred() -> None:
    beside = Beside()
    async with beside.following():
        await beside.has("a")
        await beside.has("b")
        beside.list(a="GPU-0", b="GPU-1")
        assert await beside.prefer(2, of=NAMES[:3]) == ["GPU-0", "GPU-2"]


async def test_what_was_given_a_moment_ago_is_preferred_last_before_any_list_has_it() -> None:
    beside = Beside()
    await beside.allocate("GPU-0")
    assert await beside.prefer(1) == ["GPU-1"]
    beside.now += taken.LISTED_S
    assert await beside.prefer(1) == ["GPU-0"]


async def test_what_a_pod_had_that_ended_or_that_nobody_knows_is_free() -> None:
    beside = Beside()
    async with beside.following():
        await beside.has("a", phase="Succeeded")
        beside.list(a="GPU-0", gone="GPU-1")
        assert await beside.prefer(2) == ["GPU-0", "GPU-1"]


async def test_the_next_pod_of_a_name_that_has_not_begun_may_have_what_the_last_one_had() -> None:
    beside = Beside()
    async with beside.following():
        await beside.has("a", began=False)
        beside.list(a="GPU-0")
        assert await beside.prefer(1) == ["GPU-0"]


async def test_another_resources_devices_are_not_in_the_way() -> None:
    beside = Beside()
    async with beside.following():
        await beside.has("a")
        held = Holding(namespace="team", pod="a", container="main", resource="amd.com/gpu", ids=(DeviceID("GPU-0"),))
        beside.holdings.latest.set((held,))
        assert await beside.prefer(1) == ["GPU-0"]


async def test_a_list_that_lost_a_living_pod_leads_no_other_to_what_it_has() -> None:
    """As after the loss of the kubelet's checkpoint: it lists none of what running pods have, and offers all of it."""
    beside = Beside()
    async with beside.following():
        await beside.has("a")
        await beside.has("b")
        beside.list(a="GPU-0", b="GPU-1")
        beside.taken.note(beside.holdings.latest.value)
        beside.list()
        assert await beside.prefer(2) == ["GPU-2", "GPU-3"]
        beside.list(b="GPU-2")  # made again, with another device
        assert await beside.prefer(2) == ["GPU-1", "GPU-3"]
        await beside.store.delete(core.Pod, "a", "team", grace_s=0)
        async with asyncio.timeout(10):
            while len(beside.pods.all()) > 1:
                beside.heard.clear()
                await beside.heard.wait()
        assert await beside.prefer(2) == ["GPU-0", "GPU-1"]


async def test_what_the_ledger_has_as_held_is_preferred_last() -> None:
    beside = Beside()
    async with beside.following():
        beside.taken.of_ledger = lambda resource: [DeviceID("GPU-0")] if resource == RESOURCE else []
        assert await beside.prefer(1) == ["GPU-1"]
