"""A new constraint: licences, of which a node has so many. It is written here alone, and no other file knows of it."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest

from fairlead.plan.schedule import constraint, reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Filter, Node, Noted, Refusal, Reservation, Users
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.queue import hint
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.summary import Summary
from fairlead.plan.schedule.trial import Trial
from fairlead.wire.kubernetes import core, meta

_ASKED = "example.com/licence"


# what is new


@dataclass(frozen=True, slots=True)
class Licence(constraint.Ask):
    names: frozenset[str]
    constraint: ClassVar[str] = "licences"
    filters: ClassVar[tuple[Filter, ...]] = (
        Filter(
            "Licences",
            lambda ask, node: () if _fits(ask, node) else ("node(s) had no licence left",),
            lambda before, after: before.taken_for != after.taken_for or before.limits != after.limits,
        ),
    )

    @property
    def takes(self) -> frozenset[str]:
        return self.names


def _fits(ask: Licence, node: Node) -> bool:
    count: int = node.limits.get("licences", 0)
    return len(ask.names | node.taken_for.get("licences", frozenset())) <= count


class Licences:
    """A `constraint.Constraint`; ConfigMaps would say how many, here each node that is named `licensed-N` has N."""

    name: ClassVar[str] = "licences"
    kinds: ClassVar[tuple[type[meta.Object], ...]] = ()

    def __init__(self, _users: Users) -> None:
        pass

    def note(self, _item: Any, *, is_gone: bool = False) -> Noted:
        raise NotImplementedError(is_gone)

    def assume(self, before: Any, after: Any) -> Noted:
        raise NotImplementedError(before, after)

    def withdraw(self, before: Any, after: Any) -> Noted:
        raise NotImplementedError(before, after)

    def forget(self, kind: Any) -> None:
        raise NotImplementedError(kind)

    @staticmethod
    def concerns(pod: core.Pod) -> bool:
        return _ASKED in pod.metadata.annotations

    def refusal(self, pod: core.Pod) -> Refusal | None:
        return None if pod.metadata.annotations[_ASKED] else Refusal("names no licence")

    def ask(self, pod: core.Pod) -> Licence:
        return Licence(frozenset({f"{pod.metadata.annotations[_ASKED]}/{pod.metadata.name}"}))

    def has(self, pod: core.Pod) -> Licence:
        return self.ask(pod)

    def amounts(self, _pod: core.Pod) -> Mapping[str, int]:
        return {}

    def frees(self, _pod: core.Pod) -> bool:
        return False

    @property
    def has_limits(self) -> bool:
        return True

    def limits(self, node: str, _labels: Mapping[str, str]) -> int:
        return int(node.partition("-")[2] or 0)

    def reserve(self, _pod: core.Pod, _ask: constraint.Ask, _node: Node) -> Reservation | None:
        return None

    def give_back(self, _pod: core.Pod) -> Reservation | None:
        return None


# what shows that it has its say everywhere


def _ready(name: str) -> core.Node:
    status = core.NodeStatus(allocatable={"pods": "10"}, conditions=(meta.Condition(type="Ready", status="True"),))
    return core.Node(metadata=meta.ObjectMeta(name=name), status=status)


def _pod(name: str, licence: str = "cad") -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="d", uid=name, annotations={_ASKED: licence}),
        spec=core.PodSpec(containers=(core.Container(name="c"),), scheduler_name="fairlead"),
    )


@pytest.fixture
def cache() -> Cache:
    queue = SchedulingQueue(lambda: 0.0)
    made = Cache(queue, lambda _pod: True, lambda: 0.0, made=(Licences,))
    for name in ("licensed-2", "plain"):
        made.note_node(_ready(name))
    made.changes()
    return made


def _place(cache: Cache, pod: core.Pod) -> Summary:
    """Judge a pod by the plain rules and by the engine, which must agree."""
    before = {name: (None, view) for name, view in cache.views.items()}
    engine = EngineRankings("packed")
    engine.take(cache.views, before)
    row = engine.of(cache.need(pod))
    collections.deque(row.refresh(cache.views), maxlen=0)
    slow, fast = reference.place(cache.need(pod), cache.views.values()), row.summary()
    assert (slow.node, slow.message) == (fast.node, fast.message)
    return slow


def test_it_filters_nodes_and_counts_what_pods_take(cache: Cache) -> None:
    pods = [_pod(name) for name in ("one", "two", "three")]
    for pod in pods:
        cache.note_pod(pod)
    for pod in pods[:2]:
        assert _place(cache, pod).node == "licensed-2"
        cache.assume(pod, "licensed-2")
        cache.changes()
    refused = _place(cache, pods[2])
    assert refused.node is None
    assert "node(s) had no licence left" in refused.message
    free = cache.views["licensed-2"]
    cache.forget("two")
    changed = cache.changes()["licensed-2"]
    assert changed[0] == free
    assert "Licences" in hint.improved(*changed)
    assert _place(cache, pods[2]).node == "licensed-2"


def test_it_keeps_a_pod_waiting_whatever_nodes_there_are(cache: Cache) -> None:
    assert cache.constraint_refusal(_pod("none", "")) == Refusal("names no licence")
    assert cache.constraint_refusal(_pod("some")) is None
    assert cache.reserve(_pod("some"), cache.need(_pod("some")), "licensed-2") == ()


def test_it_is_tried_and_taken_back(cache: Cache) -> None:
    pods = [_pod(name) for name in ("one", "two", "three")]
    for pod in pods:
        cache.note_pod(pod)
    with Trial(cache) as trial:
        for pod in pods[:2]:
            trial.assume(pod, "licensed-2")
        cache.changes()
        assert _place(cache, pods[2]).node is None
    cache.changes()
    assert _place(cache, pods[2]).node == "licensed-2"


def test_pods_that_ask_alike_are_judged_once(cache: Cache) -> None:
    one, other = cache.need(_pod("one")), cache.need(msgspec.structs.replace(_pod("one"), status=core.PodStatus()))
    assert one.key() == other.key()
    assert one.key() != cache.need(_pod("two")).key()
