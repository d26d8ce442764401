"""DeviceTaintRules of ill GPUs: which there are, what each says, and that they go with the fault."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import msgspec
import pytest

from fairlead import errors
from fairlead.control.node import withdraw
from fairlead.model.ids import MIGUUID
from fairlead.node.inventory import latest
from fairlead.node.publish import devicetaint
from fairlead.plan.dra import devicetaint as planner
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store import port
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import device, resourceslice
from fairlead.wire.kubernetes.resource.devicetaintrule import (
    SERVED,
    DeviceTaintRule,
    DeviceTaintRuleV1Beta2,
    DeviceTaintSelector,
)
from tests.unit.node.publish.test_nodecondition import NODE, ill, snapshot

Shown = tuple[str, str, str, str]


def _selected(rule: DeviceTaintRule) -> DeviceTaintSelector:
    assert rule.spec.device_selector is not None
    return rule.spec.device_selector


class World:
    """A store with one node, and what the agent knows."""

    def __init__(self, store: memory.MemoryStore | None = None) -> None:
        self.store = store or memory.MemoryStore()
        self.node: latest.Latest[core.Node | None] = latest.Latest(None)
        self.snapshots = latest.Latest(snapshot(3))

    @contextlib.asynccontextmanager
    async def running(self, effect: str = "NoSchedule") -> AsyncIterator[None]:
        with contextlib.suppress(errors.Conflict):
            await self.store.create(core.Node(metadata=meta.ObjectMeta(name=NODE)))
        self.node.set(await self.store.get(core.Node, NODE))
        keeper = devicetaint.DeviceTaints(store=self.store, node=self.node, snapshots=self.snapshots, effect=effect)
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
            running = tasks.create_task(keeper.run())
            yield
            running.cancel()

    async def until(self, wanted: set[Shown]) -> None:
        if await self.shown() == wanted:
            return
        async for _ in self.store.watch(DeviceTaintRule):
            if await self.shown() == wanted:
                return

    async def shown(self) -> set[Shown]:
        rules = (await self.store.list(DeviceTaintRule)).items
        return {
            (one.metadata.name, _selected(one).device or "", one.spec.taint.value, one.spec.taint.effect)
            for one in rules
        }


async def test_each_ill_gpu_is_a_rule_that_goes_with_its_fault() -> None:
    world = World()
    async with world.running():
        world.snapshots.set(snapshot(3, GPU_1="XID79", GPU_2="Overheated"))
        await world.until(
            {
                ("fairlead-worker-1-gpu-1", "gpu-1", "XID79", "NoSchedule"),
                ("fairlead-worker-1-gpu-2", "gpu-2", "Overheated", "NoSchedule"),
            }
        )
        (rule, _) = (await world.store.list(DeviceTaintRule)).items
        selector = _selected(rule)
        assert (selector.driver, selector.pool, rule.spec.taint.key) == (
            "gpu.nvidia.com",
            NODE,
            "fairlead.dev/gpu-unhealthy",
        )
        node = await world.store.get(core.Node, NODE)
        assert [owner.uid for owner in rule.metadata.owner_references] == [node.metadata.uid]
        # another reason is another rule: the API server dates a taint once
        world.snapshots.set(snapshot(3, GPU_1="RowRemapFailed"))
        await world.until({("fairlead-worker-1-gpu-1", "gpu-1", "RowRemapFailed", "NoSchedule")})
        world.snapshots.set(snapshot(3))
        await world.until(set())


async def test_what_an_earlier_agent_left_goes_and_what_others_made_stays() -> None:
    world = World()
    async with world.running("NoExecute"):
        world.snapshots.set(snapshot(3, GPU_0="XID79", GPU_1="XID48"))
        await world.until(
            {
                ("fairlead-worker-1-gpu-0", "gpu-0", "XID79", "NoExecute"),
                ("fairlead-worker-1-gpu-1", "gpu-1", "XID48", "NoExecute"),
            }
        )
    mine = msgspec.structs.replace(
        (await world.store.list(DeviceTaintRule)).items[0], metadata=meta.ObjectMeta(name="an-operators")
    )
    await world.store.create(mine)
    again = World(world.store)
    again.snapshots.set(snapshot(3, GPU_1="XID48"))
    operators = ("an-operators", "gpu-0", "XID79", "NoExecute")
    async with again.running():
        await again.until({operators, ("fairlead-worker-1-gpu-1", "gpu-1", "XID48", "NoSchedule")})
    await withdraw.withdraw(again.store)
    assert await again.shown() == {operators}


async def test_without_an_effect_nothing_is_asked_of_the_api_server() -> None:
    world = World()
    world.snapshots.set(snapshot(3, GPU_1="XID79"))
    async with world.running(""):
        await asyncio.sleep(0.05)
    assert await world.shown() == set()


async def test_a_server_without_the_kind_is_named_with_the_flag_that_it_needs() -> None:
    class Without(memory.MemoryStore):
        async def list(self, kind: type, selector: port.Selector = port.EVERYTHING) -> port.Listing:  # type: ignore[type-arg]
            if issubclass(kind, DeviceTaintRule):
                raise errors.NotFound("no such path", reason="NotFound")
            return await super().list(kind, selector)

    world = World(Without())
    async with world.running():
        pass
    keeper = devicetaint.DeviceTaints(
        store=world.store, node=world.node, snapshots=world.snapshots, effect="NoSchedule"
    )
    with pytest.raises(errors.Unavailable, match=r"serves no DeviceTaintRules.*resource\.k8s\.io/v1,") as refused:
        await keeper._work("")
    assert "--runtime-config" in (refused.value.hint or "")


@pytest.mark.parametrize("served", SERVED)
async def test_rules_are_written_in_the_newest_version_that_is_served(served: type[DeviceTaintRule]) -> None:
    class One(memory.MemoryStore):
        """A server that serves one version, and knows the objects of that version alone."""

        async def list(self, kind: type, selector: port.Selector = port.EVERYTHING) -> port.Listing:  # type: ignore[type-arg]
            if issubclass(kind, DeviceTaintRule) and kind is not served:
                raise errors.NotFound("no such path", reason="NotFound")
            return await super().list(kind, selector)

    world = World(One())
    async with world.running():
        world.snapshots.set(snapshot(3, GPU_1="XID79"))
        async for change in world.store.watch(served):
            assert change.object.metadata.name == "fairlead-worker-1-gpu-1"
            break
    await withdraw.withdraw(world.store)
    assert (await world.store.list(served)).items == ()


def test_the_older_version_is_the_one_of_1_36() -> None:
    assert DeviceTaintRuleV1Beta2.API_VERSION == "resource.k8s.io/v1beta2"


_NODE = core.Node(metadata=meta.ObjectMeta(name=NODE, uid="u"))


def _slice(
    *devices: device.Device, name: str = "one", generation: int = 1, driver: str = "gpu.nvidia.com"
) -> resourceslice.ResourceSlice:
    pool = resourceslice.ResourcePool(name=NODE, generation=generation)
    spec = resourceslice.ResourceSliceSpec(driver=driver, node_name=NODE, pool=pool, devices=devices)
    return resourceslice.ResourceSlice(metadata=meta.ObjectMeta(name=name), spec=spec)


def _device(name: str, **attributes: str) -> device.Device:
    said = {key: device.DeviceAttribute(string=text) for key, text in attributes.items()}
    return device.Device(name=name, attributes=said)


_MIG = (
    _device("gpu-0", type="gpu", uuid="GPU-0"),
    _device("gpu-0-mig-1g10gb-19-0", type="mig", uuid="MIG-a", parentUUID="GPU-0"),
    _device("gpu-0-mig-2g20gb-14-2", type="mig", parentUUID="GPU-0"),  # made when a claim asks for it
    _device("gpu-1", type="gpu", uuid="GPU-1"),
    _device("gpu-1-mig-1g10gb-19-0", type="mig", uuid="MIG-b", parentUUID="GPU-1"),
    _device("gpu-1-mig-1g10gb-19-1", type="mig", uuid="MIG-c", parentUUID="GPU-1"),
    _device("channel-0", type="channel"),
)


def _tainted(found: Snapshot, *slices: resourceslice.ResourceSlice) -> dict[str, str]:
    ill = planner.find_unhealthy(found.known, found.verdicts, found.device_verdicts)
    rules = planner.plan_rules(_NODE, ill, slices, effect="NoSchedule")
    return {_selected(one).device or "": one.spec.taint.value for one in rules}


def test_an_ill_gpus_mig_devices_are_tainted_and_no_others() -> None:
    found = snapshot(2, GPU_0="XID79")
    names = ("gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-2g20gb-14-2")
    assert _tainted(found, _slice(*_MIG)) == dict.fromkeys(names, "XID79")
    assert _tainted(found) == {"gpu-0": "XID79"}
    assert _tainted(dataclasses.replace(found, known={}), _slice(*_MIG)) == {}
    assert _tainted(snapshot(2), _slice(*_MIG)) == {}


def test_a_mig_device_that_is_ill_by_itself_is_tainted_alone() -> None:
    found = dataclasses.replace(snapshot(2), device_verdicts={MIGUUID("MIG-b"): ill("XID94", "contained")})
    assert _tainted(found, _slice(*_MIG)) == {"gpu-1-mig-1g10gb-19-0": "XID94"}


def test_slices_of_other_drivers_and_of_the_past_are_not_heeded() -> None:
    found = snapshot(2, GPU_0="XID79")
    past = _slice(_device("gpu-0-mig-old", parentUUID="GPU-0"), generation=1)
    now = _slice(_device("gpu-0-mig-new", **{"gpu.nvidia.com/parentUUID": "GPU-0"}), generation=2)
    foreign = _slice(_device("theirs", parentUUID="GPU-0"), driver="gpu.example.com", generation=9)
    assert _tainted(found, past, now, foreign) == {"gpu-0": "XID79", "gpu-0-mig-new": "XID79"}


async def test_mig_devices_that_appear_while_their_gpu_is_ill_are_tainted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devicetaint, "_AGAIN_S", 0.05)
    world = World()
    whole = ("fairlead-worker-1-gpu-1", "gpu-1", "XID79", "NoSchedule")
    part = ("fairlead-worker-1-gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-0", "XID79", "NoSchedule")
    async with world.running():
        world.snapshots.set(snapshot(3, GPU_1="XID79"))
        await world.until({whole})
        await world.store.create(_slice(_MIG[4]))
        await world.until({whole, part})
        await world.store.delete(resourceslice.ResourceSlice, "one")
        await world.until({whole})
        world.snapshots.set(snapshot(3))
        await world.until(set())
