"""Which partition is given away, against brute force; what is offered; what makes the active ones the needed ones."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.fabric import FabricGPU, Partition
from fairlead.plan.fabric import lattice as lattices
from fairlead.plan.fabric import packing, reconcile
from fairlead.plan.fabric.lattice import Lattice
from fairlead.plan.fabric.reconcile import Verb
from tests.fabricstub import lattice as known

KNOWN = {name: one.partitions for name, one in known.LATTICES.items()}


def build(partitions: dict[int, tuple[int, ...]], active: Iterable[int] = ()) -> Lattice:
    on = set(active)
    return Lattice(
        [
            Partition(id=one, gpus=tuple(FabricGPU(module=module) for module in modules), is_active=one in on)
            for one, modules in partitions.items()
        ]
    )


def whole(partitions: dict[int, tuple[int, ...]], free: set[int]) -> list[frozenset[int]]:
    return [frozenset(one) for one in partitions.values() if set(one) <= free]


def score(partitions: dict[int, tuple[int, ...]], free: set[int], least: int) -> list[int]:
    """How many partitions are whole, of the largest size first, down to `least`."""
    sizes = sorted({len(one) for one in partitions.values()}, reverse=True)
    left = whole(partitions, free)
    return [sum(len(one) == size for one in left) for size in sizes if size >= least]


def most_disjoint(sets: list[frozenset[int]]) -> int:
    """How many of them can be given away at once."""

    @functools.cache
    def best(at: int, taken: frozenset[int]) -> int:
        if at == len(sets):
            return 0
        without = best(at + 1, taken)
        return max(without, 1 + best(at + 1, taken | sets[at])) if not sets[at] & taken else without

    return best(0, frozenset())


@st.composite
def fabrics(draw: st.DrawFn) -> dict[int, tuple[int, ...]]:
    """A published lattice, or sets of any shape."""
    if draw(st.booleans()):
        return KNOWN[draw(st.sampled_from(sorted(KNOWN)))]
    sets = draw(
        st.lists(st.frozensets(st.integers(1, 16), min_size=1, max_size=16), min_size=1, max_size=20, unique=True)
    )
    return {at: tuple(sorted(one)) for at, one in enumerate(sets)}


@given(fabrics(), st.sets(st.integers(1, 16)), st.data())
@settings(deadline=None, max_examples=200)
def test_what_is_chosen_leaves_the_most_of_the_largest_whole(
    partitions: dict[int, tuple[int, ...]], free: set[int], data: st.DataObject
) -> None:
    size = data.draw(st.sampled_from(sorted({len(one) for one in partitions.values()})))
    chosen = packing.choose(build(partitions), size, free)
    fitting = [one for one in whole(partitions, free) if len(one) == size]
    assert (chosen is None) is (not fitting)
    if chosen is not None:
        assert frozenset(chosen.modules) in fitting
        best = max(score(partitions, free - one, size) for one in fitting)
        assert score(partitions, free - set(chosen.modules), size) == best


@given(st.sampled_from(["h100", "b200", "a100"]), st.data())
@settings(deadline=None, max_examples=60)
def test_on_published_boards_no_choice_leaves_room_for_more_tenants(name: str, data: st.DataObject) -> None:
    """Room: how many partitions of each larger size can be given away at once, found by trying all."""
    partitions = KNOWN[name]
    built = build(partitions)
    free = set(built.modules)
    for size in data.draw(st.lists(st.sampled_from([1, 2, 4]), max_size=6)):
        fitting = [one for one in whole(partitions, free) if len(one) == size]
        chosen = packing.choose(built, size, free)
        if chosen is None:
            assert fitting == []
            continue
        for larger in (one for one in (8, 4, 2) if one > size):
            rooms = [
                most_disjoint([one for one in whole(partitions, free - lost) if len(one) == larger]) for lost in fitting
            ]
            own = [one for one in whole(partitions, free - set(chosen.modules)) if len(one) == larger]
            assert most_disjoint(own) == max(rooms)
        free -= set(chosen.modules)


def test_what_is_broken_already_is_broken_first() -> None:
    h100, b200 = build(KNOWN["h100"]), build(KNOWN["b200"])
    assert packing.choose(h100, 1, {2, 3, 4, 5, 6, 7, 8}).modules == (3,)  # type: ignore[union-attr]  # beside GPU 1
    assert packing.choose(b200, 1, {2, 3, 4, 5, 6, 7, 8}).modules == (2,)  # type: ignore[union-attr]
    assert packing.choose(h100, 2, {1, 2, 3, 4, 6, 7, 8}).modules == (6, 8)  # type: ignore[union-attr]
    assert packing.choose(h100, 4, {2, 3, 4, 5, 6, 7}) is None
    assert packing.choose(h100, 3, range(1, 9)) is None


def test_a_partition_is_found_by_its_exact_gpus() -> None:
    found = build(KNOWN["h100"])
    assert found.find_exact((3, 1)) is not None
    assert found.find_exact((1, 2)) is None
    assert found.sizes == (1, 2, 4, 8)
    assert found.overlapping(3) == {0, 1, 7, 9}
    assert {one.id for one in found.within((1, 3, 5)).partitions} == {3, 7, 9, 11}


@pytest.mark.parametrize(
    ("count", "said"),
    [(3, "ask for 2 or 4, or for 3 single GPUs"), (9, "ask for 8, or"), (5, "ask for 4 or 8")],
)
def test_a_size_without_a_partition_is_answered_with_the_choice(count: int, said: str) -> None:
    error = lattices.refuse_size((1, 2, 4, 8), count)
    assert str(count) in error.message
    assert said in str(error.hint)
    assert "single GPUs" in str(lattices.refuse_size((), 2).hint)


def test_what_nobody_holds_is_deactivated_before_what_is_needed_is_activated() -> None:
    changes = reconcile.plan(build(KNOWN["h100"], active=[7, 9, 2]), needed={1, 2})
    verbs = [(one.verb, one.partition) for one in changes.steps]
    assert verbs == [(Verb.DEACTIVATE, 7), (Verb.DEACTIVATE, 9), (Verb.ACTIVATE, 1)]
    assert (changes.waiting, changes.strays) == ({}, frozenset())


def test_a_partition_that_a_machine_may_use_is_left_and_what_needs_its_gpus_waits() -> None:
    changes = reconcile.plan(build(KNOWN["h100"], active=[0]), needed={3}, used={8})
    assert not changes.steps
    assert changes.strays == {0}
    assert "partition 0 has a GPU of it" in changes.waiting[3]


def test_two_needed_ones_that_overlap_are_never_both_activated() -> None:
    changes = reconcile.plan(build(KNOWN["h100"]), needed={1, 3, 99})
    assert [one.partition for one in changes.steps] == [1]
    assert "held too" in changes.waiting[3]
    assert "offers no partition 99" in changes.waiting[99]


def test_what_has_a_gpu_that_must_be_reset_waits_and_what_is_active_already_stays() -> None:
    due = {1: "GPU 1 was not reset", 6: "GPU 6 was not reset"}
    changes = reconcile.plan(build(KNOWN["h100"], active=[3]), needed={2, 3, 4}, due=due)
    assert [one.partition for one in changes.steps] == [4]
    assert changes.waiting == {2: "GPU 6 was not reset"}


@given(fabrics(), st.data())
@settings(deadline=None, max_examples=150)
def test_no_step_ever_makes_two_overlapping_partitions_active(
    partitions: dict[int, tuple[int, ...]], data: st.DataObject
) -> None:
    active = set[int]()
    for one in data.draw(st.permutations(sorted(partitions))):
        if data.draw(st.booleans()) and not any(set(partitions[one]) & set(partitions[two]) for two in active):
            active.add(one)
    needed = data.draw(st.sets(st.sampled_from(sorted(partitions))))
    used = data.draw(st.sets(st.integers(1, 16)))
    changes = reconcile.plan(build(partitions, active), needed, used)
    for step in changes.steps:
        members = set(partitions[step.partition])
        if step.verb is Verb.DEACTIVATE:
            assert step.partition not in needed
            assert not members & used
            active.discard(step.partition)
        else:
            assert step.partition in needed
            assert not any(members & set(partitions[one]) for one in active)
            active.add(step.partition)
    assert active == (needed - changes.waiting.keys()) | changes.strays
