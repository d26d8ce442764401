"""Placement rules: what may stand where on a partitioned GPU, for every part that can be partitioned."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
from hypothesis import strategies

from fairlead.silicon.sim import partition, profile

PARTS = {
    board.part.key: board.part for name in profile.list_names() for board in profile.load(name).boards if board.part.mig
}
H100 = PARTS["h100-80"].mig
STEPS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["create", "place", "destroy", "compute"]),
        strategies.integers(min_value=0, max_value=6),
        strategies.integers(min_value=0, max_value=7),
    ),
    max_size=40,
)


def row(name: str) -> profile.MIGRow:
    return next(item for item in H100 if item.name == name)


def step(layout: partition.Partition, action: str, which: int, place: int) -> None:
    chosen = layout.rows[which % len(layout.rows)]
    ids = sorted(layout.instances)
    if action == "create":
        layout.create(chosen)
    elif action == "place":
        layout.create(chosen, place)
    elif ids and action == "destroy":
        layout.instances[ids[place % len(ids)]].computes.clear()
        layout.destroy(ids[place % len(ids)])
    elif ids:
        item = layout.instances[ids[place % len(ids)]]
        kinds = item.list_compute_profiles()
        item.create_compute(kinds[which % len(kinds)])


@hypothesis.given(strategies.sampled_from(sorted(PARTS)), STEPS)
def test_no_sequence_of_acts_breaks_a_rule(part: str, steps: list[tuple[str, int, int]]) -> None:
    layout = partition.Partition(PARTS[part].mig)
    for action, which, place in steps:
        with contextlib.suppress(partition.NoRoomError):
            step(layout, action, which, place)
        taken = [slot for item in layout.instances.values() for slot in item.memory_slices]
        assert len(taken) == len(set(taken))
        assert all(0 <= slot < 8 for slot in taken)
        assert sum(item.row.slices for item in layout.instances.values()) <= 7
        assert sum(item.row.takes_media for item in layout.instances.values()) <= 1
        for number, item in layout.instances.items():
            assert item.id == number
            assert item.start in item.row.starts
            assert sum(other.row.id == item.row.id for other in layout.instances.values()) <= item.row.limit
            slots = [s for ci in item.computes.values() for s in range(ci.start, ci.start + ci.slices)]
            assert len(slots) == len(set(slots))
            assert all(slot < item.row.slices for slot in slots)


@hypothesis.given(strategies.sampled_from(sorted(PARTS)), STEPS)
def test_remaining_capacity_is_what_can_really_be_created(part: str, steps: list[tuple[str, int, int]]) -> None:
    layout = partition.Partition(PARTS[part].mig)
    for action, which, place in steps[:6]:
        with contextlib.suppress(partition.NoRoomError):
            step(layout, action, which, place)
    for chosen in layout.rows:
        twin = partition.Partition(layout.rows)
        for item in layout.instances.values():
            twin.create(item.row, item.start)
        for start in [s for s in chosen.starts if s in twin.list_free_starts(chosen)]:
            with contextlib.suppress(partition.NoRoomError):
                twin.create(chosen, start)
        made = len(twin.instances) - len(layout.instances)
        assert made == layout.remaining(chosen)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("1g.10gb", 7), ("1g.10gb+me", 1), ("1g.20gb", 4), ("2g.20gb", 3), ("3g.40gb", 2), ("4g.40gb", 1), ("7g.80gb", 1)],
)
def test_an_empty_gpu_takes_as_many_as_published(name: str, limit: int) -> None:
    layout = partition.Partition(H100)
    assert layout.remaining(row(name)) == limit
    for _ in range(limit):
        layout.create(row(name))
    with pytest.raises(partition.NoRoomError):
        layout.create(row(name))


def test_a_small_instance_leaves_room_for_the_big_ones() -> None:
    layout = partition.Partition(H100)
    layout.create(row("1g.10gb"))
    assert layout.list_free_starts(row("4g.40gb")) == [0]
    layout.create(row("4g.40gb"))
    layout.create(row("2g.20gb"))
    assert sorted(item.start for item in layout.instances.values()) == [0, 4, 6]


def test_a_taken_start_is_refused() -> None:
    layout = partition.Partition(H100)
    layout.create(row("1g.10gb"), 1)
    with pytest.raises(partition.NoRoomError):
        layout.create(row("2g.20gb"), 0)


def test_an_instance_with_compute_instances_is_not_destroyed() -> None:
    layout = partition.Partition(H100)
    item = layout.create(row("3g.40gb"))
    item.create_compute(0)
    with pytest.raises(partition.InUseError):
        layout.destroy(item.id)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("1g.10gb", [1]),
        ("2g.20gb", [1, 2]),
        ("3g.40gb", [1, 2, 3]),
        ("4g.40gb", [1, 2, 4]),
        ("7g.80gb", [1, 2, 3, 4, 7]),
    ],
)
def test_compute_profiles_are_those_of_the_instance(name: str, kinds: list[int]) -> None:
    item = partition.Partition(H100).create(row(name))
    assert [partition.CI_PROFILES[kind] for kind in item.list_compute_profiles()] == kinds


def test_a_part_of_an_instance_says_so_in_its_name() -> None:
    item = partition.Partition(H100).create(row("3g.40gb"))
    assert item.compute_name(item.create_compute(0)) == "1c.3g.40gb"
    assert item.compute_name(item.create_compute(0)) == "1c.3g.40gb"
