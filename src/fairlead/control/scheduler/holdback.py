"""Finds why a pod must wait whatever nodes there are: its tenancy, a rule that is not known here, its claims.

A pod of a tenancy whose isolation is not verified is never placed, even if admission and its kubelet let it
pass: its namespace states the phase, which only the tenancy's controller writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.plan.schedule import rules
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.group.gang import Gang
from fairlead.plan.schedule.workloads import GROUP_INCOMPLETE, TENANCY_NOT_READY
from fairlead.wire.kubernetes import core

Refusal = tuple[str, str]
"""Reason and words."""


def tenancy(cache: Cache, namespace: str) -> str:
    """Return why no pod of a namespace may be placed now; empty: it may."""
    phase = cache.closed.get(namespace)
    return f"the tenancy of namespace {namespace} is {phase}, not Ready" if phase else ""


def own(cache: Cache, pod: core.Pod) -> Refusal | None:
    """Return why a pod itself must wait; None: it need not."""
    if words := tenancy(cache, pod.metadata.namespace):
        return TENANCY_NOT_READY, words
    if reason := rules.refusal(pod.spec, knows_namespaces=bool(cache.namespaces)):
        return "UnknownRule", reason
    if (found := cache.constraint_refusal(pod)) is None:
        return None
    if found.is_unknown:
        return "UnknownRule", f"asks for {found.why}, which this scheduler does not know: {rules.NEXT_STEP}"
    return "Unschedulable", f"0/{len(cache.views)} nodes are available: {found.why}."


def of_gang(cache: Cache, pod: core.Pod, gang: Gang, pods: Sequence[core.Pod]) -> Refusal | None:
    """Return why a pod must wait for its gang; None: it need not. Args: pods: those that are placed first."""
    if all(one is not pod for one in pods):
        return GROUP_INCOMPLETE, f"{gang.title} is placed first"
    for one in pods:
        if found := own(cache, one):
            return found[0], f"{gang.title} is placed as a whole, and {one.metadata.name} cannot be: {found[1]}"
    return None
