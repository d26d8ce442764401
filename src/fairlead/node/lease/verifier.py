"""Cleans one GPU and verifies it, as far as `lease.reuse` says, and writes the report.

The order: read it, judge what neither a reset nor a scrub could mend, reset it, scrub it, read it again, judge all.
What hangs is given up at the limit; what the hardware says is data, never more. Nothing here changes the ledger:
`cleaning` does, with the token that the row had before.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.node.lease import memory, reports
from fairlead.plan.lease import check, verification
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.plan.lease.row import Row
from fairlead.plan.lease.verification import Reuse
from fairlead.silicon.port import Inspector
from fairlead.wire.kubernetes import meta

TIMEOUT: Final = "VerifyTimeout"
VERDICTS: Final = {Verdict.GOOD: "pass", Verdict.WAIT: "wait", Verdict.FAIL: "fail"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one verification came to."""

    report: reports.Report
    finding: Finding
    """The worst of the findings."""
    is_error: bool = False
    """Whether it could not be carried out: it is tried again, and so often only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a GPU goes through, by the settings."""

    reuse: Reuse
    limit_s: float


class _Work:
    """What one verification has found so far."""

    def __init__(self) -> None:
        self.at = time.time()
        self.before: Evidence | None = None
        self.after: Evidence | None = None
        self.findings: tuple[Finding, ...] = ()
        self.seconds: dict[str, float] = {}
        self.error: Finding | None = None


class Verifier:
    """Verifies this node's GPUs."""

    def __init__(
        self,
        boards: memory.KnownBoards,
        inspector: Inspector,
        kept: memory.ReportFile,
        *,
        node: str,
        boot_id: str,
        policy: Policy,
        may_reset: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Take where reports are kept. Args: may_reset: by UUID; a GPU that MIG divides loses its layout."""
        self._boards, self._inspector, self._kept = boards, inspector, kept
        self._node, self._boot_id, self._may_reset = node, boot_id, may_reset
        self._limit_s = policy.limit_s
        self.reuse = policy.reuse

    def stamp(self) -> object:
        """Return a value that changes when a person approves or proposes something."""
        return self._boards.stamp()

    async def verify(self, row: Row) -> Outcome:
        """Clean and verify one GPU, and write the report. Raises: Unavailable: the report cannot be written."""
        work = _Work()
        try:
            async with asyncio.timeout(self._limit_s):
                await self._carry_out(GPUUUID(row.key), work)
        except TimeoutError:
            message = f"it was not verified within {self._limit_s:g} s"
            work.error = Finding(verdict=Verdict.WAIT, check="deadline", reason=TIMEOUT, message=message)
        except errors.FairleadError as error:
            work.error = Finding(verdict=Verdict.WAIT, check="error", reason=error.reason, message=error.message)
        findings = work.findings if work.error is None else (*work.findings, work.error)
        worst = work.error or worst_of(findings)
        report = reports.Report(
            id=f"{self.reuse.value}-{uuid.uuid4().hex[:12]}",
            previous="",
            node=self._node,
            gpu=row.key,
            epoch=row.epoch,
            boot_id=self._boot_id,
            reuse=self.reuse.value,
            verdict="error" if work.error is not None else VERDICTS[worst.verdict],
            reason=worst.reason,
            message=worst.message,
            at=meta.emit_time(work.at),
            seconds={name: round(value, 3) for name, value in work.seconds.items()},
            findings=findings,
            before=work.before,
            after=work.after,
        )
        report = await self._kept.append(report)
        telemetry.log.info("gpu verified", gpu=row.key, lease=row.epoch, reason=report.verdict, error=report.message)
        is_error = work.error is not None or worst.check in {"reset", "scrub"}
        return Outcome(report=report, finding=worst, is_error=is_error and worst.verdict is Verdict.WAIT)

    async def _carry_out(self, gpu: GPUUUID, work: _Work) -> None:
        with _timed(work.seconds, "read"):
            before = work.before = work.after = await self._inspector.inspect(gpu)
        known = await self._boards.learn(before)
        case = verification.Case(
            now=before, before=before, card=known.card, baseline=known.allowed, proposed=known.proposed
        )
        work.findings = verification.judge_before(case, self.reuse)
        if worst_of(work.findings).verdict is not Verdict.GOOD:
            return
        reset = await self._reset(gpu, work) if self.reuse.has(Reuse.RESET) else None
        scrub = (
            await _try("scrub", self._inspector.scrub(gpu), work) if self.reuse.has(Reuse.SCRUB) and not reset else None
        )
        with _timed(work.seconds, "read again"):
            now = work.after = await self._inspector.inspect(gpu)
        case = verification.Case(
            now=now, before=before, card=known.card, baseline=known.allowed, reset=reset, scrub=scrub
        )
        work.findings = verification.judge(case, self.reuse)

    async def _reset(self, gpu: GPUUUID, work: _Work) -> str:
        if not self._may_reset(gpu):
            return "MIG divides it, and a reset would end its instances: set --lease-reuse to verify here"
        return await _try("reset", self._inspector.reset(gpu), work)


async def _try(step: str, doing: Awaitable[None], work: _Work) -> str:
    """Return why a step failed; empty: it did not."""
    with _timed(work.seconds, step):
        try:
            await doing
        except errors.FairleadError as error:
            return errors.sentence(error)
    return ""


def worst_of(findings: Iterable[Finding]) -> Finding:
    """Return the worst finding, the first of its kind."""
    found = list(findings)
    by_weight = (Verdict.FAIL, Verdict.WAIT)
    return next((one for weight in by_weight for one in found if one.verdict is weight), check.PASSED)


class _timed:  # noqa: N801  (a context manager, read as a verb)
    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = time.monotonic() - self._start


def is_enough(row: Row, reuse: Reuse) -> bool:
    """Return whether the verdict by which a GPU is free was at least of this level."""
    levels: Mapping[str, Reuse] = {one.value: one for one in Reuse}
    had = levels.get(row.verdict.partition("-")[0], Reuse.LOOK)
    return had.has(reuse)
