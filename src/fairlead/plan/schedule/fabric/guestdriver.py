"""The constraint of guests' drivers: a machine with NVLink goes where the Fabric Manager is of its driver's version.

Which driver a machine boots is a matter of its image, so its RuntimeClass says it, by an annotation. Which version the
Manager of a node has says the node's agent, by a label. Only slots of several GPUs are about NVLink: a pod with GPUs of
one each goes anywhere, two of them too. Where either version is not said nothing is compared here; the node's agent
still refuses what its own settings say (`node.fabric.keeper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

from fairlead import errors
from fairlead.plan.fabric import size
from fairlead.plan.pod import admission
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.constraint import Filter, Node, Noted, Users
from fairlead.wire.kubernetes import core, names
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.workload import RuntimeClass

NAME: Final = "fabric"
FILTER: Final = "FabricManagerVersion"
WORDS: Final = "node(s) had Fabric Manager"
_LONGEST: Final = 24
"""Characters of a version that are shown: NVIDIA's have at most 19, and an annotation may have any."""


def _check(ask: Ask, node: Node) -> tuple[str, ...]:
    manager = node.labels.get(names.FABRIC_MANAGER, "")
    return () if manager in {"", ask.driver} else (words(manager, ask.driver),)


def words(manager: str, driver: str) -> str:
    """Return what is said of a node whose Manager has another version than the driver in a pod's machine."""
    there, here = shown(manager), shown(driver)
    return (
        f"{WORDS} {there} and the pod's RuntimeClass boots driver {here} (for NVLink: install Manager {here} there, or "
        f"take a class that boots {there})"
    )


def shown(version: str) -> str:
    """Return as much of a version as is printed, on one line: an annotation may have any text."""
    cut = version[:_LONGEST]
    return cut if cut.isprintable() else ascii(cut)


def driver_of(item: RuntimeClass) -> str:
    """Return the driver that machines of a class boot; empty: it does not say."""
    return item.metadata.annotations.get(names.GUEST_DRIVER, "").strip()


def has_links(pod: core.Pod) -> bool:
    """Return whether a pod asks for a slot of several GPUs, which NVLink joins."""
    return any(size.gpus_of(name) > 1 and amount > 0 for name, amount in _limits(pod).items())


def _limits(pod: core.Pod) -> Mapping[str, Fraction]:
    try:
        return admission.effective_limits(pod.spec)
    except errors.Invalid:  # whoever reads the pod's amounts says so
        return {}


@dataclass(frozen=True, slots=True)
class Ask(constraint.Ask):
    """The driver that a pod's machine boots."""

    driver: str

    constraint: ClassVar[str] = NAME
    filters: ClassVar[tuple[Filter, ...]] = (
        Filter(
            FILTER,
            _check,
            lambda before, after: before.labels.get(names.FABRIC_MANAGER) != after.labels.get(names.FABRIC_MANAGER),
        ),
    )


class GuestDrivers(constraint.ReadOnlyConstraint):
    """A `constraint.Constraint` of the drivers that RuntimeClasses boot."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[type[Object], ...]] = (RuntimeClass,)

    def __init__(self, users: Users | None = None) -> None:  # noqa: ARG002 - as of every constraint
        """Begin without any."""
        self._drivers: dict[str, str] = {}
        """By RuntimeClass; those that say none are not here."""

    def note(self, item: RuntimeClass, *, is_gone: bool = False) -> Noted:
        """See `Constraint.note`."""
        name, driver = item.metadata.name, "" if is_gone else driver_of(item)
        if driver == self._drivers.get(name, ""):
            return constraint.NOTHING
        self._drivers.pop(name, None)
        if driver:
            self._drivers[name] = driver
        return Noted(pods=None, concerns=True)

    def forget(self, kind: type[Object]) -> None:  # noqa: ARG002 - there is one
        """See `Constraint.forget`."""
        self._drivers.clear()

    def concerns(self, pod: core.Pod) -> bool:
        """See `Constraint.concerns`."""
        return pod.spec.runtime_class_name in self._drivers and has_links(pod)

    def ask(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.ask`."""
        return Ask(self._drivers[pod.spec.runtime_class_name])
