"""Groups the devices of a node by everything that could make one of them do where another does not.

Two devices of one class can take each other's place in any answer, so that where one led nowhere the other need not be
tried. Only what the claims of the pod ask about counts: a serial number makes no class unless something reads it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.search.capacity import Consumption
from fairlead.plan.claim.search.fit import Fit, Fitting, Misfit
from fairlead.plan.claim.search.request import Fatal, Wanted


class Classes:
    """Classes of one search; numbers in the order in which their first devices come."""

    def __init__(self, fitting: Fitting, rows: Sequence[Wanted]) -> None:
        """Test every device for every row, without what devices change for each other."""
        self.of: list[int] = []
        """The class of each device."""
        self.example: list[Candidate] = []
        """The first device of each class."""
        self.fits: list[frozenset[int]] = []
        """By class, rows that it does for; a device whose test fails with an error counts, so that it is met."""
        self.failing: set[int] = set()
        """Rows whose test of some device fails with an error."""
        known: dict[Hashable, int] = {}
        for candidate in fitting.pools.candidates:
            outcomes = tuple(self._outcome(fitting, row, candidate) for row in rows)
            doing = [row for row, found in zip(rows, outcomes, strict=True) if found]
            key = (outcomes, self._values(fitting, doing, candidate), _own(fitting, candidate))
            if key not in known:
                known[key] = len(self.example)
                self.example.append(candidate)
                self.fits.append(frozenset(row.at for row, found in zip(rows, outcomes, strict=True) if found))
            self.of.append(known[key])

    def _values(self, fitting: Fitting, rows: Sequence[Wanted], candidate: Candidate) -> Hashable:
        """Return what a device has for the constraints of rows that it does for."""
        found: dict[Hashable, Hashable] = {}
        for row in rows:
            for one in row.constraints:
                try:
                    found[one.at, row.derived.get(one.attribute)] = fitting.value(one, candidate, row)
                except Fatal:
                    self.failing.add(row.at)
                    return ("error", candidate.at)
        return frozenset(found.items())

    def _outcome(self, fitting: Fitting, row: Wanted, candidate: Candidate) -> Hashable:
        try:
            return outcome(fitting.static(row, candidate))
        except Fatal:
            self.failing.add(row.at)
            return ("error", candidate.at)


def outcome(found: Fit | Misfit) -> Hashable:
    """Return what counts of a test: what the device would consume; None: it does not do."""
    if isinstance(found, Misfit):
        return None
    consumed: Consumption | None = found.consumption
    return (True, consumed.amounts if consumed is not None else None)


def _own(fitting: Fitting, candidate: Candidate) -> Hashable:
    """Return what of a device matters beside whether it does for a row."""
    held = fitting.held_of(candidate)
    name = candidate.id.device
    return (
        candidate.is_shared,
        candidate.takes_counters and (candidate.id.driver, candidate.id.pool),
        tuple(sorted(candidate.consumes)),
        tuple(sorted((use.counter_set, *sorted(use.groups)) for use in candidate.groups)),
        name in held.devices,
        name in held.shares,
        tuple(sorted(held.capacity[name].items())) if name in held.capacity else None,
    )
