"""Reads which devices are on one board, what of each board is left, and what a choice makes impossible there.

A board is a counter set, or devices of one PCI bus ID that take no counters, as partitions that are there already.
A partition is as large as the mean of the shares that it takes of the board's counters.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.plan.claim.pool.candidate import Candidate, CounterID, value_of
from fairlead.plan.claim.pool.pool import NodePools
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.preference import POOL, WHOLE, BoardID, Preferences, Trait, Used, used
from fairlead.wire.kubernetes.resource.device import PCI_BUS_ID

_BUS: Final = "PCI bus"


class Layout:
    """What the preferences ask of a node's devices, whatever claims have of them: read once for its pools."""

    def __init__(self, pools: NodePools, table: Preferences, *, lists: bool) -> None:
        """Read every device."""
        self._table, self._lists = table, lists
        self.traits = tuple(map(self._trait, pools.candidates))
        """By device."""
        self.drawing: dict[BoardID, list[Candidate]] = {}
        """Devices that draw on a counter set, by set."""
        for candidate, trait in zip(pools.candidates, self.traits, strict=True):
            for name in trait.boards if candidate.groups else ():
                self.drawing.setdefault(name, []).append(candidate)
        self._crowd = Counter(one.boards for one in self.traits)
        numbers: dict[Hashable, int] = {}
        self.alike = tuple(numbers.setdefault(self._alike(one), len(numbers)) for one in pools.candidates)
        """By device, a number that those have which are alike, beside what claims ask and have."""
        self.sets = {name: _CounterSet.read(pools, name, drawing) for name, drawing in self.drawing.items()}

    def _trait(self, candidate: Candidate) -> Trait:
        table, (driver, pool, _) = self._table, candidate.id
        sets = tuple((driver, pool, name) for name in dict.fromkeys(one.counter_set for one in candidate.groups))
        values = (
            f"{driver}/{pool}" if row.attribute == POOL else self._value(candidate, row.attribute)
            for row in table.together
        )
        return Trait(driver, tuple(values), self._value(candidate, table.beside), sets or self._own_board(candidate))

    def _value(self, candidate: Candidate, name: str) -> frozenset[tuple[str, object]] | None:
        return value_of(candidate, name, lists=self._lists)

    def _own_board(self, candidate: Candidate) -> tuple[BoardID, ...]:
        """Return the board of a device that takes no counters: its PCI bus ID, or itself."""
        words = sorted(str(one) for _, one in self._value(candidate, PCI_BUS_ID) or ())
        return ((_BUS, *words),) if words else (tuple(candidate.id),)

    def _alike(self, candidate: Candidate) -> Hashable:
        trait = self.traits[candidate.at]
        if not candidate.groups:
            board: Hashable = trait.boards if self._crowd[trait.boards] > 1 else None
        else:
            # Sets count by their names only where a device draws on several, which are never like others.
            is_wide = len(trait.boards) > 1
            taken = tuple((is_wide and one.counter_set, one.counter, amount) for one, amount in candidate.consumes)
            groups = tuple((is_wide and one.counter_set, one.groups) for one in candidate.groups)
            board = (candidate.id.pool, taken, groups)
        return (trait.driver, trait.values, trait.beside, candidate.is_shared, board)


@dataclass(frozen=True, slots=True)
class _CounterSet:
    """A counter set, and what each device takes of it."""

    counters: tuple[CounterID, ...]
    totals: tuple[int, ...]
    parts: tuple[tuple[Candidate, int, tuple[int, ...]], ...]
    """Devices that can be allocated at all, with their size and what they take of each counter."""

    @classmethod
    def read(cls, pools: NodePools, name: BoardID, drawing: Iterable[Candidate]) -> _CounterSet:
        """Return the counters of a set."""
        every = pools.by_name[name[0], name[1]].totals
        counters = tuple(one for one in every if one.counter_set == name[2])
        totals = tuple(every[one] for one in counters)
        parts = []
        for candidate in drawing:
            if not (candidate.barred or candidate.refused or candidate.is_elsewhere):
                consumes = dict(candidate.consumes)
                needs = tuple(consumes.get(one, 0) for one in counters)
                parts.append((candidate, _size(needs, totals), needs))
        return cls(counters, totals, tuple(parts))


@dataclass(frozen=True, slots=True)
class _Left:
    """What claims leave of a counter set, and of its devices; equal for sets that are left alike."""

    left: tuple[int, ...]
    parts: tuple[tuple[int, tuple[int, ...]], ...]
    known: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False)

    def lost(self, taken: tuple[int, ...]) -> int:
        """Return the sizes of the devices that what is taken of each counter makes impossible."""
        if taken not in self.known:
            left = [have - amount for have, amount in zip(self.left, taken, strict=True)]
            self.known[taken] = sum(size for size, needs in self.parts if not _are_there(needs, left))
        return self.known[taken]


class Boards:
    """Boards of one search, as claims that are allocated leave them."""

    def __init__(self, fitting: Fitting, table: Preferences) -> None:
        """Read what is held; the devices are read once for the pools and the table."""
        self._fitting = fitting
        lists, kept = fitting.gates.list_type_attributes, fitting.pools.kept
        key = (Layout, table, lists)
        if key not in kept:
            kept[key] = Layout(fitting.pools, table, lists=lists)
        self.layout: Layout = kept[key]
        self.traits = self.layout.traits
        self._touched = {
            (pool.driver, pool.name): names
            for pool in fitting.pools.pools
            if (names := fitting.held_in(pool).names() & pool.devices)
        }
        """Devices that are held, by pool."""
        self.used: Used = used(len(table.together), self._held(), self._drawn())
        """What claims have something of."""
        self._left: dict[BoardID, _Left] = {}
        self._same: dict[_Left, _Left] = {}

    def lost(self, boards: Iterable[BoardID]) -> int:
        """Return the sizes of what the ledger's devices make impossible on boards."""
        taken, sets, total = self._fitting.ledger.counters, self.layout.sets, 0
        for name in boards:
            if name in sets:
                total += self.left(name).lost(tuple([taken.get(one, 0) for one in sets[name].counters]))
        return total

    def left(self, name: BoardID) -> _Left:
        """Return what is left of a counter set."""
        found = self._left.get(name)
        if found is None:
            found = self._read(name)
            found = self._left[name] = self._same.setdefault(found, found)
        return found

    def is_held(self, candidate: Candidate) -> bool:
        """Return whether claims have something of a device."""
        names = self._touched.get((candidate.id.driver, candidate.id.pool))
        return names is not None and candidate.id.device in names

    def _read(self, name: BoardID) -> _Left:
        of_set = self.layout.sets[name]
        free, _ = self._fitting.free_counters((name[0], name[1]))
        left = tuple(free[one] for one in of_set.counters)
        return _Left(
            left,
            tuple(
                (size, needs)
                for candidate, size, needs in of_set.parts
                if _are_there(needs, left) and not self.is_held(candidate)
            ),
        )

    def _held(self) -> Iterable[Trait]:
        if not self._touched:
            return ()
        every = zip(self._fitting.pools.candidates, self.traits, strict=True)
        return (trait for one, trait in every if not one.is_elsewhere and self.is_held(one))

    def _drawn(self) -> Iterable[BoardID]:
        """Yield counter sets of which claims have something, through devices of other nodes too."""
        for driver, name in self._touched:
            totals: Mapping[CounterID, int] = self._fitting.pools.by_name[driver, name].totals
            left, _ = self._fitting.free_counters((driver, name))
            yield from ((driver, name, one.counter_set) for one, total in totals.items() if left[one] < total)


def _are_there(needs: Iterable[int], left: Iterable[int]) -> bool:
    return all(map(operator.le, needs, left))


def _size(needs: tuple[int, ...], totals: tuple[int, ...]) -> int:
    shares = [WHOLE * need // total for need, total in zip(needs, totals, strict=True) if total > 0]
    return sum(shares) // len(shares) if shares else 0
