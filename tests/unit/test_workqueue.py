"""The work queue: one call at a time for each key, nothing asked for is lost, errors are retried and bugs are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead import errors
from fairlead.workqueue import WorkQueue

Work = Callable[[str], Awaitable[float | None]]


@contextlib.asynccontextmanager
async def _running(work: Work) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue("test", work)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(queue.run())
        yield queue
        task.cancel()


class _Recorder:
    """A worker that says when it was called and returns what the test gives it."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.answers: asyncio.Queue[float | Exception | None] = asyncio.Queue()
        self.at_once: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}

    async def work(self, key: str) -> float | None:
        self.at_once[key] = self.at_once.get(key, 0) + 1
        self.most_at_once[key] = max(self.at_once[key], self.most_at_once.get(key, 0))
        self.calls.put_nowait(key)
        answer = await self.answers.get()
        self.at_once[key] -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def called(self) -> str:
        async with asyncio.timeout(50):
            return await self.calls.get()

    async def is_quiet(self) -> bool:
        """Tell whether nothing is called while everything that is ready runs."""
        for _ in range(20):
            await asyncio.sleep(0)
        return self.calls.empty()


async def test_equal_keys_that_wait_together_are_one() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        for key in ("a", "a", "b", "a"):
            queue.add(key)
        assert [await worker.called(), await worker.called()] == ["a", "b"]
        worker.answers.put_nowait(None)
        worker.answers.put_nowait(None)
        assert await worker.is_quiet()


async def test_a_key_that_comes_while_it_is_worked_on_is_worked_on_once_more_and_never_beside_itself() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("a")
        await worker.called()
        for _ in range(3):
            queue.add("a")
        assert await worker.is_quiet()
        worker.answers.put_nowait(None)
        assert await worker.called() == "a"
        worker.answers.put_nowait(None)
        assert await worker.is_quiet()
    assert worker.most_at_once == {"a": 1}


async def test_different_keys_are_worked_on_side_by_side() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("a")
        queue.add("b")
        assert {await worker.called(), await worker.called()} == {"a", "b"}


async def test_a_worker_is_called_again_after_the_time_it_asked_for() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        loop = asyncio.get_running_loop()
        queue.add("a")
        await worker.called()
        started = loop.time()
        worker.answers.put_nowait(0.05)
        assert await worker.called() == "a"
        assert loop.time() - started >= 0.045


async def test_a_key_asked_for_now_does_not_wait_for_its_later_time() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("a", after_s=60)
        queue.add("a")
        assert await worker.called() == "a"
        worker.answers.put_nowait(None)
        assert await worker.is_quiet()


@pytest.mark.parametrize("waits_s", [(0.03, 60.0), (60.0, 0.03)])
async def test_of_two_later_times_the_earlier_wins(waits_s: tuple[float, float]) -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        for wait_s in waits_s:
            queue.add("a", after_s=wait_s)
        assert await worker.called() == "a"


async def test_a_time_asked_for_during_the_work_is_kept_when_the_worker_wants_none() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("a")
        await worker.called()
        queue.add("a", after_s=0.03)
        worker.answers.put_nowait(None)
        assert await worker.called() == "a"


async def test_a_worker_whose_shared_call_is_cancelled_by_others_is_called_again() -> None:
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    called: asyncio.Queue[str] = asyncio.Queue()

    async def work(key: str) -> None:
        called.put_nowait(key)
        if not shared.done():
            await shared

    async with _running(work) as queue, asyncio.timeout(60):
        queue.add("a")
        await called.get()
        shared.cancel()
        assert await called.get() == "a"


async def test_an_error_of_the_house_is_retried_with_doubling_waits() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        loop, waits = asyncio.get_running_loop(), []
        queue.add("a")
        await worker.called()
        for _ in range(3):
            before = loop.time()
            worker.answers.put_nowait(errors.Unavailable("store away", reason="Away"))
            await worker.called()
            waits.append(loop.time() - before)
    assert all(wait >= expected for wait, expected in zip(waits, (0.09, 0.19, 0.39), strict=True))


async def test_a_success_forgets_the_failures_before_it() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        loop = asyncio.get_running_loop()
        queue.add("a")
        away = errors.Unavailable("store away", reason="Away")
        for answer in (away, away, 0.0, away):
            await worker.called()
            worker.answers.put_nowait(answer)
        before = loop.time()
        await worker.called()
        assert loop.time() - before < 0.35  # 0.1 s anew; the third in a row would wait 0.4 s


async def test_one_key_that_fails_does_not_hold_up_the_others() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("bad")
        await worker.called()
        worker.answers.put_nowait(errors.Unavailable("store away", reason="Away"))
        queue.add("good")
        assert await worker.called() == "good"


async def test_a_bug_ends_the_queue_and_is_not_hidden() -> None:
    async def work(_: str) -> float | None:
        raise ZeroDivisionError

    queue = WorkQueue("test", work)
    queue.add("a")
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(50):
            await queue.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_bug_takes_the_later_time_of_its_key_with_it() -> None:
    async def work(key: str) -> float | None:
        queue.add(key, after_s=3600)
        raise ZeroDivisionError

    queue = WorkQueue("test", work)
    queue.add("a")
    with pytest.raises(ExceptionGroup):
        await queue.run()
    assert not queue._entries


async def test_a_cancelled_queue_cancels_its_work_and_fires_no_timer_afterwards() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        queue.add("later", after_s=0.01)
        queue.add("now")
        await worker.called()
    await asyncio.sleep(0.02)
    assert worker.calls.empty()
    assert worker.at_once["now"] == 1


async def test_keys_that_are_done_are_forgotten() -> None:
    worker = _Recorder()
    async with _running(worker.work) as queue:
        for number in range(50):
            queue.add(str(number))
        for _ in range(50):
            worker.answers.put_nowait(None)
        for _ in range(50):
            await worker.called()
        assert await worker.is_quiet()
        assert len(queue) == 0


async def test_a_queue_that_is_run_again_goes_on_with_what_it_had_but_for_the_key_with_the_bug() -> None:
    worker = _Recorder()
    queue = WorkQueue("test", worker.work)
    for key in ("running", "bug"):
        queue.add(key)
    queue.add("later", after_s=1000)

    async def first() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.run())
            assert {await worker.called(), await worker.called()} == {"running", "bug"}
            queue.add("running")
            worker.answers.put_nowait(None)
            assert await worker.called() == "running"
            worker.answers.put_nowait(ValueError("a bug"))

    with pytest.raises(ExceptionGroup):
        await first()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(queue.run())
        assert {await worker.called(), await worker.called()} == {"running", "later"}
        assert await worker.is_quiet()
        task.cancel()


async def test_so_many_keys_at_once_as_there_are_workers_and_the_rest_in_line() -> None:
    worker = _Recorder()
    queue = WorkQueue("test", worker.work, workers=2)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(queue.run())
        for number in range(6):
            queue.add(f"k{number}")
        assert [await worker.called(), await worker.called()] == ["k0", "k1"]
        assert await worker.is_quiet()
        queue.add("k0")  # again, while it is worked on: behind those that wait
        order = []
        for _ in range(5):
            worker.answers.put_nowait(None)
            order.append(await worker.called())
        assert order == ["k2", "k3", "k4", "k5", "k0"]
        task.cancel()


async def test_a_key_that_never_rests_starves_nobody() -> None:
    order: list[str] = []
    has_shown = asyncio.Event()

    async def work(key: str) -> None:
        order.append(key)
        if key == "restless" and len(order) < 10:
            queue.add(key)
        elif key == "restless":
            has_shown.set()

    queue = WorkQueue("test", work, workers=1)
    for key in ("restless", "a", "b"):
        queue.add(key)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(50):
        task = tasks.create_task(queue.run())
        await has_shown.wait()
        task.cancel()
    assert order[:4] == ["restless", "a", "b", "restless"]
