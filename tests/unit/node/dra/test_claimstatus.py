"""Claims' statuses are written beside the calls: gathered, once, again after an outage, and not against a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.node.dra import claimstatus
from fairlead.plan.dra import devicestatus
from fairlead.plan.dra.devicestatus import Progress, Step
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.node.dra.claimnode import DRIVER, POOL, claim, result


class CountingStore(MemoryStore):
    """Counts writes of statuses, and fails as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.failure: errors.FairleadError | None = None

    async def patch(self, before: Any, after: Any, *, is_status: bool = False) -> Any:
        self.writes += 1
        if self.failure is not None:
            raise self.failure
        return await super().patch(before, after, is_status=is_status)


@contextlib.asynccontextmanager
async def running(store: CountingStore, clock: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Any]:
    statuses = claimstatus.ClaimStatuses(store, DRIVER, POOL, clock=clock)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(statuses.run())
        yield statuses
        task.cancel()


async def _add(store: CountingStore, name: str = "one") -> claimstatus.Key:
    wanted = claim(name, result("gpu-0"))
    made = await store.create(
        msgspec.structs.replace(wanted, metadata=msgspec.structs.replace(wanted.metadata, uid=""))
    )
    await store.update_status(msgspec.structs.replace(made, status=wanted.status))
    return ("team", name, made.metadata.uid)


async def _state(store: CountingStore, name: str = "one") -> str:
    (report,) = devicestatus.reports(await store.get(ResourceClaim, name, "team"))
    return report.step


async def _until(store: CountingStore, step: str, name: str = "one") -> None:
    async with asyncio.timeout(20):
        while await _state(store, name) != step:  # noqa: ASYNC110 - a store, not an event
            await asyncio.sleep(0.01)


async def _until_written(store: CountingStore, count: int) -> None:
    async with asyncio.timeout(20):
        while store.writes < count:  # noqa: ASYNC110 - a store, not an event
            await asyncio.sleep(0.01)


async def test_steps_that_come_together_are_one_write() -> None:
    store = CountingStore()
    key = await _add(store)
    async with running(store) as statuses:
        for step in Step:
            statuses.tell(key, Progress(step=step, at=1))
        await _until(store, "Prepared")
        assert store.writes == 1
        statuses.tell(key, Progress(step=Step.DONE, at=2))  # a kubelet that asks again
        statuses.tell(key, None)
        await _until(store, "")
    assert store.writes == 2


async def test_a_claim_that_is_gone_or_was_made_anew_is_passed_over() -> None:
    store = CountingStore()
    key = await _add(store)
    async with running(store) as statuses:
        statuses.tell(("team", "nosuch", "u"), Progress(step=Step.DONE, at=1))
        statuses.tell(("team", "one", "uid-of-before"), Progress(step=Step.HELD, at=1))
        statuses.tell(("team", "one", key[2]), Progress(step=Step.DONE, at=1))
        await _until(store, "Prepared")
    assert store.writes == 1


async def test_an_outage_delays_what_is_said_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimstatus, "_WAIT_S", 0.02)
    store = CountingStore()
    one, two = await _add(store), await _add(store, "two")
    store.failure = errors.Unavailable("away", reason="StoreUnavailable")
    async with running(store) as statuses:
        statuses.tell(one, Progress(step=Step.DONE, at=1))
        statuses.tell(two, Progress(step=Step.HELD, at=1))
        await _until_written(store, 2)
        statuses.tell(two, Progress(step=Step.DONE, at=2))
        store.failure = None
        await _until(store, "Prepared")
        await _until(store, "Prepared", "two")


async def test_a_server_that_allows_no_writes_is_asked_again_much_later() -> None:
    store, now = CountingStore(), [0.0]
    key = await _add(store)
    store.failure = errors.Denied("no", reason="Forbidden")
    async with running(store, lambda: now[0]) as statuses:
        statuses.tell(key, Progress(step=Step.HELD, at=1))
        await _until_written(store, 1)
        store.failure = None
        statuses.tell(key, Progress(step=Step.FILE, at=1))
        await asyncio.sleep(2 * claimstatus.GATHER_S)
        assert store.writes == 1
        now[0] = claimstatus.REFUSED_S + 1
        statuses.tell(key, Progress(step=Step.DONE, at=1))
        await _until(store, "Prepared")
