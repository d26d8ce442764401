"""Entries of the scheduler's cache: bindings that are assumed, room that is held, and what happened since asked."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fairlead.wire.kubernetes import core


@dataclass(slots=True)
class Assumed:
    """A binding that no watch has reported yet: the pod without it, and the node."""

    pod: core.Pod
    node: str
    ends_at: float = math.inf
    """Set once the store has confirmed it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Room that a pod has on a node where others are still to end."""

    pod: core.Pod
    node: str
    ends_at: float
    free_at: float = math.inf
    """When the room is there at the latest, Unix seconds; pods that are over by then may use it meanwhile."""
    is_waited_for: bool = False
    """Whether those in its way end by themselves: it is held for one that has waited long."""


@dataclass(slots=True)
class News:
    """What happened since it was asked for."""

    recalls_all: bool = False
    """Whether all pods that wait by a constraint are to be looked at again."""
    recalled: set[str] = field(default_factory=set)
    """Uids of pods that are to be looked at again: an object that they ask for changed."""
    is_freed: bool = True
    """Whether pods that their queue or group holds back may go: a pod or a node came to count otherwise."""
    left: set[str] = field(default_factory=set)
    """Nodes that a pod left."""
    echoes_due: float = math.inf
    """When the first confirmed binding is dropped that no watch has reported."""

    def take_freed(self) -> bool:
        """Return whether parked pods may go, once."""
        found, self.is_freed = self.is_freed, False
        return found

    def take_left(self) -> set[str]:
        """Return the nodes that pods left, once: room that is held there may be free."""
        found, self.left = self.left, set()
        return found

    def recall(self, uids: Collection[str] | None) -> None:
        """Have pods looked at again. Args: uids: None: all that wait by a constraint."""
        if uids is None:
            self.recalls_all = True
        else:
            self.recalled.update(uids)

    def take_recalled(self, waiting: Iterable[str]) -> tuple[str, ...]:
        """Return who is to be looked at again, once. Args: waiting: those that wait by a constraint."""
        found = tuple(dict.fromkeys((*waiting, *self.recalled)) if self.recalls_all else self.recalled)
        self.recalls_all, self.recalled = False, set()
        return found
