"""Carries verifications out beside the gate: one task a GPU, whose verdict counts only with the epoch it began with.

The gate moves a GPU into cleaning; what takes seconds happens here. A verdict that comes late, from before a crash or
an intervention, finds another epoch and changes nothing. What could not be carried out is tried three times, with
growing waits, then the GPU is quarantined; what waits for a person waits without counting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from fairlead import backoff, errors, telemetry
from fairlead.node.lease import ledger as ledgers
from fairlead.node.lease.verifier import Outcome
from fairlead.plan.lease import change, check
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.plan.lease.row import Facts, Row, State
from fairlead.plan.lease.table import Event

ATTEMPTS: Final = 3
AGAIN_S: Final = 5.0
"""First wait after an attempt that failed; it doubles."""
PATIENCE_S: Final = 30.0
"""How long one that waits for a person is left alone, unless an approval comes."""


class Verifies(Protocol):
    """What cleans a GPU and says whether it is fit for the next tenant."""

    def stamp(self) -> object:
        """Return a value that changes when a person decided something that may let a GPU pass."""
        ...

    async def verify(self, row: Row) -> Outcome:
        """Clean and verify one GPU. Raises: Unavailable: what was found cannot be kept."""
        ...


Act = Callable[[ledgers.Decision], Awaitable[tuple[Change, ...]]]
Look = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns which processes have a GPU open now."""


class Cleaning:
    """Verifications on their way."""

    def __init__(self, verifier: Verifies, *, boot_id: str, wake: Callable[[], None]) -> None:
        """Begin nothing. Args: wake: called whenever a verification ended."""
        self.verifier = verifier
        self._boot_id, self._wake = boot_id, wake
        self._running: set[str] = set()
        self._waits: dict[str, tuple[float, Finding]] = {}
        """Until when a GPU is left alone, and why."""
        self._stamp: object = None

    def finding(self, key: str) -> Finding:
        """Return why a GPU is not cleaned now; good: it may be."""
        until, finding = self._waits.get(key, (0.0, check.PASSED))
        return finding if time.monotonic() < until else check.PASSED

    def restart_after_approval(self) -> None:
        """Let those that wait for a person go on once one has approved something."""
        stamp = self.verifier.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self._waits.clear()

    def start(self, tasks: asyncio.TaskGroup, rows: Iterable[Row], act: Act, look: Look) -> None:
        """Begin with every GPU that is in cleaning and has no verification on its way."""
        for row in rows:
            if row.state is State.SCRUBBING and row.key not in self._running:
                self._running.add(row.key)
                tasks.create_task(self._run(row, act, look), name="ledger: verification")

    async def _run(self, row: Row, act: Act, look: Look) -> None:
        try:
            stamp = self.verifier.stamp()
            outcome = await self.verifier.verify(row)
            telemetry.crash_point("lease.after-clean")
            openers = await look(row.key)
            await act(lambda rows: self._conclude(rows, row, outcome, openers))
            if self.verifier.stamp() != stamp:  # approved meanwhile, after the verification had read what is
                self._waits.pop(row.key, None)
        except errors.FairleadError as error:
            telemetry.log.warning("gpu not verified", gpu=row.key, reason=error.reason, error=error.message)
            self._wait(row.key, AGAIN_S, Finding(verdict=Verdict.WAIT, reason=error.reason, message=error.message))
            await self._give_back(row, error, act)
        finally:
            self._running.discard(row.key)
            self._wake()

    async def _give_back(self, row: Row, error: errors.FairleadError, act: Act) -> None:
        """Make a GPU dirty again whose report could not be written; the ledger may refuse, then a restart does."""

        def decide(rows: Mapping[str, Row]) -> tuple[Change, ...]:
            facts = self._facts(row, reason=error.reason, message=error.message)
            return self._step(rows, row, Event.POSTPONED, facts)

        try:
            await act(decide)
        except errors.FairleadError as again:
            telemetry.log.warning("ledger not written", gpu=row.key, reason=again.reason, error=again.message)

    def _conclude(
        self, rows: Mapping[str, Row], row: Row, outcome: Outcome, openers: tuple[str, ...]
    ) -> tuple[Change, ...]:
        """Return what a verdict makes of a row that still has the epoch it was begun with (the ledger's thread)."""
        found, finding = rows.get(row.key), outcome.finding
        if found is None or found.epoch != row.epoch or found.state is not State.SCRUBBING:
            return ()
        if openers and finding.verdict is not Verdict.FAIL:
            return self._postpone_open(rows, row, openers)
        facts = self._facts(row, verdict=outcome.report.id, reason=finding.reason, message=finding.message)
        if finding.verdict is Verdict.GOOD:
            cleaned = change.transition(found, Event.SCRUBBED, facts)
            return cleaned, change.transition(cleaned.after, Event.PASSED, facts)
        if finding.verdict is Verdict.FAIL:
            return self._step(rows, row, Event.GAVE_UP, facts)
        if outcome.is_error and found.attempts + 1 >= ATTEMPTS:
            return self._step(rows, row, Event.GAVE_UP, facts)
        again_s = backoff.doubled(found.attempts, first_s=AGAIN_S, last_s=PATIENCE_S)
        self._wait(row.key, again_s if outcome.is_error else PATIENCE_S, finding)
        return self._step(rows, row, Event.SCRUB_FAILED if outcome.is_error else Event.POSTPONED, facts)

    def _postpone_open(self, rows: Mapping[str, Row], row: Row, openers: tuple[str, ...]) -> tuple[Change, ...]:
        message = f"{', '.join(openers)} had it while it was verified"
        self._wait(row.key, AGAIN_S, Finding(verdict=Verdict.WAIT, reason="DeviceStillOpen", message=message))
        return self._step(rows, row, Event.POSTPONED, self._facts(row, reason="DeviceStillOpen", message=message))

    def _step(self, rows: Mapping[str, Row], row: Row, event: Event, facts: Facts) -> tuple[Change, ...]:
        found = rows.get(row.key)
        if found is None or change.find_refusal(found, event, facts):
            return ()
        return (change.transition(found, event, facts),)

    def _facts(self, row: Row, *, verdict: str = "", reason: str, message: str) -> Facts:
        return Facts(
            at=time.time(),
            boot_id=self._boot_id,
            epoch=row.epoch,
            verdict=verdict,
            reason=reason,
            message=message,
        )

    def _wait(self, key: str, seconds: float, finding: Finding) -> None:
        self._waits[key] = (time.monotonic() + seconds, finding)
