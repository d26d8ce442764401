"""Domains of the network: what counts as one, which take a group, and in which order they are tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup

_GPU, _CPU = "nvidia.com/gpu", "cpu"
_BLOCK, _RACK = "example.com/block", "example.com/rack"
_LEVELS = (_BLOCK, _RACK, domain.HOST)


def _node(at: int, labels: Mapping[str, str], gpus: int, cpu: int = 64) -> NodeInfo:
    return NodeInfo(name=f"n{at:02}", labels=labels, allocatable={_GPU: gpus * 1000, _CPU: cpu * 1000})


def _need(gpus: int, cpu: int = 1) -> PodInfo:
    return PodInfo(requests={_GPU: gpus * 1000, _CPU: cpu * 1000})


def _greedy(need: PodInfo, count: int, nodes: list[NodeInfo]) -> int:
    """Place pods one after another as the reference does, on these nodes alone; returns how many have a place."""
    there = {node.name: node for node in nodes}
    for placed in range(count):
        found = reference.place(need, there.values()).node
        if found is None:
            return placed
        taken = dict(there[found].taken)
        for name, value in need.requests.items():
            taken[name] = taken.get(name, 0) + value
        there[found] = dataclasses.replace(there[found], taken=taken)
    return count


_BLOCKS, _RACKS = st.sampled_from(["b0", "b1", ""]), st.sampled_from(["r0", "r1", ""])
_NODES = st.lists(st.tuples(_BLOCKS, _RACKS, st.integers(0, 8), st.integers(1, 9)), max_size=9)


@settings(max_examples=150)
@given(_NODES, st.integers(1, 4), st.integers(1, 2), st.integers(1, 6), st.sampled_from([_BLOCK, _RACK, "other"]))
def test_a_domain_fits_exactly_where_placing_one_after_another_finds_room(
    drawn: list[tuple[str, str, int, int]], gpus: int, cpu: int, count: int, level: str
) -> None:
    nodes = [
        _node(at, {key: value for key, value in ((_BLOCK, block), (_RACK, rack)) if value}, free, cores)
        for at, (block, rack, free, cores) in enumerate(drawn)
    ]
    need, of = _need(gpus, cpu), domain.keys(level, _LEVELS)
    by_domain: dict[reference.Domain, list[NodeInfo]] = {}
    for node in nodes:
        if (where := domain.domain_of(node.labels, of)) is not None:
            by_domain.setdefault(where, []).append(node)
    room = {where: _greedy(need, 99, there) for where, there in by_domain.items()}
    found = domain.candidates([need] * count, nodes, of)
    assert list(found.fitting) == [
        where for _, where in sorted((fits, where) for where, fits in room.items() if fits >= count)
    ]
    assert found.best[0] == min(max(room.values(), default=0), count)


def test_racks_of_one_name_in_two_blocks_are_two_domains() -> None:
    nodes = [_node(at, {_BLOCK: f"b{at}", _RACK: "r0"}, 2) for at in range(2)]
    assert not domain.candidates([_need(1)] * 3, nodes, domain.keys(_RACK, _LEVELS)).fitting
    assert domain.candidates([_need(1)] * 3, nodes, domain.keys(_RACK, ())).fitting == (((_RACK, "r0"),),)


def test_the_tightest_domain_comes_first_and_the_best_is_named_where_none_fits() -> None:
    nodes = [_node(0, {_RACK: "wide"}, 8), _node(1, {_RACK: "tight"}, 3), _node(2, {_RACK: "small"}, 2)]
    found = domain.candidates([_need(1)] * 3, nodes, (_RACK,))
    assert [domain.shown(one) for one in found.fitting] == ["tight", "wide"]
    none = domain.candidates([_need(1)] * 9, nodes, (_RACK,))
    assert (none.fitting, none.words) == ((), "the best, wide, has room for 8")
    assert domain.candidates([_need(1)], [], (_RACK,)).words == f"no node has {_RACK}"


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        (domain.Asked(), ((),)),
        (domain.Asked(required=_RACK), ((_BLOCK, _RACK),)),
        (domain.Asked(preferred=_RACK), ((_BLOCK, _RACK), (_BLOCK,), ())),
        (domain.Asked(required=_BLOCK, preferred=_RACK), ((_BLOCK, _RACK), (_BLOCK,))),
        (domain.Asked(required=_RACK, preferred=_BLOCK), ((_BLOCK, _RACK),)),
        (domain.Asked(required="other"), (("other",),)),
        (
            domain.Asked(required="other", preferred=_RACK),
            (("other", _BLOCK, _RACK), ("other", _BLOCK), ("other",)),
        ),
        (domain.Asked(preferred="other"), (("other",), ())),
    ],
)
def test_levels_are_tried_from_the_narrowest_to_the_required_one(
    asked: domain.Asked, ways: tuple[domain.Levels, ...]
) -> None:
    assert domain.ways(asked, _LEVELS) == ways


_SPEC = podgroup.PodGroupSpec


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        (_SPEC(), domain.Asked()),
        (
            _SPEC(scheduling_constraints=podgroup.GroupConstraints(topology=(podgroup.TopologyKey(key=_RACK),))),
            domain.Asked(required=_RACK),
        ),
        (
            _SPEC(topology_constraint=podgroup.TopologyConstraint(preferred_topology_level=_RACK)),
            domain.Asked(preferred=_RACK),
        ),
        (
            _SPEC(network_topology=podgroup.NetworkTopology(highest_tier_allowed=1)),
            domain.Asked(required=_RACK),
        ),
        (
            _SPEC(network_topology=podgroup.NetworkTopology(mode="soft", highest_tier_allowed=2)),
            domain.Asked(preferred=_BLOCK),
        ),
        (_SPEC(network_topology=podgroup.NetworkTopology(highest_tier_allowed=9)), domain.Asked()),
    ],
)
def test_a_podgroup_of_each_system_says_where_it_is_placed(spec: podgroup.PodGroupSpec, asked: domain.Asked) -> None:
    group = podgroup.PodGroup(metadata=meta.ObjectMeta(name="g"), spec=spec)
    assert domain.request_of(core.Pod(), group, _LEVELS) == asked
    told = core.Pod(metadata=meta.ObjectMeta(annotations={domain.PREFERRED[1]: "own"}))
    assert domain.request_of(told, group, _LEVELS) == domain.Asked(preferred="own")


def test_levels_are_read_as_they_are_listed() -> None:
    assert domain.levels_of(f" {_BLOCK}, {_RACK},,{_BLOCK}") == (_BLOCK, _RACK)
    assert domain.levels_of("") == ()


_NAMED = core.NodeSelectorRequirement(key="zone", operator="In", values=("z",))


@pytest.mark.parametrize(
    ("terms", "takes"),
    [
        (None, {"n00"}),
        ((core.NodeSelectorTerm(match_expressions=(_NAMED,)),), set()),
        ((core.NodeSelectorTerm(),), set()),  # takes no node, and does not begin to
        ((core.NodeSelectorTerm(), core.NodeSelectorTerm(match_expressions=(_NAMED,))), set()),
    ],
)
def test_a_need_on_one_node_is_met_by_that_node_alone_if_it_was_before(
    terms: tuple[core.NodeSelectorTerm, ...] | None, takes: set[str]
) -> None:
    required = core.NodeSelector(node_selector_terms=terms) if terms is not None else None
    wanted = core.NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    need = domain.on_node(dataclasses.replace(_need(1), affinity=wanted), "n00")
    nodes = [_node(0, {}, 1), _node(1, {"zone": "z"}, 1)]
    assert {node.name for node in nodes if reference.first_refusal(need, node) is None} == takes
