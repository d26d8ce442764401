"""Counts the results of a container's probes, and says what a pod's status and its kubelet make of them. Pure.

Source: kubernetes pkg/kubelet/prober (worker.go, results).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import Probe

_TIMEOUT_S, _PERIOD_S, _FAILURES = 1, 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A probe's numbers, defaults filled in."""

    delay_s: int
    timeout_s: int
    period_s: int
    successes: int
    failures: int


def limits(probe: Probe) -> Limits:
    """Return a probe's numbers."""
    return Limits(
        delay_s=probe.initial_delay_seconds,
        timeout_s=probe.timeout_seconds or _TIMEOUT_S,
        period_s=probe.period_seconds or _PERIOD_S,
        successes=probe.success_threshold or 1,
        failures=probe.failure_threshold or _FAILURES,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How often the same result came one after the other, and what holds since."""

    is_good: bool
    """What holds: it changes only after as many equal results as the probe asks for."""
    last: bool | None = None
    run: int = 0

    def after(self, result: bool, given: Limits) -> Count:
        """Return the count after one more result."""
        run = self.run + 1 if result is self.last else 1
        is_due = run >= (given.successes if result else given.failures)
        return replace(self, is_good=result if is_due else self.is_good, last=result, run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is known of a running container by its hook and its probes."""

    is_started: bool = True
    """Its postStart hook has ended and its startup probe has succeeded, where it has them."""
    is_ready: bool = True
    failure: str = ""
    """Why it has to be stopped; empty: it need not."""
    grace_s: int | None = None
    """Between SIGTERM and SIGKILL of that stop; None: the pod's."""


WELL: Final = Health()


def is_watched(item: core.Container) -> bool:
    """Return whether anything is to be done with a container while it runs."""
    has_hook = item.lifecycle is not None and item.lifecycle.post_start is not None
    return has_hook or any((item.startup_probe, item.readiness_probe, item.liveness_probe))


def at_first(item: core.Container, reported: core.ContainerStatus | None, container_id: str) -> Health:
    """Return what is believed of a running container before any probe has run.

    Args: reported: its status as it stands. A kubelet that was killed goes on with what it had said of the same run.
    """
    same = reported is not None and reported.container_id == container_id and reported.state.running is not None
    if same and reported is not None and reported.started:
        return Health(is_ready=reported.ready)
    has_start = item.startup_probe is not None or (item.lifecycle is not None and item.lifecycle.post_start is not None)
    return Health(is_started=not has_start, is_ready=item.readiness_probe is None and not has_start)


def of(item: core.Container, container_id: str, known: Mapping[str, Health], status: core.PodStatus) -> Health:
    """Return a running container's health. Args: known: by container id."""
    if container_id in known:
        return known[container_id]
    if not is_watched(item):
        return WELL
    every = (*status.container_statuses, *status.init_container_statuses)
    return at_first(item, next((one for one in every if one.name == item.name), None), container_id)
