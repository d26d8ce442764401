"""Tells which devices can take each other's place while the best answer is looked for.

Two devices of one board can, if they take the same of it and everything that claims and preferences ask of them is the
same. Two of different boards can, if the boards are alike, device by device, and nothing is placed on either: whatever
is answered with one board is answered as well with the other. What is placed already is of its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.search.board import Boards
from fairlead.plan.claim.search.classes import outcome
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.preference import BoardID
from fairlead.plan.claim.search.request import Fatal, Wanted


class Kinds:
    """Kinds of one search."""

    def __init__(self, fitting: Fitting, rows: Sequence[Wanted], boards: Boards) -> None:
        """Compare every device."""
        self._fitting, self._boards = fitting, boards
        candidates = fitting.pools.candidates
        self._numbers: dict[Hashable, int] = {}
        self.does: dict[int, tuple[Candidate, ...]] = {}
        """By row, devices that do for it as such; one whose test fails with an error does not."""
        outcomes: list[list[Hashable]] = []
        for row in rows:
            found = [self._outcome(row, one) for one in candidates]
            self.does[row.at] = tuple(one for one, does in zip(candidates, found, strict=True) if does)
            outcomes.append(found)
        self._alone = tuple(
            self._number(
                (
                    boards.layout.alike[one.at],
                    tuple([found[one.at] for found in outcomes]),
                    self._values([row for row, found in zip(rows, outcomes, strict=True) if found[one.at]], one),
                    self._held(one) if boards.is_held(one) else None,
                    not one.groups and boards.traits[one.at].boards[0] in boards.used.boards,
                )
            )
            for one in candidates
        )
        """By device, what it is wherever it is."""
        self._shape: dict[BoardID, int] = {}

    def now(self, touched: frozenset[BoardID]) -> Callable[[Candidate], Hashable]:
        """Return what tells the kind of a device. Args: touched: boards that something is placed on."""
        ledger, alone, traits = self._fitting.ledger, self._alone, self._boards.traits

        def kind(candidate: Candidate) -> Hashable:
            at = candidate.at
            if at in ledger.taken or at in ledger.shares:
                return (at,)
            if not candidate.groups:
                return alone[at]
            boards = traits[at].boards
            is_free = len(boards) == 1 and boards[0] not in touched
            return (alone[at], self._shape_of(boards[0]) if is_free else boards)

        return kind

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _held(self, candidate: Candidate) -> Hashable:
        held, name = self._fitting.held_of(candidate), candidate.id.device
        amounts = tuple(sorted(held.capacity[name].items())) if name in held.capacity else None
        return (name in held.devices, name in held.shares, amounts)

    def _values(self, rows: Sequence[Wanted], candidate: Candidate) -> Hashable:
        """Return what a device has for the constraints of rows that it does for; its own place if that fails."""
        try:
            return tuple([self._fitting.value(each, candidate, row) for row in rows for each in row.constraints])
        except Fatal:
            return ("error", candidate.at)

    def _outcome(self, row: Wanted, candidate: Candidate) -> Hashable:
        try:
            return outcome(self._fitting.static(row, candidate))
        except Fatal:
            return None

    def _shape_of(self, name: BoardID) -> int:
        if name not in self._shape:
            self._shape[name] = self._number(self._look(name))
        return self._shape[name]

    def _look(self, name: BoardID) -> Hashable:
        """Return all that makes one counter set differ from another."""
        pool, of_set = (name[0], name[1]), self._boards.layout.sets[name]
        return (
            name in self._boards.used.boards,
            tuple(one.counter for one in of_set.counters),
            of_set.totals,
            self._boards.left(name).left,
            self._fitting.held_groups(pool).get((*pool, name[2])),
            tuple([self._alone[one.at] for one in self._boards.layout.drawing[name]]),
        )
