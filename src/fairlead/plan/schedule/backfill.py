"""Bounds how long the first pod of a queue waits while later and smaller ones pass it by (backfill). Pure.

The first pod that fits nowhere now, and would on empty nodes, is its queue's head. Where the pods in its way have time
limits (`activeDeadlineSeconds`), the time by which it fits is known: its room is held, and a pod that ends before that
time may use it meanwhile. Where no time is known, smaller pods pass it until it has waited for `patience_s`; then its
room is held all the same, and fills up as pods end.
Source: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates", 2001 (EASY).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.plan.schedule.group import gang
from fairlead.plan.schedule.preempt import plan, rule
from fairlead.plan.schedule.queue import SchedulingQueue
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.wire.kubernetes import core


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where and when a pod will fit at the latest."""

    node: str
    at: float
    """Unix seconds; infinite: a pod in its way has no time limit."""


def ends_at(pod: core.Pod) -> float:
    """Return when a pod ends at the latest, Unix seconds; infinite where it has no limit."""
    limit, started = pod.spec.active_deadline_seconds, rule.started_at(pod)
    if pod.metadata.deletion_timestamp is not None:
        return started
    return started + limit if limit is not None and started else math.inf


def earliest(
    need: PodInfo, nodes: Mapping[str, NodeInfo], there: Sequence[plan.Running], ends: Mapping[str, float]
) -> Start | None:
    """Return where a pod fits first as those there end; None: it would not on empty nodes either.

    Args: ends: by uid, when pods end at the latest, as `ends_at`; those that are fixed stay.
    """
    # Here pods end by themselves, one by one: groups and budgets have no say.
    alone = [replace(one, unit="", budgets=frozenset()) for one in there]
    terms = plan.Terms(
        may_end=lambda one: not one.is_fixed,
        value=lambda one: (ends[one.uid], one.started_at),
        cost=lambda gone: (max((ends[one.uid] for one in gone), default=0.0), len(gone)),
    )
    found = plan.find((need,), plan.State(nodes, alone), terms)
    if found is None:
        return None
    return Start(node=found.nodes[0], at=max((ends[one.uid] for one in found.ended), default=0.0))


class Heads:
    """The pod of each queue whose wait is bounded."""

    def __init__(self, patience_s: float) -> None:
        """Take how long a head is passed by while no time is known; 0: heads are never given room."""
        self._patience_s = patience_s
        self._heads: dict[str, core.Pod] = {}

    def is_head(self, pod: core.Pod, queue: str, waits: SchedulingQueue) -> bool:
        """Return whether a pod that fits nowhere is its queue's head; it is from now on where it comes before the old.

        Args: waits: the pods that wait.
        """
        if not self._patience_s:
            return False
        old = self._heads.get(queue)
        if old is None or old.metadata.uid not in waits or gang.turn(pod) < gang.turn(old):
            self._heads[queue] = pod
        return self._heads[queue].metadata.uid == pod.metadata.uid

    def is_due(self, pod: core.Pod, start: Start, now: float) -> bool:
        """Return whether a head gets its room now: the time is known, or it has waited long enough."""
        return math.isfinite(start.at) or self.due_s(pod, now) <= 0

    def due_s(self, pod: core.Pod, now: float) -> float:
        """Return after how many seconds a head gets its room whether a time is known or not."""
        made = pod.metadata.creation_timestamp
        waited = now - dt.datetime.fromisoformat(made).timestamp() if made else 0.0
        return max(0.0, self._patience_s - waited)


def may_pass(pod: core.Pod, free_at: float, now: float) -> bool:
    """Return whether a pod would be over before room that is held is free; `free_at`: Unix seconds."""
    limit = pod.spec.active_deadline_seconds
    return limit is not None and math.isfinite(free_at) and now + limit <= free_at
