"""The names of policies are one list, and what a machine without numpy does is said."""

from __future__ import annotations

import sys
import typing

import pytest

from fairlead.cli.process import scheduler
from fairlead.plan.schedule.engine.rankings import POLICIES, EngineRankings
from fairlead.plan.schedule.rankings import PlainRankings
from fairlead.plan.schedule.reference import UNIT, NodeInfo, PodInfo
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
@pytest.mark.parametrize("policy", control.POLICIES)
def test_without_numpy_the_slow_truth_judges_by_every_policy(policy: str) -> None:
    found = scheduler.rankings_of(policy)
    assert isinstance(found, PlainRankings)
    assert found.policy == policy
    views = {"n": NodeInfo(name="n", allocatable={"nvidia.com/gpu": 8 * UNIT, "cpu": 8 * UNIT, "pods": UNIT})}
    found.take(views, {"n": (None, views["n"])})
    ranking = found.of(PodInfo(requests={"nvidia.com/gpu": UNIT, "pods": UNIT}, policy=policy))
    list(ranking.refresh(views))
    assert (ranking.summary().node, ranking.summary().facts["policy"]) == ("n", policy)
