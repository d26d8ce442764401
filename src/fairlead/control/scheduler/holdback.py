"""Says what of pods themselves keeps them waiting, whatever nodes there are: tenancies, unknown rules, and claims.

A pod of a tenancy whose isolation is not verified is never placed, also where neither admission nor a kubelet asked:
its namespace says the phase, which the tenancy's controller alone writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.control.scheduler import volumebinding
from fairlead.plan.schedule import rules
from fairlead.plan.schedule.cache import Cache
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
    """Return what of a pod keeps it waiting; None: nothing."""
    if words := tenancy(cache, pod.metadata.namespace):
        return TENANCY_NOT_READY, words
    if reason := rules.refusal(pod.spec, knows_namespaces=bool(cache.namespaces)):
        return "UnknownRule", reason
    return volumebinding.refusal(cache, pod)


def of_gang(cache: Cache, pod: core.Pod, gang: Gang, pods: Sequence[core.Pod]) -> Refusal | None:
    """Return what of the others keeps a pod waiting, those of its gang that are placed first; None: nothing."""
    if all(one is not pod for one in pods):
        return GROUP_INCOMPLETE, f"{gang.title} is placed first"
    for one in pods:
        if found := own(cache, one):
            return found[0], f"{gang.title} is placed as a whole, and {one.metadata.name} cannot be: {found[1]}"
    return None
