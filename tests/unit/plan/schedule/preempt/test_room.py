"""The search for room: nobody ends who need not, everything that is asked for fits then, and it is the cheapest."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.preempt import plan, rule
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.trial import Running, Trial, WhatIf
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"


def _need(gpus: int) -> PodInfo:
    return PodInfo(requests={_GPU: gpus * reference.UNIT})


def _nodes(*sizes: int) -> dict[str, NodeInfo]:
    return {f"n{at}": NodeInfo(name=f"n{at}", allocatable={_GPU: size * 1000}) for at, size in enumerate(sizes)}


def _terms(priority: int, **more: int) -> plan.Terms:
    return plan.Terms(may_end=lambda one: one.priority < priority, value=rule.worth, cost=rule.loss(0.0), allowed=more)


_RUNNING = st.lists(
    st.builds(
        lambda node, gpus, priority, unit, surplus: {
            "node": f"n{node}",
            "need": _need(gpus),
            "priority": priority,
            "unit": unit,
            "surplus": surplus,
        },
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from(["", "", "g"]),
        st.integers(0, 1),
    ),
    max_size=7,
)


def _running(parts: list[dict[str, object]]) -> list[Running]:
    found, free = list[Running](), {"n0": 4, "n1": 4, "n2": 4}
    surplus = min((int(str(part["surplus"])) for part in parts if part["unit"]), default=0)
    for number, part in enumerate(parts):
        need, node = part["need"], str(part["node"])
        assert isinstance(need, PodInfo)
        gpus = need.requests[_GPU] // 1000
        if free[node] >= gpus:
            free[node] -= gpus
            about = {**part, "surplus": surplus if part["unit"] else 0}
            found.append(Running(uid=str(number), namespace="d", name=str(number), **about))  # type: ignore[arg-type]
    return found


def _fits(asked: list[int], there: list[Running]) -> bool:
    """Tell by trying every node for every pod whether all that is asked for has room."""
    free = dict.fromkeys(("n0", "n1", "n2"), 4)
    for one in there:
        free[one.node] -= one.need.requests[_GPU] // 1000

    def has_room(places: tuple[str, ...]) -> bool:
        pairs = list(zip(asked, places, strict=True))
        return all(sum(gpus for gpus, at in pairs if at == node) <= left for node, left in free.items())

    return any(has_room(places) for places in itertools.product(free, repeat=len(asked)))


@given(_RUNNING, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 4))
def test_what_is_proposed_fits_and_ends_only_those_who_may_end(
    parts: list[dict[str, object]], asked: list[int], priority: int
) -> None:
    there = _running(parts)
    found = plan.find([_need(gpus) for gpus in asked], WhatIf(_nodes(4, 4, 4), there), _terms(priority))
    if found is None:
        return
    gone = {one.uid for one in found.ended}
    assert all(one.priority < priority for one in found.ended)
    left = [one for one in there if one.uid not in gone]
    for node in ("n0", "n1", "n2"):
        taken = sum(one.need.requests[_GPU] // 1000 for one in left if one.node == node)
        assert taken + sum(gpus for gpus, at in zip(asked, found.nodes, strict=True) if at == node) <= 4
    units = {one.unit for one in found.ended if one.unit}
    for unit in units:
        members = [one for one in there if one.unit == unit]
        ended = [one for one in members if one.uid in gone]
        assert len(ended) <= members[0].surplus or len(ended) == len(members)


@given(_RUNNING, st.integers(1, 4), st.integers(0, 4))
def test_one_pod_gets_room_exactly_where_ending_all_who_may_would_give_it(
    parts: list[dict[str, object]], gpus: int, priority: int
) -> None:
    there = [one for one in _running(parts) if not one.unit]
    found = plan.find([_need(gpus)], WhatIf(_nodes(4, 4, 4), there), _terms(priority))
    assert (found is not None) == _fits([gpus], [one for one in there if one.priority >= priority])
    if found is not None and _fits([gpus], there):
        assert found.ended == ()


def test_a_budget_is_counted_over_all_that_end() -> None:
    there = [
        Running(uid=str(at), namespace="d", name=str(at), node="n0", need=_need(1), budgets=frozenset({"d/b"}))
        for at in range(2)
    ]
    nodes = _nodes(2)
    assert plan.find([_need(2)], WhatIf(nodes, there), _terms(1, **{"d/b": 1})) is None
    assert plan.find([_need(2)], WhatIf(nodes, there), _terms(1, **{"d/b": 2})) is not None


def _pod(number: int, gpus: int, namespace: str, priority: int) -> core.Pod:
    wanted = core.ResourceRequirements(limits={_GPU: gpus}, requests={_GPU: gpus})
    spec = core.PodSpec(containers=(core.Container(name="m", resources=wanted),), scheduler_name="s", priority=priority)
    return core.Pod(metadata=meta.ObjectMeta(name=f"p{number}", uid=str(number), namespace=namespace), spec=spec)


class Walk:
    """Pods that come, are placed, held and go at random, and what the cache counts of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        works = Workloads()
        queue = SchedulingQueue(queue_of=works.queue_of, choose=works.choose)
        self.cache = Cache(queue, lambda _: True, workloads=works)
        ready = (meta.Condition(type="Ready", status="True"),)
        for at in range(4):
            status = core.NodeStatus(allocatable={_GPU: "4", "pods": "50"}, conditions=ready)
            self.cache.note_node(core.Node(metadata=meta.ObjectMeta(name=f"n{at}"), status=status))
        self.pods: dict[str, core.Pod] = {}
        self.placed: dict[str, str] = {}

    def come(self, step: int) -> None:
        pod = _pod(step, self.chance.randint(1, 3), self.chance.choice(["a", "b"]), self.chance.randint(0, 2))
        self.pods[pod.metadata.uid] = pod
        self.cache.note_pod(pod)

    def go(self, _step: int) -> None:
        if self.pods:
            uid = self.chance.choice(list(self.pods))
            self.cache.note_pod(self.pods.pop(uid), is_gone=True)
            self.placed.pop(uid, None)

    def place(self, _step: int) -> None:
        if waiting := self.waiting():
            uid = self.chance.choice(waiting)
            self.cache.release(uid)
            self.cache.changes()
            found = reference.place(self.cache.need(self.pods[uid]), self.cache.views.values())
            if found.node is not None:
                self.cache.assume(self.pods[uid], found.node)
                self.placed[uid] = found.node

    def hold(self, _step: int) -> None:
        if waiting := self.waiting():
            node = f"n{self.chance.randrange(4)}"
            self.cache.hold(self.pods[self.chance.choice(waiting)], node, for_s=1000)

    def take_back(self, _step: int) -> None:
        if self.placed:
            uid = self.chance.choice(list(self.placed))
            self.cache.forget(uid)
            del self.placed[uid]

    def try_and_leave(self, _step: int) -> None:
        """Try placements on top of each other, with held room lent, and keep none of them."""
        with Trial(self.cache) as trial:
            for uid in list(self.cache.held):
                if self.chance.random() < 0.5:
                    trial.lend(uid)
            for uid in self.waiting():
                self.cache.changes()
                if _gpus(self.pods[uid]) > self.most_free():
                    continue  # hundreds wait for 16 GPUs, and a placement that is refused changes nothing
                found = reference.place(self.cache.need(self.pods[uid]), self.cache.views.values())
                if found.node is not None:
                    trial.assume(self.pods[uid], found.node)
            if self.chance.random() < 0.5:
                trial.rollback(trial.checkpoint() // 2)

    def waiting(self) -> list[str]:
        return [uid for uid in self.pods if uid not in self.placed]

    def most_free(self) -> int:
        """Return the GPUs that are free on the emptiest node, by the cache's count."""
        return max(4 - view.taken.get(_GPU, 0) // 1000 for view in self.cache.views.values())

    def taken(self) -> dict[str, int]:
        real: dict[str, int] = {}
        for uid, node in self.placed.items():
            real[node] = real.get(node, 0) + _gpus(self.pods[uid])
        return real

    def check(self) -> None:
        real = self.taken()
        assert all(value <= 4 for value in real.values())
        for name, view in self.cache.views.items():
            held = sum(_gpus(one.pod) for one in self.cache.held.values() if one.node == name)
            assert view.taken.get(_GPU, 0) == (real.get(name, 0) + held) * 1000


def _gpus(pod: core.Pod) -> int:
    return int(pod.spec.containers[0].resources.requests[_GPU])


def _walk(steps: int, seed: int) -> None:
    walk = Walk(seed)
    acts = (walk.come, walk.go, walk.place, walk.hold, walk.take_back, walk.try_and_leave)
    for step in range(steps):
        walk.chance.choice(acts)(step)
        walk.cache.changes()
        walk.check()


def test_no_gpu_is_given_twice_after_a_short_walk_of_random_events() -> None:
    _walk(1500, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_gpu_is_given_twice_after_any_order_of_a_hundred_thousand_events() -> None:
    _walk(100_000, seed=2)
