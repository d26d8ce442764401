"""The scheduler's books: kept step by step they say what they would say made anew."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairlead.control.scheduler import cache
from fairlead.plan.schedule import reference
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"
_NAMES = ("a", "b", "c")


def _pod(uid: str, node: str = "", *, gpus: int = 1, phase: str = "", priority: int = 0) -> core.Pod:
    wanted = core.ResourceRequirements(limits={_GPU: gpus}, requests={_GPU: gpus})
    return core.Pod(
        metadata=meta.ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=core.PodSpec(
            containers=(core.Container(name="main", resources=wanted),),
            node_name=node,
            scheduler_name="fairlead",
            priority=priority,
        ),
        status=core.PodStatus(phase=phase),
    )


def _node(name: str, gpus: int = 8) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name), status=core.NodeStatus(allocatable={_GPU: str(gpus)}))


def _open() -> cache.Cache:
    return cache.Cache(lambda pod: pod.spec.scheduler_name == "fairlead")


def _added(item: core.Pod) -> Change[core.Pod]:
    return Change(kind=ChangeKind.ADDED, object=item)


_pods = st.builds(
    _pod,
    st.sampled_from(("1", "2", "3", "4")),
    st.sampled_from(("", *_NAMES)),
    gpus=st.integers(1, 4),
    phase=st.sampled_from(("", "Running", "Succeeded")),
)
_nodes = st.builds(_node, st.sampled_from(_NAMES), st.integers(0, 8))
_kinds = st.sampled_from(list(ChangeKind))


@given(st.lists(st.tuples(_kinds, st.one_of(_pods, _nodes)), max_size=40))
def test_views_are_the_same_as_made_anew(steps: list[tuple[ChangeKind, core.Pod | core.Node]]) -> None:
    one = _open()
    pods: dict[str, core.Pod] = {}
    nodes: dict[str, core.Node] = {}
    for number, (kind, item) in enumerate(steps):
        if isinstance(item, core.Pod):
            one.note_pod(Change(kind=kind, object=item))
            known = pods.get(item.metadata.uid)
            if kind is ChangeKind.DELETED:
                pods.pop(item.metadata.uid, None)
            elif known is None or item.spec.node_name or not known.spec.node_name:
                pods[item.metadata.uid] = item
        else:
            one.note_node(Change(kind=kind, object=item))
            if kind is ChangeKind.DELETED:
                nodes.pop(item.metadata.name, None)
            else:
                nodes[item.metadata.name] = item
        if number % 3 == 0:
            one.views()  # read in between, or nothing is ever remembered
    anew = {
        name: reference.node_info(node, tuple(pod for pod in pods.values() if pod.spec.node_name == name))
        for name, node in nodes.items()
    }
    assert {view.name: view for view in one.views()} == anew
    waiting = {uid for uid, pod in pods.items() if not pod.spec.node_name and pod.status.phase != "Succeeded"}
    assert {pod.metadata.uid for pod in one.waiting()} == waiting


def test_a_fresh_list_may_undo_a_binding_and_a_late_echo_may_not() -> None:
    one = _open()
    one.note_pod(_added(_pod("1", "a")))
    one.note_pod(_added(_pod("1")))
    assert one.waiting() == []
    one.forget_pods()
    one.note_pod(_added(_pod("1")))
    assert [pod.metadata.uid for pod in one.waiting()] == ["1"]


def test_an_assumption_holds_until_it_is_corrected() -> None:
    one = _open()
    one.note_node(Change(kind=ChangeKind.ADDED, object=_node("a")))
    one.note_pod(_added(_pod("1")))
    one.assume(_pod("1"), "a")
    assert [view.free(_GPU) for view in one.views()] == [7]
    assert not one.is_waiting("1")
    one.correct("1", _pod("1"))
    assert [view.free(_GPU) for view in one.views()] == [8]
    assert one.is_waiting("1")
    one.correct("1", _pod("another uid"))
    assert one.waiting() == []


def test_nothing_written_late_brings_back_a_pod_that_is_gone() -> None:
    one = _open()
    one.note_written(_pod("1", "a"))
    assert list(itertools.chain(one.waiting(), one.views())) == []


def test_turns_go_by_priority_then_age_then_name() -> None:
    one = _open()
    for uid, priority in (("b", 0), ("a", 0), ("z", 9)):
        one.note_pod(_added(_pod(uid, priority=priority)))
    assert [pod.metadata.uid for pod in one.waiting()] == ["z", "a", "b"]
