"""What `fairlead doctor` says of a node's ledger and its reports."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairlead.cli.doctor.held import lease
from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import intent, settle
from fairlead.plan.lease.row import Facts, Row, State


async def fill(folder: Path) -> None:
    ledger = Ledger(folder)
    for key in ("GPU-a", "GPU-b"):
        steps = settle.plan_steps(Row(key=key, boot_id="b"), settle.Seen(), at=5, boot_id="b")
        await ledger.act(lambda _, steps=steps: steps)  # type: ignore[misc]  # bound now
    facts = Facts(at=6, by="root", reason="ByHand", message="smells")
    await ledger.act(lambda rows: intent.plan_intent(rows, intent.QUARANTINE, "GPU-a", facts))
    ledger.close()


def said(folder: Path) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in lease.check(lease.collect(folder, is_off=False))]


def test_a_machine_without_a_ledger_has_nothing_to_say(tmp_path: Path) -> None:
    assert said(tmp_path / "lease") == []


def test_a_ledger_that_is_off_is_said_with_what_that_means(tmp_path: Path) -> None:
    (found,) = lease.check(lease.collect(tmp_path / "lease", is_off=True))
    assert (found.level, found.what) == ("warn", "the ledger is off")
    assert "removed by force" in found.why
    assert "lease.ledger=off" in found.fix


def test_a_kernel_that_hides_descriptors_in_flight_is_said() -> None:
    (found,) = lease.check(lease.Facts(shows_in_flight=False))
    assert (found.level, "in flight" in found.what, "5.6" in found.fix) == ("warn", True, True)


def test_a_gpu_in_quarantine_is_named_with_its_reason_and_the_others_are_counted(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    assert said(tmp_path) == [
        ("warn", "GPU-a is in Quarantined: smells"),
        ("ok", "2 GPUs: 1 Free, 1 Quarantined"),
    ]


def test_a_gpu_that_waits_for_an_approval_is_named(tmp_path: Path) -> None:
    waiting = Row(key="GPU-a", state=State.DIRTY, reason="BaselineMissing", message="no baseline for board x")
    found = list(lease.check(lease.Facts(rows={"GPU-a": waiting, "GPU-b": Row(key="GPU-b", state=State.DIRTY)})))
    assert [one.what for one in found if one.level == "warn"] == ["GPU-a is Dirty and waits: no baseline for board x"]


def test_reports_without_their_key_and_a_damaged_ledger_are_failures(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    (tmp_path / "reports.jsonl").write_text("{}\n")
    assert ("fail", True) in [(level, "reports.pub" in what) for level, what in said(tmp_path)]
    (tmp_path / "ledger.db").write_bytes(b"not a ledger")
    (tmp_path / "ledger.db.damaged-1").touch()
    levels = [level for level, _ in said(tmp_path)]
    assert sorted(levels) == ["fail", "warn"]
