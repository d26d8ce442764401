"""`fairlead up` says that it is up once the Node shows what the plugins advertise."""

from __future__ import annotations

import asyncio

import msgspec

from fairlead.cli.process import standalone
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta

GPUS = frozenset({"nvidia.com/gpu"})


def node(**allocatable: str) -> core.Node:
    return core.Node(
        metadata=meta.ObjectMeta(name="one"),
        status=core.NodeStatus(allocatable={"cpu": "2", **allocatable}),
    )


async def test_a_node_without_its_gpus_is_waited_for() -> None:
    store = MemoryStore()
    made = await store.create(node())
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(standalone.is_offered(store, "one", GPUS, within_s=5))
        await asyncio.sleep(0)
        assert not waiting.done()
        offering = msgspec.structs.replace(made, status=node(**{"nvidia.com/gpu": "8"}).status)
        await store.update_status(offering)
    assert waiting.result()


async def test_a_plugin_that_is_not_taken_in_holds_nothing_up() -> None:
    store = MemoryStore()
    assert not await standalone.is_offered(store, "one", GPUS, within_s=0.01)
    await store.create(node())
    assert not await standalone.is_offered(store, "one", GPUS, within_s=0.01)
    assert await standalone.is_offered(store, "one", frozenset(), within_s=0.01)
