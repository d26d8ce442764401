"""Queueing hints: which change of a node may let a refused pod pass, and that no other wakes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.claim import ask
from fairlead.plan.schedule.queue import hint
from fairlead.plan.schedule.volume import volumes
from fairlead.wire.kubernetes import core

_GPU = "nvidia.com/gpu"
_TAINT = core.Taint(key="red")


def _node(**more: Any) -> reference.NodeInfo:
    return reference.NodeInfo(**{"name": "n", "allocatable": {_GPU: 8000}, "taken": {_GPU: 4000}, **more})


@pytest.mark.parametrize(
    ("before", "after", "filters"),
    [
        (_node(), None, set()),
        (_node(), _node(), set()),
        (_node(), _node(taken={_GPU: 5000}), set()),
        (_node(), _node(taken={_GPU: 3000}), {"NodeResourcesFit"}),
        (_node(), _node(allocatable={_GPU: 16000}), {"NodeResourcesFit"}),
        (_node(), _node(allocatable={_GPU: 0}), {"NodeResourcesFit", "DynamicResources"}),  # a class may stand for it
        (_node(allocatable={}), _node(), {"NodeResourcesFit", "DynamicResources"}),
        (_node(is_ready=False), _node(), {"NodeReady"}),
        (_node(), _node(is_ready=False), set()),
        (_node(is_unschedulable=True), _node(), {"NodeUnschedulable"}),
        (_node(), _node(is_unschedulable=True), set()),
        (_node(taints=(_TAINT,)), _node(), {"TaintToleration"}),
        (_node(), _node(taints=(_TAINT,)), set()),
        (_node(), _node(labels={"a": "b"}), {"NodeAffinity", "TopologyDomain", "VolumeBinding", "DynamicResources"}),
        (_node(ports=frozenset({("0.0.0.0", "TCP", 80)})), _node(), {"NodePorts"}),
    ],
)
def test_each_change_names_the_filters_it_may_turn(
    before: reference.NodeInfo | None, after: reference.NodeInfo | None, filters: set[str]
) -> None:
    assert hint.improved(before, after) == filters


def test_a_node_that_came_may_turn_every_filter() -> None:
    found = hint.improved(None, _node())
    assert found >= {*reference.FILTERS, *(one.name for kind in (volumes.Ask, ask.Ask) for one in kind.filters)}


def test_every_filter_has_a_hint() -> None:
    assert set(hint.HINTS) == set(reference.FILTERS)


_ANY = st.builds(
    _node,
    allocatable=st.fixed_dictionaries({_GPU: st.sampled_from([0, 4000, 8000])}),
    taken=st.fixed_dictionaries({_GPU: st.sampled_from([0, 2000, 8000])}),
    is_ready=st.booleans(),
    is_unschedulable=st.booleans(),
    taints=st.sampled_from([(), (_TAINT,)]),
    labels=st.sampled_from([{}, {"fast": ""}]),
    ports=st.sampled_from([frozenset(), frozenset({("0.0.0.0", "TCP", 80)})]),
)
_NEEDS = st.builds(
    reference.PodInfo,
    requests=st.fixed_dictionaries({_GPU: st.sampled_from([1000, 6000])}),
    node_selector=st.sampled_from([{}, {"fast": ""}]),
    ports=st.sampled_from([frozenset(), frozenset({("10.0.0.1", "TCP", 80)})]),
)


@given(before=_ANY, after=_ANY, need=_NEEDS)
def test_whoever_fits_now_and_did_not_before_was_refused_by_a_filter_that_is_named(
    before: reference.NodeInfo, after: reference.NodeInfo, need: reference.PodInfo
) -> None:
    refused = {name for name, check in reference.FILTERS.items() if check(need, before)}
    if refused and reference.first_refusal(need, after) is None:
        first = reference.first_refusal(need, before)
        assert first is not None
        assert first[0] in hint.improved(before, after)


def test_a_heartbeat_makes_no_other_node_and_a_change_of_what_it_offers_does() -> None:
    before = _node()
    assert not hint.is_other(before, _node())
    assert not hint.is_other(None, None)
    assert hint.is_other(None, before)
    assert hint.is_other(before, None)
    assert hint.is_other(before, _node(is_unschedulable=True))
