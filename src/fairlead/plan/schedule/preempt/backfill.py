"""Bounds how long the first of a queue waits while later and smaller ones pass it by (backfill). Pure.

The first pod or group that fits nowhere now, and would on empty nodes, is its queue's head. Where the pods in its way
have time limits (`activeDeadlineSeconds`), the time by which it fits is known: its room is held, and a pod that ends
before that time may use it meanwhile. Where no time is known, smaller pods pass it until it has waited `patience_s`;
then its room is held all the same, and fills up as pods end. A group is one here: it has waited since the last of its
pods came, and has room for all of them or for none.
Source: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates", 2001 (EASY).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.plan.schedule.group import gang
from fairlead.plan.schedule.preempt import plan, rule
from fairlead.plan.schedule.queue.queue import SchedulingQueue, State
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.trial import Running, WhatIf
from fairlead.wire.kubernetes import core, meta

_AT_REST = frozenset((State.ACTIVE, State.IN_FLIGHT, State.REFUSED, State.HELD))
"""States of a head; one that its queue, a gate or a failed binding keeps waiting waits for no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where and when pods will fit at the latest."""

    nodes: tuple[str, ...]
    """In the order of the pods."""
    at: float
    """Unix seconds; infinite: a pod in their way has no time limit."""


def ends_at(pod: core.Pod) -> float:
    """Return when a pod ends at the latest, Unix seconds; infinite where it has no limit."""
    limit, started = pod.spec.active_deadline_seconds, rule.started_at(pod)
    if pod.metadata.deletion_timestamp is not None:
        return started
    return started + limit if limit is not None and started else math.inf


def earliest(
    asked: Sequence[PodInfo],
    nodes: Mapping[str, NodeInfo],
    there: Sequence[Running],
    ends: Mapping[str, float],
) -> Start | None:
    """Return where pods fit first, all at once, as those there end; None: they would not on empty nodes either.

    Args: ends: by uid, when pods end at the latest, as `ends_at`; those that are fixed stay.
    """
    # Here pods end by themselves, one by one: groups and budgets have no say.
    alone = [replace(one, unit="", budgets=frozenset()) for one in there]
    terms = plan.Terms(
        may_end=lambda one: not one.is_fixed,
        value=lambda one: (ends[one.uid], one.started_at),
        cost=lambda gone: (max((ends[one.uid] for one in gone), default=0.0), len(gone)),
        is_repeatable=True,
    )
    found = plan.find(asked, WhatIf(nodes, alone), terms)
    if found is None:
        return None
    return Start(nodes=found.nodes, at=max((ends[one.uid] for one in found.ended), default=0.0))


class Heads:
    """The pod of each queue whose wait is bounded; a group's is the first of those that are placed at once."""

    def __init__(self, patience_s: float) -> None:
        """Take how long a head is passed by while no time is known; 0: heads are never given room."""
        self._patience_s = patience_s
        self._heads: dict[str, core.Pod] = {}
        self._hopeless: set[str] = set()
        """Uids of pods that fit on no empty node: others come first."""

    def is_head(self, pod: core.Pod, queue: str, waits: SchedulingQueue) -> bool:
        """Return whether a pod that fits nowhere is its queue's head; it is from now on where it comes before the old.

        Args: waits: the pods that wait.
        """
        if not self._patience_s or pod.metadata.uid in self._hopeless:
            return False
        old = self._head(queue, waits)
        if old is None or gang.turn(pod) < gang.turn(old):
            self._heads[queue] = pod
        return self._heads[queue].metadata.uid == pod.metadata.uid

    def _head(self, queue: str, waits: SchedulingQueue) -> core.Pod | None:
        old = self._heads.get(queue)
        return old if old is not None and waits.state(old.metadata.uid) in _AT_REST else None

    def vacant(self, waits: SchedulingQueue, queue_of: Callable[[str], str]) -> Iterator[str]:
        """Yield who is next where a head went: of each queue without one, the first pod that fits nowhere."""
        if not self._patience_s:
            return
        firsts = dict[str, core.Pod]()
        for pod in waits.refused():
            uid = pod.metadata.uid
            queue = queue_of(uid)
            if uid in self._hopeless or self._head(queue, waits) is not None:
                continue
            if queue not in firsts or gang.turn(pod) < gang.turn(firsts[queue]):
                firsts[queue] = pod
        yield from (pod.metadata.uid for pod in firsts.values())

    def give_up(self, pods: Iterable[core.Pod]) -> None:
        """Note that pods fit on no empty node: they do not count as a queue's head until `forget_hopeless`."""
        self._hopeless.update(pod.metadata.uid for pod in pods)
        for queue in [name for name, pod in self._heads.items() if pod.metadata.uid in self._hopeless]:
            del self._heads[queue]

    def forget_hopeless(self) -> None:
        """Note that nodes are others than before."""
        self._hopeless.clear()

    def due_s(self, pods: Iterable[core.Pod], now: float) -> float:
        """Return after how many seconds pods get their room whether a time is known or not."""
        made = [meta.timestamp(pod.metadata.creation_timestamp or None) for pod in pods]
        waited = now - max((at for at in made if at is not None), default=now)
        return max(0.0, self._patience_s - waited)


def may_pass(pod: core.Pod, free_at: float, now: float) -> bool:
    """Return whether a pod would be over before room that is held is free; `free_at`: Unix seconds."""
    limit = pod.spec.active_deadline_seconds
    return limit is not None and math.isfinite(free_at) and now + limit <= free_at
