"""Decides which pods a Job makes and gives up, what it counts, and when it has ended. Pure.

Each pod carries a finalizer until it is counted, so that no completion is lost: what has ended is first noted by its
uid in the status, then its finalizer goes, then it is counted. A process that ends between any two goes on from there.
A pod on its way out holds its place until it is gone, so that never more run than `parallelism` says.
Source: kubernetes pkg/controller/job (job_controller.go, trackJobStatusAndRemoveFinalizers; backoff_utils.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import backoff
from fairlead.plan.workload import indexes, podset
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.source import FieldSelector
from fairlead.wire.kubernetes.workloads.batch import Job, JobStatus, UncountedTerminatedPods
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
NAME: Final = "batch.kubernetes.io/job-name"
_OLD_NAME: Final = "job-name"
_UID: Final = "batch.kubernetes.io/controller-uid"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
_VARIABLE: Final = "JOB_COMPLETION_INDEX"
INDEXED: Final = "Indexed"
_BACKOFF_LIMIT: Final = 6
_LONGEST_BACKOFF_S: Final = 600.0
_MOST_AT_ONCE: Final = 500
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step: what is to be done, after the status is written."""

    status: JobStatus
    release: tuple[core.Pod, ...] = ()
    """Pods that are noted, whose finalizer goes."""
    make: tuple[core.Pod, ...] = ()
    remove: tuple[core.Pod, ...] = ()
    wake_s: float | None = None
    """Seconds after which time alone changes the plan."""
    is_expired: bool = False
    """The Job itself is to be removed."""


def is_over(item: Job) -> bool:
    """Return whether a Job has ended for good."""
    return any(one.type in {COMPLETE, FAILED} and one.status == "True" for one in item.status.conditions)


def plan(item: Job, pods: Iterable[core.Pod], now: float, *, seed: str, backoff_s: float = 10.0) -> Plan:
    """Return the next step.

    Args: pods: those that it owns, also of those on their way out.   now: Unix seconds.
          seed: another text each time, of which the names of new pods are made.
          backoff_s: before a pod is made in place of the first that failed; it doubles.
    """
    mine = sorted(pods, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))
    noted, release = _noted(item, mine)
    counted = _counted(noted, mine)
    at = meta.emit_time(now)
    if is_over(item):
        return _after_end(item, counted, mine, release, now)
    alive = [one for one in mine if one.status.phase not in core.ENDED_PHASES]
    active = [one for one in alive if podset.is_active(one)]
    if item.spec.suspend:
        status = _said(_numbers(counted, alive), SUSPENDED, "JobSuspended", "Job suspended", at)
        status = msgspec.structs.replace(status, start_time=None)
        return Plan(status=status, release=release, remove=tuple(active))
    status = _started(counted, at)
    status = _numbers(status, alive)
    ended = _ended(item, status, mine, now)
    if ended is not None:
        reason, message, is_good = ended
        if alive or _is_open(status):  # the end is said once everything is down and counted
            return Plan(status=status, release=release, remove=tuple(active), wake_s=None)
        return Plan(status=_finished(status, reason, message, at, is_good=is_good), release=release)
    wait_s = _backoff(mine, now, backoff_s)
    make = () if wait_s > 0 else _missing(item, status, alive, seed)
    remove = _surplus(item, active, alive)
    wakes = [one for one in (wait_s, _deadline_left(item, status, now)) if one is not None and one > 0]
    return Plan(status=status, release=release, make=make, remove=remove, wake_s=min(wakes, default=None))


# what is counted


def _noted(item: Job, mine: Sequence[core.Pod]) -> tuple[JobStatus, tuple[core.Pod, ...]]:
    """Note the pods that have ended; return those that were noted before, whose finalizer may go."""
    before = item.status.uncounted_terminated_pods or UncountedTerminatedPods()
    known = {*before.succeeded, *before.failed}
    done = indexes.parse(item.status.completed_indexes, _completions(item) or 0)
    succeeded, failed = list(before.succeeded), list(before.failed)
    for one in mine:
        if FINALIZER not in one.metadata.finalizers or one.metadata.uid in known:
            continue
        if one.status.phase == "Succeeded":
            succeeded.append(one.metadata.uid)
            index = _index(one)
            if index is not None:
                done |= {index}
        elif one.status.phase == "Failed":
            failed.append(one.metadata.uid)
        elif one.metadata.deletion_timestamp is not None:
            # Of a Job that is suspended the end of a pod is no failure.
            (known.add if item.spec.suspend else failed.append)(one.metadata.uid)
    release = tuple(one for one in mine if one.metadata.uid in known and FINALIZER in one.metadata.finalizers)
    status = msgspec.structs.replace(
        item.status,
        uncounted_terminated_pods=UncountedTerminatedPods(succeeded=tuple(succeeded), failed=tuple(failed)),
        completed_indexes=indexes.emit(done) if item.spec.completion_mode == INDEXED else "",
    )
    return status, release


def _counted(status: JobStatus, mine: Sequence[core.Pod]) -> JobStatus:
    """Count the pods that are noted and have no finalizer any more."""
    held = {one.metadata.uid for one in mine if FINALIZER in one.metadata.finalizers}
    open_ = status.uncounted_terminated_pods or UncountedTerminatedPods()
    left = UncountedTerminatedPods(
        succeeded=tuple(uid for uid in open_.succeeded if uid in held),
        failed=tuple(uid for uid in open_.failed if uid in held),
    )
    return msgspec.structs.replace(
        status,
        succeeded=status.succeeded + len(open_.succeeded) - len(left.succeeded),
        failed=status.failed + len(open_.failed) - len(left.failed),
        uncounted_terminated_pods=left if left != UncountedTerminatedPods() else None,
    )


def _is_open(status: JobStatus) -> bool:
    return status.uncounted_terminated_pods is not None


def _succeeded(status: JobStatus) -> int:
    open_ = status.uncounted_terminated_pods
    return status.succeeded + (len(open_.succeeded) if open_ is not None else 0)


def _failed(status: JobStatus) -> int:
    open_ = status.uncounted_terminated_pods
    return status.failed + (len(open_.failed) if open_ is not None else 0)


def _numbers(status: JobStatus, alive: Sequence[core.Pod]) -> JobStatus:
    active = [one for one in alive if podset.is_active(one)]
    return msgspec.structs.replace(
        status,
        active=len(active),
        ready=sum(map(podset.is_ready, active)),
        terminating=len(alive) - len(active),
    )


def _started(status: JobStatus, at: str) -> JobStatus:
    """Return a status that runs, from now on where it did not."""
    resumed = meta.find_condition(status.conditions, SUSPENDED)
    if resumed is not None and resumed.status == "True":
        status = msgspec.structs.replace(
            status,
            conditions=meta.with_condition(
                status.conditions,
                meta.Condition(
                    type=SUSPENDED, status="False", reason="JobResumed", message="Job resumed", last_transition_time=at
                ),
            ),
            start_time=at,
        )
    return status if status.start_time else msgspec.structs.replace(status, start_time=at)


# how it ends


def _completions(item: Job) -> int | None:
    if item.spec.completions is None and item.spec.completion_mode == INDEXED:
        return _parallelism(item)
    return item.spec.completions


def _parallelism(item: Job) -> int:
    return 1 if item.spec.parallelism is None else item.spec.parallelism


def _ended(item: Job, status: JobStatus, mine: Sequence[core.Pod], now: float) -> tuple[str, str, bool] | None:
    """Return why a Job ends, and whether it has succeeded; None: it goes on."""
    limit = _BACKOFF_LIMIT if item.spec.backoff_limit is None else item.spec.backoff_limit
    restarts = sum(
        one.restart_count
        for pod in mine
        if podset.is_active(pod) and item.spec.template.spec.restart_policy == "OnFailure"
        for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )
    if _failed(status) > limit or (restarts and restarts > limit):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit", False
    left = _deadline_left(item, status, now)
    if left is not None and left <= 0:
        return "DeadlineExceeded", "Job was active longer than specified deadline", False
    wanted = _completions(item)
    if item.spec.completion_mode == INDEXED:
        is_done = len(indexes.parse(status.completed_indexes, wanted or 0)) >= (wanted or 0)
    elif wanted is None:
        is_done = _succeeded(status) > 0 and not any(podset.is_active(one) for one in mine)
    else:
        is_done = _succeeded(status) >= wanted
    return ("CompletionsReached", "Reached expected number of succeeded pods", True) if is_done else None


def _finished(status: JobStatus, reason: str, message: str, at: str, *, is_good: bool) -> JobStatus:
    kind, first = (COMPLETE, "SuccessCriteriaMet") if is_good else (FAILED, "FailureTarget")
    for one in (first, kind):
        status = _said(status, one, reason, message, at)
    return msgspec.structs.replace(status, completion_time=at if is_good else None, ready=0, terminating=0)


def _said(status: JobStatus, kind: str, reason: str, message: str, at: str) -> JobStatus:
    wanted = meta.Condition(type=kind, status="True", reason=reason, message=message, last_transition_time=at)
    return msgspec.structs.replace(status, conditions=meta.with_condition(status.conditions, wanted))


def _after_end(
    item: Job, status: JobStatus, mine: Sequence[core.Pod], release: tuple[core.Pod, ...], now: float
) -> Plan:
    """Keep an ended Job until its time is over; what still runs of it is ended."""
    alive = tuple(one for one in mine if podset.is_active(one))
    ttl = item.spec.ttl_seconds_after_finished
    ended = [one.last_transition_time for one in item.status.conditions if one.type in {COMPLETE, FAILED}]
    since = meta.timestamp(ended[0]) if ended else None
    left = None if ttl is None or since is None else since + ttl - now
    return Plan(
        status=_numbers(status, [one for one in mine if one.status.phase not in core.ENDED_PHASES]),
        release=release,
        remove=alive,
        wake_s=left if left is not None and left > 0 else None,
        is_expired=left is not None and left <= 0,
    )


def _deadline_left(item: Job, status: JobStatus, now: float) -> float | None:
    limit, since = item.spec.active_deadline_seconds, meta.timestamp(status.start_time)
    return None if limit is None or since is None else since + limit - now


# what runs


def _backoff(mine: Sequence[core.Pod], now: float, first_s: float) -> float:
    """Return for how long no pod is made: since the last failure, doubled with each in a row."""
    ended = sorted((at, one.status.phase) for one in mine if (at := _ended_at(one)) is not None)
    row = 0
    for _, phase in reversed(ended):
        if phase != "Failed":
            break
        row += 1
    if not row:
        return 0.0
    return max(0.0, ended[-1][0] + backoff.doubled(row - 1, first_s=first_s, last_s=_LONGEST_BACKOFF_S) - now)


def _ended_at(one: core.Pod) -> float | None:
    if one.status.phase not in core.ENDED_PHASES:
        return None
    states = [status.state.terminated for status in one.status.container_statuses]
    times = [meta.timestamp(state.finished_at) for state in states if state is not None]
    known = [at for at in times if at is not None]
    return max(known, default=meta.timestamp(one.status.start_time) or meta.timestamp(one.metadata.creation_timestamp))


def _missing(item: Job, status: JobStatus, alive: Sequence[core.Pod], seed: str) -> tuple[core.Pod, ...]:
    """Return the pods that may be made now."""
    room, wanted = _parallelism(item) - len(alive), _completions(item)
    if item.spec.completion_mode == INDEXED:
        # An index is one pod's: until that is counted, no other has it.
        taken = {_index(one) for one in alive} | indexes.parse(status.completed_indexes, wanted or 0)
        free = [number for number in range(wanted or 0) if number not in taken]
        return tuple(_pod(item, seed, number) for number in free[: max(0, min(room, _MOST_AT_ONCE))])
    if wanted is not None:
        room = min(room, wanted - _succeeded(status) - len(alive))
    elif _succeeded(status):
        room = 0  # one has succeeded: no other is started
    return tuple(_pod(item, f"{seed}/{place}", None) for place in range(max(0, min(room, _MOST_AT_ONCE))))


def _surplus(item: Job, active: Sequence[core.Pod], alive: Sequence[core.Pod]) -> tuple[core.Pod, ...]:
    """Return the pods that are too many, after `parallelism` was lowered."""
    beyond = len(active) - max(0, _parallelism(item) - (len(alive) - len(active)))
    return tuple(podset.by_worth(active)[: max(0, beyond)])


def _pod(item: Job, seed: str, index: int | None) -> core.Pod:
    """Return one pod. Args: seed: makes its name another one than those of earlier attempts."""
    name = item.metadata.name
    end = podset.suffix(f"{item.metadata.uid}/{index}/{seed}")
    labels = {NAME: name, _OLD_NAME: name, _UID: item.metadata.uid, "controller-uid": item.metadata.uid}
    template = item.spec.template
    if index is None:
        return podset.pod(item, template, podset.name(name, end), labels=labels, finalizers=(FINALIZER,))
    number = {INDEX: str(index)}
    spec = msgspec.structs.replace(
        template.spec,
        hostname=f"{name}-{index}"[:63].rstrip("-."),
        containers=tuple(map(_numbered, template.spec.containers)),
        init_containers=tuple(map(_numbered, template.spec.init_containers)),
    )
    return podset.pod(
        item,
        PodTemplateSpec(metadata=template.metadata, spec=spec),
        podset.name(name, f"{index}-{end}"),
        labels={**labels, **number},
        annotations=number,
        finalizers=(FINALIZER,),
    )


def _numbered(item: core.Container) -> core.Container:
    if any(one.name == _VARIABLE for one in item.env):
        return item
    label = core.EnvVarSource(field_ref=FieldSelector(field_path=f"metadata.labels['{INDEX}']"))
    return msgspec.structs.replace(item, env=(*item.env, core.EnvVar(name=_VARIABLE, value_from=label)))


def _index(one: core.Pod) -> int | None:
    text = one.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdecimal() else None
