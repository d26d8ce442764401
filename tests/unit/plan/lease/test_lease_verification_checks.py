"""Each check between tenants by itself: what it lets pass, what it keeps waiting, what it fails."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.plan.lease import baseline, verification
from fairlead.plan.lease.check import Verdict
from fairlead.plan.lease.verification import Case, Reuse

GOOD = Evidence(
    gpu=GPUUUID("GPU-1"), serial="1", part="900", device="233010de", subsystem="16c110de", vbios="96", inforom="G520",
    link_width=16, link_width_max=16, ecc_uncorrected=0, ecc_mode=True, ecc_mode_pending=True, remap_pending=False,
    remap_failed=False, recovery_action=0,
)  # fmt: skip
ALLOWED = baseline.Baseline(
    board=GOOD.board, vbios=("96", "97"), inforom=("G520",), link_width=16, ecc=True, by="root", at=1.0
)
CARD = baseline.KnownBoard(serial="1", board=GOOD.board)
CASE = Case(now=GOOD, before=GOOD, card=CARD, baseline=ALLOWED, reset="", scrub="")


def worst(case: Case, reuse: Reuse = Reuse.SCRUB) -> set[tuple[str, Verdict, str]]:
    found = verification.judge(case, reuse)
    return {(one.check, one.verdict, one.reason) for one in found if one.verdict is not Verdict.GOOD}


def test_a_good_gpu_passes_every_check_of_the_strictest_policy() -> None:
    assert worst(CASE) == set()
    assert len(verification.judge(CASE, Reuse.SCRUB)) == len(verification.CHECKS)
    assert verification.judge(CASE, Reuse.LOOK) == ()


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({"vbios": "66"}, ("firmware", Verdict.FAIL, "FirmwareMismatch")),
        ({"vbios": ""}, ("firmware", Verdict.FAIL, "FirmwareMismatch")),
        ({"inforom": "G666"}, ("firmware", Verdict.FAIL, "FirmwareMismatch")),
        ({"serial": "2"}, ("board", Verdict.FAIL, "BoardSwapped")),
        ({"ecc_mode_pending": False}, ("ecc mode", Verdict.FAIL, "ECCModeChanged")),
        ({"link_width": 8}, ("link", Verdict.FAIL, "LinkDegraded")),
        ({"link_width": None}, ("link", Verdict.FAIL, "LinkDegraded")),
        ({"remap_failed": True}, ("memory rows", Verdict.FAIL, "RowRemapFailed")),
        ({"remap_pending": True}, ("memory rows", Verdict.WAIT, "RowRemapPending")),
        ({"recovery_action": 1}, ("memory rows", Verdict.WAIT, "RecoveryRequired")),
        ({"ecc_uncorrected": 1}, ("ecc errors", Verdict.FAIL, "ECCErrors")),
    ],
)
def test_what_a_reading_shows_is_found(now: dict[str, object], found: tuple[str, Verdict, str]) -> None:
    assert worst(dataclasses.replace(CASE, now=dataclasses.replace(GOOD, **now))) == {found}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (dataclasses.replace(CASE, baseline=None), ("firmware", Verdict.WAIT, "BaselineMissing")),
        (dataclasses.replace(CASE, reset=None), ("reset", Verdict.WAIT, "ResetFailed")),
        (dataclasses.replace(CASE, reset="in use"), ("reset", Verdict.WAIT, "ResetFailed")),
        (dataclasses.replace(CASE, scrub="not read back"), ("scrub", Verdict.WAIT, "ScrubFailed")),
        (
            dataclasses.replace(CASE, before=dataclasses.replace(GOOD, ecc_uncorrected=verification.ECC_BURST)),
            ("ecc errors", Verdict.FAIL, "ECCBurst"),
        ),
    ],
)
def test_what_was_not_done_or_came_before_is_found(case: Case, found: tuple[str, Verdict, str]) -> None:
    assert worst(case) == {found}


def test_what_a_reset_mends_does_not_keep_a_gpu_from_its_reset() -> None:
    ill = dataclasses.replace(GOOD, remap_pending=True, ecc_uncorrected=1)
    case = dataclasses.replace(CASE, now=ill, before=ill, reset=None, scrub=None)
    assert {one.check for one in verification.judge_before(case, Reuse.VERIFY) if one.reason} == {
        "memory rows",
        "ecc errors",
    }
    assert not [one for one in verification.judge_before(case, Reuse.RESET) if one.reason]


def test_what_was_seen_allows_nothing_until_a_person_approves_it() -> None:
    learned = baseline.learn(baseline.Learned(), GOOD)
    learned = baseline.learn(learned, dataclasses.replace(GOOD, vbios="97", serial="other"))
    assert learned.cards == {"GPU-1": CARD}  # what was seen first stays
    alone = dataclasses.replace(learned, approvals=1)
    decided = baseline.approve(baseline.Decided(), alone, GOOD.board, by="root", at=1.0)
    assert decided.approved == {GOOD.board: ALLOWED}
    assert baseline.forget(decided, GOOD.board) == baseline.Decided()
    with pytest.raises(errors.NotFound, match="seen: 233010de-16c110de-900"):
        baseline.approve(baseline.Decided(), learned, "other", by="root", at=1.0)
