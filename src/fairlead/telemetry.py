"""Emits logs, timings, metrics and crash points.

Logs are structlog events on standard error (`loglines`): a constant phrase plus facts under keys from `KEYS`. `timed`
logs how long a block took. Metrics are rows of `METRICS`; who counts is handed a `Meter`, and none of it is
global. `crash_point` names a place where the process may die; tests choose one and the process kills itself there, so
that "kill -9 between any two steps" is a table of names and not a race.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

KEYS: Final = (
    "node",
    "gpu",
    "mig",
    "pci",
    "claim",
    "pod",
    "namespace",
    "tenant",
    "lease",
    "queue",
    "container",
    "resource",
    "device",
    "partition",
    "reason",
    "duration_s",
    "error",
    "path",
    "count",
    "role",
    "state",
    "version",
    "method",
)


class _Log:
    """The program's logger; structlog, 25 ms of a process's start, is imported with the first line that is logged."""

    def __getattr__(self, method: str) -> Any:
        from fairlead import loglines

        return getattr(loglines.log, method)


log: Any = _Log()


def configure(level: str, form: str) -> None:
    """Send events to standard error: console form on a terminal (or as asked), else one JSON object a line."""
    from fairlead import loglines

    loglines.configure(level, form)


@dataclass(slots=True)
class Timing:
    """Filled when its block ends."""

    duration_s: float = 0.0


@contextlib.contextmanager
def timed(phrase: str, **facts: object) -> Iterator[Timing]:
    """Measure a block on the monotonic clock and log it at debug level with `duration_s`."""
    timing, started = Timing(), time.monotonic()
    try:
        yield timing
    finally:
        timing.duration_s = time.monotonic() - started
        log.debug(phrase, duration_s=round(timing.duration_s, 6), **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of what is counted."""

    name: str
    """Ends in `_total`: a counter, for `add`; with `buckets_s`: a histogram, for `observe`; else a gauge, for `set`."""
    text: str
    labels: tuple[str, ...] = ()
    buckets_s: tuple[float, ...] = ()
    """Upper bounds; only where durations are observed."""


_QUICK_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SLOW_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0)

DEVICES = Metric(
    name="fairlead_devices",
    text="devices reported to the kubelet, by state: advertised (all), healthy",
    labels=("resource", "state"),
)
UNHEALTHY_DEVICES = Metric(
    name="fairlead_devices_unhealthy",
    text="devices reported to the kubelet as not healthy, by reason: XID79, HeldByOtherResource, CDIConflict",
    labels=("resource", "reason"),
)
ALLOCATE = Metric(
    name="fairlead_allocate_duration_seconds",
    text="time to answer the kubelet's Allocate",
    labels=("resource",),
    buckets_s=_QUICK_S,
)
CLAIM_SECONDS = Metric(
    name="fairlead_claim_duration_seconds",
    text="time to prepare or unprepare a ResourceClaim, by outcome: done, or the reason why not",
    labels=("verb", "outcome"),
    buckets_s=_SLOW_S,
)
REGISTRATIONS = Metric(
    name="fairlead_registrations_total", text="registrations a kubelet accepted", labels=("resource",)
)
NOTICES = Metric(
    name="fairlead_notices_total",
    text="attempts to send an event, by form (fairlead, slack, matrix, email) and outcome: sent, failed (tried again), "
    "given up, limited (more than mail.per_hour: never tried)",
    labels=("format", "outcome"),
)
DECISIONS = Metric(
    name="fairlead_scheduler_decisions_total",
    text="pods looked at, by result: bound, refused (fits nowhere), lost (another scheduler was faster), failed",
    labels=("result",),
)
OVERLOOKED = Metric(
    name="fairlead_scheduler_overlooked_pods_total",
    text="pods that waited by a fault of the scheduler and were put back: fits (not tried for 10 s beside a node with "
    "room), lost (in no place of the queue)",
    labels=("kind",),
)
PENDING = Metric(name="fairlead_scheduler_pending_pods", text="pods of ours that wait for a node")
DECISION = Metric(
    name="fairlead_scheduler_decision_duration_seconds", text="time to decide on one pod", buckets_s=_QUICK_S
)
FREE_DEVICES = Metric(
    name="fairlead_scheduler_free_devices",
    text="devices that are free on nodes that take pods",
    labels=("resource", "model"),
)
LARGEST_POD = Metric(
    name="fairlead_scheduler_largest_pod_devices",
    text="devices of the largest pod that fits on a node now",
    labels=("resource", "model"),
)
FRAGMENTED = Metric(
    name="fairlead_scheduler_fragmented_gpus",
    text="average number of free GPUs that a pod drawn from those that run and wait could not use",
    labels=("resource", "model"),
)
LEADER = Metric(name="fairlead_leader", text="1 while this process holds the lease", labels=("lease",))
WATCHES = Metric(
    name="fairlead_watch_restarts_total",
    text="watches begun again, by how: resumed (at the version seen last), listed (anew)",
    labels=("kind", "how"),
)
REQUESTS = Metric(
    name="fairlead_api_requests_total",
    text="requests to the API server, by answer; code 0: no answer",
    labels=("method", "code"),
)
CONNECTIONS = Metric(
    name="fairlead_connections",
    text="connections that clients of our API hold, upgraded ones too, by door: socket, tls",
    labels=("door",),
)
UNDER_WAY = Metric(
    name="fairlead_requests_under_way", text="requests to our API on TLS that are not over, those that follow too"
)
LEFTOVERS = Metric(
    name="fairlead_leftovers",
    text="things held on this machine for a pod, tenancy or process that is gone, by kind: lease, mount, folder, "
    "network, file; `fairlead doctor` names each; not a number: it cannot be known",
    labels=("kind",),
)
PART_FAILURES = Metric(
    name="fairlead_part_failures_total",
    text="failures of an optional part of the agent, after each of which it was started again, by reason",
    labels=("part", "reason"),
)
MPS_FAILURES = Metric(
    name="fairlead_mps_failures_total",
    text="times an MPS control daemon ended, fell silent or could not be started, by reason; each is tried again",
    labels=("reason",),
)
START_PHASE = Metric(
    name="fairlead_start_phase_seconds",
    text="phases of a container's start: admission, slot, activation, pull, sandbox, first output; by its devices, 8: "
    "and more",
    labels=("phase", "devices"),
    buckets_s=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0),
)
MACHINE_PART = Metric(
    name="fairlead_machine_start_seconds",
    text="parts of the phase sandbox of a virtual machine: engine, QEMU, firmware, kernel and init, driver, container; "
    "by its devices, 8: and more",
    labels=("part", "devices"),
    buckets_s=START_PHASE.buckets_s,
)
NEIGHBOURS = Metric(
    name="fairlead_gpu_neighbours",
    text="programs on a GPU that Fairlead did not start, by use: compute, open, graphics, monitor, service, unread",
    labels=("gpu", "use"),
)
METRICS: Final = (
    NEIGHBOURS,
    START_PHASE,
    MACHINE_PART,
    MPS_FAILURES,
    DEVICES,
    UNHEALTHY_DEVICES,
    ALLOCATE,
    CLAIM_SECONDS,
    REGISTRATIONS,
    PART_FAILURES,
    NOTICES,
    DECISIONS,
    OVERLOOKED,
    PENDING,
    FREE_DEVICES,
    LARGEST_POD,
    FRAGMENTED,
    DECISION,
    LEADER,
    WATCHES,
    REQUESTS,
    CONNECTIONS,
    UNDER_WAY,
    LEFTOVERS,
)


class Meter(Protocol):
    """Where a process's figures go; labels are given by position, as the metric names them."""

    def add(self, metric: Metric, *labels: str) -> None:
        """Count one more."""
        ...

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Say how much there is now."""
        ...

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Note how long something took."""
        ...

    def heartbeat(self, loop: str, within_s: float | None) -> None:
        """Say that a loop turned and will turn again within so many seconds; None: it waits for work."""
        ...


class _Unmetered:
    def add(self, metric: Metric, *labels: str) -> None: ...

    def set(self, metric: Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


UNMETERED: Final[Meter] = _Unmetered()
"""Takes metrics and drops them: the default, and that of tests."""


_armed: list[str] = []


def arm_crash_point(name: str) -> None:
    """Make `crash_point(name)` kill this process; an empty name disarms."""
    _armed[:] = [name] if name else []


def crash_point(name: str) -> None:
    """Die here with SIGKILL when this point is armed: nothing is flushed, no handler runs."""
    if name in _armed:
        os.kill(os.getpid(), signal.SIGKILL)
