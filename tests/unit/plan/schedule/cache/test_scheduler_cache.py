"""The scheduler's cache: views that are updated step by step equal views that are built anew."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache import cache
from fairlead.plan.schedule.queue import queue
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


class World:
    """A cache with its queue, and a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queue = queue.SchedulingQueue(lambda: self.now)
        self.cache = cache.Cache(self.queue, lambda pod: pod.spec.scheduler_name == "fairlead", lambda: self.now)

    def views(self) -> dict[str, reference.NodeInfo]:
        self.cache.changes()
        return dict(self.cache.views)

    def popped(self) -> list[str]:
        """Take all that is to be looked at, in order."""
        found = iter(self.queue.pop, None)
        return [pod.metadata.uid for pod in found]


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
    world = World()
    one = world.cache
    pods: dict[str, core.Pod] = {}
    nodes: dict[str, core.Node] = {}
    for number, (is_gone, item) in enumerate(steps):
        if isinstance(item, core.Pod):
            one.note_pod(item, is_gone=is_gone)
            known = pods.get(item.metadata.uid)
            if is_gone:
                pods.pop(item.metadata.uid, None)
            elif known is None or item.spec.node_name or not known.spec.node_name:
                pods[item.metadata.uid] = item
        else:
            one.note_node(item, is_gone=is_gone)
            if is_gone:
                nodes.pop(item.metadata.name, None)
            else:
                nodes[item.metadata.name] = item
        if number % 3 == 0:
            world.views()  # read in between, or nothing is ever remembered
    anew = {
        name: reference.node_info(node, tuple(pod for pod in pods.values() if pod.spec.node_name == name))
        for name, node in nodes.items()
    }
    assert world.views() == anew
    waiting = {uid for uid, pod in pods.items() if not pod.spec.node_name and pod.status.phase != "Succeeded"}
    assert set(world.popped()) == waiting
    assert len(world.queue) == len(waiting)


def test_changes_name_the_nodes_that_differ_and_a_report_that_changes_nothing_is_none() -> None:
    world = World()
    one = world.cache
    one.note_node(_node("a"))
    ((name, (before, after)),) = one.changes().items()
    assert (name, before, after and after.free(_GPU)) == ("a", None, 8 * reference.UNIT)
    one.note_node(_node("a"))
    one.note_pod(_pod("1", "a", phase="Succeeded"))
    assert one.changes() == {}
    one.note_pod(_pod("2", "a"))
    assert [after and after.free(_GPU) for _, after in one.changes().values()] == [7 * reference.UNIT]
    one.note_node(_node("a"), is_gone=True)
    assert [after for _, after in one.changes().values()] == [None]
    assert world.views() == {}


def test_a_fresh_list_may_undo_a_binding_and_a_late_echo_may_not() -> None:
    world = World()
    one = world.cache
    one.note_pod(_pod("1", "a"))
    one.note_pod(_pod("1"))
    assert world.popped() == []
    one.forget_pods()
    one.note_pod(_pod("1"))
    assert world.popped() == ["1"]


def test_an_assumption_holds_until_it_is_forgotten_or_corrected() -> None:
    world = World()
    one = world.cache
    one.note_node(_node("a"))
    one.note_pod(_pod("1"))
    for is_forgotten in (True, False):
        one.assume(_pod("1"), "a")
        assert world.views()["a"].free(_GPU) == 7 * reference.UNIT
        assert "1" not in world.queue
        if is_forgotten:
            one.forget("1")
        else:
            one.correct("1", _pod("1"))
        assert world.views()["a"].free(_GPU) == 8 * reference.UNIT
        assert "1" in world.queue
    one.correct("1", _pod("another uid"))
    assert len(world.queue) == 0


def test_a_list_older_than_a_binding_does_not_free_what_it_took_until_the_store_was_silent_too_long() -> None:
    world = World()
    one = world.cache
    one.note_node(_node("a"))
    one.note_pod(_pod("1"))
    one.assume(_pod("1"), "a")
    for confirmed in (False, True):
        if confirmed:
            one.confirm("1")
        one.forget_pods()
        one.note_pod(_pod("1"))
        one.expire()
        assert world.views()["a"].free(_GPU) == 7 * reference.UNIT
        assert "1" not in world.queue
    world.now += cache.ECHO_S
    one.expire()
    assert world.views()["a"].free(_GPU) == 8 * reference.UNIT
    assert "1" in world.queue


def test_an_echo_settles_an_assumption_and_a_deletion_ends_it() -> None:
    world = World()
    one = world.cache
    one.note_node(_node("a"))
    for uid in ("1", "2"):
        one.note_pod(_pod(uid))
        one.assume(_pod(uid), "a")
        one.confirm(uid)
    one.note_pod(_pod("1", "a"))
    one.note_pod(_pod("2"), is_gone=True)
    world.now += cache.ECHO_S
    one.expire()
    one.forget("1")
    assert world.views()["a"].free(_GPU) == 7 * reference.UNIT
    assert len(world.queue) == 0


def test_nothing_written_late_brings_back_a_pod_that_is_gone() -> None:
    world = World()
    one = world.cache
    one.note_written(_pod("1", "a"))
    one.assume(_pod("1"), "a")
    assert (len(world.queue), world.views()) == (0, {})


def test_turns_go_by_priority_then_age_then_name() -> None:
    world = World()
    one = world.cache
    for uid, priority in (("b", 0), ("a", 0), ("z", 9)):
        one.note_pod(_pod(uid, priority=priority))
    assert world.popped() == ["z", "a", "b"]


def test_a_node_or_pod_with_nonsense_in_it_is_left_out_and_nothing_else_suffers() -> None:
    world = World()
    one = world.cache
    for name, amount in (("a", "8"), ("b", "many")):
        node = core.Node(metadata=meta.ObjectMeta(name=name), status=core.NodeStatus(allocatable={_GPU: amount}))
        one.note_node(node)
    one.note_pod(msgspec.structs.replace(_pod("1", "a"), spec=_asking("two", "a")))
    assert world.views()["a"].free(_GPU) == 8 * reference.UNIT
    assert set(world.views()) == {"a"}


def _asking(amount: str, node: str) -> core.PodSpec:
    wanted = core.ResourceRequirements(limits={_GPU: amount}, requests={_GPU: amount})
    return core.PodSpec(containers=(core.Container(name="main", resources=wanted),), node_name=node)


def test_room_is_held_for_a_pod_until_its_time_is_over_or_it_has_a_node() -> None:
    world = World()
    world.cache.note_node(_node("a", 8))
    world.cache.note_pod(_pod("1", gpus=3))
    world.cache.hold(_pod("1", gpus=3), "a", for_s=5)
    assert world.views()["a"].free(_GPU) == 5000
    world.cache.hold(_pod("nosuch"), "a", for_s=5)
    assert list(world.cache.held) == ["1"]
    world.now += 6
    assert world.cache.expire() == ("1",)
    assert world.views()["a"].free(_GPU) == 8000
    assert world.cache.release("1") is None


def test_pods_on_a_node_that_is_not_there_are_not_placed() -> None:
    world = World()
    world.cache.note_pod(_pod("1", "a"))
    world.cache.note_pod(_pod("2", "b"))
    world.cache.note_node(_node("a"))
    assert [pod.metadata.uid for pod, _ in world.cache.placed()] == ["1"]


def test_a_report_of_a_binding_that_was_never_assumed_or_has_been_refused_changes_nothing() -> None:
    world = World()
    world.cache.note_node(_node("a", 8))
    world.cache.confirm("nosuch")
    world.cache.forget("nosuch")
    world.cache.assume(_pod("nosuch"), "a")
    world.cache.note_written(_pod("nosuch", "a"))
    assert world.views()["a"].free(_GPU) == 8000
    assert not world.cache.is_assumed("nosuch")


def test_labels_of_a_namespace_reach_its_pods_and_a_change_of_none_is_none() -> None:
    world = World()
    world.cache.note_node(_node("a", 8))
    world.cache.note_pod(_pod("1", "a"))
    world.cache.note_pod(_pod("2"))
    world.views()
    labelled = core.Namespace(metadata=meta.ObjectMeta(name="default", labels={"team": "red"}))
    world.cache.note_namespace(labelled)
    assert world.cache.namespaces == {"default": {"team": "red"}}
    assert "a" in world.cache.changes()
    world.cache.note_namespace(labelled)
    assert "a" not in world.cache.changes()
    world.cache.note_namespace(labelled, is_gone=True)
    assert world.cache.namespaces == {}
