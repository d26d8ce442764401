"""Estimates when a container that waits has its place, from nothing but limits that hold. Pure.

A container that has a time limit is over by then at the latest. Where the ends of such containers free enough for all
who wait before it and for itself, that is the time; where they do not, nobody can say, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp


def ends(name: str, holders: Iterable[tuple[core.Pod, reference.PodInfo]]) -> tuple[tuple[float, int], ...]:
    """Return when holders of a resource are over at the latest, in Unix seconds, and what each has; earliest first.

    Args: holders: what is on a node. Those without a limit, and those that have not started, are left out.
    """
    given = ((_end(pod), need.requests.get(name, 0)) for pod, need in holders)
    return tuple(sorted((at, count) for at, count in given if at is not None and count))


def _end(pod: core.Pod) -> float | None:
    limit, started = pod.spec.active_deadline_seconds, pod.status.start_time
    if limit is None or not started:
        return None
    begin = timestamp.parse(started)
    return None if begin is None else begin + limit + pod.spec.termination_grace_period_seconds


def latest(asked: int, free: int, ends: Iterable[tuple[float, int]]) -> float | None:
    """Return when at the latest an amount of a resource is free on a node; None: that is not known.

    Args: asked: of those ahead in the queue too, who may all want this node.   ends: see `ends`.
    """
    freed = free
    for at, count in ends:
        freed += count
        if freed >= asked:
            return at
    return None
