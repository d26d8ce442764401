"""Two schedulers over one store, each with nodes of its own: each binds its pods, and queues are counted over both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fairlead.control import manager
from fairlead.control.scheduler.controller import Scheduler
from fairlead.settings import ControlSettings
from tests.unit.control.scheduler.plane import GPU, Plane

_LABEL = "example.com/pool"


@contextlib.asynccontextmanager
async def _both(plane: Plane) -> AsyncIterator[None]:
    """Run a scheduler for pool a, and one for what has no label."""
    async with asyncio.TaskGroup() as tasks:
        started = []
        for pool in ("a", ""):
            one = Scheduler(plane.store, plane.placement, ControlSettings(shard_label=_LABEL, shard=pool))
            started.append(tasks.create_task(manager.run_controllers(plane.store, (one,))))
        yield
        for task in started:
            task.cancel()


async def test_each_scheduler_binds_its_own_pods_to_its_own_nodes() -> None:
    plane = Plane()
    await plane.add_node("in-a", 4, {_LABEL: "a"})
    await plane.add_node("rest", 4)
    for number in range(4):
        await plane.add_pod(f"labelled-{number}", 1, labels={_LABEL: "a"})
        await plane.add_pod(f"plain-{number}", 1)
    async with _both(plane):
        bound = await plane.until_bound([f"{kind}-{number}" for kind in ("labelled", "plain") for number in range(4)])
        assert {bound[f"labelled-{number}"] for number in range(4)} == {"in-a"}
        assert {bound[f"plain-{number}"] for number in range(4)} == {"rest"}
        await plane.add_pod("selects", 1, node_selector={_LABEL: "a"})
        said = await plane.until_said("selects", "0/1 nodes are available")
        assert said == f"0/1 nodes are available: 1 Insufficient {GPU}."


async def test_a_queues_limit_and_share_are_over_all_nodes() -> None:
    plane = Plane()
    await plane.add_node("in-a", 4, {_LABEL: "a"})
    await plane.add_node("rest", 4)
    await plane.add_queue("team", namespaces=("default",), limit={GPU: "3"})
    async with _both(plane):
        for number in range(2):
            await plane.add_pod(f"a-{number}", 1, labels={_LABEL: "a"})
        await plane.until_bound(["a-0", "a-1"])
        await plane.add_pod("one", 1)
        await plane.until_bound(["one"])
        await plane.add_pod("more", 1)
        await plane.until_said("more", "limit")
        assert set(await plane.bound()) == {"a-0", "a-1", "one"}
