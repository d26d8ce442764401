"""Keeps what a search has placed so far, and takes it back: an undo log in place of copies.

Everything that placing a device changes is in one of these tables and is written through `put`, which notes what was
there before; `rollback` writes it back, so that nothing can be forgotten in one way of failing and not in another.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fairlead.plan.claim.pool.candidate import Candidate, CounterID, Value
from fairlead.plan.claim.search.capacity import Consumption
from fairlead.plan.claim.search.request import Wanted

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ABSENT: Final = object()
_PLACED: Final = object()


@dataclass(frozen=True, slots=True)
class Placed:
    """One device that a row got."""

    wanted: Wanted
    candidate: Candidate
    consumption: Consumption | None
    """What it consumes of a shared device; None: the device is not shared."""


class Ledger:
    """Tables of one search."""

    __slots__ = (
        "_log",
        "charged",
        "chosen",
        "counters",
        "distinct",
        "groups",
        "match",
        "placed",
        "shares",
        "sizes",
        "taken",
    )

    def __init__(self) -> None:
        self._log: list[tuple[Any, Any, Any]] = []
        self.placed: list[Placed] = []
        self.sizes: dict[int, int] = {}
        """Devices by claim."""
        self.taken: dict[int, frozenset[int]] = {}
        """By device, the claims that have it; one that claims share is not here."""
        self.shares: dict[int, tuple[int, ...]] = {}
        """By shared device, what of each capacity is consumed, in the device's order."""
        self.charged: dict[int, bool] = {}
        """Shared devices whose counters are charged."""
        self.counters: dict[CounterID, int] = {}
        """What is consumed of each counter."""
        self.groups: dict[tuple[str, str, str], frozenset[str]] = {}
        """By counter set, the compatibility groups that its devices have in common."""
        self.match: dict[tuple[int, int], Value] = {}
        """By constraint, the values that its devices have in common."""
        self.distinct: dict[tuple[int, int], Value] = {}
        """By constraint, the values that its devices have."""
        self.chosen: dict[tuple[int, int], int] = {}
        """By claim and request, the alternative that is tried."""

    def checkpoint(self) -> int:
        """Return a mark to roll back to."""
        return len(self._log)

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Write one entry."""
        self._log.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def place(self, placed: Placed) -> None:
        """Add one device to the answer."""
        self._log.append((_PLACED, None, None))
        self.placed.append(placed)
        claim = placed.wanted.claim
        self.put(self.sizes, claim, self.sizes.get(claim, 0) + 1)

    def rollback(self, mark: int) -> None:
        """Undo everything since a mark."""
        log = self._log
        while len(log) > mark:
            table, key, before = log.pop()
            if table is _PLACED:
                self.placed.pop()
            elif before is _ABSENT:
                del table[key]
            else:
                table[key] = before

    def tables(self) -> tuple[dict[Any, Any], ...]:
        """Return copies of all tables, for comparison."""
        return tuple(
            dict(one)
            for one in (
                *(self.sizes, self.taken, self.shares, self.charged, self.counters),
                *(self.groups, self.match, self.distinct, self.chosen),
            )
        )
