"""Reports of queues: written once each, taken back up by the next process, and never stopped by one queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.control.scheduler.queuereport import QueueReport
from fairlead.plan.schedule.workloads import Workloads
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.scheduling import queue

GPU = "nvidia.com/gpu"


class Strict(MemoryStore):
    """Refuses the status of some queues."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, errors.FairleadError] = {}

    async def update_status(self, item: Any) -> Any:
        if error := self.refuses.get(item.metadata.name):
            raise error
        return await super().update_status(item)


def unexpected(error: errors.FairleadError) -> None:
    raise AssertionError(error)


async def made(store: Strict, workloads: Workloads, *names: str) -> None:
    for name in names:
        workloads.note_queue(await store.create(queue.Queue(metadata=meta.ObjectMeta(name=name))))


async def test_a_queue_that_is_refused_is_said_once_and_keeps_no_other_from_being_reported() -> None:
    store, workloads, now = Strict(), Workloads(), 100.0
    await made(store, workloads, "a", "b")
    store.refuses["a"] = errors.Invalid("no such field", reason="Invalid")
    report = QueueReport(store, workloads, lambda: now)
    with capture_logs() as logged:
        for _ in range(3):
            await report.write(unexpected)
    assert [(line["queue"], line["reason"]) for line in logged] == [("a", "Invalid")]
    shown = {item.metadata.name: item.status.conditions for item in (await store.list(queue.Queue)).items}
    assert (shown["a"], [one.status for one in shown["b"]]) == ((), ["True"])


async def test_a_store_that_is_away_ends_the_round() -> None:
    store, workloads, told = Strict(), Workloads(), list[errors.FairleadError]()
    await made(store, workloads, "a")
    store.refuses["a"] = errors.Unavailable("away", reason="Away")
    await QueueReport(store, workloads, lambda: 0.0).write(told.append)
    assert [error.reason for error in told] == ["Away"]


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-01T00:00:00", "9" * 40])
async def test_usage_of_an_unreadable_time_is_said_and_does_not_count(at: str) -> None:
    store, workloads = Strict(), Workloads(half_life_s=60.0)
    await made(store, workloads, "a")
    (item,) = (await store.list(queue.Queue)).items
    status = msgspec.structs.replace(item.status, usage={GPU: 4.0}, usage_at=at)
    report = QueueReport(store, workloads, lambda: 0.0)
    with capture_logs() as logged:
        report.restore(msgspec.structs.replace(item, status=status))
        workloads.note_queue(msgspec.structs.replace(item, status=status))
        await report.write(unexpected)
    assert [line["error"] for line in logged] == [at]
    assert not any(workloads.ledger.usage().values())
