"""Lists the slow halves of constraints: what is written before a pod is bound, and what is said meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.control.scheduler.binding import volumes
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.constraint import Ask, Constraint, Reservation
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.volume.volumes import NAME as VOLUMES
from fairlead.store.port import Store


@dataclass(frozen=True, slots=True)
class Binder:
    """One constraint's."""

    reason: str
    """Why the pod waits, as its condition has it."""
    hold_s: float
    """How long room is held at a time."""
    words: Callable[[Ask], str]
    """Returns what a pod waits for, "" for nothing."""
    bind: Callable[[Store, Constraint, Reservation], Awaitable[None]]
    """Writes what is reserved. Raises: Unavailable."""


BINDERS: Final[Mapping[str, Binder]] = {
    VOLUMES: Binder(volumes.REASON, volumes.BIND_S, volumes.words, volumes.bind),
}
"""By constraint; one that reserves nothing is not here."""


def words(need: PodInfo, node: str) -> str:
    """Return what is said of a pod while what it needs, or what its group needs, is made."""
    found = [said for ask in need.asks if ask.constraint in BINDERS and (said := BINDERS[ask.constraint].words(ask))]
    return f"room is held on {node} until {' and '.join(found) or 'the claims of its group have their volumes'}"


def reason(reserved: Iterable[Reservation]) -> str:
    """Return the reason of the first."""
    return next(BINDERS[one.constraint].reason for one in reserved)


def hold_s(reserved: Iterable[Reservation]) -> float:
    """Return how long room is held: as long as the slowest may take."""
    return max(BINDERS[one.constraint].hold_s for one in reserved)


async def bind(store: Store, cache: Cache, reserved: Iterable[Reservation]) -> None:
    """Write what is reserved, one after another. Raises: Unavailable."""
    for one in reserved:
        await BINDERS[one.constraint].bind(store, cache.constraints[one.constraint], one)
