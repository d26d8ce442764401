"""Several schedulers side by side: each node and pod has one owner, and no pod is bound by two after any events."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.plan.schedule.cache import cache
from fairlead.plan.schedule.queue import queue
from fairlead.plan.schedule.shard import pool as shard
from fairlead.plan.schedule.shard import running
from fairlead.wire.kubernetes import coordination, core, meta

_LABEL = "example.com/pool"
_POOLS = ("", "a", "b")
_SHARDS = tuple(shard.Shard(_LABEL, pool) for pool in _POOLS)
_pool = st.sampled_from([*_POOLS, None])


def _node(name: str, pool: str | None) -> core.Node:
    labels = {} if pool is None else {_LABEL: pool}
    ready = meta.Condition(type="Ready", status="True")
    status = core.NodeStatus(allocatable={"nvidia.com/gpu": "4", "pods": "9"}, conditions=(ready,))
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels), status=status)


def _pod(name: str, label: str | None = None, selector: str | None = None, node: str = "") -> core.Pod:
    labels = {} if label is None else {_LABEL: label}
    wanted = {} if selector is None else {_LABEL: selector}
    about = meta.ObjectMeta(name=name, namespace="n", uid=name, labels=labels)
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(), node_name=node, node_selector=wanted))


@given(_pool, _pool, _pool)
def test_each_pod_and_each_node_has_one_owner(label: str | None, selector: str | None, node: str | None) -> None:
    assert sum(one.owns_pod(_pod("p", label, selector)) for one in _SHARDS) == 1
    assert sum(one.owns_node(_node("n", node).metadata.labels) for one in _SHARDS) == 1
    assert shard.WHOLE.owns_pod(_pod("p", label, selector))


def test_each_pool_has_a_lease_of_its_own_and_those_without_a_pool_the_old_one() -> None:
    names = [one.lease("fairlead-scheduler") for one in (shard.WHOLE, *_SHARDS, shard.Shard(_LABEL, "H100_SXM"))]
    assert names[:4] == ["fairlead-scheduler", "fairlead-scheduler", "fairlead-scheduler-a", "fairlead-scheduler-b"]
    assert names[4].startswith("fairlead-scheduler-")
    assert names[4] == names[4].lower()


class _One:
    """A scheduler's cache, with the queue that says which pods it would look at."""

    def __init__(self, of: shard.Shard, now: list[float]) -> None:
        self.queue = queue.SchedulingQueue(lambda: now[0])
        self.cache = cache.Cache(self.queue, lambda _pod: True, lambda: now[0], date=None, shard=of)

    def asked(self) -> set[str]:
        found = set()
        while (pod := self.queue.pop()) is not None:
            found.add(pod.metadata.name)
        for name in found:
            self.queue.recall(name)
        return found


_events = st.lists(
    st.tuples(st.sampled_from(["node", "pod", "gone", "time"]), st.integers(0, 3), _pool, _pool), max_size=40
)


@settings(max_examples=150)
@given(_events)
def test_after_any_events_no_two_schedulers_would_decide_on_one_pod_or_use_one_node(
    events: list[tuple[str, int, str | None, str | None]],
) -> None:
    now = [0.0]
    all_of_them = [_One(of, now) for of in _SHARDS]
    moved = dict[str, tuple[str, float]]()
    for kind, number, one, other in events:
        if kind == "time":
            now[0] += number * 4.0
        for each in all_of_them:
            if kind == "node":
                each.cache.note_node(_node(f"n{number}", one))
            elif kind == "pod":
                each.cache.note_pod(_pod(f"p{number}", one, other))
            elif kind == "gone":
                each.cache.note_node(_node(f"n{number}", one), is_gone=True)
            each.cache.expire()
            each.cache.changes()
        if kind == "node":
            pool = one or ""
            if moved.get(f"n{number}", (pool, 0.0))[0] != pool:
                moved[f"n{number}"] = (pool, now[0])
            moved.setdefault(f"n{number}", (pool, -shard.SETTLE_S))
        elif kind == "gone":
            moved.pop(f"n{number}", None)
        used = [name for each in all_of_them for name in each.cache.views]
        assert len(used) == len(set(used)), "a node is used by two"
        asked = [name for each in all_of_them for name in each.asked()]
        assert len(asked) == len(set(asked)), "a pod is decided on by two"
        settled = {name for name, (_, at) in moved.items() if at + shard.SETTLE_S <= now[0]}
        assert set(used) == settled, "a node is left to nobody, or used before it settled"
        everywhere = {len(list(each.cache.everywhere())) for each in all_of_them}
        assert everywhere == {len(moved)}, "each counts all nodes for what queues are due"


def test_a_node_that_became_ours_is_used_once_bindings_on_their_way_are_seen() -> None:
    now = [0.0]
    one = _One(shard.Shard(_LABEL, "a"), now)
    one.cache.note_node(_node("n", "b"))
    one.cache.note_node(_node("n", "a"))
    one.cache.changes()
    assert not one.cache.views
    assert one.cache.settles_in_s() == pytest.approx(shard.SETTLE_S)
    one.cache.note_pod(msgspec.structs.replace(_pod("late", "b"), spec=_pod("late", "b", node="n").spec))
    now[0] = shard.SETTLE_S
    one.cache.expire()
    one.cache.changes()
    assert set(one.cache.views) == {"n"}
    assert {pod.metadata.name for pod, _ in one.cache.placed()} == {"late"}


def _lease(
    pool: str, *, label: str = _LABEL, age_s: float = 0.0, holder: str = "h", since: int = 0
) -> coordination.Lease:
    told = running.marks(shard.Shard(label, pool), "fairlead")
    spec = coordination.LeaseSpec(
        holder_identity=holder,
        lease_duration_seconds=15,
        renew_time=meta.emit_time(_NOW - age_s),
        acquire_time=meta.emit_time(_NOW - 3600 + since),
    )
    return coordination.Lease(metadata=meta.ObjectMeta(name=f"l-{pool}", annotations=told), spec=spec)


_NOW = 1_800_000_000.0
_UNMARKED = coordination.Lease(metadata=meta.ObjectMeta(name="fairlead-controller"), spec=_lease("").spec)


def _ours(name: str, label: str | None = None, scheduler: str = "fairlead") -> core.Pod:
    pod = _pod(name, label)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduler_name=scheduler))


def test_leases_say_which_schedulers_share_the_cluster() -> None:
    held = [_UNMARKED, _lease("a"), _lease("b", age_s=120), _lease("c", holder=""), _lease("")]
    found = running.shards_of(held, _NOW)
    assert (found.label, found.pools, found.scheduler) == (_LABEL, frozenset({"", "a"}), "fairlead")
    assert 'no scheduler runs for pods of example.com/pool "b"' in found.refusal(_ours("p", "b"))
    assert [found.refusal(_ours("p", pool)) for pool in ("a", None)] == ["", ""]
    nodes = [_node("one", "a"), _node("two", "b"), _node("three", None)]
    names = {pool: [one.metadata.name for one in found.nodes_for(_ours("p", pool), nodes)] for pool in ("a", None)}
    assert names == {"a": ["one"], None: ["three"]}


def test_pods_of_other_schedulers_are_not_divided() -> None:
    found = running.shards_of([_lease("a")], _NOW)
    pod, nodes = _ours("p", "b", "default-scheduler"), [_node("one", "a"), _node("two", None)]
    assert (found.refusal(pod), found.words(pod), len(found.nodes_for(pod, nodes))) == ("", "", 2)


def test_a_cluster_that_is_one_schedulers_again_is_not_divided() -> None:
    assert running.shards_of([_lease("a", since=1), _lease("", label="", since=2)], _NOW) == running.WHOLE
    assert running.shards_of([_UNMARKED], _NOW) == running.shards_of([], _NOW) == running.WHOLE


@given(st.lists(st.tuples(_pool, st.booleans()), max_size=4), _pool)
def test_who_is_told_to_wait_for_nobody_is_owned_by_nobody_that_runs(
    leases: list[tuple[str | None, bool]], label: str | None
) -> None:
    found = running.shards_of([_lease(pool or "", age_s=0 if fresh else 99) for pool, fresh in leases], _NOW)
    owners = {one for one, fresh in leases if fresh and shard.Shard(_LABEL, one or "").owns_pod(_pod("p", label))}
    assert bool(found.refusal(_ours("p", label))) == bool(found.label and not owners)
