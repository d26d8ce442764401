"""A gang whose scheduler died between two bindings: completed when it runs again, or released within a bound."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import Plane

T = TypeVar("T")
_SIZE = 4

_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from fairlead.store.sqlite.store import SQLiteStore
from tests.unit.control.scheduler.plane import Evicting, Plane

class Mortal(Evicting):
    left, turn = int(sys.argv[2]), asyncio.Lock()

    async def bind(self, pod, node):
        async with self.turn:  # one after another, so that those before it are written
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            await super().bind(pod, node)

async def main():
    plane = Plane(store=SQLiteStore(Path(sys.argv[1])))
    plane.scheduler._placement = Mortal(plane.store)
    async with plane.running():
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def _until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Ask until the answer is as wanted; what changes is not told by one watch."""
    found = await ask()
    while not holds(found):
        await asyncio.sleep(0.02)
        found = await ask()
    return found


async def _bind_in_part(plane: Plane, bound: int, *, minutes_ago: float = 0, node: str = "a") -> None:
    """Bind the first pods of the gang as a scheduler did that died then."""
    at = meta.emit_time(dt.datetime.now(dt.UTC).timestamp() - 60 * minutes_ago)
    scheduled = meta.Condition(type="PodScheduled", status="True", last_transition_time=at)
    for number in range(bound):
        pod = await plane.store.get(core.Pod, f"train-{number}", "default")
        await plane.placement.bind(pod, node)
        pod = await plane.store.get(core.Pod, f"train-{number}", "default")
        status = msgspec.structs.replace(pod.status, conditions=(scheduled,))
        await plane.store.update_status(msgspec.structs.replace(pod, status=status))


async def test_the_rest_of_a_gang_bound_in_part_is_bound_where_it_fits() -> None:
    plane = Plane()
    await plane.add_node("a", _SIZE)
    await plane.add_gang("train", _SIZE)
    await _bind_in_part(plane, 2)
    async with plane.running():
        await plane.until_bound(f"train-{number}" for number in range(_SIZE))
    assert plane.placement.ended == []


async def test_a_gang_bound_in_part_whose_rest_has_no_room_is_released_and_says_why() -> None:
    plane = Plane(gang_part_s=0.2)
    await plane.add_node("a", _SIZE)
    await plane.add_gang("train", _SIZE)
    await _bind_in_part(plane, 2)
    await plane.add_pod("quick", 1)
    await plane.placement.bind(await plane.store.get(core.Pod, "quick", "default"), "a")  # by another scheduler
    async with plane.running(), asyncio.timeout(20):
        said = await _until(lambda: plane.messages("Preempted"), lambda found: len(found) == 2)
    assert sorted(plane.placement.ended) == ["train-0", "train-1"]
    assert said[0] == 'group "train" was bound in part, 2 of 4 pods, and the rest found no room'


async def test_a_running_gang_is_not_released_for_a_pod_made_anew_that_finds_no_room() -> None:
    plane = Plane(gang_part_s=0.1)
    await plane.add_node("a", _SIZE)
    await plane.add_gang("train", _SIZE)
    await _bind_in_part(plane, _SIZE, minutes_ago=1)
    await plane.end("train-3")
    await plane.add_member("train", 7, _SIZE)  # younger than the bindings of the others
    await plane.add_pod("quick", 1)
    await plane.placement.bind(await plane.store.get(core.Pod, "quick", "default"), "a")
    async with plane.running():
        await plane.until_said("train-7", "the next does not")
        await asyncio.sleep(0.5)
    assert plane.placement.ended == []


@pytest.mark.slow
@pytest.mark.parametrize("has_room", [True, False], ids=["the rest fits", "it does not"])
@pytest.mark.parametrize("bound", range(_SIZE + 1))
async def test_killed_between_any_two_bindings_a_gang_ends_up_whole_or_not_at_all(
    tmp_path: Path, bound: int, has_room: bool
) -> None:
    path = tmp_path / "state.db"
    with SQLiteStore(path) as store:
        plane = Plane(store=store, gang_part_s=0.3)
        await plane.add_node("a", _SIZE)
        await plane.add_gang("train", _SIZE)
        await plane.add_pod("trigger", 0, scheduling_gates=(core.SchedulingGate(name="x/y"),))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, str(path), str(bound))
    if bound == _SIZE:  # nothing kills it at a binding: it dies after the last
        with SQLiteStore(path) as store:
            await Plane(store=store).until_bound(f"train-{number}" for number in range(_SIZE))
        child.kill()
    assert await child.wait() == -signal.SIGKILL
    with SQLiteStore(path) as store:
        plane = Plane(store=store, gang_part_s=0.3)
        there = await plane.bound()
        if not has_room and bound < _SIZE:
            await plane.add_pod("quick", _SIZE - len(there))
            await plane.placement.bind(await plane.store.get(core.Pod, "quick", "default"), "a")
        async with plane.running(), asyncio.timeout(20):
            wanted = 0 if not has_room and bound < _SIZE else _SIZE
            await _until(plane.bound, lambda found: sum(name.startswith("train") for name in found) == wanted)
    assert len(there) == bound
