"""No GPU is given twice, whatever comes in whichever order: the engine alone, and the live cache with late echoes."""

from __future__ import annotations

import random
from collections import deque

import msgspec
import pytest

from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.engine.engine import Engine
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.engine.shape import WHOLE, Host, Placement, Shape
from fairlead.plan.schedule.engine.state import State
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"
_MANY = pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("steps", [2000, _MANY])
def test_the_engine_gives_no_gpu_away_twice(steps: int) -> None:
    chance = random.Random(steps)
    shapes = [Shape(cpu_milli=1000 * one, gpus=one) for one in (0, 1, 2, 4, 8)]
    shapes += [Shape(cpu_milli=500, gpus=1, gpu_milli=part) for part in (100, 333, 500, 810)]
    hosts = [
        Host(name=f"n{at:02}", cpu_milli=32_000, memory_mib=1000, gpus=chance.choice((2, 4, 8))) for at in range(40)
    ]
    engine = Engine(State(hosts), "fairlead", dict.fromkeys(shapes, 1))
    held, used = list[tuple[Shape, Placement]](), [[0] * host.gpus for host in hosts]
    for _ in range(steps):
        fate = chance.random()
        if fate < 0.45 and held:
            at = chance.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            shape, placement = held.pop()
            engine.release(shape, placement)
            for gpu in placement.devices:
                used[placement.node][gpu] -= shape.gpu_milli
        elif fate < 0.5:  # a try that is taken back, as a gang that does not fit
            mark = engine.state.checkpoint()
            for _ in range(chance.randrange(6)):
                engine.place(chance.choice(shapes))
            engine.state.rollback(mark)
        elif found := engine.place(shape := chance.choice(shapes)):
            held.append((shape, found))
            for gpu in found.devices:
                used[found.node][gpu] += shape.gpu_milli
                assert used[found.node][gpu] <= WHOLE
    state = engine.state
    for at, host in enumerate(hosts):
        assert state.gpu[at, : host.gpus].tolist() == [WHOLE - one for one in used[at]]
        assert state.whole[at] == sum(one == 0 for one in used[at])
    assert state.shared == sum(0 < one < WHOLE for node in used for one in node)


class Cluster:
    """What an API server has, and what its watch has not said yet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cache = Cache(SchedulingQueue(lambda: 0.0), lambda _pod: True, lambda: 0.0)
        self.rankings = EngineRankings("fairlead")
        self.pods: dict[str, core.Pod] = {}
        self.unsaid: deque[tuple[core.Pod, bool]] = deque()
        self.sent: list[tuple[core.Pod, str]] = []
        """Bindings without an answer."""
        self.made = 0
        for at in range(6):
            self.cache.note_node(_node(at))

    def step(self) -> None:
        acts = (self.create, self.create, self.decide, self.decide, self.answer, self.answer, self.say, self.say)
        rare = (self.delete, self.delete, self.list_anew, self.refuse)
        (self.chance.choice(acts) if self.chance.random() < 0.8 else self.chance.choice(rare))()

    def create(self) -> None:
        if len(self.pods) > 60:
            return
        self.made += 1
        amount = core.ResourceRequirements(requests={_GPU: self.chance.choice((1, 1, 2, 4, 8))})
        main = core.Container(name="main", image="i", resources=amount)
        about = meta.ObjectMeta(name=f"p{self.made}", namespace="default", uid=f"u{self.made}")
        self.pods[about.uid] = pod = core.Pod(metadata=about, spec=core.PodSpec(containers=(main,)))
        self.unsaid.append((pod, False))

    def decide(self) -> None:
        """Decide for a pod that the cache knows as waiting, from what the cache knows."""
        known = [pod for uid in self.pods if (pod := self.cache.waiting(uid)) is not None]
        if not known:
            return
        pod = self.chance.choice(known)
        if changes := self.cache.changes():
            self.rankings.take(self.cache.views, changes)
        row = self.rankings.of(self.cache.need(pod))
        list(row.refresh(self.cache.views))
        if (node := row.summary().node) is not None:
            self.cache.assume(pod, node)
            self.sent.append((pod, node))

    def answer(self) -> None:
        """Have the API server carry a binding out; one for a pod that is gone fails."""
        if not self.sent:
            return
        pod, node = self.sent.pop(self.chance.randrange(len(self.sent)))
        uid = pod.metadata.uid
        if uid not in self.pods or self.pods[uid].spec.node_name:
            self.cache.forget(uid)
            return
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        self.pods[uid] = bound
        self.unsaid.append((bound, False))
        self.cache.confirm(uid)
        self.check()

    def refuse(self) -> None:
        if self.sent:
            pod, _ = self.sent.pop()
            self.cache.forget(pod.metadata.uid)

    def say(self) -> None:
        if self.unsaid:
            pod, is_gone = self.unsaid.popleft()
            self.cache.note_pod(pod, is_gone=is_gone)

    def delete(self) -> None:
        if self.pods:
            pod = self.pods.pop(self.chance.choice(list(self.pods)))
            self.unsaid.append((pod, True))

    def list_anew(self) -> None:
        """The watch broke: everything as it is now, and who is gone, in one step."""
        gone = [pod for pod, is_gone in self.unsaid if is_gone]
        self.unsaid.clear()
        self.cache.forget_pods()
        for pod in gone:
            self.cache.note_pod(pod, is_gone=True)
        for pod in self.pods.values():
            self.cache.note_pod(pod)

    def check(self) -> None:
        taken: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.spec.node_name:
                gpus = int(pod.spec.containers[0].resources.requests[_GPU])
                taken[pod.spec.node_name] = taken.get(pod.spec.node_name, 0) + gpus
        assert all(gpus <= 8 for gpus in taken.values()), taken


@pytest.mark.parametrize(("seed", "steps"), [(1, 1500), (2, 1500), pytest.param(3, 200_000, marks=_MANY.marks)])
def test_bindings_that_answers_and_echoes_come_late_for_never_overcommit_a_node(seed: int, steps: int) -> None:
    cluster = Cluster(seed)
    for _ in range(steps):
        cluster.step()
    while cluster.sent:
        cluster.answer()
    while cluster.unsaid:
        cluster.say()
    cluster.cache.changes()
    fresh = Cache(SchedulingQueue(lambda: 0.0), lambda _pod: True, lambda: 0.0)
    for at in range(6):
        fresh.note_node(_node(at))
    for pod in cluster.pods.values():
        fresh.note_pod(pod)
    fresh.changes()
    assert {name: node.taken for name, node in fresh.views.items()} == {
        name: node.taken for name, node in cluster.cache.views.items()
    }
    assert cluster.made > steps / 20


def _node(at: int) -> core.Node:
    ready = meta.Condition(type="Ready", status="True")
    status = core.NodeStatus(allocatable={_GPU: "8", "pods": "20"}, conditions=(ready,))
    return core.Node(metadata=meta.ObjectMeta(name=f"n{at}", uid=f"n{at}"), status=status)
