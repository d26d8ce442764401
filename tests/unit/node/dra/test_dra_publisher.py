"""The slices of a node in a store: published, kept true against others, and what a server does to them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.node.dra import publisher
from fairlead.node.inventory import latest
from fairlead.plan.claim import gate
from fairlead.plan.dra import offered, taints
from fairlead.plan.gpu import health
from fairlead.store import port
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.device import DeviceTaint
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.plan.dra import draworld

NODE = "node-1"
_QUICK = publisher.Waits(together_s=0.0, wiped_s=0.01, unsettled_s=0.02, calm_s=60.0, check_s=0.05)
_ILL = health.Verdict(state=health.State.FAULTY, reason="XID79")


class DroppingStore(memory.MemoryStore):
    """A store that drops what needs a feature gate that is off, as an API server does, and counts writes."""

    def __init__(self, *off: str, keeps_taints: bool = True) -> None:
        super().__init__()
        self._gates = gate.chosen([f"{one}=false" for one in off])
        self._keeps_taints = keeps_taints
        self.writes = 0

    async def create(self, item: port.T) -> port.T:
        return await super().create(self._kept(item))

    async def patch(self, before: port.T, after: port.T, *, is_status: bool = False) -> port.T:
        return await super().patch(before, self._kept(after), is_status=is_status)

    def _kept(self, item: port.T) -> port.T:
        if not isinstance(item, ResourceSlice):
            return item
        self.writes += 1
        kept, _ = gate.resource_slice(item, self._gates)
        if not self._keeps_taints:
            devices = tuple(msgspec.structs.replace(one, taints=()) for one in kept.spec.devices)
            kept = msgspec.structs.replace(kept, spec=msgspec.structs.replace(kept.spec, devices=devices))
        return kept  # type: ignore[return-value]  # a slice in, a slice out


class World:
    """A store with a node, and a publisher on it."""

    def __init__(
        self, store: memory.MemoryStore | None = None, *, version: str = "v1.37.2", waits: publisher.Waits = _QUICK
    ) -> None:
        self.store = store or memory.MemoryStore()
        self.version = version
        self.node: latest.Latest[core.Node | None] = latest.Latest(None)
        self.offered: latest.Latest[tuple[offered.OfferedDevice, ...] | None] = latest.Latest(None)
        self.tainted: latest.Latest[Mapping[str, tuple[DeviceTaint, ...]]] = latest.Latest({})
        self.publisher = publisher.Publisher(
            store=self.store,
            node=self.node,
            offered=self.offered,
            tainted=self.tainted,
            version=self._version,
            waits=waits,
        )

    async def _version(self) -> str:
        return self.version

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with contextlib.suppress(errors.Conflict):
            await self.store.create(core.Node(metadata=meta.ObjectMeta(name=NODE)))
        self.node.set(await self.store.get(core.Node, NODE))
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
            running = tasks.create_task(self.publisher.run())
            yield
            running.cancel()

    def offer(self, count: int, *, is_divided: bool = False) -> None:
        gpus = [draworld.h100(at) for at in range(count)]
        choice = offered.Choice(partitioned={one.uuid for one in gpus} if is_divided else set())
        parts = [draworld.partition_of(one) for one in gpus]
        self.offered.set(offered.plan_devices(draworld.snapshot_of(*gpus), parts, choice))

    def taint(self, *minors: int) -> None:
        against = taints.Against(verdicts={draworld.h100(at).uuid: _ILL for at in minors})
        self.tainted.set(taints.plan_taints(self.offered.value or (), against))

    async def slices(self) -> tuple[ResourceSlice, ...]:
        return (await self.store.list(ResourceSlice)).items

    async def devices(self) -> dict[str, list[str]]:
        """Published devices with their taints' values."""
        return {
            device.name: [taint.value for taint in device.taints]
            for one in await self.slices()
            for device in one.spec.devices
        }

    async def until(self, is_so: Callable[[dict[str, list[str]]], bool]) -> None:
        since = (await self.store.list(ResourceSlice)).resource_version
        if is_so(await self.devices()):
            return
        async for _ in self.store.watch(ResourceSlice, since=since):
            if is_so(await self.devices()):
                return

    async def said(self, is_so: Callable[[publisher.Published], bool]) -> None:
        async for one in self.publisher.published.changes():
            if is_so(one):
                return


@pytest.fixture
def world() -> World:
    return World()


async def test_what_is_offered_is_published(world: World) -> None:
    async with world.running():
        world.offer(2)
        await world.until(lambda seen: seen == {"gpu-0": [], "gpu-1": []})
    (one,) = await world.slices()
    assert (one.spec.driver, one.spec.node_name, one.spec.pool.name) == ("gpu.nvidia.com", NODE, NODE)


async def test_until_devices_are_known_what_is_published_stays(world: World) -> None:
    async with world.running():
        world.offer(1)
        await world.until(lambda seen: "gpu-0" in seen)
    again = World(world.store)
    async with again.running():
        await asyncio.sleep(0.05)
        assert await again.devices() == {"gpu-0": []}


async def test_an_offer_of_nothing_is_an_empty_slice(world: World) -> None:
    async with world.running():
        world.offer(1)
        await world.until(lambda seen: "gpu-0" in seen)
        world.offer(0)
        await world.until(lambda seen: seen == {})
        assert len(await world.slices()) == 1


async def test_a_fault_is_a_taint_and_goes_with_it(world: World) -> None:
    async with world.running():
        world.offer(8, is_divided=True)
        await world.until(lambda seen: len(seen) == 208)
        world.taint(3)
        await world.until(lambda seen: seen["gpu-3"] == ["79"])
        world.taint()
        await world.until(lambda seen: seen["gpu-3"] == [])


async def test_slices_that_a_kubelet_wiped_are_published_again(world: World) -> None:
    async with world.running():
        world.offer(2, is_divided=True)
        await world.until(lambda seen: len(seen) == 52)
        for one in await world.slices():
            await world.store.delete(ResourceSlice, one.metadata.name)
        await world.until(lambda seen: len(seen) == 52)


async def test_a_wipe_of_many_slices_is_one_disturbance() -> None:
    waits = publisher.Waits(together_s=0.0, wiped_s=0.02, unsettled_s=600.0, check_s=600.0)
    world = World(waits=waits)
    async with world.running():
        world.offer(8, is_divided=True)
        await world.until(lambda seen: len(seen) == 208)
        for _ in range(3):  # 27 deletions: if each were one, the last wipe would wait for minutes
            for one in await world.slices():
                await world.store.delete(ResourceSlice, one.metadata.name)
            await world.until(lambda seen: len(seen) == 208)


async def test_slices_that_somebody_changed_are_put_right(world: World) -> None:
    async with world.running():
        world.offer(2)
        await world.until(lambda seen: len(seen) == 2)
        (one,) = await world.slices()
        await world.store.update(
            msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, devices=one.spec.devices[:1]))
        )
        await world.until(lambda seen: len(seen) == 2)


async def test_a_second_driver_of_one_name_does_not_make_it_write_as_fast_as_it_can() -> None:
    store = DroppingStore()
    world = World(store)
    async with world.running():
        world.offer(1)
        await world.until(lambda seen: len(seen) == 1)
        before = store.writes
        ends = time.perf_counter() + 0.3
        while time.perf_counter() < ends:
            for one in await world.slices():
                with contextlib.suppress(errors.NotFound):
                    await store.delete(ResourceSlice, one.metadata.name)
            await asyncio.sleep(0)
        assert 0 < store.writes - before <= 30


async def test_a_stable_pool_is_written_once() -> None:
    store = DroppingStore()
    world = World(store)
    async with world.running():
        world.offer(2, is_divided=True)
        await world.until(lambda seen: len(seen) == 52)
        await asyncio.sleep(0.2)
        assert store.writes == 3


async def test_its_own_writes_are_no_disturbance_and_others_are() -> None:
    world = World(waits=publisher.Waits(together_s=0.0, wiped_s=0.0, unsettled_s=0.0, check_s=600.0))
    with capture_logs() as logged:
        async with world.running():
            for count in (1, 2, 3, 4, 3, 2, 1):
                world.offer(count, is_divided=True)
                await world.until(functools.partial(_has, 26 * count))
            world.taint(0)
            await world.until(lambda seen: seen["gpu-0"] == ["79"])
            await asyncio.sleep(0.05)
            before = [one for one in logged if "somebody else" in one["event"]]
            await world.store.delete(ResourceSlice, (await world.slices())[0].metadata.name)
            await world.until(functools.partial(_has, 26))
            await asyncio.sleep(0.05)
    after = [one for one in logged if "somebody else" in one["event"]]
    assert (len(before), len(after)) == (0, 1)


def _has(count: int, seen: dict[str, list[str]]) -> bool:
    return len(seen) == count


async def test_a_new_life_of_the_agent_finds_its_slices_right(world: World) -> None:
    async with world.running():
        world.offer(2, is_divided=True)
        await world.until(lambda seen: len(seen) == 52)
    versions = {one.metadata.resource_version for one in await world.slices()}
    again = World(world.store)
    async with again.running():
        again.offer(2, is_divided=True)
        await again.said(lambda one: one.devices == 52)
    assert {one.metadata.resource_version for one in await again.slices()} == versions


@pytest.mark.parametrize("version", ["v1.34.6", "v1.37.2"])
async def test_partitions_are_never_all_there_where_counters_are_dropped(version: str) -> None:
    """Between the first write and the knowledge that counters are dropped, no scheduler may see partitions."""
    world = World(DroppingStore("DRAPartitionableDevices"), version=version)
    seen = set[str]()

    async def watch() -> None:
        async for change in world.store.watch(ResourceSlice):
            seen.update(device.name for device in change.object.spec.devices)

    async with world.running(), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        world.offer(1, is_divided=True)
        await world.until(lambda seen: seen == {"gpu-0": []})
        await asyncio.sleep(0.02)
        watching.cancel()
    assert seen == {"gpu-0"}
    assert "DRAPartitionableDevices" in world.publisher.published.value.notes[0]


async def test_before_1_35_devices_follow_their_counters() -> None:
    world = World(version="v1.34.6")
    async with world.running():
        world.offer(2, is_divided=True)
        await world.until(lambda seen: len(seen) == 52)
    assert [len(one.spec.shared_counters) for one in await world.slices()] == [1, 1]


class OldStore(memory.MemoryStore):
    """A server before 1.35 with the gate on, and one that refuses counters anywhere."""

    def __init__(self, *, refuses_all: bool = False) -> None:
        super().__init__()
        self._refuses_all = refuses_all

    async def create(self, item: port.T) -> port.T:
        return await super().create(self._judged(item))

    async def patch(self, before: port.T, after: port.T, *, is_status: bool = False) -> port.T:
        return await super().patch(before, self._judged(after), is_status=is_status)

    def _judged(self, item: port.T) -> port.T:
        if isinstance(item, ResourceSlice):
            named = {one.name for one in item.spec.shared_counters}
            used = {each.counter_set for one in item.spec.devices for each in one.consumes_counters}
            if used - named or (self._refuses_all and named):
                raise errors.Invalid("no such counter set", reason="ResourceSliceInvalid")
        return item


async def test_an_old_server_of_unknown_version_gets_counters_beside_their_devices() -> None:
    world = World(OldStore(), version="")
    async with world.running():
        world.offer(2, is_divided=True)
        await world.until(functools.partial(_has, 52))
    assert [len(one.spec.shared_counters) for one in await world.slices()] == [1, 1]
    assert world.publisher.published.value.problem == ""


async def test_a_server_that_refuses_counters_everywhere_is_said_and_asked_again() -> None:
    world = World(OldStore(refuses_all=True), version="")
    async with world.running():
        world.offer(1, is_divided=True)
        await world.said(lambda one: "no such counter set" in one.problem)
        world.offer(2)
        await world.until(lambda seen: seen == {"gpu-0": [], "gpu-1": []})


async def test_an_ill_gpu_is_left_out_where_taints_are_dropped() -> None:
    world = World(DroppingStore(keeps_taints=False))
    async with world.running():
        world.offer(2)
        await world.until(lambda seen: len(seen) == 2)
        world.taint(1)
        await world.until(lambda seen: seen == {"gpu-0": []})
        world.taint()
        await world.until(lambda seen: len(seen) == 2)
    assert world.publisher.published.value.problem == ""


class Changing(memory.MemoryStore):
    """A server that stores something else than it was given, in a way that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    async def create(self, item: port.T) -> port.T:
        return await super().create(self._changed(item))

    async def patch(self, before: port.T, after: port.T, *, is_status: bool = False) -> port.T:
        return await super().patch(before, self._changed(after), is_status=is_status)

    def _changed(self, item: port.T) -> port.T:
        if not isinstance(item, ResourceSlice):
            return item
        self.writes += 1
        devices = tuple(msgspec.structs.replace(one, attributes={}) for one in item.spec.devices)
        return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


async def test_a_server_that_stores_something_else_is_not_fought() -> None:
    store = Changing()
    world = World(store)
    async with world.running():
        world.offer(2)
        await world.until(lambda seen: len(seen) == 2)
        await asyncio.sleep(0.2)
        assert store.writes == 1
        world.taint(1)
        await world.until(lambda seen: seen.get("gpu-1") == ["79"])
        await asyncio.sleep(0.1)
        assert store.writes == 2


class Failing(memory.MemoryStore):
    """A server that refuses some writes."""

    def __init__(self, *refusals: errors.FairleadError) -> None:
        super().__init__()
        self.refusals = list(refusals)

    async def create(self, item: port.T) -> port.T:
        if isinstance(item, ResourceSlice) and self.refusals:
            raise self.refusals.pop(0)
        return await super().create(item)


async def test_a_write_that_failed_is_made_again_and_said_meanwhile() -> None:
    world = World(Failing(errors.Unavailable("no leader", reason="Down"), errors.Conflict("stale", reason="Stale")))
    said: list[str] = []
    async with world.running(), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(world.publisher.published.follow(lambda one: said.append(one.problem)))
        world.offer(2)
        await world.until(lambda seen: len(seen) == 2)
        await world.said(lambda one: not one.problem)
        following.cancel()
    assert "no leader" in "".join(said)


async def test_slices_of_a_node_that_was_made_again_belong_to_it(world: World) -> None:
    async with world.running():
        world.offer(1)
        await world.until(lambda seen: len(seen) == 1)
        await world.store.delete(core.Node, NODE)
        node = await world.store.create(core.Node(metadata=meta.ObjectMeta(name=NODE)))
        world.node.set(node)
        async for change in world.store.watch(ResourceSlice):
            if change.object.metadata.owner_references[0].uid == node.metadata.uid:
                break
