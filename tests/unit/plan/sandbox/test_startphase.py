"""Phases of a start: they add up to all of it, whatever was recorded, and an objective names the longest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.container.step import TraceStep
from fairlead.plan.sandbox import startphase
from fairlead.wire.kubernetes import core


def step(reason: str, at: float, layer: str = "x", duration_s: float | None = None) -> TraceStep:
    return TraceStep(layer=layer, reason=reason, message="", at=at, duration_s=duration_s)


ACCEPTED = step("Accepted", 100.0, "api", 0.5)


def shown(*steps: TraceStep) -> list[tuple[str, float]]:
    return [(one.name, one.seconds) for one in startphase.phases(steps)]


def test_each_phase_ends_where_the_next_begins() -> None:
    steps = (
        *(ACCEPTED, step("Scheduled", 101), step("DevicesAllocated", 102), step("ImagePulled", 110)),
        *(step("ContainerStarted", 112), step("FirstOutput", 115)),
    )
    assert shown(*steps) == [("admission", 0.5), ("slot", 2), ("pull", 8), ("sandbox", 2), ("first output", 3)]


def test_what_is_not_recorded_is_in_the_phase_after_it() -> None:
    assert shown(ACCEPTED, step("ContainerStarted", 104)) == [("admission", 0.5), ("sandbox", 4)]
    assert shown(ACCEPTED) == [("admission", 0.5)]
    assert shown(step("ContainerStarted", 104)) == []


def test_a_later_runs_steps_are_no_part_of_the_start() -> None:
    later = (step("ImagePulled", 150), step("ContainerStarted", 160), step("FirstOutput", 170))
    first = (ACCEPTED, step("Scheduled", 101), step("ContainerStarted", 103), step("FirstOutput", 104))
    assert shown(*first, *later) == shown(*first)


_TIMES = st.floats(min_value=99, max_value=1000)
_REASONS = ("Scheduled", "DevicesAllocated", "ImagePulled", "ContainerStarted", "FirstOutput", "Killing")


@given(st.lists(st.tuples(st.sampled_from(_REASONS), _TIMES), max_size=12))
def test_phases_add_up_and_none_takes_less_than_nothing(found: list[tuple[str, float]]) -> None:
    steps = [ACCEPTED, *(step(reason, at) for reason, at in found)]
    phases = startphase.phases(steps)
    assert all(one.seconds >= 0 for one in phases)
    assert sum(one.seconds for one in phases) == pytest.approx(phases[-1].end - phases[0].begin)
    assert [one.name for one in phases] == [name for name in startphase.NAMES if name in {one.name for one in phases}]


def test_objectives_are_by_size_and_that_of_the_largest_size_below_counts() -> None:
    objectives = startphase.parse_objectives("0=10s, 1=1.5m,8=1h")
    assert objectives == {0: 10.0, 1: 90.0, 8: 3600.0}
    assert [startphase.objective(objectives, gpus) for gpus in (0, 1, 7, 8)] == [10.0, 90.0, 90.0, 3600.0]
    assert startphase.objective({2: 5.0}, 1) is None
    assert startphase.parse_objectives("") == {}


@pytest.mark.parametrize("text", ["10s", "1=", "1=10x", "-1=5", "1=5,1=6", "1=5;2=6", "1=" + "9" * 50, "\0=1"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        startphase.parse_objectives(text)
    assert caught.value.reason == "ObjectiveInvalid"


def test_a_breach_names_the_longest_phase_and_leaves_the_wait_for_a_place_out() -> None:
    steps: tuple[Any, ...] = (
        *(ACCEPTED, step("Scheduled", 900), step("ImagePulled", 910), step("ContainerStarted", 913)),
        step("FirstOutput", 999),
    )
    phases = startphase.phases(steps)
    assert startphase.breach(phases, 14) is None
    told = startphase.breach(phases, 13)
    assert told is not None
    assert (told[1].name, told[0]) == ("pull", "the start took 13.5 s, its objective is 13 s: pull took 10.0 s of it")


def test_a_size_is_at_most_eight() -> None:
    item = core.Container(name="a", image="x", resources=core.ResourceRequirements(requests={"nvidia.com/gpu": "40"}))
    assert startphase.size(core.Pod(spec=core.PodSpec(containers=(item,)))) == 8
    assert startphase.size(core.Pod()) == 0
