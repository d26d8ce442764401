"""Counts what is held at once, by holder, so that each place is given back once however its use ends.

The count belongs to the place and not to the part of the program that uses it: a connection changes its protocol with
an upgrade, and whichever ends it gives the same place back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Places:
    """The places that are taken."""

    def __init__(self, report: Callable[[int], None] = lambda _: None) -> None:
        """Args: report: called with the number of all after each change, for a gauge."""
        self._by: Counter[int | str] = Counter()
        self._all = 0
        self._report = report

    def __len__(self) -> int:
        """Return how many are taken."""
        return self._all

    def of(self, holder: int | str) -> int:
        """Return how many a holder has."""
        return self._by[holder]

    def holders(self) -> frozenset[int | str]:
        """Return those that have any."""
        return frozenset(self._by)

    def take(self, holder: int | str) -> Place:
        """Take one more, whether or not that is too many."""
        self._count(holder, 1)
        return Place(lambda: self._count(holder, -1))

    def _count(self, holder: int | str, change: int) -> None:
        self._by[holder] += change
        if not self._by[holder]:
            del self._by[holder]
        self._all += change
        self._report(self._all)


class Place:
    """One place, taken until it is given back."""

    def __init__(self, undo: Callable[[], None]) -> None:
        """Args: undo: takes it out of the count."""
        self._undo: Callable[[], None] | None = undo

    def give_back(self) -> None:
        """Give it back; a second time does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
