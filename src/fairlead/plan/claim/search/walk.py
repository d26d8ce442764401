"""Walks through the devices of a node until every claim has what it wants, or nothing is left to try.

The order is the reference's: claims, requests, alternatives and devices as they come, the first answer is taken, and
within one request devices are only taken forwards. What differs is what is left out. At the first dead end the walk
becomes careful: devices are put into classes (`classes`), of which one that failed stands for all; each step is bounded
(`bound`); and what was left of a state that failed is remembered, so that the same rest is not searched twice. All
three leave out only what has no answer, so that the first answer stays the same.

There is no recursion: choices lie on a stack, each with a mark of the ledger to roll back to. Steps are counted, and a
budget of them ends the walk.
Source: k8s.io/dynamic-resource-allocation v0.37.2 structured/internal/incubating/allocator_incubating.go (behaviour).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.search.bound import Bound
from fairlead.plan.claim.search.classes import Classes
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.request import MOST, Fatal, Table, Wanted

_SHARE: Final = 20
"""A walk of a part may take this share of the budget."""
_WORK_A_STEP: Final = 40
"""So many looks of a bound count as one step."""


class BudgetSpent(Exception):
    """The walk used up its steps."""


class _Signal(enum.Enum):
    DONE = enum.auto()
    TRY = enum.auto()
    """The choice on top of the stack is to be tried."""
    NEXT = enum.auto()
    """The row has all that it wants."""
    FAIL = enum.auto()
    EXCEEDED = enum.auto()
    """The claim would have more devices than it can record, whichever these are."""


class _Devices:
    """A choice of the next device of a row."""

    __slots__ = ("count", "failed", "is_bounded", "last", "mark", "place", "signature", "start", "wanted")

    def __init__(self, wanted: Wanted, count: int, start: int, mark: int, signature: Hashable) -> None:
        self.wanted, self.count, self.start, self.mark, self.signature = wanted, count, start, mark, signature
        self.place = start
        self.is_bounded = signature is not None
        """It was pushed by a careful walk, which looked first whether it can lead anywhere."""
        self.last: Candidate | None = None
        self.failed: set[Hashable] = set()


class _Choice:
    """A choice of the alternative of a request."""

    __slots__ = ("claim", "mark", "request", "sub", "was_exceeded")

    def __init__(self, claim: int, request: int, mark: int) -> None:
        self.claim, self.request, self.mark = claim, request, mark
        self.sub = 0
        self.was_exceeded = True


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the requests of a table."""

    requests: frozenset[tuple[int, int]]
    """By claim and request."""
    classes: Classes


class Walk:
    """One walk."""

    def __init__(self, fitting: Fitting, table: Table, budget: int, part: Part | None = None) -> None:
        """Take what is walked.

        Args:    part: only some requests, with what another walk found out about classes; None: all.
        """
        self._fitting, self._table, self._budget = fitting, table, budget
        self._part = part
        self._ledger = fitting.ledger
        self._candidates = fitting.pools.candidates
        self._stack: list[_Devices | _Choice] = []
        self._steps = 0
        self._careful: tuple[Classes, Bound] | None = None
        self._dead: set[Hashable] = set()
        self._part_steps = 0

    @property
    def steps(self) -> int:
        """How many steps were walked."""
        bound = self._careful[1].work // _WORK_A_STEP if self._careful else 0
        return self._steps + bound + self._part_steps

    def run(self) -> bool:
        """Return whether the ledger holds an answer. Raises: Fatal, BudgetSpent."""
        signal = self._arrive(0, 0)
        while signal is not _Signal.DONE:
            if signal is _Signal.EXCEEDED:
                self._leave_alternative()
            elif signal is _Signal.FAIL and self._stack:
                self._back()
            if not self._stack:
                return False
            top = self._stack[-1]
            signal = self._try_device(top) if isinstance(top, _Devices) else self._try_alternative(top)
        return True

    def _step(self) -> None:
        self._steps += 1
        if self.steps > self._budget:
            raise BudgetSpent

    def _arrive(self, claim: int, request: int) -> _Signal:
        """Go on with a request, or with the next claim after the last."""
        while claim < len(self._table.requests):
            requests = self._table.requests[claim]
            if request == len(requests):
                claim, request = claim + 1, 0
                continue
            if self._part is not None and (claim, request) not in self._part.requests:
                request += 1
                continue
            rows = requests[request]
            if rows[0].is_sub:
                self._step()
                self._stack.append(_Choice(claim, request, self._ledger.checkpoint()))
                return _Signal.TRY
            signal = self._open(rows[0])
            if signal is not _Signal.NEXT:
                return signal
            request += 1
        return _Signal.DONE

    def _open(self, wanted: Wanted) -> _Signal:
        """Begin with a row."""
        self._step()
        room = MOST - self._ledger.sizes.get(wanted.claim, 0)
        every = self._table.every[wanted.at] if wanted.is_all else ()
        if wanted.is_all and not every:
            return _Signal.FAIL
        if (len(every) if wanted.is_all else wanted.count) > room:
            return _Signal.EXCEEDED
        if not wanted.is_all:
            return self._push(wanted, wanted.count, 0)
        for candidate in every:
            self._step()
            misfit = self._fitting.place(wanted, candidate)
            if misfit is not None and misfit.test == "constraint":
                message = (
                    f"claim {wanted.owner}, request {wanted.name}: cannot add device {candidate.id} because a claim"
                    " constraint would not be satisfied"
                )
                raise Fatal(message, "AllImpossible")
            if misfit is not None:
                return _Signal.FAIL
        return _Signal.NEXT

    def _push(self, wanted: Wanted, count: int, start: int) -> _Signal:
        """Choose the next device of a row, unless it is known that it leads nowhere."""
        signature: Hashable = None
        if self._careful is not None:
            classes, bound = self._careful
            signature = self._signature(classes, wanted, count, start)
            if signature in self._dead:
                return _Signal.FAIL
            if not bound.is_possible(wanted, count, start):
                self._meet_errors(wanted, start)
                self._dead.add(signature)
                return _Signal.FAIL
        self._stack.append(_Devices(wanted, count, start, self._ledger.checkpoint(), signature))
        return _Signal.TRY

    def _meet_errors(self, wanted: Wanted, start: int) -> None:
        """Raise the error of the first device that a row would test in vain. Raises: Fatal.

        Trying every device that is free would have met it, and what an error ends is not to depend on a bound.
        """
        if self._careful is not None and wanted.at in self._careful[0].failing:
            mark = self._ledger.checkpoint()
            for candidate in self._candidates[start:]:
                self._fitting.place(wanted, candidate)
                self._ledger.rollback(mark)

    def _try_device(self, top: _Devices) -> _Signal:
        wanted, classes = top.wanted, self._careful[0] if self._careful else None
        if self._careful is not None and not top.is_bounded:
            top.is_bounded = True
            if not self._careful[1].is_possible(wanted, top.count, top.start):
                self._meet_errors(wanted, top.place)
                self._stack.pop()
                return _Signal.FAIL
        for place in range(top.place, len(self._candidates)):
            candidate = self._candidates[place]
            if classes is not None and self._class(classes, candidate) in top.failed:
                continue
            if self._fitting.place(wanted, candidate) is None:
                top.place, top.last = place + 1, candidate
                if top.count == 1:
                    return self._arrive(wanted.claim, wanted.request + 1)
                self._step()
                return self._push(wanted, top.count - 1, place + 1)
        if top.signature is not None:
            self._dead.add(top.signature)
        self._stack.pop()
        return _Signal.FAIL

    def _try_alternative(self, top: _Choice) -> _Signal:
        rows = self._table.requests[top.claim][top.request]
        if top.sub == len(rows):
            self._stack.pop()
            return _Signal.EXCEEDED if top.was_exceeded else _Signal.FAIL
        row = rows[top.sub]
        self._ledger.put(self._ledger.chosen, (top.claim, top.request), top.sub)
        top.sub += 1
        signal = self._open(row)
        return self._arrive(top.claim, top.request + 1) if signal is _Signal.NEXT else signal

    def _back(self) -> None:
        """Roll back to the choice on top of the stack, after what it led to failed."""
        top = self._stack[-1]
        self._ledger.rollback(top.mark)
        if isinstance(top, _Choice):
            top.was_exceeded = False
            return
        if self._careful is None:
            classes = self._part.classes if self._part else Classes(self._fitting, self._table.rows)
            only = self._part.requests if self._part else None
            self._careful = classes, Bound(self._fitting, self._table, classes, only)
            if not self._part and not all(self._can_alone(one, classes) for one in self._parts()):
                self._stack.clear()
                return
        if top.last is not None:
            top.failed.add(self._class(self._careful[0], top.last))

    def _parts(self) -> Iterator[frozenset[tuple[int, int]]]:
        """Yield each request, and each claim of several requests, as far as there are others beside it."""
        keys = [[(number, at) for at in range(len(one))] for number, one in enumerate(self._table.requests)]
        if sum(map(len, keys)) > 1:
            yield from (frozenset([key]) for of_claim in keys for key in of_claim)
        if len(keys) > 1:
            yield from (frozenset(of_claim) for of_claim in keys if len(of_claim) > 1)

    def _can_alone(self, part: frozenset[tuple[int, int]], classes: Classes) -> bool:
        """Return False where a part has no answer even alone, however the others are answered.

        Without this, every answer of what comes before it would be tried first.
        """
        walk = Walk(self._fitting.afresh(), self._table, self._budget // _SHARE, Part(part, classes))
        try:
            return walk.run()
        except (BudgetSpent, Fatal):
            return True
        finally:
            self._part_steps += walk.steps

    def _leave_alternative(self) -> None:
        """Leave every choice of a device since the last choice of an alternative.

        There is one, and in this claim: the fewest that its requests can want fit, or it had been refused before.
        """
        while isinstance(self._stack[-1], _Devices):
            self._stack.pop()
        self._ledger.rollback(self._stack[-1].mark)

    def _class(self, classes: Classes, candidate: Candidate) -> Hashable:
        """Return what a device is worth as things are: its class, who has it, and what is shared of it."""
        ledger, at = self._ledger, candidate.at
        return (classes.of[at], ledger.taken.get(at), ledger.shares.get(at), at in ledger.charged)

    def _signature(self, classes: Classes, wanted: Wanted, count: int, start: int) -> Hashable:
        """Return all that decides whether the rest can be answered, with devices of one class as equals."""
        ledger = self._ledger
        used = Counter(
            (self._class(classes, self._candidates[at]), at >= start) for at in (*ledger.taken, *ledger.shares)
        )
        return (
            (wanted.at, count, start, ledger.sizes.get(wanted.claim, 0)),
            frozenset(used.items()),
            frozenset(ledger.counters.items()),
            frozenset(ledger.groups.items()),
            frozenset(ledger.match.items()),
            frozenset(ledger.distinct.items()),
        )
