"""Declares a constraint: what has a say in where a pod goes beside amounts, labels and other pods. Volumes are one.

A constraint reads objects of its own (`Constraint`), says what one pod asks of a node (`Ask`), whose filters judge each
node, and what is to be written before the pod is bound (`Reservation`). What it lets a node take is counted there by
the asks of the pods on it. Its slow half, which writes, is a row of `control.scheduler.binding`. A new one is a package
beside `volume` and a row of `constraints.ALL`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, Self, runtime_checkable

from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object


class Node(Protocol):
    """What filters see of a node (`reference.NodeInfo`)."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        ...

    @property
    def allocatable(self) -> Mapping[str, int]:
        """What its kubelet offers, in thousandths."""
        ...

    @property
    def taken(self) -> Mapping[str, int]:
        """What its pods request, in thousandths."""
        ...

    @property
    def taken_for(self) -> Mapping[str, frozenset[Any]]:
        """By constraint: what its pods take of it."""
        ...

    @property
    def limits(self) -> Mapping[str, Any]:
        """By constraint: what it can take (`Constraint.limits`)."""
        ...

    @property
    def is_imagined(self) -> bool:
        """Whether pods are thought away: what ended pods have not given back yet counts as free."""
        ...


@dataclass(frozen=True, slots=True)
class Filter:
    """One rule of a constraint."""

    name: str
    """As kube-scheduler's, where it has the rule."""
    check: Callable[[Any, Node], tuple[str, ...]]
    """Returns what is said of a node that an ask of this constraint refuses; nothing: it does not."""
    is_better: Callable[[Node, Node], bool]
    """Whether a change of a node, as it was and as it is, may let a pod pass that was refused."""


FILTERS: dict[str, Filter] = {}
"""By name: the filters of every kind of ask."""


class Ask:
    """What a pod asks of a node by one constraint: a frozen value, equal for pods that ask alike."""

    constraint: ClassVar[str]
    filters: ClassVar[tuple[Filter, ...]] = ()
    """In order; all are asked before resources."""

    def __init_subclass__(cls) -> None:
        FILTERS.update({one.name: one for one in cls.filters})

    @property
    def takes(self) -> frozenset[Any]:
        """What the pod has of its node, once it is there."""
        return frozenset()

    @property
    def met(self) -> frozenset[str]:
        """Resources that it meets on nodes that offer none of them: their amounts do not decide there."""
        return frozenset()

    @property
    def is_counted(self) -> bool:
        """Whether `takes` says all that a pod which waits would have, so that another can be tried on top of it."""
        return True

    @property
    def is_foreseen(self) -> bool:
        """Whether `after` says what is left for another that is tried on top of it, where `takes` does not."""
        return False

    def after(self, node: Node) -> Any:
        """Return the limits of a node once such a pod has come to it."""
        return node.limits.get(self.constraint)

    @property
    def common(self) -> frozenset[str]:
        """Names of what it asks for that is one thing for every pod that asks for it, and that no pod has yet."""
        return frozenset()

    common_most: ClassVar[int] = 0
    """How many pods may have one of those."""

    def beside(self, other: Any, node: Node) -> Self:  # noqa: ARG002 - as of those with something in common
        """Return what it asks once a pod that asks `other` has come to a node: where the two have anything in common,
        that is there.
        """
        return self

    def once_there(self) -> Self:
        """Return the ask of such a pod that has a node."""
        return self

    @property
    def is_graded(self) -> bool:
        """Whether some nodes that fit are better than others (`grade`)."""
        return False

    def grade(self, node: Node) -> int:  # noqa: ARG002 - as of those that grade
        """Return what a node that fits is worth by this alone: the more the better, never negative."""
        return 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod waits whatever nodes there are."""

    why: str
    is_unknown: bool = False
    """It asks for what this scheduler does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What a change of an object is about."""

    nodes: Collection[str] | None = ()
    """Names of nodes whose limits it states; None: of every node."""
    pods: Collection[str] | None = ()
    """Uids of pods that are to be looked at again; None: of all that wait and ask by a constraint."""
    concerns: bool = False
    """Whether the constraint may be about other pods that wait than before; all that ask by it are looked at again."""
    counts: bool = False
    """Whether what pods take of their nodes is to be counted again (`Constraint.has`)."""


NOTHING: Final = Noted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is to be written before a pod is bound to a node."""

    constraint: str
    node: str
    writes: tuple[Any, ...]
    """For the slow half; nothing: others write, and the pod waits for them."""
    changes: tuple[tuple[Object, Object], ...]
    """Objects as they are and as they count from now on, so that no other pod is given the same."""
    waits: bool = True
    """Whether the pod waits for others once that is written; else it is bound at once."""
    made: tuple[Any, ...] = ()
    """For the slow half: objects that are made for the binding alone, after `writes`; none while room is held."""
    assumed: tuple[Object, ...] = ()
    """These objects, as they count from now on."""

    def while_held(self) -> Reservation:
        """Return what of it is written while room is held for the pod."""
        return dataclasses.replace(self, made=(), assumed=()) if self.made else self


class Constraint(Protocol):
    """What is known of one constraint, kept up to date by the watch."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[type[Object], ...]]
    """That it reads; a cluster may serve none of them."""

    def note(self, item: Any, *, is_gone: bool = False) -> Noted:
        """Take in what the watch says."""
        ...

    def assume(self, before: Any, after: Any) -> Noted:
        """Count an object as it will be once it is written. Args: before: `after`: it is to be made."""
        ...

    def withdraw(self, before: Any, after: Any) -> Noted:
        """Take an assumption back; what the watch has said since stays."""
        ...

    def forget(self, kind: Any) -> None:
        """Reset one kind: a list follows."""
        ...

    def concerns(self, pod: core.Pod) -> bool:
        """Return whether a pod asks for anything by it, or may (`Noted.concerns`)."""
        ...

    def refusal(self, pod: core.Pod) -> Refusal | None:
        """Return why a pod waits whatever nodes there are; None: it does not."""
        ...

    def ask(self, pod: core.Pod) -> Ask | None:
        """Return what a pod that waits asks of a node; None: nothing."""
        ...

    def has(self, pod: core.Pod) -> Ask | None:
        """Return what a pod that has a node takes of it; None: nothing that is counted."""
        ...

    def amounts(self, pod: core.Pod) -> Mapping[str, int]:
        """Return what a pod asks for, or has, in amounts that queues count beside its requests, in thousandths."""
        ...

    def frees(self, pod: core.Pod) -> bool:
        """Return whether pods that wait may go because this one left its node, which no object says."""
        ...

    @property
    def has_limits(self) -> bool:
        """Whether any node limits what is counted by its pods' asks."""
        ...

    def limits(self, node: str, labels: Mapping[str, str]) -> Any:
        """Return what a node can take: equal where nothing changed; falsy: it says nothing."""
        ...

    def reserve(self, pod: core.Pod, ask: Ask, node: Node) -> Reservation | None:
        """Return what is to be written so that a pod may be bound to a node; None: nothing is lacking.

        Raises: Conflict: the node does not have what its filters said.
        """
        ...

    def give_back(self, pod: core.Pod) -> Reservation | None:
        """Return what is to be written so that a pod that fits nowhere may fit elsewhere; None: nothing helps."""
        ...


class ReadOnlyConstraint:
    """What a constraint has that judges nodes by its objects alone: it assumes, counts and writes nothing.

    A `Constraint` of that kind states what it reads and asks, and of the rest what is otherwise with it.
    """

    def assume(self, before: Any, after: Any) -> Noted:  # noqa: ARG002
        """See `Constraint.assume`."""
        return NOTHING

    def withdraw(self, before: Any, after: Any) -> Noted:  # noqa: ARG002
        """See `Constraint.withdraw`."""
        return NOTHING

    def refusal(self, pod: core.Pod) -> Refusal | None:  # noqa: ARG002
        """See `Constraint.refusal`: each node is judged."""
        return None

    def has(self, pod: core.Pod) -> Ask | None:  # noqa: ARG002
        """See `Constraint.has`."""
        return None

    def amounts(self, pod: core.Pod) -> Mapping[str, int]:  # noqa: ARG002
        """See `Constraint.amounts`: queues count the requests themselves."""
        return {}

    def frees(self, pod: core.Pod) -> bool:  # noqa: ARG002
        """See `Constraint.frees`."""
        return False

    @property
    def has_limits(self) -> bool:
        """See `Constraint.has_limits`."""
        return False

    def limits(self, node: str, labels: Mapping[str, str]) -> Any:  # noqa: ARG002
        """See `Constraint.limits`."""
        return None

    def reserve(self, pod: core.Pod, ask: Ask, node: Node) -> Reservation | None:  # noqa: ARG002
        """See `Constraint.reserve`."""
        return None

    def give_back(self, pod: core.Pod) -> Reservation | None:  # noqa: ARG002
        """See `Constraint.give_back`."""
        return None


@runtime_checkable
class Timed(Protocol):
    """A constraint whose verdicts change as time passes."""

    @property
    def due_s(self) -> float | None:
        """In how many seconds `expire` is to be called; None: there is nothing to wait for."""
        ...

    def expire(self) -> Noted:
        """Count what time has changed."""
        ...


class Users(Protocol):
    """The pods that have a node and have not ended."""

    def __call__(self, namespace: str) -> Iterable[core.Pod]:
        """Return those of a namespace."""
        ...

    def wait(self, uid: str) -> bool:
        """Return whether a pod is none of them, since it has no node yet."""
        ...
