"""Shares of queues: the whole is divided, by weight and by what is deserved, and nobody can be robbed in turn."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.fairshare.ledger import Ledger
from fairlead.plan.schedule.fairshare.tree import DEFAULT, Spec, Tree
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import queue

_GPU = "nvidia.com/gpu"


def _specs(**parts: dict[str, object]) -> Tree:
    return Tree(Spec(name=name, **more) for name, more in parts.items())  # type: ignore[arg-type]


def _share(found: Tree, total: int, **asked: int) -> dict[str, int]:
    shares = found.shares({_GPU: total}, {name: {_GPU: value} for name, value in asked.items()})
    return {name: shares[name][_GPU] for name in asked}


def test_what_is_left_is_divided_by_weight() -> None:
    found = _specs(red={"weight": 3}, blue={"weight": 1})
    assert _share(found, 8, red=100, blue=100) == {"red": 6, "blue": 2}


def test_a_queue_that_asks_for_less_leaves_the_rest_to_the_others() -> None:
    found = _specs(red={"weight": 3}, blue={"weight": 1})
    assert _share(found, 8, red=1, blue=100) == {"red": 1, "blue": 7}


def test_the_deserved_goes_before_weight_and_never_beyond_the_limit() -> None:
    found = _specs(red={"deserved": {_GPU: 6}}, blue={"weight": 100, "limit": {_GPU: 1}})
    assert _share(found, 8, red=100, blue=100) == {"red": 7, "blue": 1}


def test_the_guaranteed_goes_before_the_deserved_where_both_are_promised() -> None:
    found = _specs(red={"guarantee": {_GPU: 6}, "deserved": {_GPU: 6}}, blue={"deserved": {_GPU: 6}})
    assert _share(found, 8, red=100, blue=100) == {"red": 6, "blue": 2}


def test_queues_below_a_queue_divide_its_share() -> None:
    found = _specs(
        dept={"weight": 3}, red={"parent": "dept", "weight": 2}, blue={"parent": "dept"}, other={"weight": 1}
    )
    assert _share(found, 12, red=100, blue=100, other=100) == {"red": 6, "blue": 3, "other": 3}


def test_a_circle_and_a_parent_that_is_not_there_hang_at_the_root_and_are_named() -> None:
    found = _specs(a={"parent": "b"}, b={"parent": "a"}, c={"parent": "nosuch"})
    assert found.problems["c"] == 'its parent "nosuch" is not there'
    assert "ancestor" in found.problems["a"]
    assert all(found.path(name)[-1] in found.children[tree.ROOT] for name in ("a", "b", "c"))


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (queue.QueueSpec(deserved={_GPU: "many"}), "deserved of nvidia.com/gpu"),
        (queue.QueueSpec(limit={_GPU: "-1"}), "below 0"),
        (queue.QueueSpec(limit={_GPU: "1"}, guarantee={_GPU: "2"}), "above its limit"),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused_with_its_field(spec: queue.QueueSpec, word: str) -> None:
    with pytest.raises(errors.Invalid, match=word):
        tree.spec_of(queue.Queue(metadata=meta.ObjectMeta(name="team"), spec=spec))


_AMOUNTS = st.integers(0, 12)
_TREES = st.lists(
    st.builds(
        lambda weight, guarantee, deserved, limit, parent: {
            "weight": weight,
            "guarantee": {_GPU: min(guarantee, limit)},
            "deserved": {_GPU: min(deserved, limit)},
            "limit": {_GPU: limit},
            "parent": parent,
        },
        st.integers(0, 4),
        st.integers(0, 3),
        _AMOUNTS,
        st.integers(1, 20),
        st.sampled_from([tree.ROOT, "q0", "q1"]),
    ),
    min_size=1,
    max_size=6,
).map(lambda parts: _specs(**{f"q{number}": part for number, part in enumerate(parts)}))


def _leaves(found: Tree) -> list[str]:
    return [name for name in found.specs if not found.children.get(name)]


def _drawn(
    found: Tree, total: int, data: st.DataObject
) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, Mapping[str, int]]]:
    """Have every leaf ask for something; returns shares and what is asked for, of every queue."""
    asked = {name: {_GPU: data.draw(_AMOUNTS)} for name in _leaves(found)}
    return found.shares({_GPU: total}, asked), found.totals(asked)


@given(_TREES, st.integers(0, 30), st.data())
def test_no_share_is_above_what_is_asked_for_or_the_limit_and_the_sum_is_never_above_the_whole(
    found: Tree, total: int, data: st.DataObject
) -> None:
    shares, wanted = _drawn(found, total, data)
    for parent, names in found.children.items():
        whole = total if parent == tree.ROOT else shares[parent][_GPU]
        assert sum(shares[name][_GPU] for name in names) <= whole
    for name in found.specs:
        most = found.specs[name].limit.get(_GPU, wanted[name].get(_GPU, 0))
        assert 0 <= shares[name][_GPU] <= min(most, wanted[name].get(_GPU, 0))


@given(_TREES, st.integers(0, 30), st.data())
def test_nothing_is_left_while_a_queue_with_weight_wants_more(found: Tree, total: int, data: st.DataObject) -> None:
    shares, wanted = _drawn(found, total, data)
    for parent, names in found.children.items():
        whole = total if parent == tree.ROOT else shares[parent][_GPU]
        given_out = sum(shares[name][_GPU] for name in names)
        most = {name: found.specs[name].limit.get(_GPU, total) for name in names}
        weighty = [name for name in names if found.specs[name].weight]
        hungry = [name for name in weighty if shares[name][_GPU] < min(wanted[name].get(_GPU, 0), most[name])]
        assert not hungry or given_out == whole, (parent, hungry)


@given(_TREES, st.integers(0, 30), st.data())
def test_a_queue_gets_its_guarantee_first_where_all_that_are_promised_can_be_kept(
    found: Tree, total: int, data: st.DataObject
) -> None:
    shares, wanted = _drawn(found, total, data)
    for parent, names in found.children.items():
        whole = total if parent == tree.ROOT else shares[parent][_GPU]
        owed = {name: min(found.specs[name].guarantee.get(_GPU, 0), wanted[name].get(_GPU, 0)) for name in names}
        if sum(owed.values()) <= whole:
            assert all(shares[name][_GPU] >= owed[name] for name in names)


@given(_TREES, st.integers(1, 30), st.data())
def test_two_pods_can_never_take_each_others_place(found: Tree, total: int, data: st.DataObject) -> None:
    leaves = _leaves(found)
    has = {name: {_GPU: data.draw(_AMOUNTS)} for name in leaves}
    mine, theirs = data.draw(st.sampled_from(leaves)), data.draw(st.sampled_from(leaves))
    needs, held = {_GPU: data.draw(st.integers(1, 4))}, {_GPU: data.draw(st.integers(1, 4))}
    has[theirs][_GPU] += held[_GPU]
    asked = {name: dict(amounts) for name, amounts in has.items()}
    asked[mine][_GPU] += needs[_GPU]
    shares = found.shares({_GPU: total}, asked)
    if not found.may_reclaim(mine, needs, theirs, held, allocated=found.totals(has), shares=shares):
        return
    has[theirs][_GPU] -= held[_GPU]
    has[mine][_GPU] += needs[_GPU]  # what is asked for in all is the same: the ended pod waits again
    assert not found.may_reclaim(theirs, held, mine, needs, allocated=found.totals(has), shares=shares)


def _pod(name: str, namespace: str, *, node: str = "") -> core.Pod:
    about = meta.ObjectMeta(name=name, namespace=namespace, uid=name)
    return core.Pod(metadata=about, spec=core.PodSpec(node_name=node))


def test_what_a_queue_had_counts_half_after_the_half_life() -> None:
    ledger = Ledger(half_life_s=100)
    ledger.reset(_specs(red={"namespaces": ("red",)}, blue={"namespaces": ("blue",)}))
    ledger.set_total({_GPU: 4000})
    ledger.put(_pod("old", "red", node="a"), {_GPU: 4000})
    for at in range(0, 1001, 100):
        ledger.tick(at)
    ledger.drop("old")
    assert 3900 < ledger.usage()["red"][_GPU] <= 4000
    ledger.put(_pod("r", "red"), {_GPU: 1000})
    ledger.put(_pod("b", "blue"), {_GPU: 1000})
    assert ledger.choose(["red", "blue"]) == "blue"
    ledger.tick(1100)
    assert 1900 < ledger.usage()["red"][_GPU] <= 2000


def test_the_sums_are_those_of_the_pods_that_are_there_after_any_order_of_events() -> None:
    ledger = Ledger()
    ledger.reset(_specs(red={"namespaces": ("red",)}))
    for number in range(5):
        ledger.put(_pod(str(number), "red" if number % 2 else "x", node="a" if number < 3 else ""), {_GPU: 1000})
    ledger.put(_pod("3", "red", node="a"), {_GPU: 1000})
    ledger.place("4", is_placed=True)
    ledger.leave("1")
    ledger.drop("1")
    ledger.drop("nosuch")
    assert ledger.allocated["red"] == {_GPU: 1000}
    assert ledger.allocated[DEFAULT] == {_GPU: 3000}
    assert ledger.pending() == {"red": {}, DEFAULT: {}}
    assert ledger.counts() == {"red": (1, 0), DEFAULT: (3, 0)}
