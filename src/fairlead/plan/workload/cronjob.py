"""Decides when a CronJob makes a Job, and which of its ended Jobs go. Pure.

A Job's name has the time that it is for, so that the same time never makes two.
Source: kubernetes pkg/controller/cronjob (cronjob_controllerv2.go, utils.go).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.workload import job, podset, schedule
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.workloads.batch import CronJob, CronJobStatus, Job

FORBID, REPLACE = "Forbid", "Replace"
_GOOD_KEPT, _BAD_KEPT = 3, 1
_MOST_MISSED: Final = 100
"""Times that are looked at; of those that were missed the last one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step."""

    make: Job | None = None
    remove: tuple[Job, ...] = ()
    status: CronJobStatus
    wake_s: float | None = None


def plan(item: CronJob, jobs: Iterable[Job], now: float, zone: dt.tzinfo) -> Plan:
    """Return the next step. Args: jobs: those that it owns.   now: Unix seconds.   zone: of the schedule."""
    mine = sorted(jobs, key=lambda one: one.metadata.name)
    active = [one for one in mine if not job.is_over(one) and one.metadata.deletion_timestamp is None]
    status = _status(item, mine, active)
    if item.metadata.deletion_timestamp is not None:
        return Plan(status=status)
    old = _old(item, mine)
    if item.spec.suspend:
        return Plan(remove=old, status=status)
    due, following = _due(item, now, zone)
    wake_s = None if following is None else max(0.1, following - now)
    if due is None:
        return Plan(remove=old, status=status, wake_s=wake_s)
    if item.spec.concurrency_policy == FORBID and active:
        return Plan(remove=old, status=status, wake_s=wake_s)  # made when the running one ends, if not too late
    ended = tuple(active) if item.spec.concurrency_policy == REPLACE else ()
    made = made_job(item, due)
    named = msgspec.structs.replace(status, last_schedule_time=meta.emit_time(due))
    return Plan(make=made, remove=(*old, *ended), status=named, wake_s=wake_s)


def made_job(item: CronJob, due: float) -> Job:
    """Return the Job of one time."""
    template = item.spec.job_template
    marks = {"batch.kubernetes.io/cronjob-scheduled-timestamp": meta.emit_time(due)}
    about = meta.ObjectMeta(
        name=podset.name(item.metadata.name[:52], str(int(due // 60))),
        namespace=item.metadata.namespace,
        labels=template.metadata.labels,
        annotations={**template.metadata.annotations, **marks},
        owner_references=(podset.reference(item),),
    )
    return Job(metadata=about, spec=template.spec)


def _due(item: CronJob, now: float, zone: dt.tzinfo) -> tuple[float | None, float | None]:
    """Return the last time that is due and has no Job yet, and the next one to come."""
    times = schedule.parse(item.spec.schedule)
    last = meta.timestamp(item.status.last_schedule_time) or meta.timestamp(item.metadata.creation_timestamp) or now
    if item.spec.starting_deadline_seconds is not None:
        last = max(last, now - item.spec.starting_deadline_seconds)
    due, moment = None, dt.datetime.fromtimestamp(last, zone)
    for _ in range(_MOST_MISSED):
        found = times.after(moment)
        if found is None or found.timestamp() > now:
            return due, None if found is None else found.timestamp()
        due, moment = found.timestamp(), found
    # Too many were missed: the last one before now is looked for from an hour ago.
    moment = dt.datetime.fromtimestamp(now - 3600, zone)
    for _ in range(_MOST_MISSED):
        found = times.after(moment)
        if found is None or found.timestamp() > now:
            return due, None if found is None else found.timestamp()
        due, moment = found.timestamp(), found
    return due, now + 60


def _status(item: CronJob, mine: Sequence[Job], active: Sequence[Job]) -> CronJobStatus:
    good = [one.status.completion_time for one in mine if one.status.completion_time]
    return msgspec.structs.replace(
        item.status,
        active=tuple(
            core.ObjectReference(
                api_version=Job.API_VERSION,
                kind=Job.KIND,
                name=one.metadata.name,
                namespace=one.metadata.namespace,
                uid=one.metadata.uid,
            )
            for one in active
        ),
        last_successful_time=max(good, default=item.status.last_successful_time or "") or None,
    )


def _old(item: CronJob, mine: Sequence[Job]) -> tuple[Job, ...]:
    """Return the ended Jobs beyond those that are kept."""
    ended = [one for one in mine if job.is_over(one) and one.metadata.deletion_timestamp is None]
    good = [one for one in ended if one.status.completion_time]
    bad = [one for one in ended if not one.status.completion_time]
    kept = item.spec.successful_jobs_history_limit
    failed = item.spec.failed_jobs_history_limit
    return (
        *good[: max(0, len(good) - (_GOOD_KEPT if kept is None else kept))],
        *bad[: max(0, len(bad) - (_BAD_KEPT if failed is None else failed))],
    )
