"""Proves that what a search has placed so far cannot be finished, without trying.

Devices still wanted flow from rows to classes of devices, and through the counter sets that those draw on, none of
which takes more than it has left; where less flows than is wanted, no choice of devices helps. A `matchAttribute` lets
only devices of one value take part, tried value by value; a `distinctAttribute` lets each value take part once. Each
bound only leaves conditions out, so that it never refuses what could be answered.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.claim.pool.candidate import Candidate, CounterID, Value
from fairlead.plan.claim.search.classes import Classes
from fairlead.plan.claim.search.fit import Fit, Fitting
from fairlead.plan.claim.search.request import Constraint, Fatal, Table, Wanted

_MANY: Final = 10**6
_COMBINATIONS: Final = 64
"""Combinations of values that are tried together; where there are more, each constraint is looked at alone."""

Only = Mapping[tuple[int, int], tuple[str, object]]
"""The value that a constraint's devices have, by constraint."""


@dataclass(frozen=True, slots=True)
class _Need:
    """Devices that one request still wants; of several alternatives, as few as any of them wants."""

    rows: tuple[Wanted, ...]
    count: int
    start: int
    """Only devices from this place on."""
    classes: tuple[int, ...]
    """Classes of which devices do for it."""


@dataclass(slots=True)
class _Supply:
    """What of one class is left."""

    places: list[int]
    """Devices that an ordinary row can have."""
    shares: int
    """How often they can be given out together."""


class Bound:
    """Bounds of one search; `work` counts what they cost."""

    def __init__(
        self, fitting: Fitting, table: Table, classes: Classes, only: frozenset[tuple[int, int]] | None = None
    ) -> None:
        """Take what is bounded.

        Args:    only: the requests that count, by claim and request; None: all.
        """
        self._fitting, self._table, self._classes, self._only = fitting, table, classes, only
        self._least = [self._consumes(one) if one.is_shared else None for one in classes.example]
        self._doing: dict[tuple[Wanted, ...], tuple[int, ...]] = {}
        self.work = 0

    def is_possible(self, wanted: Wanted, count: int, start: int) -> bool:
        """Return False where the rest cannot be answered.

        Args:    wanted, count, start: the row that is being answered, how many devices it lacks and from which place
                 on they are taken.
        """
        needs = [self._need((wanted,), count, start), *self._later(wanted)]
        self.work += 2 * len(self._classes.of) + sum(len(need.classes) for need in needs)
        supply = self._supply()
        if not all(self._has_enough(need, supply) for need in needs):
            return False
        ordinary = [need for need in needs if not any(row.admin for row in need.rows)]
        fixed, options = self._values(ordinary, supply)
        if _product(options) <= _COMBINATIONS:
            keys = list(options)
            return any(
                self._flows(ordinary, supply, {**fixed, **dict(zip(keys, values, strict=True))})
                for values in itertools.product(*options.values())
            )
        return all(
            any(self._flows(ordinary, supply, {**fixed, key: value}) for value in values)
            for key, values in options.items()
        )

    def _later(self, wanted: Wanted) -> Iterator[_Need]:
        for claim in range(wanted.claim, len(self._table.requests)):
            first = wanted.request + 1 if claim == wanted.claim else 0
            for at, rows in enumerate(self._table.requests[claim][first:], first):
                if self._only is not None and (claim, at) not in self._only:
                    continue
                counts = [len(self._table.every[row.at]) if row.is_all else row.count for row in rows]
                # `All` of no devices is no answer, so that it does not count as the fewest.
                yield self._need(rows, min((count for count in counts if count), default=_MANY), 0)

    def _need(self, rows: tuple[Wanted, ...], count: int, start: int) -> _Need:
        if rows not in self._doing:
            fits = enumerate(self._classes.fits)
            self._doing[rows] = tuple(number for number, one in fits if any(row.at in one for row in rows))
        return _Need(rows, count, start, self._doing[rows])

    def _supply(self) -> list[_Supply]:
        fitting, classes = self._fitting, self._classes
        found = [_Supply([], 0) for _ in classes.example]
        ledger = fitting.ledger
        for candidate, number in zip(fitting.pools.candidates, classes.of, strict=True):
            one = found[number]
            held = fitting.held_of(candidate)
            if candidate.at in ledger.taken or candidate.id.device in held.devices:
                continue
            if candidate.takes_counters and not self._has_counters(candidate):
                continue
            shares = self._shares(candidate, number) if candidate.is_shared else 1
            if shares:
                one.places.append(candidate.at)
                one.shares += shares
        return found

    def _has_counters(self, candidate: Candidate) -> bool:
        fitting = self._fitting
        if candidate.is_shared:
            return True
        left, problem = fitting.free_counters((candidate.id.driver, candidate.id.pool))
        used = fitting.ledger.counters
        return not problem and all(used.get(name, 0) + amount <= left[name] for name, amount in candidate.consumes)

    def _consumes(self, example: Candidate) -> tuple[tuple[int, int], ...] | None:
        """Return of each capacity of a shared device what is left beside others, and the least that a row takes.

        None: a test failed with an error, so that nothing is known.
        """
        try:
            found = [self._fitting.static(row, example) for row in self._table.rows]
        except Fatal:
            return None
        consumed = [one.consumption for one in found if isinstance(one, Fit) and one.consumption is not None]
        held = self._fitting.held_of(example).capacity.get(example.id.device, {})
        return tuple(
            (there - held.get(name, 0), min(one.amounts[at][1] for one in consumed))
            for at, (name, _, there) in enumerate(consumed[0].amounts if consumed else ())
        )

    def _shares(self, candidate: Candidate, number: int) -> int:
        """Return how many more requests can share a device, at most."""
        most = _MANY
        before = self._fitting.ledger.shares.get(candidate.at)
        for at, (left, least) in enumerate(self._least[number] or ()):
            rest = left - (before[at] if before is not None else 0)
            most = min(most, max(rest, 0) // least) if least > 0 else most
        return most

    def _has_enough(self, need: _Need, supply: Sequence[_Supply]) -> bool:
        """Return whether there are enough devices for one request alone; with admin access, held ones count."""
        if any(row.admin for row in need.rows):
            return True
        return sum(_width(need, supply[number]) for number in need.classes) >= need.count

    def _values(
        self, needs: Sequence[_Need], supply: Sequence[_Supply]
    ) -> tuple[Only, dict[tuple[int, int], list[tuple[str, object]]]]:
        """Return values of constraints that are known, and those that are open with all that they can be."""
        fixed: dict[tuple[int, int], tuple[str, object]] = {}
        options: dict[tuple[int, int], list[tuple[str, object]]] = {}
        for one in {one.at: one for need in needs for one in _shared_constraints(need) if one.is_match}.values():
            now = self._fitting.ledger.match.get(one.at)
            own = [
                value
                for need in needs
                if one in _shared_constraints(need)
                for number in need.classes
                if supply[number].places and (value := self._value(one, need, number)) is not None
            ]
            if not all(own):
                continue  # of a type that is not known: one such device alone is an answer
            values = dict.fromkeys(
                itertools.chain.from_iterable(own if now is None else [value & now for value in own])
            )
            if len(values) == 1:
                fixed[one.at] = next(iter(values))
            else:
                options[one.at] = list(values)
        return fixed, options

    def _value(self, one: Constraint, need: _Need, number: int) -> Value | None:
        """Return what a class has for a constraint of a request; of no known type where computing it fails."""
        try:
            return self._fitting.value(one, self._classes.example[number], need.rows[0])
        except Fatal:
            return Value()

    def _flows(self, needs: Sequence[_Need], supply: Sequence[_Supply], only: Only) -> bool:
        """Return whether all that is wanted flows, with each distinct constraint alone."""
        distinct = {one.at: one for need in needs for one in _shared_constraints(need) if not one.is_match}
        return all(self._flow(needs, supply, only, one) for one in distinct.values() or (None,))

    def _flow(self, needs: Sequence[_Need], supply: Sequence[_Supply], only: Only, distinct: Constraint | None) -> bool:
        network = _Network()
        self._limit_counters(network, supply)
        wanted = 0
        for at, need in enumerate(needs):
            wanted += need.count
            network.join("source", ("need", at), need.count)
            for number in need.classes:
                width = _width(need, supply[number])
                if not width or not self._is_allowed(need, number, only):
                    continue
                target: Hashable = ("class", number)
                if distinct is not None and any(one.at == distinct.at for one in _shared_constraints(need)):
                    value = self._value(distinct, need, number)
                    used = self._fitting.ledger.distinct.get(distinct.at, Value())
                    if value is None or value & used:
                        continue
                    if value:
                        target, width = ("value", value), 1
                        network.join(target, ("once", value), 1)
                        network.join(("once", value), ("class", number), 1)
                network.join(("need", at), target, width)
        self.work += network.size + sum(len(need.classes) for need in needs)
        flowed = network.flow()
        self.work += network.work
        return flowed >= wanted

    def _limit_counters(self, network: _Network, supply: Sequence[_Supply]) -> None:
        """Join classes to the sink, through the counter sets of those that draw on some."""
        drawing: dict[Hashable, list[int]] = {}
        for number, one in enumerate(supply):
            example = self._classes.example[number]
            if one.shares and example.takes_counters and not example.is_shared:
                sets = frozenset((counter[0], counter[1], counter[2]) for counter, _ in example.consumes)
                drawing.setdefault(sets, []).append(number)
                network.join(("class", number), ("sets", sets), one.shares)
            elif one.shares:
                network.join(("class", number), "sink", one.shares)
        for drawn, numbers in drawing.items():
            network.join(("sets", drawn), "sink", self._drawn(numbers))

    def _drawn(self, numbers: Sequence[int]) -> int:
        """Return how many devices of classes that draw on the same counter sets fit together, at most."""
        examples = [self._classes.example[number] for number in numbers]
        left, _ = self._fitting.free_counters((examples[0].id.driver, examples[0].id.pool))
        used = self._fitting.ledger.counters
        most = _MANY
        least: dict[CounterID, int] = dict(examples[0].consumes)
        for one in examples[1:]:
            consumes = dict(one.consumes)
            least = {name: min(amount, consumes[name]) for name, amount in least.items() if name in consumes}
        for name, amount in least.items():
            if amount > 0:
                most = min(most, max(left[name] - used.get(name, 0), 0) // amount)
        return most

    def _is_allowed(self, need: _Need, number: int, only: Only) -> bool:
        for one in _shared_constraints(need):
            value = self._value(one, need, number)
            if value is None or (one.is_match and one.at in only and only[one.at] not in value):
                return False
        return True


def _width(need: _Need, one: _Supply) -> int:
    """Return how many devices of a class a request can have."""
    return len(one.places) - (bisect.bisect_left(one.places, need.start) if need.start else 0)


def _shared_constraints(need: _Need) -> tuple[Constraint, ...]:
    """Return constraints that every alternative of a request has, about the same attribute of a device."""
    first = need.rows[0]
    if len(need.rows) == 1:
        return first.constraints
    return tuple(
        one
        for one in first.constraints
        if all(
            one in row.constraints and row.derived.get(one.attribute) == first.derived.get(one.attribute)
            for row in need.rows[1:]
        )
    )


def _product(options: Mapping[tuple[int, int], Sequence[object]]) -> int:
    product = 1
    for values in options.values():
        product *= len(values)
    return product


class _Network:
    """Finds how much flows from `source` to `sink`."""

    def __init__(self) -> None:
        self._room: dict[Hashable, dict[Hashable, int]] = {"source": {}, "sink": {}}
        self.size = 0
        self.work = 0

    def join(self, one: Hashable, other: Hashable, room: int) -> None:
        """Let so much flow from one node to another; what is joined already stays as it is."""
        forth = self._room.setdefault(one, {})
        if forth.get(other, 0) < room:
            forth[other] = room
            self._room.setdefault(other, {}).setdefault(one, 0)
            self.size += 1

    def flow(self) -> int:
        """Return the greatest flow; what is left of each joint afterwards is its rest."""
        total = 0
        while (path := self._path()) is not None:
            least = min(self._room[one][other] for one, other in itertools.pairwise(path))
            for one, other in itertools.pairwise(path):
                self._room[one][other] -= least
                self._room[other][one] += least
            total += least
        return total

    def _path(self) -> list[Hashable] | None:
        """Return a shortest path with room."""
        before: dict[Hashable, Hashable] = {"source": "source"}
        level: list[Hashable] = ["source"]
        while level:
            after: list[Hashable] = []
            for one in level:
                for other, room in self._room[one].items():
                    self.work += 1
                    if room > 0 and other not in before:
                        before[other] = one
                        if other == "sink":
                            return _traced(before)
                        after.append(other)
            level = after
        return None


def _traced(before: Mapping[Hashable, Hashable]) -> list[Hashable]:
    path: list[Hashable] = ["sink"]
    while path[-1] != "source":
        path.append(before[path[-1]])
    return path[::-1]
