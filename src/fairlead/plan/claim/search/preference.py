"""Says what speaks against a set of devices: a table of preferences with weights, and a sum over it.

Every preference is a count of something unwanted times its weight, so that 0 is the best, and every count but that of
strays only grows while devices are added, so that the sum over some of the devices is a bound for all of them.
Source: none; the reference takes the first answer that it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairlead.plan.claim.pool.candidate import Value
from fairlead.wire.kubernetes.resource.device import NUMA_NODE, PCIE_ROOT

POOL: Final = "pool"
"""Stands in the table for a device's pool, which is not an attribute."""
WHOLE: Final = 1000
"""The size of a whole board; a partition has its share of that."""

BoardID = tuple[str, ...]
"""A counter set as driver, pool and name, or what else says that devices are on one board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """One way in which devices hang together."""

    attribute: str
    """A fully qualified attribute, or `POOL`. A list counts as a whole; a device without it does not count."""
    apart: int
    """For each value beyond the first among the pod's devices."""
    fresh: int
    """For each value among the pod's devices of which no claim has a device of the same driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Weights of what is unwanted, and how long a better set of devices is looked for."""

    together: tuple[Together, ...] = (
        Together(attribute=PCIE_ROOT, apart=200, fresh=10),
        Together(attribute=NUMA_NODE, apart=400, fresh=40),
        Together(attribute=POOL, apart=100, fresh=0),
    )
    stray: int = 300
    """For each device that has none of another driver beside it, where the pod has devices of several drivers."""
    beside: str = PCIE_ROOT
    """The attribute that devices which are beside each other share."""
    board: int = 1000
    """For each board of which no claim has anything yet."""
    lost: int = 100
    """For partitions of the size of a whole board that can no longer be allocated."""
    steps: int = 2000
    """Steps after the first answer: one for each device that is tried. The search's own budget holds beside it."""


class Trait(NamedTuple):
    """What the table asks about one device."""

    driver: str
    values: tuple[Value | str | None, ...]
    """By row of `together`."""
    beside: Value | None
    boards: tuple[BoardID, ...]


class Used(NamedTuple):
    """What claims that are allocated have something of."""

    values: tuple[frozenset[tuple[str, Value | str]], ...]
    """By row of `together`: driver and value."""
    boards: frozenset[BoardID]


def used(rows: int, held: Iterable[Trait], boards: Iterable[BoardID]) -> Used:
    """Return what is used. Args: held: devices that claims have.   boards: further ones that are in use."""
    every = tuple(held)
    values = (frozenset((one.driver, value) for one in every if (value := one.values[at])) for at in range(rows))
    return Used(tuple(values), frozenset((*boards, *(board for one in every for board in one.boards))))


class Tally(NamedTuple):
    """What some devices have, and what speaks against them beside partitions that are lost and strays."""

    total: int
    values: tuple[frozenset[Value | str], ...]
    """By row of `together`."""
    owned: tuple[frozenset[tuple[str, Value | str]], ...]
    """By row of `together`: driver and value."""
    boards: frozenset[BoardID]


def tally(table: Preferences, devices: Sequence[Trait], before: Used) -> Tally:
    """Return what devices have. Args: before: what was in use before them."""
    total, values, owned = 0, [], []
    for at, row in enumerate(table.together):
        pairs = frozenset((one.driver, value) for one in devices if (value := one.values[at]))
        own = frozenset(value for _, value in pairs)
        total += row.apart * max(len(own) - 1, 0) + row.fresh * len(pairs - before.values[at])
        values.append(own)
        owned.append(pairs)
    boards = frozenset(board for one in devices for board in one.boards)
    return Tally(total + table.board * len(boards - before.boards), tuple(values), tuple(owned), boards)


def more(table: Preferences, now: Tally, one: Trait, before: Used) -> int:
    """Return what one more device adds to a tally's total."""
    added = 0
    for at, row in enumerate(table.together):
        value = one.values[at]
        if value:
            pair = (one.driver, value)
            added += row.fresh * (pair not in now.owned[at] and pair not in before.values[at])
            added += row.apart * (bool(now.values[at]) and value not in now.values[at])
    return added + table.board * sum(board not in now.boards and board not in before.boards for board in one.boards)


def of_lost(table: Preferences, size: int) -> int:
    """Return what partitions count that can no longer be allocated, by the sum of their sizes."""
    return table.lost * size // WHOLE


def strays(table: Preferences, devices: Sequence[Trait]) -> int:
    """Return what speaks against devices that have none of another driver beside them."""
    if len({one.driver for one in devices}) < 2:
        return 0
    drivers: dict[Value, set[str]] = {}
    for one in devices:
        if one.beside:
            drivers.setdefault(one.beside, set()).add(one.driver)
    return table.stray * sum(not one.beside or len(drivers[one.beside]) == 1 for one in devices)


def penalty(table: Preferences, devices: Sequence[Trait], before: Used, lost: int) -> int:
    """Return what speaks against a set of devices; 0: nothing.

    Args:    before: what was in use before them.   lost: the sizes of partitions that they make impossible.
    """
    return tally(table, devices, before).total + of_lost(table, lost) + strays(table, devices)
