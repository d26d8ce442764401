"""Says what is to come for a pod: that it has waited for long, that it will be ended, that its GPU is ill. Pure.

Each is told once: it has a mark, written in the outbox beside the event, and no event follows while the mark stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fairlead.frozen import frozen
from fairlead.plan.gpu import podcondition
from fairlead.plan.pod import podstate
from fairlead.serve.webhooks.port import ENDS_SOON, SICK, WAITS
from fairlead.wire.kubernetes import core, meta

AHEAD: Final = "ReservationAhead"
"""Reason of the event that says that a reservation begins."""
_CAUSES: Final[Mapping[str, str]] = {
    "Preempted": "preemption",
    "Reserved": "reservation",
    podstate.IDLE: "idle GPUs",
}
"""Reasons of requests to stop, in words."""
_SHARE: Final = 0.25
"""Of a time limit: a short one is announced by so much of it before its end."""


@frozen
class Times:
    """The settings, in seconds."""

    wait_s: float = 1800.0
    """0: nothing is said of waiting."""
    ahead_s: float = 900.0


@frozen
class Fact:
    """Something that is said of a pod."""

    kind: str
    """Of the event."""
    mark: str
    """While it is the same, nothing is said again."""
    data: Mapping[str, Any]


def facts(pod: core.Pod, now: float, times: Times) -> Iterator[Fact]:
    """Yield what is true of a pod now."""
    if podstate.is_final(pod):
        return
    if (waits := _waits(pod, now, times)) is not None:
        yield waits
    if (ends := _ends(pod, now, times)) is not None:
        yield ends
    ill = meta.find_condition(pod.status.conditions, podcondition.CONDITION)
    if ill is not None and ill.status == "False":
        yield Fact(kind=SICK, mark=ill.reason, data={"reason": ill.reason, "message": ill.message[:500]})


def _waits(pod: core.Pod, now: float, times: Times) -> Fact | None:
    begun = meta.timestamp(pod.metadata.creation_timestamp)
    if pod.spec.node_name or not times.wait_s or begun is None or now - begun < times.wait_s:
        return None
    reason, message = podstate.why(pod)
    data = {"minutes": round((now - begun) / 60), "reason": reason, "message": message[:500]}
    return Fact(kind=WAITS, mark="long", data=data)


def _ends(pod: core.Pod, now: float, times: Times) -> Fact | None:
    """Return the nearest of what will end a pod; a stop by a person is announced by the pod's state alone."""
    asked, idle = pod.status.stop_request, pod.status.idle_notice
    if asked is not None:
        if not asked.reason:
            return None
        cause = _CAUSES.get(asked.reason, asked.reason)
        return _ending(cause, asked.requested_at, {"reason": asked.reason, "message": asked.message[:500]})
    if idle is not None and idle.action != core.IDLE_UNKNOWN:
        data = {"acts_at": idle.acts_at or "", "is_ended": idle.acts_at is not None, "message": idle.message[:500]}
        return _ending("idle GPUs", idle.since, data)
    limit_s, started = pod.spec.active_deadline_seconds, meta.timestamp(pod.status.start_time)
    if limit_s is None or started is None or now < started + limit_s - min(times.ahead_s, limit_s * _SHARE):
        return None
    acts_at = meta.emit_time(started + limit_s)
    data = {"acts_at": acts_at, "is_ended": True, "message": f"its time limit is {limit_s} s (--timeout)"}
    return _ending("time limit", acts_at, data)


def _ending(cause: str, mark: str, data: Mapping[str, Any]) -> Fact:
    return Fact(kind=ENDS_SOON, mark=f"{cause} {mark}", data={"cause": cause, **data})


def of_event(event: core.Event) -> Fact | None:
    """Return what an event of the reservations' keeper says of a pod; None: it says nothing."""
    if event.reason != AHEAD or event.involved_object.kind != core.Pod.KIND:
        return None
    if event.source.component != "fairlead-scheduler":
        return None
    return _ending("reservation", event.last_timestamp or "", {"message": event.message[:500]})
