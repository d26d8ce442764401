"""`fairlead lease report` and `lease baseline` over the files that a verifier wrote."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import json
from pathlib import Path

import click.testing
import pytest

from fairlead import errors
from fairlead.cli.core.login import person
from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.node.lease import memory, signing, verifier
from fairlead.plan.lease.row import Row, State
from fairlead.plan.lease.verification import Reuse
from tests.unit.cli import liveservice

BOARD = "233010de-16c110de-900"
SEEN = Evidence(
    gpu=GPUUUID("GPU-1"), serial="1", part="900", device="233010de", subsystem="16c110de", vbios="96.00",
    inforom="G520", link_width=16, ecc_mode=True, ecc_mode_pending=True, ecc_uncorrected=0,
)  # fmt: skip


class KnownBoard:
    """Hardware that says what a test sets."""

    def __init__(self) -> None:
        self.evidence = SEEN

    async def inspect(self, gpu: GPUUUID) -> Evidence:
        return dataclasses.replace(self.evidence, gpu=gpu)

    async def reset(self, gpu: GPUUUID) -> None:
        return

    async def scrub(self, gpu: GPUUUID) -> None:
        return


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    folder = tmp_path / "lease"
    folder.mkdir()
    return folder


def verify(folder: Path, card: KnownBoard, approvals: int = 1) -> str:
    boards, kept = memory.KnownBoards(folder, approvals), memory.ReportFile(folder, signing.Signer(folder))
    policy = verifier.Policy(reuse=Reuse.SCRUB, limit_s=10)
    made = verifier.Verifier(boards, card, kept, node="n", boot_id="b", policy=policy)
    return asyncio.run(made.verify(Row(key="GPU-1", state=State.SCRUBBING, epoch=4))).report.id


def run(tmp_path: Path, *args: str, by: int = 0) -> click.testing.Result:
    return liveservice.fairlead("lease", *args, env={"FAIRLEAD_STATE_FOLDER": str(tmp_path), "SUDO_UID": str(by)})


def test_a_board_is_approved_after_it_was_seen_and_its_verification_is_proved(tmp_path: Path, lease: Path) -> None:
    card = KnownBoard()
    verify(lease, card)
    listed = json.loads(run(tmp_path, "baseline", "list", "-o", "json").stdout)
    assert [(one["board"], one["approved"], one["seen_only"]) for one in listed] == [(BOARD, False, ["96.00", "G520"])]
    assert "vbios 96.00; inforom G520; 16 lanes" in run(tmp_path, "baseline", "approve", BOARD).stdout
    name = verify(lease, card)
    shown = run(tmp_path, "report", name, "--verify")
    assert shown.exit_code == 0, shown.output
    assert "2 reports, each signed by key" in shown.stderr
    assert f"{name}: pass" in shown.stdout
    began = dt.datetime.fromisoformat(json.loads(run(tmp_path, "report", name, "-o", "json").stdout)["at"])
    assert began.tzinfo is not None
    table = run(tmp_path, "report")
    assert "lease.reuse=scrub: 0.0 s between two tenants (median of 1" in table.stderr


def test_of_two_persons_the_second_one_puts_a_baseline_in_force(tmp_path: Path, lease: Path) -> None:
    card = KnownBoard()
    verify(lease, card, 2)
    first = run(tmp_path, "baseline", "approve", BOARD)
    assert (first.exit_code, "approved by root; a second person must" in first.stderr) == (0, True)
    again = run(tmp_path, "baseline", "approve", BOARD)
    assert (again.exit_code, '"root" approved the baseline' in again.stderr) == (3, True)
    assert "lease.approvals to 1" in again.stderr
    shown = run(tmp_path, "report", verify(lease, card, 2)).stdout
    assert "SecondApprovalMissing" not in shown
    assert "was approved by root alone, and two persons must" in shown
    assert "root, one of two" in run(tmp_path, "baseline", "list").stdout
    # Firmware that is seen meanwhile is not what the first one approved.
    card.evidence = dataclasses.replace(SEEN, vbios="97.00")
    verify(lease, card, 2)
    assert "a second person must" in run(tmp_path, "baseline", "approve", BOARD, by=1).stderr
    second = run(tmp_path, "baseline", "approve", BOARD)
    assert (second.exit_code, second.stderr) == (0, "")
    (listed,) = json.loads(run(tmp_path, "baseline", "list", "-o", "json").stdout)
    assert (listed["approvers"], listed["waits"], listed["vbios"]) == (["daemon", "root"], False, ["96.00", "97.00"])
    passed = run(tmp_path, "report", verify(lease, card, 2), "-o", "json").stdout
    firmware = next(one for one in json.loads(passed)["findings"] if one["check"] == "firmware")
    assert firmware["expected"].endswith("approved by daemon and root")
    assert run(tmp_path, "baseline", "forget", BOARD).exit_code == 0
    assert "nobody" in run(tmp_path, "baseline", "list").stdout


def test_what_was_in_force_stays_so_while_a_second_person_is_waited_for(tmp_path: Path, lease: Path) -> None:
    verify(lease, KnownBoard(), 2)
    for by in (0, 1):
        assert run(tmp_path, "baseline", "approve", BOARD, by=by).exit_code == 0
    card = KnownBoard()
    card.evidence = dataclasses.replace(SEEN, vbios="97.00")
    verify(lease, card, 2)
    assert run(tmp_path, "baseline", "approve", BOARD).exit_code == 0
    assert ": pass" in run(tmp_path, "report", verify(lease, KnownBoard(), 2)).stdout
    (listed,) = json.loads(run(tmp_path, "baseline", "list", "-o", "json").stdout)
    assert (listed["approved"], listed["waits"], listed["seen_only"]) == (True, True, ["97.00"])


def test_what_one_person_approved_before_two_were_asked_for_waits_for_the_second(tmp_path: Path, lease: Path) -> None:
    verify(lease, KnownBoard(), 1)
    assert run(tmp_path, "baseline", "approve", BOARD).stderr == ""
    shown = run(tmp_path, "report", verify(lease, KnownBoard(), 2)).stdout
    assert "was approved by root alone" in shown
    assert run(tmp_path, "baseline", "approve", BOARD, by=1).exit_code == 0
    assert ": pass" in run(tmp_path, "report", verify(lease, KnownBoard(), 2)).stdout


def test_a_person_is_who_logged_in_or_called_sudo(tmp_path: Path) -> None:
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "loginuid").write_text("4294967295")
    assert person.name({}, root=tmp_path) == "root"
    assert person.name({"SUDO_UID": "1"}, root=tmp_path) == "daemon"
    assert person.name({"SUDO_UID": "x" * 9}, root=tmp_path) == "root"
    assert person.name({}, claimed="ann", root=tmp_path) == "ann"
    for env, claimed, reason in (({"SUDO_UID": "1"}, "ann", "PersonKnown"), ({}, "a\nb", "PersonInvalid")):
        with pytest.raises(errors.Invalid) as refused:
            person.name(env, claimed=claimed, root=tmp_path)
        assert refused.value.reason == reason
    (proc / "loginuid").write_text("1")
    assert person.name({"SUDO_UID": "0"}, claimed="daemon", root=tmp_path) == "daemon"
    (proc / "loginuid").write_text("3999999")
    assert person.name({}, root=tmp_path) == "uid 3999999"


def test_a_report_that_somebody_changed_is_refused_and_so_is_another_key(tmp_path: Path, lease: Path) -> None:
    verify(lease, KnownBoard())
    path = lease / "reports.jsonl"
    path.write_text(path.read_text().replace("GPU-1", "GPU-2"))
    changed = run(tmp_path, "report", "--verify")
    assert (changed.exit_code, "is not signed by key" in changed.stderr) == (8, True)
    assert run(tmp_path, "report", "--verify", "--key", str(tmp_path / "none")).exit_code == 2
    assert run(tmp_path, "report", "nothing").exit_code == 2
    assert run(tmp_path, "baseline", "forget", BOARD).exit_code == 2


def test_a_report_cut_short_by_a_crash_is_cut_off_and_the_chain_goes_on(tmp_path: Path, lease: Path) -> None:
    verify(lease, KnownBoard())
    path = lease / "reports.jsonl"
    with path.open("ab") as file:
        file.write(b'{"body":"{')
    verify(lease, KnownBoard())
    proved = run(tmp_path, "report", "--verify")
    assert (proved.exit_code, "2 reports" in proved.stderr) == (0, True)
