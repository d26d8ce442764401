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


def _pull(at: float, took_s: float) -> TraceStep:
    return TraceStep(layer="engine", reason="ImagePulled", message="", at=at, duration_s=took_s, teller="kubelet")


def _sandbox(*steps: TraceStep) -> list[tuple[str, float]]:
    found = startphase.phases((ACCEPTED, step("Scheduled", 101.0), *steps))
    assert [one.name for one in found] == ["admission", "slot", "sandbox"]
    return [(part.name, round(part.seconds, 6)) for part in found[-1].parts]


def test_a_foreign_kubelets_pull_is_a_part_of_the_sandbox() -> None:
    started = step("ContainerStarted", 120.5)
    assert _sandbox(started) == []
    assert _sandbox(_pull(112.0, 8.0), started) == [("pod", 3.0), ("pull", 8.0), ("container", 8.5)]
    # Dated to the second: one that began before the sandbox did, by its date, is put behind what came before.
    assert _sandbox(_pull(102.0, 8.0), started) == [("pull", 8.0), ("container", 11.5)]
    two = _sandbox(_pull(104.0, 1.0), _pull(110.0, 2.0), started)
    assert two == [("pod", 2.0), ("pull", 1.0), ("container", 4.0), ("pull", 2.0), ("container", 10.5)]
    assert _sandbox(_pull(150.0, 9.0), started) == []  # of a later run
    assert _sandbox(_pull(120.0, 19.6), started) == []  # longer than all of it


def test_a_pull_divides_what_a_machines_boot_leaves_to_the_container() -> None:
    booted = TraceStep(
        layer="engine", reason="MachineStarted", message="", at=112.0, facts={"began_at": 102.0, "agent_at": 110.0}
    )
    parts = _sandbox(booted, _pull(118.0, 6.0), step("ContainerStarted", 120.0))
    assert parts == [("engine", 1.0), ("kernel and init", 8.0), ("pod", 2.0), ("pull", 6.0), ("container", 2.0)]


@given(st.lists(st.tuples(st.floats(90, 200), st.floats(0, 1e6)), max_size=6))
def test_parts_add_up_to_the_sandbox_whatever_a_kubelet_says(pulls: list[tuple[float, float]]) -> None:
    steps = (ACCEPTED, step("Scheduled", 101.0), *(_pull(*one) for one in pulls), step("ContainerStarted", 150.0))
    sandbox = startphase.phases(steps)[-1]
    assert all(part.seconds >= 0 for part in sandbox.parts)
    if sandbox.parts:
        assert sum(part.seconds for part in sandbox.parts) == pytest.approx(sandbox.seconds)


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
