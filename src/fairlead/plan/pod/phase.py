"""Divides a container's life into phases with times: how long it waited, was prepared, ran and stopped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.container.step import TraceStep
from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import timestamp

QUEUED, PREPARING, STARTING, RUNNING, STOPPING = NAMES = ("queued", "preparing", "starting", "running", "stopping")
_SCHEDULED: Final = frozenset({"Scheduled"})
_CREATED: Final = frozenset({"ContainerCreated"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase. Times are Unix seconds."""

    name: str
    begin: float
    end: float | None
    """None: it is in this phase now."""


def phases(pod: core.Pod, steps: Sequence[TraceStep] = ()) -> tuple[Phase, ...]:
    """Return the phases that a pod came to, in order, each from the end of the one before.

    Args: steps: what layers recorded of it; without them `preparing` lasts until it runs.
    """
    marks = [(name, at) for name, at in _marks(pod, steps) if at is not None]
    ended = _ended(pod)
    found, last = [], 0.0
    for number, (name, at) in enumerate(marks):
        begin = max(at, last)
        following = marks[number + 1][1] if number + 1 < len(marks) else ended
        end = None if following is None else max(begin, following)
        found.append(Phase(name=name, begin=begin, end=end))
        last = begin
    return tuple(found)


def _marks(pod: core.Pod, steps: Sequence[TraceStep]) -> Iterator[tuple[str, float | None]]:
    """Yield when each phase began; None: it did not, or nothing says when."""
    status = pod.status
    yield QUEUED, _seconds(pod.metadata.creation_timestamp)
    scheduled = meta.find_condition(status.conditions, "PodScheduled")
    told = scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
    placed = _first(steps, _SCHEDULED) or _seconds(told) or _seconds(status.start_time)
    yield PREPARING, placed if pod.spec.node_name else None
    began = _started(pod)
    created = _first(steps, _CREATED)
    yield STARTING, created if created is not None and (began is None or created <= began) else None
    yield RUNNING, began
    asked = status.stop_request.requested_at if status.stop_request is not None else pod.metadata.deletion_timestamp
    yield STOPPING, _seconds(asked)


def _first(steps: Iterable[TraceStep], reasons: frozenset[str]) -> float | None:
    return min((step.at for step in steps if step.reason in reasons), default=None)


def _started(pod: core.Pod) -> float | None:
    """Return when the first of its containers ran first, as far as the status knows; init containers do not count."""
    states = [part for one in pod.status.container_statuses for part in (one.state, one.last_state)]
    times = [one.running.started_at for one in states if one.running is not None]
    times += [one.terminated.started_at for one in states if one.terminated is not None]
    return min((found for one in times if (found := _seconds(one)) is not None), default=None)


def _ended(pod: core.Pod) -> float | None:
    if not podstate.is_final(pod):
        return None
    found = [one.state.terminated for one in pod.status.container_statuses if one.state.terminated is not None]
    times = [at for one in found if (at := _seconds(one.finished_at)) is not None]
    if times:
        return max(times)
    told = [at for one in pod.status.conditions if (at := _seconds(one.last_transition_time)) is not None]
    return max(told, default=_seconds(pod.metadata.deletion_timestamp))


def _seconds(text: str | None) -> float | None:
    return timestamp.parse(text) if text else None
