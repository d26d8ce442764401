"""The label that schedulers hold machines' drivers against: the version of the node's Fabric Manager."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.node.inventory import latest, nodeobject
from fairlead.node.publish import objects
from fairlead.plan.gpu import label
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING
from fairlead.wire.kubernetes import core, names
from tests.unit.node.publish.test_publish import NODE, node, snapshot


async def test_the_label_follows_the_manager_and_goes_with_it() -> None:
    store, manager = MemoryStore(), latest.Latest("")
    await store.create(node())
    known = nodeobject.NodeObject(NODE, store)
    publisher = objects.Publisher(known, store, snapshots=latest.Latest(snapshot()), fabric_manager=manager)

    async def until(value: str | None) -> None:
        async with asyncio.timeout(20):
            async for change in store.watch(core.Node, EVERYTHING):
                labels = change.object.metadata.labels
                if "nvidia.com/gpu.product" in labels and labels.get(names.FABRIC_MANAGER) == value:
                    return

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(publisher.run()), tasks.create_task(known.run())]
        await until(None)
        for version in ("580.95.05", "580.126.09", ""):
            manager.set(version)
            await until(version or None)
        for task in running:
            task.cancel()


@pytest.mark.parametrize("version", ["", " ", "/", "\0", "v" * 200, "580 .95", "a\nb"])
def test_what_no_label_can_hold_makes_none_or_one_that_an_api_server_takes(version: str) -> None:
    found = label.plan_fabric(version)
    assert all(0 < len(value) <= 63 and value.isprintable() and "/" not in value for value in found.values())
    assert label.may_be_ours(found) is bool(found)
