"""Reads which group a pod belongs to, however the scheduler it was written for says it. Pure.

A row of `DIALECTS` a system, looked at in this order. Where the pod says itself how many of the group must run at
once, that holds until a PodGroup object says otherwise.
Source: k8s.io/api/core/v1 types.go, PodSchedulingGroup; volcano.sh/apis scheduling/v1beta1 labels.go; KAI-Scheduler
pkg/common/constants; scheduler-plugins apis/scheduling/v1alpha1; kueue pkg/controller/jobs/pod/constants; koordinator
apis/extension/coscheduling.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.schedule.group import subgroup
from fairlead.wire.kubernetes import core

KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
_VOLCANO: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_KAI: Final = "pod-group-name"
_KAI_MINIMUM: Final = "kai.scheduler/batch-min-member"
_KOORDINATOR: Final = "gang.scheduling.koordinator.sh/name"
_KOORDINATOR_MINIMUM: Final = "gang.scheduling.koordinator.sh/min-available"
_MOST: Final = 100_000
ANNOTATIONS: Final = subgroup.ANNOTATIONS | frozenset(
    (*_VOLCANO, _KAI, _KAI_MINIMUM, KUEUE_COUNT, _KOORDINATOR, _KOORDINATOR_MINIMUM)
)
"""Annotations of a pod that say something of its group."""

Key = tuple[str, ...]
"""Namespace and name; for a sub-group also the names of those that it is in, and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A pod's group."""

    name: str
    dialect: str
    minimum: int | None = None
    """Pods that must be placed at once, as the pod says it; None: its PodGroup does."""


def _native(pod: core.Pod) -> tuple[str, str]:
    group = pod.spec.scheduling_group
    return (group.pod_group_name, "") if group is not None else ("", "")


def _volcano(pod: core.Pod) -> tuple[str, str]:
    return next((found for key in _VOLCANO if (found := pod.metadata.annotations.get(key))), ""), ""


def _kai(pod: core.Pod) -> tuple[str, str]:
    told = pod.metadata.annotations
    return told.get(_KAI, ""), told.get(_KAI_MINIMUM, "")


def _coscheduling(pod: core.Pod) -> tuple[str, str]:
    return pod.metadata.labels.get(COSCHEDULING, ""), ""


def _kueue(pod: core.Pod) -> tuple[str, str]:
    # Kueue admits the whole group, so the total is what must be there; without it the pod is alone.
    return pod.metadata.labels.get(KUEUE_GROUP, ""), pod.metadata.annotations.get(KUEUE_COUNT, "1")


def _koordinator(pod: core.Pod) -> tuple[str, str]:
    told = {**pod.metadata.labels, **pod.metadata.annotations}
    return told.get(_KOORDINATOR, ""), told.get(_KOORDINATOR_MINIMUM, "1")


DIALECTS: Final[Mapping[str, Callable[[core.Pod], tuple[str, str]]]] = {
    "Kubernetes": _native,
    "Volcano": _volcano,
    "KAI": _kai,
    "coscheduling": _coscheduling,
    "Kueue": _kueue,
    "Koordinator": _koordinator,
}
"""Name of the group, "" where it has none, and the minimum that the pod says, "" where it says none."""


def of_pod(pod: core.Pod) -> Membership | None:
    """Return the pod's group; None: it belongs to no group. A minimum that is not a number counts as not said."""
    for dialect, read in DIALECTS.items():
        name, minimum = read(pod)
        if name:
            return Membership(name=name, dialect=dialect, minimum=_number(minimum))
    return None


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST))
    return max(1, min(int(text), _MOST)) if is_number else None
