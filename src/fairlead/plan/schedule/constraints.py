"""Lists the constraints that the scheduler knows; each is made with a function that gives the pods of a namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead.plan.schedule.claim.claims import Claims
from fairlead.plan.schedule.constraint import Constraint, Users
from fairlead.plan.schedule.volume.volumes import Volumes
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object

ALL: Final = (Volumes, Claims)
"""In this order they are asked."""
MADE: Final[tuple[Callable[[Users], Constraint], ...]] = ALL
KINDS: Final[tuple[type[Object], ...]] = tuple(kind for one in ALL for kind in one.kinds)
"""What they read."""


def concern(pod: core.Pod) -> bool:
    """Return whether a pod asks for anything by one of them."""
    return any(one.concerns(pod) for one in ALL)
