"""Finds the first alternatives of prioritized lists that can be met together, whatever devices come before them.

The first answer of a walk may have a later alternative only because an earlier request took its devices as they came.
Here the alternatives of the lists count in the order of the requests, before any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.ledger import Placed
from fairlead.plan.claim.search.request import MOST, Fatal, Table
from fairlead.plan.claim.search.walk import BudgetSpent, Walk

Chosen = dict[tuple[int, int], int]
"""By claim and request, the alternative."""

_SHARE: Final = 4
"""One attempt may take this share of the steps that are left."""


class Ranking:
    """An answer whose alternatives are the first that were found; `steps` counts what that took."""

    def __init__(self, fitting: Fitting, table: Table, chosen: Mapping[tuple[int, int], int], budget: int) -> None:
        """Improve on the alternatives of a first answer, which the ledger of the tests holds."""
        self._fitting, self._table, self._budget = fitting, table, budget
        self.steps = 0
        self.is_done = True
        """Every earlier alternative was tried to its end."""
        self.placed: tuple[Placed, ...] = tuple(fitting.ledger.placed)
        self.chosen: Chosen = dict(chosen)
        for place in sorted(chosen):
            for sub in range(self.chosen[place]):
                if self._try(place, sub):
                    break

    def _try(self, place: tuple[int, int], sub: int) -> bool:
        """Look for an answer with this alternative of a request and what is chosen for those before it."""
        wanted = {other: self.chosen[other] for other in self.chosen if other < place} | {place: sub}
        table = only(self._table, wanted)
        if not _has_room(table):
            return False
        fitting = self._fitting.afresh()
        walk = Walk(fitting, table, (self._budget - self.steps) // _SHARE)
        try:
            found = walk.run()
        except Fatal:
            found = False
        except BudgetSpent:
            found = self.is_done = False
        self.steps += walk.steps
        if found:
            self.placed = tuple(fitting.ledger.placed)
            self.chosen = {**fitting.ledger.chosen, **wanted}
        return found


def only(table: Table, wanted: Mapping[tuple[int, int], int]) -> Table:
    """Return a table in which some requests have one alternative."""
    requests = tuple(
        tuple(
            (rows[wanted[claim, at]],) if (claim, at) in wanted else rows  # the rows keep their own numbers
            for at, rows in enumerate(of_claim)
        )
        for claim, of_claim in enumerate(table.requests)
    )
    return Table(claims=table.claims, rows=table.rows, requests=requests, every=table.every)


def _has_room(table: Table) -> bool:
    """Return whether each claim can record as many devices as its requests want at least."""
    return all(
        sum(min(len(table.every[row.at]) if row.is_all else row.count for row in rows) for rows in of_claim) <= MOST
        for of_claim in table.requests
    )
