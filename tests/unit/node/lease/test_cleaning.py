"""Verifications beside the gate: what an approval in the middle of one is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fairlead.node.lease import cleaning, ledger, reports, verifier
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.plan.lease.row import Row, State

MISSING = Finding(verdict=Verdict.WAIT, reason="BaselineMissing", message="no baseline")


class Verifier(verifier.Verifier):
    """Finds no baseline; a person approves one meanwhile, or does not."""

    def __init__(self, *, is_approved: bool) -> None:
        self.approvals, self._is_approved = 0, is_approved

    def stamp(self) -> object:
        return self.approvals

    async def verify(self, row: Row) -> verifier.Outcome:
        self.approvals += self._is_approved
        report = reports.Report(
            id="verify-1",
            previous="",
            node="n",
            gpu=row.key,
            epoch=row.epoch,
            boot_id="b",
            reuse="verify",
            verdict="wait",
            reason=MISSING.reason,
            message=MISSING.message,
            at="2026-01-01T00:00:00Z",
            seconds={},
            findings=(MISSING,),
            before=None,
            after=None,
        )
        return verifier.Outcome(report=report, finding=MISSING)


async def _finding(*, is_approved: bool) -> Finding:
    row = Row(key="GPU-1", boot_id="b", state=State.SCRUBBING, epoch=2)
    made = cleaning.Cleaning(Verifier(is_approved=is_approved), boot_id="b", wake=lambda: None)
    rows: Mapping[str, Row] = {row.key: row}

    async def act(decide: ledger.Decision) -> tuple[Change, ...]:
        return tuple(decide(rows))

    async def look(_: str) -> tuple[str, ...]:
        return ()

    async with asyncio.TaskGroup() as tasks:
        made.start(tasks, [row], act, look)
    return made.finding(row.key)


async def test_a_gpu_waits_for_a_person_who_has_not_approved_yet() -> None:
    assert (await _finding(is_approved=False)).reason == "BaselineMissing"


async def test_an_approval_during_a_verification_is_not_waited_for() -> None:
    assert (await _finding(is_approved=True)).verdict is Verdict.GOOD
