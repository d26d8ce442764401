"""Placement: every filter says why, scores pack GPUs, and the choice depends on nothing but its input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"


def _numbers(given: dict[str, int]) -> dict[str, int]:
    return {name: value * reference.UNIT for name, value in given.items()}


def _node(name: str, *, gpus: int = 8, taken: int = 0, **more: Any) -> reference.NodeInfo:
    offered = {"cpu": 64, "memory": 2**38, "pods": 110, **({_GPU: gpus} if gpus else {})}
    return reference.NodeInfo(name=name, allocatable=_numbers(offered), taken=_numbers({_GPU: taken}), **more)


def _need(gpus: int = 1, **more: Any) -> reference.PodInfo:
    return reference.PodInfo(requests=_numbers({"cpu": 1, "pods": 1, **({_GPU: gpus} if gpus else {})}), **more)


def _why(need: reference.PodInfo, node: reference.NodeInfo) -> tuple[str, ...]:
    found = reference.place(need, (node,))
    assert found.fitting == (not found.reasons)
    return tuple(one.why for one in found.reasons)


# filters


_TAINT = core.Taint(key="gpu", value="only", effect="NoSchedule")
_TAINTED = "node(s) had untolerated taint {gpu: }"
_ELSEWHERE = "node(s) didn't match Pod's node affinity/selector"


def _bears(condition: str) -> core.Toleration:
    return core.Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect="NoSchedule")


def _term(rules: list[tuple[str, ...]]) -> core.NodeSelectorTerm:
    read = [core.NodeSelectorRequirement(key=key, operator=how, values=tuple(values)) for key, how, *values in rules]
    return core.NodeSelectorTerm(match_expressions=tuple(read))


def _required(*terms: list[tuple[str, ...]]) -> core.NodeAffinity:
    chosen = core.NodeSelector(node_selector_terms=tuple(map(_term, terms)))
    return core.NodeAffinity(required_during_scheduling_ignored_during_execution=chosen)


def _preferred(**weights: int) -> core.NodeAffinity:
    """Prefer nodes that have the label, each with its weight."""
    terms = tuple(
        core.PreferredSchedulingTerm(weight=weight, preference=_term([(label, "Exists")]))
        for label, weight in weights.items()
    )
    return core.NodeAffinity(preferred_during_scheduling_ignored_during_execution=terms)


@pytest.mark.parametrize(
    ("need", "node", "reasons"),
    [
        (_need(8), _node("n"), ()),
        (_need(9), _node("n"), (f"Insufficient {_GPU}",)),
        (_need(5), _node("n", taken=4), (f"Insufficient {_GPU}",)),
        (_need(1), _node("n", gpus=0), (f"Insufficient {_GPU}",)),
        (_need(), _node("n", is_ready=False), ("node(s) were not ready",)),
        (_need(), _node("n", is_unschedulable=True), ("node(s) were unschedulable",)),
        (_need(node_selector={"a": "b"}), _node("n", labels={"a": "b", "c": "d"}), ()),
        (
            _need(node_selector={"a": "b"}),
            _node("n", labels={"a": "c"}),
            ("node(s) didn't match Pod's node affinity/selector",),
        ),
        (_need(), _node("n", taints=(_TAINT,)), ("node(s) had untolerated taint {gpu: only}",)),
        (_need(tolerations=(core.Toleration(key="gpu", value="only"),)), _node("n", taints=(_TAINT,)), ()),
        (_need(tolerations=(core.Toleration(operator="Exists"),)), _node("n", taints=(_TAINT,)), ()),
        (_need(), _node("n", taints=(core.Taint(key="gpu", effect="PreferNoSchedule"),)), ()),
        (_need(), _node("n", taints=(core.Taint(key="gpu", effect="NoExecute"),)), (_TAINTED,)),
        (_need(tolerations=(_bears("not-ready"),)), _node("n", is_ready=False), ()),
        (_need(tolerations=(_bears("unschedulable"),)), _node("n", is_unschedulable=True), ()),
        (_need(tolerations=(_bears("unschedulable"),)), _node("n", is_ready=False), ("node(s) were not ready",)),
        (_need(affinity=_required([("gpu.count", "Gt", "4")])), _node("n", labels={"gpu.count": "8"}), ()),
        (_need(affinity=_required([("gpu.count", "Gt", "8")])), _node("n", labels={"gpu.count": "8"}), (_ELSEWHERE,)),
        (reference.PodInfo(requests=_numbers({"pods": 111})), _node("n"), ("Too many pods",)),
    ],
)
def test_each_filter_says_why_not(need: reference.PodInfo, node: reference.NodeInfo, reasons: tuple[str, ...]) -> None:
    assert _why(need, node) == reasons


def test_a_node_is_refused_by_its_first_filter_alone_as_kube_scheduler_does() -> None:
    assert _why(_need(9), _node("n", is_ready=False, is_unschedulable=True)) == ("node(s) were not ready",)


def test_a_pod_that_fits_nowhere_is_answered_with_counts_as_kube_scheduler_writes_them() -> None:
    decision = reference.place(_need(2), (_node("a", taken=7), _node("b", taken=8), _node("c", is_ready=False)))
    assert decision.node is None
    assert decision.message == f"0/3 nodes are available: 1 node(s) were not ready, 2 Insufficient {_GPU}."


def test_no_nodes_at_all_is_said_plainly() -> None:
    assert reference.place(_need(), ()).message == "0/0 nodes are available: no nodes are known."


# scores


def test_gpu_pods_go_to_the_node_whose_gpus_are_most_taken() -> None:
    nodes = (_node("empty"), _node("half", taken=4), _node("full", taken=8))
    assert reference.place(_need(2), nodes).node == "half"


def test_pods_without_gpus_stay_off_nodes_that_have_them() -> None:
    assert reference.place(_need(0), (_node("a"), _node("b", gpus=0))).node == "b"
    assert reference.place(_need(0), (_node("a"),)).node == "a"


def test_among_equal_nodes_the_emptier_wins_then_the_name() -> None:
    busy = reference.NodeInfo(name="a", allocatable=_node("a").allocatable, taken=_numbers({"cpu": 60, _GPU: 0}))
    assert reference.place(_need(), (busy, _node("b"))).node == "b"
    assert reference.place(_need(), (_node("c"), _node("b"))).node == "b"


_NODES = st.lists(
    st.builds(
        lambda gpus, taken, ready: (gpus, min(taken, gpus), ready), st.integers(0, 8), st.integers(0, 8), st.booleans()
    ),
    max_size=6,
).map(
    lambda items: tuple(
        _node(f"n{number}", gpus=gpus, taken=taken, is_ready=ready) for number, (gpus, taken, ready) in enumerate(items)
    )
)


@given(nodes=_NODES, gpus=st.integers(0, 9), order=st.randoms())
def test_the_chosen_node_fits_and_the_order_of_nodes_does_not_matter(
    nodes: tuple[reference.NodeInfo, ...], gpus: int, order: Any
) -> None:
    need = _need(gpus)
    decision = reference.place(need, nodes)
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert reference.place(need, tuple(shuffled)) == decision
    fitting = {node.name for node in nodes if node.is_ready and node.free(_GPU) >= gpus * reference.UNIT}
    assert {name for name, _ in decision.best} == fitting
    assert (decision.node in fitting) if fitting else decision.node is None
    assert all(0 <= score <= 100 for _, score in decision.best)


# views


def _pod(name: str, gpus: str, *, phase: str = "Running", init: str | None = None) -> core.Pod:
    def asking(count: str) -> core.Container:
        return core.Container(name="c", resources=core.ResourceRequirements(requests={_GPU: count, "cpu": "500m"}))

    spec = core.PodSpec(containers=(asking(gpus),), init_containers=(asking(init),) if init else ())
    return core.Pod(metadata=meta.ObjectMeta(name=name), spec=spec, status=core.PodStatus(phase=phase))


def _object(*conditions: meta.Condition) -> core.Node:
    status = core.NodeStatus(allocatable={_GPU: "8", "cpu": "4", "pods": "3"}, conditions=conditions)
    return core.Node(metadata=meta.ObjectMeta(name="n", labels={"a": "b"}), status=status)


_READY = meta.Condition(type="Ready", status="True", reason="KubeletReady")


def test_a_view_counts_what_living_pods_request_and_one_place_each() -> None:
    pods = (_pod("a", "2"), _pod("b", "1", init="4"), _pod("c", "3", phase="Succeeded"), _pod("d", "3", phase="Failed"))
    view = reference.node_info(_object(_READY), pods)
    assert view.is_ready
    assert view.taken == _numbers({_GPU: 6, "cpu": 1, "pods": 2})
    assert [view.free(name) for name in (_GPU, "cpu", "fpga")] == [2000, 3000, 0]


@pytest.mark.parametrize("status", ["False", "Unknown", None])
def test_a_node_is_ready_only_when_it_says_so(status: str | None) -> None:
    conditions = () if status is None else (meta.Condition(type="Ready", status=status, reason="KubeletStopped"),)
    view = reference.node_info(_object(*conditions), ())
    assert not view.is_ready


def test_a_pod_is_seen_with_its_requests_selector_and_tolerations() -> None:
    need = reference.pod_info(_pod("a", "2", init="3"))
    assert need.requests == {_GPU: 3000, "cpu": 500, "pods": 1000}


# preferences


def test_a_preference_outweighs_packing_and_adds_up() -> None:
    need = _need(1, affinity=_preferred(fast=30, near=50, big=60))
    both, one, none = (
        _node("both", labels={"fast": "", "near": ""}),
        _node("one", labels={"big": ""}),
        _node("none", taken=7),
    )
    decision = reference.place(need, (none, one, both))
    scores = dict(decision.best)
    assert decision.node == "both"
    assert scores["both"] > scores["one"] > scores["none"]


def test_a_preference_never_lets_a_node_in_that_does_not_fit() -> None:
    need = _need(4, affinity=_preferred(fast=100))
    assert reference.place(need, (_node("fast", taken=7, labels={"fast": ""}), _node("other"))).node == "other"


def test_taints_that_only_advise_are_counted_unless_borne() -> None:
    avoided = _node("a", taken=4, taints=(core.Taint(key="old", effect="PreferNoSchedule"),))
    assert reference.place(_need(), (avoided, _node("b"))).node == "b"
    bearing = _need(tolerations=(core.Toleration(key="old", operator="Exists"),))
    assert reference.place(bearing, (avoided, _node("b"))).node == "a"


def test_what_does_not_tell_nodes_apart_does_not_change_their_scores() -> None:
    plain, labelled = (_node("n", taken=3), _node("n", taken=3, labels={"fast": ""}))
    need = _need(affinity=_preferred(fast=100))
    assert reference.place(need, (plain,)).best == reference.place(need, (labelled,)).best
