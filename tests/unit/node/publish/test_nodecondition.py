"""The Node's condition and taint of ill GPUs: what is written, when nothing is, and what others wrote stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from fairlead.control.node import withdraw
from fairlead.model.gpu import Driver, Inventory, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.node.inventory import latest
from fairlead.node.publish import nodecondition
from fairlead.plan.gpu import health
from fairlead.plan.gpu import nodecondition as planner
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store.embedded import memory
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core, meta
from tests import gpus

NODE = "worker-1"
READY = meta.Condition(type="Ready", status="True")
OPERATORS = core.Taint(key="dedicated", value="ml", effect="NoSchedule")


def ill(reason: str, message: str = "") -> health.Verdict:
    return health.Verdict(state=health.State.FAULTY, reason=reason, message=message)


def snapshot(count: int, **broken: str) -> Snapshot:
    found = tuple(gpus.gpu(i) for i in range(count))
    return Snapshot(
        inventory=Inventory(gpus=found, drivers=(Driver(vendor=Vendor.NVIDIA, version="1"),)),
        verdicts={GPUUUID(name.replace("_", "-")): ill(reason, f"{reason}!") for name, reason in broken.items()},
        known={gpu.uuid: gpu for gpu in found},
        is_scanned=True,
    )


class World:
    """A store with one node, and what the agent knows."""

    def __init__(self) -> None:
        self.store = memory.MemoryStore()
        self.node: latest.Latest[core.Node | None] = latest.Latest(None)
        self.snapshots = latest.Latest(snapshot(2))
        self.writes = 0

    async def follow(self) -> None:
        async for change in self.store.watch(core.Node, Selector()):
            self.writes += 1
            self.node.set(change.object)

    @contextlib.asynccontextmanager
    async def running(self, taint: str = "", *, has_condition: bool = True) -> AsyncIterator[None]:
        about = meta.ObjectMeta(name=NODE)
        spec = core.NodeSpec(taints=(OPERATORS,))
        await self.store.create(core.Node(metadata=about, spec=spec))
        node = await self.store.get(core.Node, NODE)
        status = core.NodeStatus(conditions=(READY,), capacity={"cpu": "2"})
        await self.store.update_status(msgspec.structs.replace(node, status=status))
        keeper = nodecondition.NodeConditions(
            store=self.store, node=self.node, snapshots=self.snapshots, has_condition=has_condition, taint=taint
        )
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
            running = [tasks.create_task(self.follow()), tasks.create_task(keeper.run())]
            yield
            for task in running:
                task.cancel()

    async def until(self, check: Callable[[core.Node], bool]) -> core.Node:
        async for node in self.node.changes():
            if node is not None and check(node):
                return node
        raise AssertionError


def said(node: core.Node) -> tuple[str, str]:
    found = meta.find_condition(node.status.conditions, planner.CONDITION)
    return (found.status, found.reason) if found is not None else ("", "")


async def test_the_condition_follows_the_gpus_and_leaves_the_kubelets_alone() -> None:
    world = World()
    async with world.running():
        await world.until(lambda node: said(node) == ("True", planner.WELL))
        world.snapshots.set(snapshot(2, GPU_1="XID79"))
        node = await world.until(lambda node: said(node) == ("False", "XID79"))
        found = meta.find_condition(node.status.conditions, planner.CONDITION)
        assert found is not None
        assert found.message == "GPU-1: XID79!"
        assert READY in node.status.conditions
        assert node.status.capacity == {"cpu": "2"}
        assert node.spec.taints == (OPERATORS,)
        world.snapshots.set(snapshot(2))
        await world.until(lambda node: said(node) == ("True", planner.WELL))


async def test_the_taint_names_the_reason_comes_and_goes_and_spares_an_operators() -> None:
    world = World()
    async with world.running("NoSchedule"):
        world.snapshots.set(snapshot(2, GPU_0="RowRemapFailed"))
        wanted = core.Taint(key=planner.TAINT, value="RowRemapFailed", effect="NoSchedule")
        await world.until(lambda node: node.spec.taints == (OPERATORS, wanted))
        world.snapshots.set(snapshot(2, GPU_0="RowRemapFailed", GPU_1="XID79"))
        await world.until(lambda node: node.spec.taints[-1].value == planner.SEVERAL)
        world.snapshots.set(snapshot(2))
        await world.until(lambda node: node.spec.taints == (OPERATORS,))


async def test_without_the_settings_nothing_is_written() -> None:
    world = World()
    async with world.running(has_condition=False):
        await world.until(lambda node: READY in node.status.conditions)
        before = world.writes
        world.snapshots.set(snapshot(2, GPU_0="XID79"))
        await asyncio.sleep(0.05)
        assert world.writes == before


async def test_a_taint_of_an_earlier_agent_goes_where_it_is_not_wanted_any_more() -> None:
    world = World()
    async with world.running(""):
        node = await world.store.get(core.Node, NODE)
        left = core.Taint(key=planner.TAINT, value="XID79", effect="NoExecute")
        spec = core.NodeSpec(taints=(OPERATORS, left))
        await world.store.update(msgspec.structs.replace(node, spec=spec))
        await world.until(lambda node: left in node.spec.taints)
        await world.until(lambda node: node.spec.taints == (OPERATORS,))


async def test_leaving_the_cluster_takes_both_back() -> None:
    world = World()
    async with world.running("NoSchedule"):
        world.snapshots.set(snapshot(2, GPU_0="XID79"))
        await world.until(lambda node: said(node)[0] == "False" and len(node.spec.taints) == 2)
    await withdraw.withdraw(world.store)
    node = await world.store.get(core.Node, NODE)
    assert said(node) == ("", "")
    assert node.spec.taints == (OPERATORS,)
    assert READY in node.status.conditions


def test_a_node_without_gpus_says_nothing_and_an_ill_mig_device_counts() -> None:
    assert planner.judge(0, ()) is None
    found = planner.judge(1, (("GPU-0", health.Verdict()), (MIGUUID("MIG-1"), ill("XID94"))))
    assert found is not None
    assert (found.reason, found.message) == ("XID94", "MIG-1: XID94")


def test_many_ill_gpus_make_a_short_message() -> None:
    found = planner.judge(16, ((f"GPU-{i:02}", ill("XID79", "x" * 100)) for i in range(16)))
    assert found is not None
    assert found.message.endswith("; and 8 more")
    assert len(found.message) < 1024
