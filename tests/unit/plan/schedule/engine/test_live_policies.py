"""The names of policies are one list, and what a machine without numpy does is said."""

from __future__ import annotations

import sys
import typing

import pytest

from fairlead import errors
from fairlead.cli.process import scheduler
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine.rankings import POLICIES, EngineRankings
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.settings import control


def test_the_setting_names_the_policies_that_there_are() -> None:
    assert sorted(control.POLICIES) == sorted(POLICIES)


@pytest.fixture
def no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", typing.cast("typing.Any", None))
    for name in [name for name in sys.modules if name.startswith("fairlead.plan.schedule.engine")]:
        monkeypatch.delitem(sys.modules, name)


def test_with_numpy_nodes_are_judged_by_array() -> None:
    assert isinstance(scheduler.rankings_of("fairlead"), EngineRankings)


@pytest.mark.usefixtures("no_numpy")
@pytest.mark.parametrize("policy", reference.POLICIES)
def test_without_numpy_the_slow_truth_judges(policy: str) -> None:
    found = scheduler.rankings_of(policy)
    assert isinstance(found, PlainRankings)
    assert found.policy == policy


@pytest.mark.usefixtures("no_numpy")
def test_without_numpy_a_policy_of_the_engine_is_refused_with_the_next_step() -> None:
    with pytest.raises(errors.Unavailable, match="policy 'fgd' needs numpy") as refused:
        scheduler.rankings_of("fgd")
    assert "pip install 'fairlead[engine]'" in (refused.value.hint or "")
