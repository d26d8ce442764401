"""What persons decided of firmware is changed by one process after another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import baselines
from fairlead.plan.lease import baseline
from fairlead.plan.lease.baseline import Baseline, Decided, Learned


def _approved(decided: Decided, board: str) -> Decided:
    return Decided(approved={**decided.approved, board: Baseline(board=board)}, proposed=decided.proposed)


def test_two_who_decide_at_once_are_both_heard(tmp_path: Path) -> None:
    has_read, goes_on = threading.Event(), threading.Event()

    def slowly(_: Learned, now: Decided) -> Decided:
        has_read.set()
        assert goes_on.wait(10)
        return _approved(now, "a")

    first = threading.Thread(target=baselines.decide, args=(tmp_path, slowly))
    second = threading.Thread(target=baselines.decide, args=(tmp_path, lambda _, now: _approved(now, "b")))
    first.start()
    assert has_read.wait(10)
    second.start()
    second.join(0.2)
    goes_on.set()
    first.join(10)
    second.join(10)
    assert sorted(baselines.read_decided(tmp_path).approved) == ["a", "b"]


def test_where_no_agent_was_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match="no board"):
        baselines.decide(tmp_path / "none", lambda known, now: baseline.approve(now, known, "x", by="ann", at=1.0))
    assert not (tmp_path / "none").exists()
