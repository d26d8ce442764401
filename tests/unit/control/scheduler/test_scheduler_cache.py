"""The scheduler's books: kept step by step they say what they would say made anew."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from fairlead.control.scheduler import cache
from fairlead.plan.schedule import reference
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"
_T = TypeVar("_T", core.Pod, core.Node)
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


def _views(one: cache.Cache) -> dict[str, reference.NodeInfo]:
    one.changes()
    return dict(one.views)


def _waiting(one: cache.Cache) -> list[str]:
    return [pod.metadata.uid for pod in one.waiting()]


def _step(item: _T, *, is_gone: bool = False) -> Change[_T]:
    return Change(kind=ChangeKind.DELETED if is_gone else ChangeKind.MODIFIED, object=item)


_pods = st.builds(
    _pod,
    st.sampled_from(("1", "2", "3", "4")),
    st.sampled_from(("", *_NAMES)),
    gpus=st.integers(1, 4),
    phase=st.sampled_from(("", "Running", "Succeeded")),
)
_nodes = st.builds(_node, st.sampled_from(_NAMES), st.integers(0, 8))


@given(st.lists(st.tuples(st.booleans(), st.one_of(_pods, _nodes)), max_size=40))
def test_views_are_the_same_as_made_anew(steps: list[tuple[bool, core.Pod | core.Node]]) -> None:
    one = _open()
    pods: dict[str, core.Pod] = {}
    nodes: dict[str, core.Node] = {}
    for number, (is_gone, item) in enumerate(steps):
        if isinstance(item, core.Pod):
            one.note_pod(_step(item, is_gone=is_gone))
            known = pods.get(item.metadata.uid)
            if is_gone:
                pods.pop(item.metadata.uid, None)
            elif known is None or item.spec.node_name or not known.spec.node_name:
                pods[item.metadata.uid] = item
        else:
            one.note_node(_step(item, is_gone=is_gone))
            if is_gone:
                nodes.pop(item.metadata.name, None)
            else:
                nodes[item.metadata.name] = item
        if number % 3 == 0:
            _views(one)  # read in between, or nothing is ever remembered
    anew = {
        name: reference.node_info(node, tuple(pod for pod in pods.values() if pod.spec.node_name == name))
        for name, node in nodes.items()
    }
    assert _views(one) == anew
    waiting = {uid for uid, pod in pods.items() if not pod.spec.node_name and pod.status.phase != "Succeeded"}
    assert set(_waiting(one)) == waiting
    assert len(one.waiting()) == len(waiting)


def test_changes_name_the_nodes_that_differ_and_a_report_that_changes_nothing_is_none() -> None:
    one = _open()
    one.note_node(_step(_node("a")))
    ((name, (before, after)),) = one.changes().items()
    assert (name, before, after and after.free(_GPU)) == ("a", None, 8 * reference.UNIT)
    one.note_node(_step(_node("a")))
    one.note_pod(_step(_pod("1", "a", phase="Succeeded")))
    assert one.changes() == {}
    one.note_pod(_step(_pod("2", "a")))
    assert [after and after.free(_GPU) for _, after in one.changes().values()] == [7 * reference.UNIT]
    one.note_node(_step(_node("a"), is_gone=True))
    assert [after for _, after in one.changes().values()] == [None]
    assert _views(one) == {}


def test_a_fresh_list_may_undo_a_binding_and_a_late_echo_may_not() -> None:
    one = _open()
    one.note_pod(_step(_pod("1", "a")))
    one.note_pod(_step(_pod("1")))
    assert _waiting(one) == []
    one.forget_pods()
    one.note_pod(_step(_pod("1")))
    assert _waiting(one) == ["1"]


def test_an_assumption_holds_until_it_is_forgotten_or_corrected() -> None:
    one = _open()
    one.note_node(_step(_node("a")))
    one.note_pod(_step(_pod("1")))
    for is_forgotten in (True, False):
        one.assume(_pod("1"), "a")
        assert _views(one)["a"].free(_GPU) == 7 * reference.UNIT
        assert "1" not in _waiting(one)
        if is_forgotten:
            one.forget("1")
        else:
            one.correct("1", _pod("1"))
        assert _views(one)["a"].free(_GPU) == 8 * reference.UNIT
        assert "1" in _waiting(one)
    one.correct("1", _pod("another uid"))
    assert len(one.waiting()) == 0


def test_a_list_that_comes_while_a_binding_is_under_way_does_not_free_what_it_takes() -> None:
    one = _open()
    one.note_node(_step(_node("a")))
    one.note_pod(_step(_pod("1")))
    one.assume(_pod("1"), "a")
    one.forget_pods()
    one.note_pod(_step(_pod("1")))
    assert _views(one)["a"].free(_GPU) == 7 * reference.UNIT
    assert _waiting(one) == []
    one.forget("1")
    assert _views(one)["a"].free(_GPU) == 8 * reference.UNIT
    assert _waiting(one) == ["1"]


def test_an_echo_settles_an_assumption_and_a_deletion_ends_it() -> None:
    one = _open()
    one.note_node(_step(_node("a")))
    for uid in ("1", "2", "3"):
        one.note_pod(_step(_pod(uid)))
        one.assume(_pod(uid), "a")
    one.note_pod(_step(_pod("1", "a")))
    one.note_pod(_step(_pod("2"), is_gone=True))
    one.confirm("3")
    for uid in ("1", "2", "3"):
        one.forget(uid)
    assert _views(one)["a"].free(_GPU) == 6 * reference.UNIT
    assert _waiting(one) == []


def test_nothing_written_late_brings_back_a_pod_that_is_gone() -> None:
    one = _open()
    one.note_written(_pod("1", "a"))
    one.assume(_pod("1"), "a")
    assert (len(one.waiting()), _views(one)) == (0, {})


def test_turns_go_by_priority_then_age_then_name() -> None:
    one = _open()
    for uid, priority in (("b", 0), ("a", 0), ("z", 9)):
        one.note_pod(_step(_pod(uid, priority=priority)))
    assert _waiting(one) == ["z", "a", "b"]
