"""Resets a GPU that is passed through before its next tenant gets it; the verdict counts as a verification's does.

No driver here could read firmware or counters of such a board. What can be done without one is: reset it, wait until
its memory is scrubbed, read who it is again. The third gate keeps its node open meanwhile, so nobody uses it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.driver import PassthroughGPU
from fairlead.node.lease import reports
from fairlead.node.lease.verifier import TIMEOUT, Outcome
from fairlead.plan.lease import check
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.plan.lease.row import Row
from fairlead.wire.kubernetes import meta

PASSED_ON: Final = "passthrough"
"""Begins the verdicts of GPUs that are passed through."""
GONE: Final = "GPUGone"

Reset = Callable[[PassthroughGPU], Awaitable[None]]
"""Resets a GPU and waits until its memory is scrubbed. Raises: FairleadError: why it is not clean."""


class PassthroughReset:
    """Cleans this node's passthrough GPUs; see `cleaning.Verifies`."""

    def __init__(
        self, find: Callable[[str], PassthroughGPU | None], reset: Reset, *, node: str, boot_id: str, limit_s: float
    ) -> None:
        """Take what finds a GPU by its key, and what resets it. Args: limit_s: longest time for one GPU."""
        self._find, self._reset = find, reset
        self._node, self._boot_id, self._limit_s = node, boot_id, limit_s

    def stamp(self) -> object:
        """Return nothing: no person has a say in a reset."""
        return None

    async def verify(self, row: Row) -> Outcome:
        """Reset one GPU and say what became of it."""
        begun, begun_at = time.monotonic(), time.time()
        finding = await self._carry_out(row.key)
        seconds = round(time.monotonic() - begun, 3)
        is_good = finding.verdict is Verdict.GOOD
        telemetry.log.info("gpu reset", gpu=row.key, lease=row.epoch, reason=finding.reason, duration_s=seconds)
        report = reports.Report(
            id=f"{PASSED_ON}-{uuid.uuid4().hex[:12]}",
            previous="",
            node=self._node,
            gpu=row.key,
            epoch=row.epoch,
            boot_id=self._boot_id,
            reuse=PASSED_ON,
            verdict="pass" if is_good else "error",
            reason=finding.reason,
            message=finding.message,
            at=meta.emit_time(begun_at),
            seconds={"reset": seconds},
            findings=(finding,),
            before=None,
            after=None,
        )
        return Outcome(report=report, finding=finding, is_error=not is_good)

    async def _carry_out(self, key: str) -> Finding:
        gpu = self._find(key)
        if gpu is None:
            return _failed(GONE, "it is not bound to VFIO any more")
        try:
            async with asyncio.timeout(self._limit_s):
                await self._reset(gpu)
        except TimeoutError:
            return _failed(TIMEOUT, f"it was not reset within {self._limit_s:g} s")
        except errors.FairleadError as error:
            return _failed(error.reason, errors.sentence(error))
        return Finding(verdict=check.PASSED.verdict, check="reset", observed="done", expected="done")


def _failed(reason: str, message: str) -> Finding:
    return Finding(verdict=Verdict.WAIT, check="reset", reason=reason, message=message, expected="done")
