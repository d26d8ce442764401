"""The queue of waiting pods: what is parked, recalled, stirred and put in another order is looked at, once each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.reference import UNIT, NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Summary
from fairlead.wire.kubernetes import core, meta

NEED = PodInfo(requests={"nvidia.com/gpu": UNIT})


def pod(name: str, priority: int = 0) -> core.Pod:
    return core.Pod(metadata=meta.ObjectMeta(name=name, uid=name), spec=core.PodSpec(priority=priority))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(queue: SchedulingQueue) -> list[str]:
    """Return the names of all pods to be looked at now, in their turn."""
    found = []
    while (one := queue.pop()) is not None:
        found.append(one.metadata.name)
    return found


def filled(clock: Clock, *names: str) -> SchedulingQueue:
    queue = SchedulingQueue(clock)
    for name in names:
        queue.put(pod(name))
    return queue


def test_what_is_parked_waits_for_what_holds_it_back(clock: Clock) -> None:
    queue = filled(clock, "a", "b", "c")
    assert taken(queue) == ["a", "b", "c"]
    for name in ("b", "a", "gone"):
        queue.park(name, ("queue", "team"))
    queue.park("c", ("queue", "other"))
    assert set(queue.parked()) == {(("queue", "team"), "a"), (("queue", "other"), "c")}
    queue.drop("a")
    queue.drop("c")
    assert queue.parked() == ((("queue", "team"), "b"),)
    queue.unpark(("queue", "team"), "nobody")
    queue.unpark(("queue", "unheard-of"), "b")
    assert taken(queue) == []
    queue.unpark(("queue", "team"), "b")
    assert (taken(queue), queue.parked()) == (["b"], ())


def test_a_group_that_rests_is_looked_at_for_one_pod_or_after_a_time(clock: Clock) -> None:
    queue = filled(clock, "a", "b")
    for one in (queue.pop(), queue.pop()):
        assert one is not None
        group = queue.group(one, NEED)
    queue.rest(group, Summary(nodes=1, fitting=0, best=(), reasons=()), frozenset())
    queue.look_after("b", 5.0)
    queue.look_after("nobody", 5.0)
    queue.end_looks()
    queue.recall("nobody")
    assert taken(queue) == []
    queue.retry("a")
    assert (taken(queue), queue.is_judged("a"), group.refusal is None) == (["a"], True, False)
    queue.end_looks()
    clock.now = 5.0
    queue.release()
    assert taken(queue) == ["b"]
    queue.end_looks()
    queue.recall("a")
    assert (taken(queue), group.refusal) == (["a", "b"], None)


def test_room_that_is_made_for_one_pod_stirs_its_group_but_not_those_that_have_room(clock: Clock) -> None:
    queue = filled(clock, "a", "b", "c")
    for name in taken(queue):
        group = queue.group(pod(name), NEED)
    queue.rest(group, Summary(nodes=1, fitting=0, best=(), reasons=()), frozenset())
    queue.end_looks()
    queue.hold("a")
    queue.stir("a")
    assert taken(queue) == ["b", "c"]
    assert queue.is_judged("b")
    queue.end_looks()
    queue.let_go("a")
    assert taken(queue) == ["a"]


@pytest.mark.parametrize("event", ["put", "recall", "retry", "replace"])
def test_what_is_done_for_a_pod_while_it_is_looked_at_has_it_looked_at_again(clock: Clock, event: str) -> None:
    queue = filled(clock, "a")
    assert taken(queue) == ["a"]
    group = queue.group(pod("a"), NEED)
    getattr(queue, event)("a" if event in ("recall", "retry") else pod("a"))
    queue.rest(group, Summary(nodes=1, fitting=0, best=(), reasons=()), frozenset())
    queue.end_looks()
    assert taken(queue) == ["a"]
    queue.end_looks()
    assert taken(queue) == []


def test_a_pod_at_rest_that_comes_to_ask_for_something_else_is_looked_at(clock: Clock) -> None:
    queue = filled(clock, "a")
    assert taken(queue) == ["a"]
    queue.rest(queue.group(pod("a"), NEED), Summary(nodes=1, fitting=0, best=(), reasons=()), frozenset())
    queue.end_looks()
    queue.group(pod("a"), PodInfo(requests={"nvidia.com/gpu": 2 * UNIT}))
    assert taken(queue) == ["a"]


def test_a_time_that_was_set_for_a_group_holds_though_one_of_it_went_in(clock: Clock) -> None:
    queue = filled(clock, "a", "b")
    for name in taken(queue):
        group = queue.group(pod(name), NEED)
    for _ in range(3):
        queue.rest(group, Summary(nodes=1, fitting=0, best=(), reasons=()), frozenset())
    queue.end_looks()
    room = NodeInfo(name="n", is_ready=True, allocatable={"nvidia.com/gpu": UNIT, "pods": UNIT})
    tuple(queue.wake({"n": (NodeInfo(name="n", is_ready=True, allocatable={}), room)}))
    group.refusals = 0  # as when a binding of it succeeds
    assert queue.problems() == {}
    clock.now += 10.0
    queue.release()
    assert taken(queue) == ["a", "b"]


def test_a_pod_that_is_gone_is_not_delayed(clock: Clock) -> None:
    queue = filled(clock, "a")
    queue.delay(pod("nobody"))
    queue.delay(pod("a"))
    due_s = queue.next_due_s()
    assert taken(queue) == []
    assert due_s is not None
    clock.now = due_s
    queue.release()
    assert taken(queue) == ["a"]


@given(st.lists(st.sampled_from(["park", "drop", "pop", "reorder", "put"]), max_size=20), st.integers(0, 5))
def test_after_another_order_every_pod_that_waits_is_looked_at_once(acts: list[str], start: int) -> None:
    names = [f"p{number}" for number in range(6)]
    queue, seen = filled(Clock(), *names), set[str]()
    for step, act in enumerate(acts):
        name = names[(start + step) % len(names)]
        if act == "park":
            queue.pop()
            queue.park(name, ("queue", "team"))
        elif act == "drop":
            queue.drop(name)
        elif act == "put":
            queue.put(pod(name))
            seen.discard(name)
        elif act == "pop" and (one := queue.pop()) is not None:
            seen.add(one.metadata.name)
        elif act == "reorder":
            queue.reorder()
    for key, uid in queue.parked():
        queue.unpark(key, uid)
    queue.reorder()
    found = taken(queue)
    assert len(found) == len(set(found))
    assert all(name in queue for name in found)
