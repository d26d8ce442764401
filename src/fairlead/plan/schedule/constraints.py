"""Lists the constraints that the scheduler knows; each is made with a function that gives the pods of a namespace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.search.preference import Preferences
from fairlead.plan.schedule.claim.claims import Claims
from fairlead.plan.schedule.constraint import Constraint, Users
from fairlead.plan.schedule.fabric.guestdriver import GuestDrivers
from fairlead.plan.schedule.reservation.reservations import Reservations, Terms
from fairlead.plan.schedule.volume.volumes import Volumes
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object

ALL: Final = (Volumes, Claims, GuestDrivers)
"""In this order they are asked."""
Make = Callable[[Users], Constraint]
MADE: Final[tuple[Make, ...]] = ALL
KINDS: Final[tuple[type[Object], ...]] = tuple(kind for one in ALL for kind in one.kinds)
"""What they read."""


def made(gates: Gates, *, is_best: bool, more: Sequence[Make] = ()) -> tuple[Make, ...]:
    """Return what makes them for a cluster with feature gates.

    Args: is_best: claims get the best devices of a node.   more: what is known on one machine alone.
    """
    chosen = Preferences() if is_best else None
    found = (functools.partial(one, gates=gates, preferences=chosen) if one is Claims else one for one in ALL)
    return (*found, *more)


def reservations(terms: Terms, clock: Callable[[], float]) -> Make:
    """Return what makes the constraint of reservations. Args: clock: gives Unix seconds."""
    return functools.partial(Reservations, terms=terms, clock=clock)


def concern(pod: core.Pod) -> bool:
    """Return whether a pod names what one of them is about."""
    return Volumes.concerns(pod) or Claims.names_claims(pod) or Reservations.names_one(pod)
