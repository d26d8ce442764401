"""Estimates when a container that waits has its place, from nothing but limits that hold. Pure.

A container that has a time limit is over by then at the latest. Where the ends of such containers free enough for all
who wait before it and for itself, that is the time; where they do not, nobody can say, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp


def ends(pod: core.Pod) -> float | None:
    """Return when a pod is over at the latest, in Unix seconds; None: nothing limits it, or it has not started."""
    limit, started = pod.spec.active_deadline_seconds, pod.status.start_time
    if limit is None or not started:
        return None
    begin = timestamp.parse(started)
    return None if begin is None else begin + limit + pod.spec.termination_grace_period_seconds


def latest(
    name: str, asked: int, free: int, holders: Iterable[tuple[core.Pod, reference.PodInfo | None]]
) -> float | None:
    """Return when at the latest an amount of a resource is free on a node; None: that is not known.

    Args: asked: of those ahead in the queue too, who may all want this node.   holders: what is on the node.
    """
    freed = free
    given = ((ends(pod), need.requests.get(name, 0)) for pod, need in holders if need is not None)
    for at, count in sorted((at, count) for at, count in given if at is not None and count):
        freed += count
        if freed >= asked:
            return at
    return None
