"""Decides how a Deployment's ReplicaSets grow and shrink, and what its status says. Pure.

Old ReplicaSets are kept, at no pods, for the templates that were before: so many as `revisionHistoryLimit` says.
Source: kubernetes pkg/controller/deployment (rolling.go, recreate.go, progress.go, sync.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.workload import podset
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.workloads.apps import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
    RollingUpdateDeployment,
)
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec

REVISION: Final = "deployment.kubernetes.io/revision"
RECREATE: Final = "Recreate"
_DEADLINE_S: Final = 600
_KEPT: Final = 10
_PAUSED: Final = "DeploymentPaused"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step."""

    make: ReplicaSet | None = None
    newest: ReplicaSet | None = None
    """The ReplicaSet of an earlier template that is the template again: with the number of the last revision."""
    scale: tuple[tuple[ReplicaSet, int], ...] = ()
    """ReplicaSets, each with how many pods it is to have."""
    remove: tuple[ReplicaSet, ...] = ()
    status: DeploymentStatus
    wake_s: float | None = None
    """Seconds after which time alone changes the plan."""


def wanted_replicas(item: Deployment) -> int:
    """Return how many pods it is to have."""
    return 1 if item.spec.replicas is None else item.spec.replicas


def newest(item: Deployment, sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the ReplicaSet of the template as it is."""
    name = _name(item)
    return next((one for one in sets if one.metadata.name == name), None)


def plan(item: Deployment, sets: Iterable[ReplicaSet], pods: Iterable[core.Pod], now: float) -> Plan:
    """Return the next step.

    Args: sets: those that it owns.   pods: those of the sets.   now: Unix seconds.
    """
    mine = _by_revision(sets)
    new = newest(item, mine)
    old = [one for one in mine if one is not new]
    if item.metadata.deletion_timestamp is not None:
        return Plan(status=item.status)
    if new is None and not item.spec.paused:
        made = _made(item, old, pods)
        status, wake_s = _status(item, mine, made, now)
        return Plan(make=made, status=status, wake_s=wake_s)
    status, wake_s = _status(item, mine, new, now)
    scale = _scaled(item, new, old, list(pods))
    gone = tuple(one for one in old if _replicas(one) == 0 and one.status.replicas == 0)
    limit = item.spec.revision_history_limit
    kept = _KEPT if limit is None else limit
    return Plan(
        newest=_renumbered(new, old),
        scale=scale,
        remove=gone[: max(0, len(gone) - kept)],
        status=status,
        wake_s=wake_s,
    )


def template_of_revision(item: Deployment, sets: Iterable[ReplicaSet], revision: int) -> PodTemplateSpec:
    """Return the template of an earlier revision.

    Args:   sets: those that the Deployment owns.   revision: 0: the one before the present one.
    Raises: Invalid: it is not kept.
    """
    known = _by_revision(sets)
    if not revision:
        now = newest(item, known)
        revision = max((_revision(one) for one in known if one is not now), default=0)
    found = next((one for one in known if _revision(one) == revision), None)
    if found is None or not revision:
        kept = ", ".join(str(_revision(one)) for one in known) or "none"
        wanted = f"revision {revision}" if revision else "earlier revision"
        message = f'deployment "{item.metadata.name}" has no {wanted}: kept are {kept}'
        hint = f"`fairlead rollout history deployment/{item.metadata.name}` lists them"
        raise errors.Invalid(message, reason="RevisionNotFound", hint=hint)
    about = found.spec.template.metadata
    labels = {key: value for key, value in about.labels.items() if key != podset.HASH}
    return msgspec.structs.replace(found.spec.template, metadata=msgspec.structs.replace(about, labels=labels))


def _renumbered(new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """Return the newest ReplicaSet with the highest number, if an older one has that."""
    highest = max(map(_revision, old), default=0)
    if new is None or _revision(new) > highest:
        return None
    marks = {**new.metadata.annotations, REVISION: str(highest + 1)}
    return msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, annotations=marks))


def _made(item: Deployment, old: Sequence[ReplicaSet], pods: Iterable[core.Pod]) -> ReplicaSet:
    """Return the ReplicaSet of a template that has none, with as many pods as may be made at once."""
    chosen = podset.template_hash(item.spec.template)
    labels = {**item.spec.template.metadata.labels, podset.HASH: chosen}
    about = msgspec.structs.replace(item.spec.template.metadata, labels=labels)
    first = _new_replicas(item, 0, sum(map(_replicas, old)), has_old=_has_living(old, pods))
    marks = {key: value for key, value in item.metadata.annotations.items() if not key.startswith("kubectl.")}
    return ReplicaSet(
        metadata=meta.ObjectMeta(
            name=_name(item),
            namespace=item.metadata.namespace,
            labels=labels,
            annotations={**marks, REVISION: str(max(map(_revision, old), default=0) + 1)},
            owner_references=(podset.reference(item),),
        ),
        spec=ReplicaSetSpec(
            replicas=first,
            selector=meta.LabelSelector(match_labels={**item.spec.selector.match_labels, podset.HASH: chosen}),
            template=msgspec.structs.replace(item.spec.template, metadata=about),
            min_ready_seconds=item.spec.min_ready_seconds,
        ),
    )


def _has_living(old: Sequence[ReplicaSet], pods: Iterable[core.Pod]) -> bool:
    """Return whether a pod of an old ReplicaSet may still run."""
    owners = {one.metadata.uid for one in old}
    return any(
        item.status.phase not in core.ENDED_PHASES and any(one.uid in owners for one in item.metadata.owner_references)
        for item in pods
    )


def _scaled(
    item: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], pods: Sequence[core.Pod]
) -> tuple[tuple[ReplicaSet, int], ...]:
    wanted = wanted_replicas(item)
    if item.spec.paused or new is None:
        # What runs is brought to the number that is asked for, and no other template.
        running = [one for one in (*old, *([new] if new else [])) if _replicas(one)] or ([new] if new else [])
        return _changed(_proportional(item, running))
    if item.spec.strategy.type == RECREATE:
        changes = [(one, 0) for one in old]
        return _changed([*changes, *([] if _has_living(old, pods) else [(new, wanted)])])
    grown = _new_replicas(item, _replicas(new), sum(map(_replicas, old)), has_old=False)
    return _changed([(new, grown), *zip(old, _shrunk(item, new, old), strict=True)])


def _proportional(item: Deployment, running: Sequence[ReplicaSet]) -> list[tuple[ReplicaSet, int]]:
    """Spread the wanted pods over ReplicaSets as they are spread now; what rounding leaves is the largest one's."""
    wanted = wanted_replicas(item)
    if len(running) < 2:
        return [(one, wanted) for one in running]
    total = sum(map(_replicas, running))
    most = wanted + _surge(item) if wanted else 0
    if wanted - _unavailable(item) <= total <= most:
        return []  # an update that was stopped halfway
    by_size = sorted(running, key=lambda one: (_replicas(one), _revision(one)), reverse=True)
    shares = [_replicas(one) * most // total for one in by_size]
    shares[0] += most - sum(shares)
    return list(zip(by_size, shares, strict=True))


def _changed(wanted: Sequence[tuple[ReplicaSet, int]]) -> tuple[tuple[ReplicaSet, int], ...]:
    return tuple((one, number) for one, number in wanted if _replicas(one) != number)


def _new_replicas(item: Deployment, now_new: int, now_old: int, *, has_old: bool) -> int:
    """Return how many pods the new ReplicaSet may have."""
    wanted = wanted_replicas(item)
    if item.spec.strategy.type == RECREATE:
        return 0 if has_old else wanted
    room = wanted + _surge(item) - now_new - now_old
    return max(min(wanted, now_new + max(0, room)), 0) if now_new < wanted else wanted


def _shrunk(item: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> list[int]:
    """Return how many pods each old ReplicaSet keeps.

    Those that do not serve go first, then as many as may be missing.
    """
    least = wanted_replicas(item) - _unavailable(item)
    left = [_replicas(one) for one in old]
    not_there = max(0, _replicas(new) - new.status.available_replicas)
    spare = sum(left) + _replicas(new) - least - not_there
    for place, one in enumerate(old):
        cut = min(max(0, left[place] - one.status.available_replicas), max(0, spare))
        left[place] -= cut
        spare -= cut
    may_go = sum(one.status.available_replicas for one in (*old, new)) - least
    for place in range(len(old)):
        cut = min(left[place], max(0, may_go), max(0, spare))
        left[place] -= cut
        may_go -= cut
        spare -= cut
    return left


def _surge(item: Deployment) -> int:
    limits = item.spec.strategy.rolling_update or RollingUpdateDeployment()
    return podset.count(limits.max_surge, wanted_replicas(item), default="25%", is_up=True)


def _unavailable(item: Deployment) -> int:
    limits = item.spec.strategy.rolling_update or RollingUpdateDeployment()
    found = podset.count(limits.max_unavailable, wanted_replicas(item), default="25%", is_up=False)
    return max(found, 1) if _surge(item) == 0 else found


def _status(
    item: Deployment, mine: Sequence[ReplicaSet], new: ReplicaSet | None, now: float
) -> tuple[DeploymentStatus, float | None]:
    """Return what is reported, and after how many seconds the deadline has passed."""
    wanted = wanted_replicas(item)
    available = sum(one.status.available_replicas for one in mine)
    total = sum(one.status.replicas for one in mine)
    updated = new.status.replicas if new is not None and new in mine else 0
    is_up = available >= wanted - _unavailable(item)
    is_done = (
        updated == wanted == total
        and available >= wanted
        and item.status.observed_generation <= item.metadata.generation
    )
    said = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    if not is_up:
        said = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    at = meta.emit_time(now)
    conditions = meta.with_condition(
        item.status.conditions,
        meta.Condition(type="Available", status=said[0], reason=said[1], message=said[2], last_transition_time=at),
    )
    numbers = (updated, total, available, sum(one.status.ready_replicas for one in mine))
    before = item.status
    is_moving = numbers != (before.updated_replicas, before.replicas, before.available_replicas, before.ready_replicas)
    progress, wake_s = _progress(item, new, now, is_done=is_done, is_moving=is_moving)
    status = msgspec.structs.replace(
        before,
        observed_generation=item.metadata.generation,
        replicas=total,
        updated_replicas=updated,
        ready_replicas=numbers[3],
        available_replicas=available,
        unavailable_replicas=max(0, max(wanted, total) - available),
        conditions=_with_progress(conditions, progress),
    )
    return status, wake_s


def _progress(
    item: Deployment, new: ReplicaSet | None, now: float, *, is_done: bool, is_moving: bool
) -> tuple[meta.Condition, float | None]:
    """Return the condition Progressing; the time of its last change is that of the last progress."""
    name = new.metadata.name if new is not None else ""
    old = meta.find_condition(item.status.conditions, "Progressing")
    is_other = old is None or f'"{name}"' not in old.message
    at = meta.emit_time(now)
    if item.spec.paused:
        if old is not None and old.reason == _TIMED_OUT:
            return old, None
        return _condition("Unknown", _PAUSED, "Deployment is paused", at, old), None
    if is_done:
        text = f'ReplicaSet "{name}" has successfully progressed.'
        return _condition("True", "NewReplicaSetAvailable", text, at, old), None
    last = meta.timestamp(old.last_transition_time) if old is not None else None
    limit = item.spec.progress_deadline_seconds or _DEADLINE_S
    begins = old is not None and old.reason in {"NewReplicaSetAvailable", _PAUSED}
    if old is None or is_other or is_moving or begins or last is None:
        text = f'ReplicaSet "{name}" is progressing.'
        return meta.Condition(
            type="Progressing", status="True", reason="ReplicaSetUpdated", message=text, last_transition_time=at
        ), float(limit)
    if now - last >= limit or (old is not None and old.reason == _TIMED_OUT):
        text = f'ReplicaSet "{name}" has timed out progressing.'
        return _condition("False", _TIMED_OUT, text, at, old), None
    return old, max(0.1, last + limit - now)


def _condition(status: str, reason: str, message: str, at: str, old: meta.Condition | None) -> meta.Condition:
    found = meta.Condition(type="Progressing", status=status, reason=reason, message=message, last_transition_time=at)
    same = old is not None and (old.status, old.reason, old.message) == (status, reason, message)
    return old if same and old is not None else found


def _with_progress(conditions: tuple[meta.Condition, ...], progress: meta.Condition) -> tuple[meta.Condition, ...]:
    return (*(one for one in conditions if one.type != "Progressing"), progress)


def _name(item: Deployment) -> str:
    return podset.name(item.metadata.name, podset.template_hash(item.spec.template))


def _by_revision(sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Return ReplicaSets in the order of their revisions, the first one first."""
    return sorted(sets, key=lambda one: (_revision(one), one.metadata.name))


def _revision(one: ReplicaSet) -> int:
    text = one.metadata.annotations.get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _replicas(one: ReplicaSet) -> int:
    return 1 if one.spec.replicas is None else one.spec.replicas
