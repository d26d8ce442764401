"""The constraint of volumes: nodes that reach a pod's volumes, and can attach them; claims that get theirs first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.constraint import Filter, Node, Noted, Refusal, Reservation
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.scheduling import storage

NAME: Final = "volumes"


def _check_limits(ask: Ask, node: Node) -> tuple[str, ...]:
    there, limits = node.taken_for.get(NAME, frozenset()), node.limits.get(NAME, {})
    return wanted.too_many(ask.attached, there, limits) if ask.attached else ()


def _check(ask: Ask, node: Node) -> tuple[str, ...]:
    return wanted.refusal(ask.volumes, name=node.name, labels=node.labels) if ask.volumes else ()


def _attaches_more(before: Node, after: Node) -> bool:
    was, now = (one.taken_for.get(NAME, frozenset()) for one in (before, after))
    return bool(was - now) or before.limits.get(NAME) != after.limits.get(NAME)


@dataclass(frozen=True, slots=True)
class Ask(constraint.Ask):
    """What a pod's claims ask of a node, and which of its volumes count against what a node can attach."""

    volumes: wanted.Wanted = ()
    attached: wanted.Attached = frozenset()

    constraint: ClassVar[str] = NAME
    filters: ClassVar[tuple[Filter, ...]] = (
        Filter(wanted.LIMITS, _check_limits, _attaches_more),
        Filter(wanted.FILTER, _check, lambda before, after: before.labels != after.labels),
    )

    @property
    def takes(self) -> frozenset[tuple[str, str]]:
        """See `constraint.Ask.takes`: volumes that count."""
        return self.attached


@dataclass(frozen=True, slots=True)
class Choice:
    """A claim, and what it gets on the node that was chosen."""

    claim: core.PersistentVolumeClaim
    volume: storage.PersistentVolume | None
    """One that exists; None: a provisioner makes one for the node."""


class Volumes:
    """A `constraint.Constraint` of claims, volumes, storage classes, and what nodes can attach."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[type[Object], ...]] = claims.KINDS

    def __init__(self, users: Callable[[str], Iterable[core.Pod]]) -> None:
        """Begin without any. Args: users: see `constraint.Users`."""
        self._claims = claims.Claims(users)

    def note(self, item: claims.Object, *, is_gone: bool = False) -> Noted:
        """See `Constraint.note`."""
        self._claims.note(item, is_gone=is_gone)
        nodes = (item.metadata.name,) if isinstance(item, storage.CSINode) else ()
        return Noted(nodes=nodes, pods=None, counts=bool(nodes) or self.has_limits)

    def assume(self, before: claims.Object, after: claims.Object) -> Noted:  # noqa: ARG002 - as of every constraint
        """See `Constraint.assume`."""
        return self.note(after)

    def withdraw(self, before: claims.Object, after: claims.Object) -> Noted:  # noqa: ARG002
        """See `Constraint.withdraw`."""
        return self.note(before) if self.is_current(before) else constraint.NOTHING

    def forget(self, kind: type[claims.Object]) -> None:
        """See `Constraint.forget`."""
        self._claims.forget(kind)

    def is_current(self, item: claims.Object) -> bool:
        """Return whether the watch has said nothing newer of an object, whatever was assumed of it."""
        return self._claims.is_current(item)

    @staticmethod
    def concerns(pod: core.Pod) -> bool:
        """See `Constraint.concerns`."""
        return claims.has_claims(pod)

    def refusal(self, pod: core.Pod) -> Refusal | None:
        """See `Constraint.refusal`."""
        found = self._claims.look_up(pod)
        return found if isinstance(found, Refusal) else None

    def ask(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.ask`."""
        found = self._claims.look_up(pod)
        attached = self._claims.attached(pod) if self.has_limits else frozenset()
        ask = Ask(volumes=() if isinstance(found, Refusal) else found, attached=attached)
        return None if ask == Ask() else ask

    def has(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.has`."""
        attached = self._claims.attached(pod) if self.has_limits else frozenset()
        return Ask(attached=attached) if attached else None

    def amounts(self, pod: core.Pod) -> Mapping[str, int]:  # noqa: ARG002
        """See `Constraint.amounts`: queues do not count volumes."""
        return {}

    def frees(self, pod: core.Pod) -> bool:
        """See `Constraint.frees`: a claim of one pod alone may be free."""
        return self.concerns(pod)

    @property
    def has_limits(self) -> bool:
        """See `Constraint.has_limits`."""
        return self._claims.has_limits

    def limits(self, node: str, labels: Mapping[str, str]) -> dict[str, int]:  # noqa: ARG002
        """See `Constraint.limits`: by driver, how many volumes it can attach."""
        return self._claims.limits(node)

    def reserve(self, pod: core.Pod, ask: constraint.Ask, node: Node) -> Reservation | None:
        """See `Constraint.reserve`: what gives the pod's claims their volumes on the node."""
        if not isinstance(ask, Ask) or not (waits := wanted.unbound(ask.volumes)):
            return None
        chosen = wanted.chosen(ask.volumes, name=node.name, labels=node.labels) or {}
        found = list[Choice]()
        for one in waits:
            claim, volume = self._claims.claim(pod.metadata.namespace, one.claim), chosen.get(one.claim, "")
            is_done = any(each.is_taken for each in one.volumes) or (not volume and one.node == node.name)
            if claim is not None and not is_done:
                found.append(Choice(claim, self._claims.volume(volume) if volume else None))
        changes = tuple((one.volume, claims.given(one.volume, one.claim)) for one in found if one.volume is not None)
        return Reservation(constraint=NAME, node=node.name, writes=tuple(found), changes=changes)

    def give_back(self, pod: core.Pod) -> Reservation | None:  # noqa: ARG002
        """See `Constraint.give_back`: a provisioner that fails takes the node off a claim itself."""
        return None
