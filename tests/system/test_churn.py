"""Many tenancies churn on simulated silicon while everything is killed; a checker of its own judges what happened.

A small part of what `churn.py --tenancies 200 --containers 20 --seconds 600` does by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import churn
import churncheck
import pytest
from home import Home

UUID = "GPU-1"


def ledger(folder: Path, *steps: tuple[str, str, str, int]) -> churncheck.Ledger:
    """Write a ledger's history of one GPU, with a report for each verification; `(before, event, after, epoch)`."""
    folder.mkdir()
    previous, verdict, verified = "", "", 0
    with sqlite3.connect(folder / "ledger.db") as db, (folder / "reports.jsonl").open("w") as reports:
        db.execute("CREATE TABLE gpu (key TEXT, document TEXT)")
        db.execute("CREATE TABLE history (id INTEGER PRIMARY KEY, document TEXT)")
        for number, (before, event, after, epoch) in enumerate(steps, start=1):
            if event == "passed":
                verdict, verified = f"r{number}", epoch
                body = json.dumps({"id": verdict, "previous": previous, "gpu": UUID, "verdict": "pass", "epoch": epoch})
                previous = hashlib.sha256(body.encode()).hexdigest()
                reports.write(json.dumps({"body": body}) + "\n")
            row = {"key": UUID, "state": after, "epoch": epoch, "verdict": verdict, "verdict_epoch": verified}
            step = {"at": float(number), "event": event, "before": before, "row": {**row, "claims": [{"pod": "p"}]}}
            db.execute("INSERT INTO history VALUES (?, ?)", (number, json.dumps(step)))
    found = churncheck.Ledger(folder)
    found.read()
    return found


_BEGIN = (
    ("Unknown", "identified", "Dirty", 1),
    ("Dirty", "scrub-begun", "Scrubbing", 2),
    ("Scrubbing", "scrubbed", "Verifying", 2),
    ("Verifying", "passed", "Free", 2),
    ("Free", "allocated", "Held", 3),
)
_END = (("Held", "released", "Releasing", 4), ("Releasing", "closed", "Dirty", 5))


def test_the_checker_finds_nothing_in_a_ledger_that_keeps_the_rules(tmp_path: Path) -> None:
    again = (("Dirty", "scrub-begun", "Scrubbing", 6), ("Scrubbing", "scrubbed", "Verifying", 6))
    found = ledger(
        tmp_path / "lease", *_BEGIN, *_END, *again, ("Verifying", "passed", "Free", 6), ("Free", "allocated", "Held", 7)
    )
    possessions = found.judge()
    assert found.wrong == []
    assert [(one["from"], one["until"]) for one in possessions[UUID]] == [(5.0, 7.0), (11.0, None)]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((*_BEGIN, ("Held", "passed", "Free", 4)), "free without a verification"),
        ((*_BEGIN, ("Held", "released", "Dirty", 4)), "without a release"),
        ((*_BEGIN, *_END, ("Dirty", "allocated", "Held", 6)), "held and was not free"),
        ((*_BEGIN, *_END, ("Dirty", "expired", "Free", 6), ("Free", "allocated", "Held", 7)), "before the last poss"),
        ((*_BEGIN, ("Held", "released", "Releasing", 2)), "after Held, epoch 3"),
        ((*_BEGIN, ("Free", "allocated", "Held", 4)), "after Held"),
    ],
)
def test_the_checker_finds_a_ledger_that_breaks_a_rule(tmp_path: Path, steps: Any, words: str) -> None:
    found = ledger(tmp_path / "lease", *steps)
    found.judge()
    assert any(words in one for one in found.wrong), found.wrong


def test_the_checker_finds_gpus_in_two_hands_handed_on_unverified_and_held_past_the_ledger(tmp_path: Path) -> None:
    checker = churncheck.Checker(tmp_path, "x", [UUID])
    checker.ledger = ledger(tmp_path / "lease", *_BEGIN, *_END)
    checker.holdings = {
        ("0", "a"): churncheck.Holding("0", "fl-p-box-1-0", "t1", first=5.5, last=5.8, has_begun=True),
        ("0", "b"): churncheck.Holding("0", "fl-q-box-1-0", "t2", first=7.5, last=7.8, has_begun=True),
        ("0", "c"): churncheck.Holding("0", "fl-r-box-1-0", "t3", first=7.5, last=7.8),
    }
    found = checker.judge()
    wrong = found["wrong"]
    assert set(wrong) == {"handed on unverified", "held past the ledger"}
    assert ["fl-q" in one for one in wrong["held past the ledger"]] == [True]
    assert found["counts"]["never begun"] == 1


def test_the_checker_loads_nothing_of_the_product() -> None:
    code = f"import sys; sys.path.insert(0, {str(churn.CHECKER.parent)!r}); import churncheck; print(*sys.modules)"
    done = subprocess.run((sys.executable, "-I", "-c", code), capture_output=True, text=True, check=True)
    foreign = ("fairlead", "kernelseen", "killloop", "conftest", "home")
    assert not [name for name in done.stdout.split() if name.startswith(foreign)]


@pytest.mark.slow
@pytest.mark.podman
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables")
def test_tenancies_churn_and_are_killed_and_no_gpu_is_in_two_hands_lost_or_unverified(home: Home) -> None:
    line = (sys.executable, churn.__file__, "--state", str(home.folder), "--image", home.image)
    sizes = ("--tenancies", "10", "--containers", "4", "--seconds", "60", "--pause", "8", "--recycle", "15")
    done = subprocess.run((*line, *sizes), capture_output=True, text=True, check=False)
    assert done.stdout, f"{done.stderr[-4000:]}\n{home.log()[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert churn.is_good(found), f"{found}\n{home.log()[-4000:]}"
    assert found["checker"]["containers"] > 0
