"""Keeps what verifications write, on the event loop: boards that were seen, and reports; one writer each."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.evidence import Evidence
from fairlead.node.lease import baselines, reports
from fairlead.plan.lease import baseline
from fairlead.plan.lease.baseline import Baseline, KnownBoard


@frozen
class Known:
    """What is known of one board and its kind."""

    card: KnownBoard | None
    """The board as it was known before; None: it is new."""
    allowed: Baseline | None
    """What is in force for its kind."""
    proposed: Baseline | None
    """Where nothing is: what one person of two approved."""


class KnownBoards:
    """Learns boards from their readings; the only writer of what was seen on this node."""

    def __init__(self, folder: Path, approvals: int) -> None:
        """Read nothing yet. Args: approvals: how many persons must approve a baseline."""
        self._folder, self._approvals = folder, approvals
        self._turn = asyncio.Lock()

    def stamp(self) -> object:
        """Return a value that changes when a person approves or proposes something."""
        return baselines.stamp(self._folder)

    async def learn(self, seen: Evidence) -> Known:
        """Return what was known of a board before this reading, which is learned.

        Raises: ProtocolError (`BaselineDamaged`); Unavailable: the disk refuses.
        """
        async with self._turn:
            return await asyncio.to_thread(self._learn, seen)

    def _learn(self, seen: Evidence) -> Known:
        learned = baselines.read_learned(self._folder)
        more = dataclasses.replace(baseline.learn(learned, seen), approvals=self._approvals)
        if more != learned:
            baselines.write_learned(self._folder, more)
        decided = baselines.read_decided(self._folder)
        allowed = baseline.in_force(decided, seen.board, self._approvals)
        half = None if allowed is not None else baseline.waiting(decided, seen.board, self._approvals)
        return Known(card=learned.cards.get(str(seen.gpu)), allowed=allowed, proposed=half)


class ReportFile:
    """The file on the event loop: opened at the first report, written by one at a time."""

    def __init__(self, folder: Path, signer: reports.Signs) -> None:
        """Open nothing yet."""
        self._folder, self._signer = folder, signer
        self._reports: reports.Reports | None = None
        self._turn = asyncio.Lock()

    async def append(self, report: reports.Report) -> reports.Report:
        """Write a report; returns it with its place in the chain. Raises: Unavailable (`ReportsUnusable`)."""
        async with self._turn:
            return await asyncio.to_thread(self._append, report)

    def _append(self, report: reports.Report) -> reports.Report:
        if self._reports is None:
            try:
                self._reports = reports.Reports(self._folder, self._signer)
            except OSError as error:
                message = f"cannot read reports in {self._folder}: {error}"
                raise errors.Unavailable(message, reason="ReportsUnusable") from error
        return self._reports.append(report)
