"""The guard of an optional part: what ends it, what starts it again, what it counts, and whose threads it takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from fairlead import errors, telemetry
from fairlead.node import part
from tests.unit.store import virtualtime


class Meter:
    """Keeps what is counted, and no heartbeat: those of an optional part are the guard's matter."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, ...]] = []

    def add(self, metric: telemetry.Metric, *labels: str) -> None:
        assert metric is telemetry.PART_FAILURES
        self.counted.append(labels)

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        raise AssertionError(metric)

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None:
        raise AssertionError(metric)

    def heartbeat(self, loop: str, within_s: float | None) -> None:
        raise AssertionError(loop)


def guarded(*works: Callable[[telemetry.Meter], Awaitable[None]]) -> tuple[Meter, list[float]]:
    """Run a part that does one thing after another at its starts; returns what was counted and when each began."""
    meter, begun, left = Meter(), [], list(works)

    async def run(pulse: telemetry.Meter) -> None:
        begun.append(asyncio.get_running_loop().time())
        await left.pop(0)(pulse)

    virtualtime.run(part.Guard("tracing", meter=meter, first_wait_s=1).run(run), moment_s=0)
    assert not left
    return meter, [at - begun[0] for at in begun]


async def fine(_: telemetry.Meter) -> None:
    return


async def bug(_: telemetry.Meter) -> None:
    raise KeyError("gone")


async def refused(_: telemetry.Meter) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(unanswered())


async def unanswered() -> None:
    raise errors.Unavailable("no answer", reason="ServerAway")


async def hangs(pulse: telemetry.Meter) -> None:
    pulse.heartbeat("reading", 5)
    await asyncio.get_running_loop().create_future()


async def cut(_: telemetry.Meter) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def slow_and_well(pulse: telemetry.Meter) -> None:
    for _ in range(10):
        pulse.heartbeat("reading", 5)
        await asyncio.sleep(4)
    pulse.heartbeat("reading", None)
    await asyncio.sleep(1000)


@pytest.mark.parametrize(
    ("work", "reason"), [(bug, "KeyError"), (refused, "ServerAway"), (hangs, "Hung"), (cut, "Cancelled")]
)
def test_a_part_that_breaks_is_counted_and_started_again(
    work: Callable[[telemetry.Meter], Awaitable[None]], reason: str
) -> None:
    meter, begun = guarded(work, fine)
    assert meter.counted == [("tracing", reason)]
    assert len(begun) == 2


def test_waits_double_until_a_part_has_run_well() -> None:
    async def long(_: telemetry.Meter) -> None:
        await asyncio.sleep(part.LAST_WAIT_S + 1)
        raise ValueError

    _, begun = guarded(bug, bug, bug, long, fine)
    assert begun == pytest.approx([0, 1, 3, 7, 7 + part.LAST_WAIT_S + 1 + 1])


def test_a_part_that_turns_in_time_or_waits_for_work_is_left_alone() -> None:
    meter, _ = guarded(slow_and_well)
    assert meter.counted == []


def test_what_a_part_is_told_raises_nothing() -> None:
    meter = Meter()
    told: list[int] = []
    guard = part.Guard("events", meter=meter)
    guard.tell(told.append, 1)
    guard.tell([].pop)
    assert (told, meter.counted) == ([1], [("events", "IndexError")])


def test_a_log_line_says_where_a_bug_is_and_no_value_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(bug, fine)
    said = capsys.readouterr().err
    assert "part failed" in said
    assert "KeyError: 'gone' (test_part.py:" in said


async def test_a_part_that_hangs_in_its_threads_takes_nobody_elses() -> None:
    part.PartThreads.install()
    released, begun = threading.Event(), asyncio.Event()
    names: list[str] = []

    async def blocks(_: telemetry.Meter) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _number in range(64):
                tasks.create_task(asyncio.to_thread(released.wait))
            begun.set()

    async def works(_: telemetry.Meter) -> None:
        names.append(await asyncio.to_thread(lambda: threading.current_thread().name))

    try:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(50):
            blocked = tasks.create_task(part.Guard("blocked").run(blocks))
            await begun.wait()
            names.append(await asyncio.to_thread(lambda: threading.current_thread().name))
            await part.Guard("other").run(works)
            blocked.cancel()
    finally:
        released.set()
    assert [name.rpartition("_")[0] for name in names] == ["core", "other"]
