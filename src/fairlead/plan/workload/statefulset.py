"""Decides which numbered pods a StatefulSet makes and gives up, and what its status says. Pure.

Source: kubernetes pkg/controller/statefulset (stateful_set_control.go, updateStatefulSet).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.workload import podset
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.workloads.apps import StatefulSet, StatefulSetStatus
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec

REVISION: Final = "controller-revision-hash"
_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
_INDEX: Final = "apps.kubernetes.io/pod-index"
PARALLEL: Final = "Parallel"
ON_DELETE: Final = "OnDelete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step."""

    claims: tuple[core.PersistentVolumeClaim, ...] = ()
    """Volumes of the pods that are made, where they are not there."""
    make: tuple[core.Pod, ...] = ()
    remove: tuple[core.Pod, ...] = ()
    status: StatefulSetStatus
    wake_s: float | None = None


def plan(item: StatefulSet, pods: Iterable[core.Pod], now: float) -> Plan:
    """Return the next step. Args: pods: those that it owns.   now: Unix seconds."""
    revision = podset.template_hash(item.spec.template)
    by_name = {one.metadata.name: one for one in pods}
    first = item.spec.ordinals.start if item.spec.ordinals is not None else 0
    wanted = 1 if item.spec.replicas is None else item.spec.replicas
    numbers = range(first, first + wanted)
    names = {f"{item.metadata.name}-{number}": number for number in numbers}
    status, wake_s = _status(item, by_name, revision, now)
    if item.metadata.deletion_timestamp is not None:
        return Plan(status=status)
    ended = tuple(one for one in by_name.values() if _has_ended(one))
    missing = [number for name, number in names.items() if name not in by_name]
    surplus = sorted(
        (one for name, one in by_name.items() if name not in names and podset.is_active(one)),
        key=_ordinal,
        reverse=True,
    )
    is_ordered = item.spec.pod_management_policy != PARALLEL
    if is_ordered:
        missing, surplus = _one_at_a_time(item, by_name, numbers, missing, surplus, now)
    made = tuple(_pod(item, number, revision) for number in missing)
    removed = (*ended, *surplus)
    if not made and not removed:
        removed = _outdated(item, by_name, numbers, revision, now)
    claims = tuple(claim for number in missing for claim in _claims(item, number))
    return Plan(claims=claims, make=made, remove=removed, status=status, wake_s=wake_s)


def _one_at_a_time(
    item: StatefulSet,
    by_name: Mapping[str, core.Pod],
    numbers: range,
    missing: list[int],
    surplus: list[core.Pod],
    now: float,
) -> tuple[list[int], list[core.Pod]]:
    """Keep the order: a pod is made once those below it are available, and the last one goes first."""
    for number in numbers:
        found = by_name.get(f"{item.metadata.name}-{number}")
        if found is None:
            return [number], []
        if not podset.is_available(found, item.spec.min_ready_seconds, now):
            return [], []
    if any(podset.is_terminating(one) for one in by_name.values()):
        return [], []
    return missing[:1], surplus[:1]


def _outdated(
    item: StatefulSet, by_name: Mapping[str, core.Pod], numbers: range, revision: str, now: float
) -> tuple[core.Pod, ...]:
    """Return the pod of another template that is replaced next: the last one, once all others serve."""
    strategy = item.spec.update_strategy
    if strategy.type == ON_DELETE:
        return ()
    start = numbers.start + (strategy.rolling_update.partition if strategy.rolling_update is not None else 0)
    for number in reversed(numbers):
        found = by_name.get(f"{item.metadata.name}-{number}")
        if found is None or podset.is_terminating(found):
            return ()
        if number >= start and found.metadata.labels.get(REVISION) != revision:
            return (found,)
        if not podset.is_available(found, item.spec.min_ready_seconds, now):
            return ()
    return ()


def with_claims(item: StatefulSet, spec: core.PodSpec, name: str) -> core.PodSpec:
    """Return the spec of one of its pods with the volumes that are its own. Args: name: of the pod."""
    claimed = {one.metadata.name for one in item.spec.volume_claim_templates}
    kept = tuple(one for one in spec.volumes if one.name not in claimed)
    own = tuple(
        core.Volume(
            name=one.metadata.name,
            persistent_volume_claim=core.ClaimVolume(claim_name=f"{one.metadata.name}-{name}"),
        )
        for one in item.spec.volume_claim_templates
    )
    return msgspec.structs.replace(spec, volumes=(*kept, *own))


def _pod(item: StatefulSet, number: int, revision: str) -> core.Pod:
    name = f"{item.metadata.name}-{number}"
    labels = {REVISION: revision, _POD_NAME: name, _INDEX: str(number)}
    named = msgspec.structs.replace(item.spec.template.spec, hostname=name[:63].rstrip("-."))
    spec = with_claims(item, named, name)
    template = PodTemplateSpec(metadata=item.spec.template.metadata, spec=spec)
    return podset.pod(item, template, name, labels=labels)


def _claims(item: StatefulSet, number: int) -> Iterable[core.PersistentVolumeClaim]:
    for one in item.spec.volume_claim_templates:
        name = f"{one.metadata.name}-{item.metadata.name}-{number}"
        about = meta.ObjectMeta(
            name=name,
            namespace=item.metadata.namespace,
            labels={**one.metadata.labels, **item.spec.selector.match_labels},
        )
        yield msgspec.structs.replace(one, metadata=about)


def _has_ended(one: core.Pod) -> bool:
    return one.status.phase in core.ENDED_PHASES and one.metadata.deletion_timestamp is None


def _ordinal(one: core.Pod) -> int:
    text = one.metadata.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else -1


def _status(
    item: StatefulSet, by_name: Mapping[str, core.Pod], revision: str, now: float
) -> tuple[StatefulSetStatus, float | None]:
    active = [one for one in by_name.values() if podset.is_active(one)]
    updated = sum(one.metadata.labels.get(REVISION) == revision for one in active)
    least = item.spec.min_ready_seconds
    left = [since + least - now for one in active if (since := podset.ready_since(one)) is not None]
    status = msgspec.structs.replace(
        item.status,
        observed_generation=item.metadata.generation,
        replicas=len(active),
        ready_replicas=sum(map(podset.is_ready, active)),
        current_replicas=len(active) - updated or updated,
        updated_replicas=updated,
        available_replicas=sum(podset.is_available(one, least, now) for one in active),
        update_revision=podset.name(item.metadata.name, revision),
    )
    return status, min((one for one in left if one > 0), default=None)
