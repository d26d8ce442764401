"""Declares the workloads whose pods end: Jobs, and CronJobs that make them at times.

Source: k8s.io/api/batch/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.core import ObjectReference
from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec


class JobSpec(Wire, frozen=True):
    """Desired state of a Job."""

    parallelism: int | None = None
    """Pods at once; None is 1."""
    completions: int | None = None
    """Pods that have to succeed; None: one is enough, and then no other is started."""
    completion_mode: str = ""
    """`NonIndexed` or `Indexed`; empty is `NonIndexed`."""
    backoff_limit: int | None = None
    """Failures that are borne; None is 6."""
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    """The Job is removed so long after its end; None: it stays."""
    suspend: bool = False
    template: PodTemplateSpec = PodTemplateSpec()


class UncountedTerminatedPods(Wire, frozen=True):
    """Pods that have ended and are not in the counts yet, by uid."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(Wire, frozen=True):
    """Observed state of a Job."""

    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    """`0,2-4`, of an indexed Job."""
    uncounted_terminated_pods: UncountedTerminatedPods | None = None


class Job(Wire, frozen=True):
    """Pods that run to their end."""

    API_VERSION: ClassVar[str] = "batch/v1"
    KIND: ClassVar[str] = "Job"
    PLURAL: ClassVar[str] = "jobs"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplateSpec(Wire, frozen=True):
    """The Job that a CronJob makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(Wire, frozen=True):
    """Desired state of a CronJob."""

    schedule: str = ""
    """Five fields of cron, or `@daily` and the like."""
    time_zone: str | None = None
    """Name of a zone; None: the machine's own."""
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    """`Allow`, `Forbid` or `Replace`; empty is `Allow`."""
    suspend: bool = False
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: int | None = None
    """None is 3."""
    failed_jobs_history_limit: int | None = None
    """None is 1."""


class CronJobStatus(Wire, frozen=True):
    """Observed state of a CronJob."""

    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Wire, frozen=True):
    """Makes Jobs at times."""

    API_VERSION: ClassVar[str] = "batch/v1"
    KIND: ClassVar[str] = "CronJob"
    PLURAL: ClassVar[str] = "cronjobs"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
