"""Constrains pods by reservations: reserved GPUs are not given to a pod that would still hold them by then.

Nodes are limited by the profile of all windows (`plan.reservation.profile`); a pod asks with the times between which it
runs, rounded so that pods which ask alike are judged once. Reservations are of one machine: each node is limited by all
of them. Reading of the clock is left to `clock`, so that everything else here depends on what was noted alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.reservation import calendar, profile, use
from fairlead.plan.reservation.profile import Asked, Holder, Profile
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.constraint import Filter, Node, Noted, Refusal
from fairlead.wire.fairlead import reservation
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.meta import Object

NAME: Final = "reservations"
BUCKET_S: Final = 10.0
"""To which times of pods are rounded."""
_OPEN_BUCKET_S: Final = 3600.0
SLACK_S: Final = 15.0
"""How much later than planned a container may have let go of its GPUs."""
_UNIT: Final = 1000
_POLL_S: Final = 60.0
"""How often the clock is looked at for a jump."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the settings say."""

    resource: str = "nvidia.com/gpu"
    """Whose devices are reserved."""
    open_ended_s: float = math.inf
    """How long a pod without a limit is taken to run."""
    is_ended: bool = True
    """Whether what holds GPUs when a window begins is ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a node."""

    profile: Profile
    since: float
    """When the windows that are open now began to be open together, so that pods are judged again then; 0: none is."""
    resource: str


def _check(ask: Ask, node: Node) -> tuple[str, ...]:
    limits = node.limits.get(NAME)
    if limits is None or ask.asked is None:
        return ()
    holders: frozenset[Holder] = node.taken_for.get(NAME, frozenset())
    if ask.asked.reservation and (found := _beside(ask, holders)):
        return (profile.WORDS + found,)
    taken = node.taken.get(limits.resource, 0) // _UNIT
    others = max(0, taken - sum(one.gpus for one in holders))
    asked = ask.asked
    if ask.is_ended:
        until = profile.may_overrun(limits.profile, holders, asked)
        asked = Asked(namespace=asked.namespace, gpus=asked.gpus, since=asked.since, until=until)
    capacity = node.allocatable.get(limits.resource, 0) // _UNIT
    blocked = profile.blocker(limits.profile, capacity, holders, asked, others=others)
    if blocked is None:
        return ()
    return (profile.WORDS + profile.words(blocked, asked.namespace, sees_all=ask.sees_all),)


def _beside(ask: Ask, holders: frozenset[Holder]) -> str:
    """Return why a pod does not start beside those that hold its reservation's GPUs; empty: it may."""
    asked = ask.asked
    if asked is None:
        return ""
    mine = (asked.namespace, asked.reservation)
    held = sum(one.gpus for one in holders if (one.namespace, one.reservation) == mine)
    return use.full(asked.reservation, ask.reserved, held, asked.gpus)


def _is_better(before: Node, after: Node) -> bool:
    was, now = before.limits.get(NAME), after.limits.get(NAME)
    if was != now:
        return True
    has_left = before.taken_for.get(NAME, frozenset()) - after.taken_for.get(NAME, frozenset())
    resource = now.resource if now is not None else ""
    return bool(has_left) or after.taken.get(resource, 0) < before.taken.get(resource, 0)


@dataclass(frozen=True, slots=True)
class Ask(constraint.Ask):
    """How many GPUs a pod asks for and how long, or what it holds."""

    asked: Asked | None = None
    is_ended: bool = True
    """See `Terms.is_ended`."""
    sees_all: bool = False
    """Whether its owner may know whose the others' reservations are."""
    reserved: int = 0
    """GPUs of the reservation that the pod names."""
    holds: frozenset[Holder] = frozenset()

    constraint: ClassVar[str] = NAME
    filters: ClassVar[tuple[Filter, ...]] = (Filter("GPUReservation", _check, _is_better),)

    @property
    def takes(self) -> frozenset[Holder]:
        """See `constraint.Ask.takes`."""
        return self.holds


class Reservations(constraint.ReadOnlyConstraint):
    """A `constraint.Timed` of Reservations."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[type[Object], ...]] = (reservation.Reservation,)

    def __init__(
        self,
        users: Callable[[str], Iterable[core.Pod]],  # noqa: ARG002 - as of every constraint
        *,
        terms: Terms,
        clock: Callable[[], float],
    ) -> None:
        """Begin without any. Args: clock: gives Unix seconds."""
        self._terms, self._clock = terms, clock
        self._items: dict[str, reservation.Reservation] = {}
        self._limits: Limits | None = None
        self._made_at = 0.0
        """Unix seconds, when `_limits` was made."""
        self._is_stale = False
        """Whether reservations changed since the profile was made."""

    def note(self, item: reservation.Reservation, *, is_gone: bool = False) -> Noted:
        """See `Constraint.note`."""
        self._items.pop(item.metadata.uid, None)
        if not is_gone:
            self._items[item.metadata.uid] = item
        self._is_stale = True  # counted by `expire`: a list of a thousand is looked through once
        return constraint.NOTHING

    def forget(self, kind: type[Object]) -> None:  # noqa: ARG002 - there is one
        """See `Constraint.forget`."""
        self._items.clear()
        self._is_stale = True

    def _made(self) -> Limits | None:
        self._made_at = now = self._clock()
        found = calendar.all_windows(self._items.values(), now, now + calendar.MOST_DAYS * 86400)
        made = profile.build(found).after(now)
        if not made:
            return None
        begun = made.segments[0].start  # windows that are over are left out
        return Limits(profile=made, since=begun if begun <= now else 0.0, resource=self._terms.resource)

    @property
    def due_s(self) -> float | None:
        """See `constraint.Timed.due_s`."""
        if self._is_stale:
            return 0.0
        if self._limits is None:
            return _POLL_S if self._items else None
        now = self._clock()
        return min(_POLL_S, max(0.0, self._limits.profile.next_change(now) - now))

    def expire(self) -> Noted:
        """See `constraint.Timed.expire`.

        Changed reservations count from now on; windows that are over are left out, those that began are begun.
        """
        if not self._is_stale and not self._is_due:
            return constraint.NOTHING
        self._is_stale, before, self._limits = False, self._limits, self._made()
        if self._limits == before:
            return constraint.NOTHING
        return Noted(nodes=None, pods=None, concerns=True, counts=True)

    @property
    def _is_due(self) -> bool:
        """Whether a window began or ended since the profile was made, or the clock was set back."""
        limits, now = self._limits, self._clock()
        if now < self._made_at:
            return True
        if limits is None:
            return False
        first = limits.profile.segments[0]
        return now >= first.end or (now >= first.start) != bool(limits.since)

    def concerns(self, pod: core.Pod) -> bool:
        """See `Constraint.concerns`: GPUs are asked for, and some are reserved; or it is to run in a reservation."""
        return self.names_one(pod) or (self._limits is not None and gpus_of(pod, self._terms.resource) > 0)

    @staticmethod
    def names_one(pod: core.Pod) -> bool:
        """Return whether a pod is to start in the windows of one reservation."""
        return bool(use.named(pod))

    def _find(self, pod: core.Pod) -> reservation.Reservation | None:
        """Return the reservation that a pod names."""
        key = (pod.metadata.namespace, use.named(pod))
        return next((one for one in self._items.values() if (one.metadata.namespace, one.metadata.name) == key), None)

    def refusal(self, pod: core.Pod) -> Refusal | None:
        """See `Constraint.refusal`: no window of the reservation that it names is open; else each node is judged."""
        if not (name := use.named(pod)):
            return None
        why = use.waits(name, self._find(pod), self._clock())
        return Refusal(why) if why else None

    def ask(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.ask`."""
        now, limit = self._clock(), pod.spec.active_deadline_seconds
        if limit is None:
            until = now + self._terms.open_ended_s
            bucket = _OPEN_BUCKET_S
        else:
            until = now + limit + _grace_s(pod) + SLACK_S
            bucket = BUCKET_S
        item = self._find(pod) if use.named(pod) else None
        asked = Asked(
            namespace=pod.metadata.namespace,
            reservation=use.named(pod),
            gpus=gpus_of(pod, self._terms.resource),
            since=math.floor(now / BUCKET_S) * BUCKET_S,
            until=math.ceil(until / bucket) * bucket if math.isfinite(until) else until,
        )
        return Ask(
            asked=asked,
            is_ended=self._terms.is_ended,
            sees_all=pod.metadata.namespace == "default",
            reserved=item.spec.gpus if item is not None else 0,
        )

    def has(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.has`."""
        return Ask(holds=frozenset({holder(pod, gpus_of(pod, self._terms.resource), self._clock())}))

    @property
    def has_limits(self) -> bool:
        """See `Constraint.has_limits`."""
        return self._limits is not None

    def limits(self, node: str, labels: Mapping[str, str]) -> Limits | None:  # noqa: ARG002
        """See `Constraint.limits`."""
        return self._limits


def gpus_of(pod: core.Pod, resource: str) -> int:
    """Return how many devices of a resource a pod asks for."""
    try:
        return math.ceil(admission.effective_requests(pod.spec).get(resource, 0))
    except errors.Invalid:  # whoever reads the pod's amounts says so
        return 0


def holders(pods: Iterable[core.Pod], resource: str, now: float) -> tuple[Holder, ...]:
    """Return what pods hold that have a node and have not ended."""
    there = (pod for pod in pods if pod.spec.node_name and pod.status.phase not in core.ENDED_PHASES)
    counted = ((pod, gpus_of(pod, resource)) for pod in there)
    return tuple(holder(pod, gpus, now) for pod, gpus in counted if gpus)


def holder(pod: core.Pod, gpus: int, now: float) -> Holder:
    """Return what a pod that has a node holds. Args: now: Unix seconds, where it has not started, or is ending."""
    limit, started = pod.spec.active_deadline_seconds, meta.timestamp(pod.status.start_time or None)
    if pod.metadata.deletion_timestamp is not None or pod.status.stop_request is not None:
        until = now
    elif limit is None:
        until = math.inf
    else:
        until = (now if started is None else started) + limit
    return Holder(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        gpus=gpus,
        until=until + _grace_s(pod) + SLACK_S,
        reservation=use.named(pod),
    )


def _grace_s(pod: core.Pod) -> float:
    return float(pod.spec.termination_grace_period_seconds)
