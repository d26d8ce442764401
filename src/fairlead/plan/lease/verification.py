"""Checks a GPU between two tenants against what is known of its board: firmware, link, error counts, scrub. Pure.

Each check is one small class: a name, the first level of `lease.reuse` that makes it, and `judge`, which returns one
finding for one case. Every check of the level must be good; a check that could not be made is not. What a check finds
that a tenant or a broken board may have caused goes into quarantine; what only a person has not decided yet waits.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from fairlead.model.evidence import Evidence
from fairlead.plan.lease.baseline import Baseline, KnownBoard
from fairlead.plan.lease.check import Finding, Verdict, asked_for

ECC_BURST: Final = 8
"""As many uncorrectable errors in one tenant's time, or more, are a fault of the board and not chance."""


class Reuse(enum.Enum):
    """What a GPU goes through between two tenants, in the words of `lease.reuse`; each has all before it."""

    LOOK = "look"
    VERIFY = "verify"
    RESET = "reset"
    SCRUB = "scrub"

    def has(self, other: Reuse) -> bool:
        """Return whether it goes through what `other` does."""
        order = list(Reuse)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of one GPU at the end of a verification, or before it is reset and scrubbed."""

    now: Evidence
    before: Evidence
    """As the last tenant left it."""
    card: KnownBoard | None = None
    """As the board was known before; None: never seen."""
    baseline: Baseline | None = None
    """Approved for its board; None: none is."""
    proposed: Baseline | None = None
    """Where none is: approved by one person of two."""
    reset: str | None = None
    """How the reset went: empty: done, else why not; None: not tried yet, or not to be."""
    scrub: str | None = None


class Check(Protocol):
    """One check."""

    name: ClassVar[str]
    level: ClassVar[Reuse]

    def judge(self, case: Case) -> Finding:
        """Return what it finds."""
        ...


class SameBoard:
    """Fails a GPU whose UUID is on another board than before: a card was swapped, or its identity rewritten."""

    name: ClassVar = "board"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Compare serial and board with those that were first seen of this UUID."""
        if case.card is None:
            return _good(self.name, observed=_board(case.now.serial, case.now.board))
        known, now = _board(case.card.serial, case.card.board), _board(case.now.serial, case.now.board)
        if known != now:
            return _fail(self.name, "BoardSwapped", "another board has this UUID now", observed=now, expected=known)
        return _good(self.name, observed=now, expected=known)


class Firmware:
    """Fails a VBIOS or InfoROM that is not approved for the board; waits where the board has no baseline."""

    name: ClassVar = "firmware"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Compare both versions with the baseline's."""
        observed = f"vbios {case.now.vbios or 'unread'}, inforom {case.now.inforom or 'unread'}"
        if case.baseline is None and case.proposed is not None:
            message = (
                f"the baseline of board {case.now.board} was approved by {case.proposed.by} alone, and two persons "
                f"must: another one runs `fairlead lease baseline approve {case.now.board}`"
            )
            return _wait(self.name, "SecondApprovalMissing", message, observed=observed)
        if case.baseline is None:
            message = f"no baseline for board {case.now.board}: `fairlead lease baseline approve {case.now.board}`"
            return _wait(self.name, "BaselineMissing", message, observed=observed)
        expected = f"vbios {'|'.join(case.baseline.vbios)}, inforom {'|'.join(case.baseline.inforom)}"
        expected += f", approved by {' and '.join(case.baseline.approvers)}"
        if case.now.vbios not in case.baseline.vbios or case.now.inforom not in case.baseline.inforom:
            message = f"its firmware is not in the baseline: {observed}"
            return _fail(self.name, "FirmwareMismatch", message, observed=observed, expected=expected)
        return _good(self.name, observed=observed, expected=expected)


class ECCMode:
    """Fails a GPU on which ECC is, or will be after a reset, other than in the baseline."""

    name: ClassVar = "ecc mode"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Compare the mode in force and the pending one."""
        if case.baseline is None or case.baseline.ecc is None:
            return _good(self.name)
        observed = f"now {case.now.ecc_mode}, pending {case.now.ecc_mode_pending}"
        if (case.now.ecc_mode, case.now.ecc_mode_pending) != (case.baseline.ecc, case.baseline.ecc):
            message = f"ECC is not as in the baseline: {observed}"
            return _fail(self.name, "ECCModeChanged", message, observed=observed, expected=str(case.baseline.ecc))
        return _good(self.name, observed=observed)


class LinkWidth:
    """Fails a GPU that has fewer PCIe lanes than its baseline."""

    name: ClassVar = "link"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Compare lanes; speed changes with load and says nothing."""
        least = case.baseline.link_width if case.baseline is not None else 0
        width = case.now.link_width
        if least and (width is None or width < least):
            message = f"{width or 0} PCIe lanes of {least} are in use: reseat the board"
            return _fail(self.name, "LinkDegraded", message, observed=str(width), expected=str(least))
        return _good(self.name, observed=str(width or ""), expected=str(least or ""))


class MemoryRows:
    """Fails memory rows that cannot be remapped; waits for those that are at the next reset."""

    name: ClassVar = "memory rows"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Read the row remapper and what the driver asks for."""
        if case.now.remap_failed:
            return _fail(self.name, "RowRemapFailed", "memory rows could not be remapped: replace the GPU")
        if case.now.remap_pending:
            return _wait(self.name, "RowRemapPending", "memory rows are remapped at the next reset: reset the GPU")
        if case.now.recovery_action:
            return _wait(self.name, "RecoveryRequired", asked_for(case.now.recovery_action))
        return _good(self.name)


class ECCCounts:
    """Fails a burst of uncorrectable errors in the last tenant's time, and any that a reset did not end."""

    name: ClassVar = "ecc errors"
    level: ClassVar = Reuse.VERIFY

    def judge(self, case: Case) -> Finding:
        """Compare the counts from before and after."""
        before, now = case.before.ecc_uncorrected or 0, case.now.ecc_uncorrected or 0
        observed = f"{before} before, {now} now"
        if before >= ECC_BURST:
            message = f"{before} uncorrectable memory errors in its last tenant's time: test or replace the GPU"
            return _fail(self.name, "ECCBurst", message, observed=observed, expected=f"fewer than {ECC_BURST}")
        if now and case.reset == "":
            message = f"{now} uncorrectable memory errors after a reset: replace the GPU"
            return _fail(self.name, "ECCErrors", message, observed=observed, expected="0 after a reset")
        if now and case.reset is None:
            message = f"{now} uncorrectable memory errors: reset the GPU"
            return _wait(self.name, "ECCErrors", message, observed=observed, expected="0")
        return _good(self.name, observed=observed)


class WasReset:
    """Waits for a GPU that did not reset."""

    name: ClassVar = "reset"
    level: ClassVar = Reuse.RESET

    def judge(self, case: Case) -> Finding:
        """Look at what the reset came to."""
        return _act(self.name, "ResetFailed", case.reset)


class WasScrubbed:
    """Waits for a GPU whose memory was not overwritten; after as many attempts as are made it is quarantined."""

    name: ClassVar = "scrub"
    level: ClassVar = Reuse.SCRUB

    def judge(self, case: Case) -> Finding:
        """Look at what the scrub came to."""
        return _act(self.name, "ScrubFailed", case.scrub)


CHECKS: Final[tuple[Check, ...]] = (
    SameBoard(),
    Firmware(),
    ECCMode(),
    LinkWidth(),
    MemoryRows(),
    ECCCounts(),
    WasReset(),
    WasScrubbed(),
)
"""Every check, in the order of a report."""
_MENDED_BY_RESET: Final = frozenset({MemoryRows.name, ECCCounts.name})


def judge(case: Case, reuse: Reuse) -> tuple[Finding, ...]:
    """Return what every check of the level finds."""
    return tuple(one.judge(case) for one in CHECKS if reuse.has(one.level))


def judge_before(case: Case, reuse: Reuse) -> tuple[Finding, ...]:
    """Return what is found before a GPU is reset and scrubbed: what neither could mend."""
    found = (one.judge(case) for one in CHECKS if one.level is Reuse.VERIFY)
    is_reset = reuse.has(Reuse.RESET)
    return tuple(
        one for one in found if not (is_reset and one.check in _MENDED_BY_RESET and one.verdict is Verdict.WAIT)
    )


def _board(serial: str, board: str) -> str:
    return f"{serial or '-'} of {board or '-'}"


def _good(name: str, *, observed: str = "", expected: str = "") -> Finding:
    return Finding(verdict=Verdict.GOOD, check=name, observed=observed, expected=expected)


def _fail(name: str, reason: str, message: str, *, observed: str = "", expected: str = "") -> Finding:
    return Finding(
        verdict=Verdict.FAIL, check=name, reason=reason, message=message, observed=observed, expected=expected
    )


def _wait(name: str, reason: str, message: str, *, observed: str = "", expected: str = "") -> Finding:
    return Finding(
        verdict=Verdict.WAIT, check=name, reason=reason, message=message, observed=observed, expected=expected
    )


def _act(name: str, reason: str, went: str | None) -> Finding:
    if went == "":
        return _good(name, observed="done")
    return _wait(name, reason, went or f"no {name} was made", observed="not done", expected="done")
