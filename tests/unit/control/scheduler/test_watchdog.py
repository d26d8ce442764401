"""The watchdog: what the queue overlooked or lost is put back, counted, logged and said on the pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.plan.schedule.queue import overlooked, queue
from fairlead.plan.schedule.queue.queue import Changes, SchedulingQueue, State
from tests.unit.control.scheduler.simulated import Counts, Simulated


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the queue miss every change of a node."""

    def wake(_queue: SchedulingQueue, _changes: Changes) -> Iterator[int]:
        yield from ()

    monkeypatch.setattr(SchedulingQueue, "wake", wake)


@pytest.mark.usefixtures("deaf")
async def test_a_pod_that_fits_and_was_not_tried_is_put_back_and_said() -> None:
    counts = Counts()
    plane = Simulated(meter=counts, head_wait_s=0)
    await plane.add_node("n0", 8)
    await plane.add_pod("small", 1)
    await plane.run(1)
    for number in range(2):
        await plane.add_pod(f"big-{number}", 8)
    await plane.run(1)
    await plane.end("small")
    await plane.run(overlooked.EVERY_S + overlooked.AFTER_S)
    assert set(await plane.bound()) == {"big-0"}
    assert counts.kinds == ["fits"]
    (said,) = await plane.messages("Overlooked")
    assert said.startswith("node n0 has room for it, and it was not tried for ")
    assert "a fault of the scheduler, which tries it now" in said


@pytest.mark.usefixtures("deaf")
async def test_a_group_that_fits_is_put_back_and_said_once_it_went_in() -> None:
    counts = Counts()
    plane = Simulated(meter=counts, head_wait_s=0)
    await plane.add_node("n0", 4)
    await plane.add_pod("small", 1)
    await plane.run(1)
    await plane.add_gang("gang", 4)
    await plane.run(60)
    assert counts.kinds == []  # it does not fit: nothing is overlooked
    await plane.end("small")
    await plane.run(30)
    assert {f"gang-{number}" for number in range(4)} == (await plane.bound()).keys()
    assert counts.kinds == ["fits"]


async def test_a_pod_that_its_queue_lost_is_put_back_and_said() -> None:
    counts = Counts()
    plane = Simulated(meter=counts)
    await plane.add_node("n0", 8)
    await plane.add_pod("big", 9)
    await plane.run(1)
    entry = next(iter(plane.scheduler._queue._entries.values()))
    entry.state = State.PARKED  # as no code does: under no key, so that nothing takes it out
    await plane.run(overlooked.EVERY_S)
    assert counts.kinds == ["lost"]
    assert plane.scheduler._queue.problems() == {}
    (said,) = await plane.messages("Overlooked")
    assert said.startswith("it is held back by its queue or group, and nothing ends that")


async def test_what_waits_for_good_reason_is_not_overlooked() -> None:
    counts = Counts()
    plane = Simulated(meter=counts, head_wait_s=60)
    await plane.add_queue("team", namespaces=("team",), limit={"nvidia.com/gpu": "1"})
    await plane.add_node("n0", 8)
    for number in range(3):
        await plane.add_pod(f"limited-{number}", 1, namespace="team")
        await plane.add_pod(f"big-{number}", 8)
    await plane.run(2 * queue.REST_S)
    assert counts.kinds == []
