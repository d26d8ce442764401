"""Quarantine that an administrator asks for on a GPUDevice, and that no object ever takes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from fairlead.node.inventory import latest
from fairlead.node.lease import asked
from fairlead.plan.lease import intent
from fairlead.plan.lease.row import Facts, State
from tests.unit.node.lease.test_gate import UUIDS, Node, device

Asked = latest.Latest[Mapping[str, str]]


@contextlib.asynccontextmanager
async def _carried_out(node: Node, quarantines: Asked) -> AsyncIterator[None]:
    async with node.agent() as gate, asyncio.TaskGroup() as tasks:
        await node.until(0, State.FREE)
        await node.until(1, State.FREE)
        task = tasks.create_task(asked.carry_out(gate, quarantines))
        yield
        task.cancel()


async def test_a_gpu_that_is_asked_for_goes_into_quarantine_and_says_why(tmp_path: Path) -> None:
    node, quarantines = Node(folder=tmp_path), Asked({})
    async with _carried_out(node, quarantines):
        quarantines.set({UUIDS[0]: "fan rattles", "GPU-of-another-node": "x"})
        await node.until(0, State.QUARANTINED)
        assert node.row(0).reason == intent.BY_HAND
        assert node.gate.problems.value.get(str(device(0).gpu)) == ("LeaseQuarantined", "fan rattles")
        assert node.state(1) is State.FREE


async def test_a_gpu_that_a_tenant_has_stays_with_it_and_is_kept_back_afterwards(tmp_path: Path) -> None:
    node, quarantines = Node(folder=tmp_path), Asked({})
    async with _carried_out(node, quarantines):
        await node.give(0)
        await node.until_named(0)
        quarantines.set({UUIDS[0]: "fan rattles"})
        async with asyncio.timeout(20):
            async for rows in node.gate.rows.changes():
                if rows[UUIDS[0]].is_condemned:
                    break
        assert node.state(0) is State.HELD
        node.forget(0)
        await node.until(0, State.QUARANTINED)


async def test_w12_objects_of_an_earlier_time_give_nothing_back(tmp_path: Path) -> None:
    """Objects restored from a backup ask for nothing: the ledger keeps what it has."""
    node, quarantines = Node(folder=tmp_path), Asked({UUIDS[0]: "fan rattles"})
    async with _carried_out(node, quarantines):
        await node.until(0, State.QUARANTINED)
        quarantines.set({})
        await asyncio.sleep(0.1)
        assert node.state(0) is State.QUARANTINED


async def test_a_release_on_the_node_counts_once_nothing_asks_any_more(tmp_path: Path) -> None:
    node, quarantines = Node(folder=tmp_path), Asked({UUIDS[0]: "fan rattles"})

    async def release() -> None:
        facts = Facts(at=1.0, by="anna")
        await node.gate._requested(lambda rows: intent.plan_intent(rows, intent.RELEASE, UUIDS[0], facts))

    async with _carried_out(node, quarantines):
        await node.until(0, State.QUARANTINED)
        await release()
        await node.until(0, State.QUARANTINED)
        quarantines.set({})
        await release()
        await node.until(0, State.FREE)


async def test_without_a_ledger_gpus_are_judged_anew_when_others_are_asked_for() -> None:
    quarantines, changed = Asked({}), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(asked.keep_unoffered(quarantines, changed.set))
        await asyncio.sleep(0)
        changed.clear()
        quarantines.set({UUIDS[0]: "fan rattles"})
        await asyncio.wait_for(changed.wait(), 5)
        task.cancel()
