"""Cleans a GPU that is passed through before its next tenant gets it; the verdict counts as a verification's does.

It is reset, its memory is scrubbed, and it is asked again who it is. No driver here could read firmware or counters of
such a board: a virtual machine of the node's own does where there is one (`node.vm`), whose reading is judged as that
of any other GPU is, and the GPU is reset once more after it. The third gate keeps its node open all the while, but for
that machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.model.driver import PassthroughGPU
from fairlead.model.evidence import Evidence
from fairlead.node.lease import reports
from fairlead.node.lease.verifier import TIMEOUT, VERDICTS, Outcome, worst_of
from fairlead.plan.lease import check, verification
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.plan.lease.row import Row
from fairlead.plan.lease.verification import Reuse
from fairlead.wire.kubernetes import meta

if TYPE_CHECKING:
    from fairlead.node.lease import memory
    from fairlead.node.vm.verifier import MachineVerifier

PASSED_ON: Final = "passthrough"
"""Begins the verdicts of GPUs that are passed through."""
VERIFIED: Final = "passthrough-verified"
"""Begins those of GPUs that a machine has read."""
GONE: Final = "GPUGone"

Reset = Callable[[PassthroughGPU], Awaitable[None]]
"""Resets a GPU and waits until its memory is scrubbed. Raises: FairleadError: why it is not clean."""


@frozen
class ByMachine:
    """What reads GPUs in a machine, and what its reading is held against."""

    machine: MachineVerifier
    boards: memory.KnownBoards
    kept: memory.ReportFile
    note_module: Callable[[PassthroughGPU, int | None], Awaitable[None]]
    """Notes which module a GPU is by its driver, where its registers do not say it."""


class _Work:
    """What one verification has found so far."""

    def __init__(self) -> None:
        self.at = time.time()
        self.seconds: dict[str, float] = {}
        self.evidence: Evidence | None = None
        self.findings: tuple[Finding, ...] = ()
        self.failure: Finding | None = None
        """Why it could not be carried out: it is tried again, and so often only."""


class PassthroughReset:
    """Cleans this node's passthrough GPUs; see `cleaning.Verifies`."""

    def __init__(
        self,
        find: Callable[[str], PassthroughGPU | None],
        reset: Reset,
        *,
        node: str,
        boot_id: str,
        limit_s: float,
        by_machine: ByMachine | None = None,
    ) -> None:
        """Take what finds a GPU by its key, and what resets it.

        Args: limit_s: longest time for one GPU.   by_machine: None: firmware and counters are read by nobody.
        """
        self._find, self._reset, self._by = find, reset, by_machine
        self._node, self._boot_id, self._limit_s = node, boot_id, limit_s

    @property
    def mark(self) -> str:
        """Return how the verdicts begin that are enough here."""
        return PASSED_ON if self._by is None else VERIFIED

    def stamp(self) -> object:
        """Return a value that changes when a person approves a baseline; nobody has a say in a reset alone."""
        return None if self._by is None else self._by.boards.stamp()

    async def verify(self, row: Row) -> Outcome:
        """Clean one GPU and say what became of it. Raises: Unavailable: a report cannot be written."""
        work = _Work()
        try:
            async with asyncio.timeout(self._limit_s):
                await self._carry_out(row.key, work)
        except TimeoutError:
            how = "reset" if self._by is None else "verified"
            work.failure = _failed("deadline", TIMEOUT, f"it was not {how} within {self._limit_s:g} s")
        findings = work.findings if work.failure is None else (*work.findings, work.failure)
        worst = work.failure or worst_of(findings)
        total = round(sum(work.seconds.values()), 3)
        telemetry.log.info("gpu reset", gpu=row.key, lease=row.epoch, reason=worst.reason, duration_s=total)
        report = reports.Report(
            id=f"{self.mark}-{uuid.uuid4().hex[:12]}",
            previous="",
            node=self._node,
            gpu=row.key,
            epoch=row.epoch,
            boot_id=self._boot_id,
            reuse=self.mark,
            verdict="error" if work.failure is not None else VERDICTS[worst.verdict],
            reason=worst.reason,
            message=worst.message,
            at=meta.emit_time(work.at),
            seconds={name: round(value, 3) for name, value in work.seconds.items()},
            findings=findings,
            before=None,
            after=work.evidence,
        )
        if self._by is not None:
            report = await self._by.kept.append(report)
        return Outcome(report=report, finding=worst, is_error=work.failure is not None)

    async def _carry_out(self, key: str, work: _Work) -> None:
        with contextlib.nullcontext() if self._by is None else self._by.machine.expecting(key):
            await self._clean_and_read(key, work)

    async def _clean_and_read(self, key: str, work: _Work) -> None:
        if not await self._clean(key, work, "reset") or self._by is None:
            return
        gpu = self._found(key, work)
        if gpu is None:
            return
        # Loaded where a machine reads GPUs alone: every agent with a ledger loads this module.
        from fairlead.node.vm import emulator

        begun = time.monotonic()
        try:
            work.findings += await self._read(gpu, self._by, work)
        except errors.FairleadError as error:
            verdict = Verdict.FAIL if error.reason == emulator.STUCK else Verdict.WAIT
            work.failure = _failed("machine", error.reason, errors.sentence(error), verdict)
        finally:
            work.seconds["machine"] = time.monotonic() - begun
        if work.failure is None and worst_of(work.findings).verdict is Verdict.GOOD:
            await self._clean(key, work, "reset again")

    async def _clean(self, key: str, work: _Work, step: str) -> bool:
        """Reset a GPU, and return whether it is clean."""
        gpu, begun = self._found(key, work), time.monotonic()
        if gpu is None:
            return False
        try:
            await self._reset(gpu)
        except errors.FairleadError as error:
            work.failure = _failed("reset", error.reason, errors.sentence(error))
            return False
        finally:
            work.seconds[step] = time.monotonic() - begun
        done = Finding(verdict=check.PASSED.verdict, check=step, observed="done", expected="done")
        work.findings = (*work.findings, done)
        return True

    def _found(self, key: str, work: _Work) -> PassthroughGPU | None:
        """Return a GPU that is still bound; None: it is not, which is noted."""
        gpu = self._find(key)
        if gpu is None:
            work.failure = _failed("reset", GONE, "it is not bound to VFIO any more")
        return gpu

    async def _read(self, gpu: PassthroughGPU, by: ByMachine, work: _Work) -> tuple[Finding, ...]:
        """Return what is found of a machine's reading. Raises: FairleadError: there is none."""
        from fairlead.plan.lease import guestevidence  # likewise

        reading = await by.machine.read(gpu)
        seen = work.evidence = guestevidence.evidence_of(gpu, reading.reported, reading.driver)
        known = await by.boards.learn(seen)
        case = verification.Case(
            now=seen,
            before=seen,
            card=known.card,
            baseline=known.allowed,
            proposed=known.proposed,
            reset="",
        )
        image = Finding(verdict=Verdict.GOOD, check="image", observed=reading.image, expected=reading.image)
        findings = image, *verification.judge(case, Reuse.VERIFY), *guestevidence.judge(gpu, reading.reported)
        if worst_of(findings).verdict is Verdict.GOOD:
            await by.note_module(gpu, reading.reported.module)
        return findings


def _failed(step: str, reason: str, message: str, verdict: Verdict = Verdict.WAIT) -> Finding:
    return Finding(verdict=verdict, check=step, reason=reason, message=message, expected="done")
