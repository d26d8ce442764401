"""Conditions: one is replaced in its place, the others stay, and a transition's time is that of the transition."""

from __future__ import annotations

from fairlead.wire.kubernetes import meta

READY = meta.Condition(type="Ready", status="True", last_transition_time="t1")
OTHER = meta.Condition(type="example.com/Mine", status="False", last_transition_time="t1")


def test_a_condition_of_the_same_status_keeps_its_time_and_its_place() -> None:
    wanted = meta.Condition(type="Ready", status="True", reason="Still", last_transition_time="t2")
    ready, other = meta.with_condition((READY, OTHER), wanted)
    assert (ready.reason, ready.last_transition_time) == ("Still", "t1")
    assert other == OTHER


def test_a_condition_whose_status_changes_takes_the_new_time() -> None:
    wanted = meta.Condition(type="Ready", status="False", last_transition_time="t2")
    assert meta.with_condition((OTHER, READY), wanted) == (OTHER, wanted)


def test_a_new_condition_comes_last() -> None:
    assert meta.with_condition((OTHER,), READY) == (OTHER, READY)
    assert meta.find_condition((OTHER,), "Ready") is None
    assert meta.find_condition((OTHER, READY), "Ready") == READY
