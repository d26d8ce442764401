"""Publications of a node's agent, over a store that may be away, and beside others who write to the same objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from fairlead import errors
from fairlead.model.gpu import Driver, Inventory, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import latest, nodeobject
from fairlead.node.publish import objects
from fairlead.plan.gpu import health
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store import port
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from tests import gpus
from tests.unit.store import virtualtime

NODE = "worker-1"
AWAY = errors.Unavailable("connection refused", reason="Refused")
PRODUCT = "nvidia.com/gpu.product"
RESOURCE = "nvidia.com/gpu"


class Moody:
    """A store that can be away, and that counts what is asked of it."""

    def __init__(self) -> None:
        self.inner = memory.MemoryStore()
        self.calls = 0
        self.is_away = False

    async def _ask(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.001)
        if self.is_away:
            raise AWAY

    async def get(self, kind: type[port.T], name: str, namespace: str = "") -> port.T:
        await self._ask()
        return await self.inner.get(kind, name, namespace)

    async def list(self, kind: type[port.T], selector: port.Selector = port.EVERYTHING) -> port.Listing[port.T]:
        await self._ask()
        return await self.inner.list(kind, selector)

    async def watch(
        self, kind: type[port.T], selector: port.Selector = port.EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[port.Change[port.T]]:
        async for change in self.inner.watch(kind, selector, since=since):
            await self._ask()
            yield change

    async def create(self, item: port.T) -> port.T:
        await self._ask()
        return await self.inner.create(item)

    async def update(self, item: port.T) -> port.T:
        await self._ask()
        return await self.inner.update(item)

    async def update_status(self, item: port.T) -> port.T:
        await self._ask()
        return await self.inner.update_status(item)

    async def apply(self, item: port.T, *, manager: str) -> port.T:
        await self._ask()
        return await self.inner.apply(item, manager=manager)

    async def delete(
        self,
        kind: type[port.T],
        name: str,
        namespace: str = "",
        *,
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> None:
        await self._ask()
        await self.inner.delete(kind, name, namespace, grace_s=grace_s, uid=uid)


def snapshot(count: int = 2, *, product: str = "Tesla T4", broken: tuple[int, ...] = ()) -> Snapshot:
    found = tuple(gpus.gpu(i, name=product, memory_bytes=15 << 30) for i in range(count))
    verdicts = {GPUUUID(f"GPU-{i}"): health.Verdict(state=health.State.FAULTY, reason="XID79") for i in broken}
    driver = Driver(vendor=Vendor.NVIDIA, version="550.163.01")
    return Snapshot(
        inventory=Inventory(gpus=found, drivers=(driver,)),
        verdicts=verdicts,
        known={gpu.uuid: gpu for gpu in found},
        is_scanned=True,
    )


def node(*, ready: bool = True, labels: dict[str, str] | None = None) -> core.Node:
    condition = meta.Condition(type="Ready", status=str(ready))
    return core.Node(
        metadata=meta.ObjectMeta(name=NODE, labels={"mine": "1", **(labels or {})}),
        status=core.NodeStatus(conditions=(condition,)),
    )


class World:
    """One store and one publisher."""

    def __init__(self) -> None:
        self.store = Moody()
        self.inner = self.store.inner
        self.mig = objects.MIGPublication()

    @contextlib.asynccontextmanager
    async def publishing(self, first: Snapshot | None = None) -> AsyncIterator[latest.Latest[Snapshot]]:
        snapshots = latest.Latest(first or Snapshot())
        known = nodeobject.NodeObject(NODE, self.store)
        publisher = objects.Publisher(
            known, self.store, snapshots=snapshots, machine="DGX H100", nvidia_resource=RESOURCE, mig=self.mig
        )
        self.quarantines = publisher.quarantines
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(publisher.run()), tasks.create_task(known.run())]
            yield snapshots
            for task in running:
                task.cancel()

    async def offer(self, count: int) -> None:
        """Have the node's kubelet offer so many GPUs."""
        there = await self.inner.get(core.Node, NODE)
        status = msgspec.structs.replace(there.status, allocatable={RESOURCE: str(count)})
        await self.inner.update_status(msgspec.structs.replace(there, status=status))

    async def silence(self) -> None:
        """Say of every GPU what the controller says where the agent is gone."""
        for device in (await self.devices()).values():
            status = msgspec.structs.replace(device.status, health=gpudevice.UNKNOWN, reason="AgentGone")
            await self.inner.update_status(msgspec.structs.replace(device, status=status))

    async def devices(self) -> dict[str, GPUDevice]:
        return {item.metadata.name: item for item in (await self.inner.list(GPUDevice)).items}

    async def healths(self) -> dict[str, str]:
        return {name: device.status.health for name, device in (await self.devices()).items()}

    async def labels(self) -> dict[str, str]:
        return dict((await self.inner.get(core.Node, NODE)).metadata.labels)


def scenario(act: Callable[[World], object]) -> Callable[[], None]:
    """Make a test of a coroutine function: it runs in virtual time, with the Node there."""

    def test() -> None:
        async def run() -> None:
            world = World()
            await world.inner.create(node())
            await act(world)  # type: ignore[misc]  # a coroutine

        virtualtime.run(run(), moment_s=0)

    test.__name__ = act.__name__
    return test


SETTLED_S = 1.0
"""More than any write takes, less than somebody else's change stands."""


@scenario
async def test_every_gpu_is_an_object_of_its_node(world: World) -> None:
    async with world.publishing(snapshot(2, broken=(1,))):
        await asyncio.sleep(SETTLED_S)
        assert await world.healths() == {"gpu-0": "Healthy", "gpu-1": "Unhealthy"}
        device = (await world.devices())["gpu-1"]
        (owner,) = device.metadata.owner_references
        uid = (await world.inner.get(core.Node, NODE)).metadata.uid
        assert (owner.kind, owner.name, owner.uid) == ("Node", NODE, uid)
        assert (device.spec.product, device.spec.memory, device.status.reason) == ("Tesla T4", "15Gi", "XID79")
        assert device.status.conditions[0].observed_generation == device.metadata.generation == 1


@scenario
async def test_labels_are_set_beside_those_of_others(world: World) -> None:
    async with world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        labels = await world.labels()
        assert (labels["mine"], labels[PRODUCT], labels["nvidia.com/gpu.machine"]) == ("1", "Tesla-T4", "DGX-H100")


@scenario
async def test_labels_follow_the_mig_strategy_of_a_configuration_that_changes(world: World) -> None:
    async with world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        assert (await world.labels())["nvidia.com/mig.strategy"] == "none"
        world.mig.strategy.set("mixed")
        await asyncio.sleep(SETTLED_S)
        assert (await world.labels())["nvidia.com/mig.strategy"] == "mixed"


@scenario
async def test_nothing_more_is_asked_once_all_is_true(world: World) -> None:
    async with world.publishing(snapshot()) as snapshots:
        await asyncio.sleep(SETTLED_S)
        before = world.store.calls
        for _ in range(100):
            snapshots.set(snapshot())
            await asyncio.sleep(30)
        assert world.store.calls == before


@scenario
async def test_health_goes_and_comes_back(world: World) -> None:
    async with world.publishing(snapshot()) as snapshots:
        await asyncio.sleep(SETTLED_S)
        snapshots.set(snapshot(broken=(0,)))
        await asyncio.sleep(SETTLED_S)
        assert await world.healths() == {"gpu-0": "Unhealthy", "gpu-1": "Healthy"}
        snapshots.set(snapshot())
        await asyncio.sleep(SETTLED_S)
        assert await world.healths() == {"gpu-0": "Healthy", "gpu-1": "Healthy"}


@scenario
async def test_every_object_says_by_which_name_it_is_offered_and_where_to_sort_it(world: World) -> None:
    async with world.publishing(snapshot(2)):
        await asyncio.sleep(SETTLED_S)
        found = [(one.spec.resource, one.spec.node_index) for one in (await world.devices()).values()]
        assert found == [(RESOURCE, f"{NODE}/0"), (RESOURCE, f"{NODE}/1")]


@scenario
async def test_unknown_stands_while_the_kubelet_offers_nothing_and_no_longer(world: World) -> None:
    async with world.publishing(snapshot(2)):
        await world.offer(0)  # the agent is there, and no kubelet has taken it in
        await asyncio.sleep(SETTLED_S)
        await world.silence()
        await asyncio.sleep(60)
        assert await world.healths() == {"gpu-0": "Unknown", "gpu-1": "Unknown"}
        await world.offer(2)
        await asyncio.sleep(60)
        assert await world.healths() == {"gpu-0": "Healthy", "gpu-1": "Healthy"}


@scenario
async def test_what_is_ill_is_said_although_nothing_is_offered(world: World) -> None:
    async with world.publishing(snapshot(1)) as snapshots:
        await world.offer(0)
        await asyncio.sleep(SETTLED_S)
        await world.silence()
        snapshots.set(snapshot(1, broken=(0,)))
        await asyncio.sleep(60)
        assert await world.healths() == {"gpu-0": "Unhealthy"}


@scenario
async def test_a_flapping_gpu_ends_as_it_is_last_seen(world: World) -> None:
    async with world.publishing(snapshot()) as snapshots:
        await asyncio.sleep(SETTLED_S)
        for i in range(21):
            snapshots.set(snapshot(broken=(0,) if i % 2 else ()))
            await asyncio.sleep(0.0007 * (i % 4))
        await asyncio.sleep(SETTLED_S)
        assert (await world.healths())["gpu-0"] == "Healthy"


@scenario
async def test_a_gpu_taken_out_has_no_object_and_no_label_any_more(world: World) -> None:
    async with world.publishing(snapshot(2)):
        await asyncio.sleep(SETTLED_S)
    async with world.publishing(snapshot(1, product="NVIDIA L40S")):  # an agent that knows nothing of the first
        await asyncio.sleep(SETTLED_S)
        assert set(await world.devices()) == {"gpu-0"}
        labels = await world.labels()
        assert (labels["nvidia.com/gpu.count"], labels[PRODUCT], labels["mine"]) == ("1", "NVIDIA-L40S", "1")
        assert [name for name in labels if "Tesla" in name] == []


@scenario
async def test_a_node_that_comes_late_is_waited_for(world: World) -> None:
    await world.inner.delete(core.Node, NODE)
    async with world.publishing(snapshot()):
        await asyncio.sleep(120)
        assert await world.devices() == {}
        await world.inner.create(node())
        await asyncio.sleep(SETTLED_S)
        assert set(await world.devices()) == {"gpu-0", "gpu-1"}
        assert PRODUCT in await world.labels()


@scenario
async def test_a_node_that_was_deleted_is_not_made_again_by_its_labels(world: World) -> None:
    async with world.publishing(snapshot()) as snapshots:
        await asyncio.sleep(SETTLED_S)
        await world.inner.delete(core.Node, NODE)
        snapshots.set(snapshot(1, product="NVIDIA L40S"))
        await asyncio.sleep(60)
        assert (await world.inner.list(core.Node)).items == ()
        assert await world.devices() == {}
        await world.inner.create(node())
        await asyncio.sleep(60)
        assert set(await world.devices()) == {"gpu-0"}
        assert (await world.labels())[PRODUCT] == "NVIDIA-L40S"


@pytest.mark.parametrize("minutes", [2, 30])
def test_while_the_store_is_away_nothing_is_lost_and_little_is_asked(minutes: int) -> None:
    async def run() -> None:
        world = World()
        await world.inner.create(node())
        async with world.publishing(snapshot(3)) as snapshots:
            await asyncio.sleep(SETTLED_S)
            world.store.is_away = True
            before = world.store.calls
            for i in range(minutes * 2):
                snapshots.set(snapshot(3, broken=(i % 3,)))
                await asyncio.sleep(30)
            snapshots.set(snapshot(2, broken=(1,)))
            assert world.store.calls - before < 60 + 20 * minutes
            world.store.is_away = False
            await asyncio.sleep(40)  # the longest wait of a queue
            assert await world.healths() == {"gpu-0": "Healthy", "gpu-1": "Unhealthy"}

    virtualtime.run(run(), moment_s=0)


@scenario
async def test_what_others_do_is_put_right_after_a_pause_and_not_at_once(world: World) -> None:
    async with world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        await world.inner.delete(GPUDevice, "gpu-0")
        found = await world.inner.get(core.Node, NODE)
        labels = {**found.metadata.labels, PRODUCT: "theirs"}
        await world.inner.update(
            msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=labels))
        )
        await asyncio.sleep(SETTLED_S)
        assert (await world.labels())[PRODUCT] == "theirs"
        await asyncio.sleep(objects.DRIFT_S)
        assert (await world.labels())[PRODUCT] == "Tesla-T4"
        assert set(await world.devices()) == {"gpu-0", "gpu-1"}


@scenario
async def test_two_agents_of_one_node_that_disagree_make_no_hot_loop(world: World) -> None:
    async with world.publishing(snapshot(broken=(0,))), world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        before = world.store.calls
        await asyncio.sleep(60)
        assert world.store.calls - before < 200


@scenario
async def test_the_controllers_unknown_stands_until_the_node_is_ready(world: World) -> None:
    async with world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        found = await world.inner.get(core.Node, NODE)
        found = await world.inner.update_status(
            msgspec.structs.replace(found, status=node(ready=False).status),
        )
        device = (await world.devices())["gpu-0"]
        status = msgspec.structs.replace(device.status, health=gpudevice.UNKNOWN, reason="NodeNotReady")
        await world.inner.update_status(msgspec.structs.replace(device, status=status))
        await asyncio.sleep(60)
        assert (await world.healths())["gpu-0"] == "Unknown"
        await world.inner.update_status(msgspec.structs.replace(found, status=node().status))
        await asyncio.sleep(objects.DRIFT_S + SETTLED_S)
        assert (await world.healths())["gpu-0"] == "Healthy"


@scenario
async def test_what_an_administrator_asks_for_is_heard_and_never_overwritten(world: World) -> None:
    async with world.publishing(snapshot()):
        await asyncio.sleep(SETTLED_S)
        name, device = next(iter((await world.devices()).items()))
        spec = msgspec.structs.replace(device.spec, quarantine="fan\x1b[31m rattles\n")
        await world.inner.update(msgspec.structs.replace(device, spec=spec))
        await asyncio.sleep(10 * objects.DRIFT_S)
        assert dict(world.quarantines.value) == {device.spec.uuid: "fan [31m rattles "}
        assert (await world.devices())[name].spec.quarantine == "fan\x1b[31m rattles\n"
        calls = world.store.calls
        await asyncio.sleep(10 * objects.DRIFT_S)
        assert world.store.calls == calls


@scenario
async def test_holders_that_others_write_stay(world: World) -> None:
    async with world.publishing(snapshot()) as snapshots:
        await asyncio.sleep(SETTLED_S)
        device = (await world.devices())["gpu-0"]
        holders = (gpudevice.Holder(namespace="team", pod="train"),)
        status = msgspec.structs.replace(device.status, holders=holders)
        await world.inner.update_status(msgspec.structs.replace(device, status=status))
        snapshots.set(snapshot(broken=(0,), product="NVIDIA L40S"))
        await asyncio.sleep(SETTLED_S)
        device = (await world.devices())["gpu-0"]
        assert (device.status.holders, device.status.health) == (holders, "Unhealthy")
        assert (device.spec.product, device.metadata.generation) == ("NVIDIA L40S", 2)
        assert device.status.conditions[0].observed_generation == 2
