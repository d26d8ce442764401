"""Leases of nodes that are gone: lost after a while, kept for their time, and another node's left alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from fairlead.control import manager
from fairlead.control.node.gpulease import GPULeases
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, gpulease, meta
from fairlead.wire.kubernetes.gpulease import GPULease


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@contextlib.asynccontextmanager
async def _running(store: MemoryStore, *, gone_s: float = 0.05) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        keeper = GPULeases(store, keep_s=3600, gone_s=gone_s)
        task = tasks.create_task(manager.run_controllers(store, (keeper,)))
        yield
        task.cancel()


async def _add(store: MemoryStore, name: str, node: str, *, state: str = gpulease.HELD, age_s: float = 0) -> None:
    spec = gpulease.GPULeaseSpec(node_name=node, gpu=f"GPU-{name}", gpu_device=name, epoch=1, held_at="")
    made = await store.create(GPULease(metadata=meta.ObjectMeta(name=name), spec=spec))
    ended = meta.emit_time(time.time() - age_s) if state in gpulease.ENDED else ""
    await store.update_status(
        msgspec.structs.replace(made, status=gpulease.GPULeaseStatus(state=state, ended_at=ended))
    )


async def test_leases_of_a_node_that_is_gone_are_lost_and_old_ones_removed(store: MemoryStore) -> None:
    await store.create(core.Node(metadata=meta.ObjectMeta(name="here")))
    await _add(store, "mine", "here")
    await _add(store, "held", "gone")
    await _add(store, "done", "gone", state=gpulease.VERIFIED, age_s=60)
    await _add(store, "aged", "gone", state=gpulease.VERIFIED, age_s=7200)
    async with _running(store), asyncio.timeout(20):
        async for change in store.watch(GPULease):
            if change.kind is ChangeKind.DELETED:
                assert change.object.metadata.name == "aged"
                break
    found = {one.metadata.name: one.status for one in (await store.list(GPULease)).items}
    assert {name: one.state for name, one in found.items()} == {
        "mine": gpulease.HELD,
        "held": gpulease.LOST,
        "done": gpulease.VERIFIED,
    }
    assert (found["held"].reason, found["held"].message) == ("NodeGone", "node gone is gone")
    assert found["held"].ended_at


async def test_a_node_that_comes_back_in_time_keeps_its_leases(store: MemoryStore) -> None:
    await store.create(core.Node(metadata=meta.ObjectMeta(name="away")))
    await _add(store, "held", "away")
    async with _running(store, gone_s=0.5):
        await asyncio.sleep(0.05)
        await store.delete(core.Node, "away")
        await asyncio.sleep(0.1)
        await store.create(core.Node(metadata=meta.ObjectMeta(name="away")))
        await asyncio.sleep(0.6)
        assert (await store.get(GPULease, "held")).status.state == gpulease.HELD
