"""The ranking kept node by node answers as a placement made anew does, and judges only what changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import ranking, reference
from fairlead.wire.kubernetes import core

_GPU = "nvidia.com/gpu"
_OLD = core.Taint(key="old", effect="PreferNoSchedule")
_RED = core.Taint(key="red")


def _node(name: str, *, gpus: int = 8, taken: int = 0, **more: Any) -> reference.NodeInfo:
    unit = reference.UNIT
    allocatable = {"cpu": 64 * unit, "pods": 110 * unit, **({_GPU: gpus * unit} if gpus else {})}
    return reference.NodeInfo(name=name, allocatable=allocatable, taken={_GPU: min(gpus, taken) * unit}, **more)


def _preferring(gpus: int, label: str) -> reference.PodInfo:
    rule = core.NodeSelectorRequirement(key=label, operator="Exists")
    term = core.PreferredSchedulingTerm(weight=7, preference=core.NodeSelectorTerm(match_expressions=(rule,)))
    wanted = core.NodeAffinity(preferred_during_scheduling_ignored_during_execution=(term,) if label else ())
    requests = {"pods": reference.UNIT, **({_GPU: gpus * reference.UNIT} if gpus else {})}
    return reference.PodInfo(requests=requests, affinity=wanted)


_NODES = st.builds(
    _node,
    st.sampled_from([f"n{number}" for number in range(6)]),
    gpus=st.integers(0, 8),
    taken=st.integers(0, 8),
    is_ready=st.booleans(),
    labels=st.sampled_from([{}, {"fast": ""}]),
    taints=st.sampled_from([(), (_OLD,), (_RED,)]),
)
_STEPS = st.lists(st.one_of(_NODES, st.sampled_from([f"n{number}" for number in range(6)]), st.none()), max_size=30)


@given(steps=_STEPS, gpus=st.integers(0, 9), label=st.sampled_from(["", "fast"]))
def test_kept_step_by_step_it_answers_as_a_placement_made_anew(steps: list[Any], gpus: int, label: str) -> None:
    need, nodes = _preferring(gpus, label), dict[str, reference.NodeInfo]()
    one = ranking.Ranking(need, ())
    for step in [*steps, None]:
        if step is None:
            list(one.refresh(nodes))
            anew = reference.place(need, nodes.values())
            found = one.summary()
            assert (found.node, found.best, found.fitting, found.nodes) == (
                anew.node,
                anew.best,
                anew.fitting,
                anew.nodes,
            )
            assert set(found.reasons) == set(anew.reasons)
            assert found.message == anew.message
        elif isinstance(step, str):
            nodes.pop(step, None)
            one.mark(step)
        else:
            nodes[step.name] = step
            one.mark(step.name)


def test_only_what_changed_is_judged_and_no_slice_is_longer_than_said() -> None:
    nodes = {f"n{number:04}": _node(f"n{number:04}") for number in range(1000)}
    one = ranking.Ranking(_preferring(1, ""), nodes)
    assert list(one.refresh(nodes)) == [ranking.SLICE] * 4
    nodes["n0500"] = _node("n0500", taken=7)
    one.mark("n0500")
    assert list(one.refresh(nodes)) == [1]
    assert one.summary().node == "n0500"


@pytest.mark.parametrize("nodes", [100, 5000])
def test_what_is_recorded_of_a_decision_does_not_grow_with_the_nodes(nodes: int) -> None:
    views = [
        _node(f"gpu-node-{number:05}.example.com", taken=number % 9, taints=(core.Taint(key="own", value=f"{number}"),))
        for number in range(nodes)
    ] + [_node(f"free-{number:05}", taken=number % 8) for number in range(nodes)]
    for gpus in (1, 9):
        found = reference.place(_preferring(gpus, ""), views)
        assert len(msgspec.json.encode(found.facts)) < 4096
        assert len(found.message) < 1024


def test_reasons_and_names_of_any_length_are_cut() -> None:
    taints = [core.Taint(key=f"k{number}{'k' * 250}", value="v" * 63) for number in range(50)]
    views = [_node("n" * 240 + f"{number:03}", taints=(taint,)) for number, taint in enumerate(taints)]
    found = reference.place(_preferring(1, ""), views)
    assert len(msgspec.json.encode(found.facts)) < 4096
    assert found.message.startswith("0/50 nodes are available: 1 node(s) had untolerated taint {k")
    assert "and 40 more reasons" in found.message
