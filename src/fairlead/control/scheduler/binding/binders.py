"""Lists the slow halves of constraints: what is written before a pod is bound, and what is said meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.control.scheduler.binding import claims, volumes
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.claim.ask import NAME as CLAIMS
from fairlead.plan.schedule.constraint import Ask, Reservation
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.volume.volumes import NAME as VOLUMES
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes import core


@dataclass(frozen=True, slots=True)
class Binder:
    """One constraint's."""

    reason: str
    """Why the pod waits, as its condition has it."""
    hold_s: float
    """How long room is held at a time."""
    words: Callable[[Ask], str]
    """Returns what a pod waits for, "" for nothing."""
    bind: Callable[[PatchingStore, Cache, Reservation], Awaitable[None]]
    """Writes what is reserved. Raises: Unavailable; Conflict, NotFound, Invalid, Denied: it was not written."""
    resolve: Callable[[PatchingStore, Cache, Reservation], Awaitable[None]] | None = None
    """Asks the store what it took of it, where `bind` raised Unavailable. Raises: Unavailable."""

    make: Callable[[PatchingStore, Cache, Reservation, core.Pod], Awaitable[core.Pod]] | None = None
    """Makes what is made for the binding alone; returns the pod as it is to be bound. Raises: as `bind`."""
    undo: Callable[[PatchingStore, Cache, Reservation, core.Pod], Awaitable[None]] | None = None
    """Removes what `make` made: the pod was not bound. Raises: as `bind`."""


BINDERS: Final[Mapping[str, Binder]] = {
    VOLUMES: Binder(volumes.REASON, volumes.BIND_S, volumes.words, volumes.bind),
    CLAIMS: Binder(claims.REASON, claims.HOLD_S, claims.words, claims.bind, claims.resolve, claims.make, claims.undo),
}
"""By constraint; one that reserves nothing is not here."""


def words(need: PodInfo, node: str, reserved: Iterable[Reservation]) -> str:
    """Return what is said of a pod while what it needs, or what its group needs, is made."""
    names = {one.constraint for one in waiting(reserved)}
    found = [said for ask in need.asks if ask.constraint in names and (said := BINDERS[ask.constraint].words(ask))]
    return f"room is held on {node} until {' and '.join(found) or 'the claims of its group have what they need'}"


def waiting(reserved: Iterable[Reservation]) -> tuple[Reservation, ...]:
    """Return those for which the pod waits once they are written."""
    return tuple(one for one in reserved if one.waits)


def reason(reserved: Iterable[Reservation]) -> str:
    """Return the reason of the first that the pod waits for."""
    return next(BINDERS[one.constraint].reason for one in waiting(reserved))


def hold_s(reserved: Iterable[Reservation]) -> float:
    """Return how long room is held: as long as the slowest may take."""
    return max(BINDERS[one.constraint].hold_s for one in waiting(reserved))


async def bind(store: PatchingStore, cache: Cache, reserved: Iterable[Reservation]) -> None:
    """Write what is reserved, one after another. Raises: as `Binder.bind`."""
    for one in reserved:
        await BINDERS[one.constraint].bind(store, cache, one)


async def make(store: PatchingStore, cache: Cache, reserved: Iterable[Reservation], pod: core.Pod) -> core.Pod:
    """Make what is made for a binding alone; returns the pod as it is to be bound. Raises: as `Binder.bind`."""
    for one in reserved:
        if one.made and (ask := BINDERS[one.constraint].make) is not None:
            pod = await ask(store, cache, one, pod)
    return pod


async def undo(store: PatchingStore, cache: Cache, reserved: Iterable[Reservation], pod: core.Pod) -> None:
    """Remove what `make` made. Raises: as `Binder.bind`."""
    for one in reserved:
        if one.made and (ask := BINDERS[one.constraint].undo) is not None:
            await ask(store, cache, one, pod)


async def resolve(store: PatchingStore, cache: Cache, reserved: Iterable[Reservation]) -> None:
    """Find out what the store took of reservations whose write it did not answer. Raises: Unavailable."""
    for one in reserved:
        if (ask := BINDERS[one.constraint].resolve) is not None:
            await ask(store, cache, one)
