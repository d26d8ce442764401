"""Chooses the set of devices that the least speaks against, for requests whose alternatives are chosen already.

The search branches and bounds: the devices of a row are ranked by what would speak against the answer with each, the
least first, and what speaks against some devices never falls when more are added. Of the devices that a row still
wants, one is at least as far down the ranking as their number, which bounds the rest of the row too. Devices that can
take each other's place, on one board or on two boards that are alike and untouched, are tried once.

It begins with an answer and only replaces it by a better one, so that a budget of steps may end it at any time.
There is no recursion. Steps are counted: one for each device that is tried at a place of the search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.search import preference
from fairlead.plan.claim.search.board import Boards
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.kind import Kinds
from fairlead.plan.claim.search.ledger import Placed
from fairlead.plan.claim.search.preference import Preferences, Tally, Trait
from fairlead.plan.claim.search.request import Table, Wanted
from fairlead.plan.claim.search.walk import BudgetSpent


class _Ranked(NamedTuple):
    """A device that fits, and what speaks against an answer with it."""

    bound: int
    """With whatever is added."""
    penalty: int
    """If nothing were added."""
    first: int
    """The first device of its kind."""
    at: int


class _Before(NamedTuple):
    """What is placed at one place of the search."""

    traits: list[Trait]
    now: Tally
    lost: int
    """What speaks against it for the partitions that it makes impossible."""


@dataclass(slots=True)
class _Node:
    """One place of the search: a row that lacks some devices."""

    row: int
    lacks: int
    mark: int
    ranked: list[_Ranked]
    next: int = 0
    excluded: set[int] = field(default_factory=set)
    """Devices whose answers have been looked at."""


class Best:
    """The best answer so far."""

    def __init__(self, fitting: Fitting, table: Table, preferences: Preferences, first: Sequence[Placed]) -> None:
        """Begin with an answer to a table that has one alternative a request; the ledger must be empty."""
        self._fitting, self._table, self._preferences = fitting, table, preferences
        self._boards = Boards(fitting, preferences)
        self._rows = [rows[0] for of_claim in table.requests for rows in of_claim]
        self._kinds = Kinds(fitting, self._rows, self._boards)
        self._stack: list[_Node] = []
        self.steps = self._limit = 0
        self.is_best = True
        """No better answer exists."""
        self.placed = tuple(first)
        for one in first:
            fitting.place(one.wanted, one.candidate)
        self.penalty = self._penalty()
        """What speaks against the answer."""
        fitting.ledger.rollback(0)

    def run(self, steps: int) -> None:
        """Look for better answers until there is none or the steps are spent; the ledger is empty afterwards."""
        self._limit = steps
        try:
            self._run()
        except BudgetSpent:
            self.is_best = False
        self._stack.clear()
        self._fitting.ledger.rollback(0)

    def _run(self) -> None:
        if self.penalty:
            self._enter(0)
        while self._stack and self.penalty:
            node = self._stack[-1]
            self._fitting.ledger.rollback(node.mark)
            at = node.next + node.lacks - 1
            if at < len(node.ranked) and node.ranked[at].bound < self.penalty:
                self._descend(node)
            else:
                self._stack.pop()

    def _step(self) -> None:
        if self.steps >= self._limit:
            raise BudgetSpent
        self.steps += 1

    def _descend(self, node: _Node) -> None:
        """Go on with the next device of a node, whose likes then count as looked at."""
        chosen = node.ranked[node.next]
        before = frozenset(node.excluded)
        while node.next < len(node.ranked) and node.ranked[node.next].first == chosen.first:
            node.excluded.add(node.ranked[node.next].at)
            node.next += 1
        row = self._rows[node.row]
        self._fitting.place(row, self._fitting.pools.candidates[chosen.at])
        if node.lacks > 1:
            self._open(node.row, node.lacks - 1, {*before, chosen.at})
        else:
            self._enter(node.row + 1)

    def _enter(self, at: int) -> None:
        """Begin with a row, or keep the answer after the last one."""
        while at < len(self._rows) and self._rows[at].is_all:
            row = self._rows[at]
            if any(self._fitting.place(row, one) is not None for one in self._table.every[row.at]):
                return
            at += 1
        if at < len(self._rows):
            self._open(at, self._rows[at].count, set())
        elif (penalty := self._penalty()) < self.penalty:
            self.penalty, self.placed = penalty, tuple(self._fitting.ledger.placed)

    def _open(self, at: int, lacks: int, excluded: set[int]) -> None:
        row, mark = self._rows[at], self._fitting.ledger.checkpoint()
        is_last = at == len(self._rows) - 1 and lacks == 1
        ranked = sorted(self._rank(row, excluded, is_last=is_last))
        self._stack.append(_Node(at, lacks, mark, ranked, 0, excluded))

    def _rank(self, row: Wanted, excluded: set[int], *, is_last: bool) -> Iterator[_Ranked]:
        """Yield the devices that fit and may lead to a better answer; those of a kind are tried once."""
        traits = self._traits()
        now = preference.tally(self._preferences, traits, self._boards.used)
        before = _Before(traits, now, preference.of_lost(self._preferences, self._boards.lost(now.boards)))
        kind_of = self._kinds.now(now.boards)
        known: dict[Hashable, tuple[int, int, int] | None] = {}
        for candidate in self._kinds.does[row.at]:
            if candidate.at in excluded:
                continue
            kind = kind_of(candidate)
            if kind not in known:
                known[kind] = self._try(row, candidate, before, is_last=is_last)
            found = known[kind]
            if found is not None:
                yield _Ranked(*found, candidate.at)

    def _try(self, row: Wanted, candidate: Candidate, before: _Before, *, is_last: bool) -> tuple[int, int, int] | None:
        """Return what speaks against the answer with one more device; None: it does not fit, or makes none better."""
        ledger, trait = self._fitting.ledger, self._boards.traits[candidate.at]
        own = () if row.admin else (trait,)
        bound = before.now.total + sum(
            preference.more(self._preferences, before.now, one, self._boards.used) for one in own
        )
        if bound + before.lost >= self.penalty:
            return None  # before it is placed, which costs more
        self._step()
        mark = ledger.checkpoint()
        if self._fitting.place(row, candidate) is not None:
            return None
        boards = before.now.boards.union(*(one.boards for one in own))
        bound += preference.of_lost(self._preferences, self._boards.lost(boards))
        ledger.rollback(mark)
        penalty = bound + preference.strays(self._preferences, [*before.traits, *own])
        return (penalty if is_last else bound, penalty, candidate.at)

    def _traits(self) -> list[Trait]:
        """Return what the table asks about the devices of the ledger; those of admin access hold nothing."""
        traits = self._boards.traits
        return [traits[one.candidate.at] for one in self._fitting.ledger.placed if not one.wanted.admin]

    def _penalty(self) -> int:
        traits = self._traits()
        lost = self._boards.lost({board for one in traits for board in one.boards})
        return preference.penalty(self._preferences, traits, self._boards.used, lost)
