"""What is said on a pod that waits: the last word stays, in whatever order writes are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import errors
from fairlead.control.scheduler import eventrecorder
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta


class SlowStore(MemoryStore):
    """A store that makes the first write of a pod's status at once, and answers it only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def update_status(self, item: Any) -> Any:
        written = await super().update_status(item)
        if isinstance(item, core.Pod) and not self.is_asked.is_set():
            self.is_asked.set()
            await self.may_answer.wait()
        return written


class World:
    """One pod that waits, seen by a scheduler's cache; the watch says nothing, since every write here is our own."""

    def __init__(self) -> None:
        self.store = SlowStore()
        queue = SchedulingQueue()
        self.cache = Cache(queue, lambda _: True)
        self.recorder = eventrecorder.EventRecorder(self.store, self.cache, queue, lambda: None)

    async def begin(self) -> core.Pod:
        about = meta.ObjectMeta(name="one", namespace="default")
        pod = await self.store.create(core.Pod(metadata=about, spec=core.PodSpec(scheduler_name="fairlead")))
        self.cache.note_pod(pod)
        return pod

    def refuse(self, pod: core.Pod, message: str) -> bool:
        step = eventrecorder.step("packed", "FailedScheduling", message, None, duration_s=None)
        return self.recorder.refuse(pod, "Unschedulable", step)

    async def run(self) -> None:
        await self.recorder.run(lambda: False, self._fail)

    def _fail(self, error: errors.FairleadError) -> None:
        raise error

    async def message(self) -> str:
        pod = await self.store.get(core.Pod, "one", "default")
        found = meta.find_condition(pod.status.conditions, "PodScheduled")
        return "" if found is None else found.message


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("is_answered_first", [False, True])
async def test_a_word_that_comes_while_another_is_being_written_is_written_after_it(
    world: World, is_answered_first: bool
) -> None:
    pod = await world.begin()
    world.refuse(pod, "one of two is there")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.run())
        await world.store.is_asked.wait()
        assert world.refuse(pod, "has room for one")  # judged by the pod as it was before that write
        if not is_answered_first:
            await world.run()  # another writer, while the first waits for its answer
        world.store.may_answer.set()
    await world.run()
    assert await world.message() == "has room for one"


async def test_the_word_that_a_pod_has_is_written_again_over_another_that_is_being_written(world: World) -> None:
    world.store.is_asked.set()
    pod = await world.begin()
    world.refuse(pod, "full")
    await world.run()
    world.store.is_asked.clear()
    pod = world.cache.waiting(pod.metadata.uid) or pod
    world.refuse(pod, "fuller")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.run())
        await world.store.is_asked.wait()
        assert world.refuse(pod, "full")
        world.store.may_answer.set()
    assert await world.message() == "full"
