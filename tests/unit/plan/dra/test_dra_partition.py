"""Counters of partitions: they admit what the packing table admits, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.gpu import MIGEngines
from fairlead.model.mig import MIGProfile, Slot
from fairlead.plan.dra import partition
from fairlead.plan.mig import packing, table
from fairlead.wire.kubernetes import quantity
from tests.unit.plan.dra import draworld

Placement = tuple[MIGProfile, int]
Taken = dict[tuple[int, int], tuple[int, ...]]


def _by_table(layout: Sequence[Placement]) -> bool:
    """Return whether the packing table allows instances beside each other."""
    used = Counter(profile.name for profile, _ in layout)
    taken = [at for profile, start in layout for at in range(start, start + profile.size)]
    is_media_once = sum(1 for profile, _ in layout if profile.takes_media) <= 1
    return len(taken) == len(set(taken)) and is_media_once and all(used[one.name] <= one.limit for one, _ in layout)


def _by_counters(division: partition.Division, layout: Sequence[Placement], taken: Taken) -> bool:
    """Return whether a scheduler allows it: no counter is overdrawn."""
    columns = zip(*(taken[profile.id, start] for profile, start in layout), strict=True)
    return all(sum(column) <= total for column, total in zip(columns, division.totals.values(), strict=False))


def _taken(division: partition.Division) -> Taken:
    """Return what each placement takes of the counters, in the order of `totals`."""
    found = {}
    for profile in division.profiles:
        for start in profile.starts:
            (one,) = division.consumed_by(profile, start)
            numbers = {name: quantity.parse_whole(counter.value) for name, counter in one.counters.items()}
            assert numbers.keys() <= division.totals.keys()
            found[profile.id, start] = tuple(numbers.get(name, 0) for name in division.totals)
    return found


def _borders(division: partition.Division) -> Iterator[tuple[Placement, ...]]:
    """Yield every layout that the table allows, and each of them with one placement more.

    Both rules allow every part of what they allow, so they are one rule if they agree on these.
    """
    placements = [(profile, start) for profile in division.profiles for start in profile.starts]

    def descend(layout: tuple[Placement, ...], first: int) -> Iterator[tuple[Placement, ...]]:
        yield layout
        for at in range(first, len(placements)):
            larger = (*layout, placements[at])
            if _by_table(larger):
                yield from descend(larger, at + 1)
            else:
                yield larger

    yield from descend((), 0)


def _divide(profiles: Sequence[MIGProfile]) -> partition.Division:
    found = partition.plan_division(0, profiles, memory_bytes=80 << 30)
    assert isinstance(found, partition.Division)
    return found


@pytest.mark.parametrize("model", ["h100-80", "a30-24"])
def test_counters_allow_what_the_packing_table_allows_and_nothing_else(model: str) -> None:
    profiles = draworld.h100_profiles() if model == "h100-80" else table.MODELS[model].profiles
    division = _divide(profiles)
    taken = _taken(division)
    wrong = [one for one in _borders(division) if _by_table(one) is not _by_counters(division, one, taken)]
    assert wrong == []


_PROFILE = st.builds(
    lambda size, slices, starts, limit, media, amounts: MIGProfile(
        id=0,
        name="",
        slices=slices,
        size=size,
        starts=tuple(sorted({start for start in starts if start + size <= 8})) or (0,),
        limit=limit,
        memory_mib=amounts[0],
        takes_media=media,
        engines=MIGEngines(multiprocessors=amounts[1], copy=amounts[2], decoder=amounts[3], ofa=int(media)),
    ),
    st.integers(1, 8),
    st.integers(1, 7),
    st.lists(st.integers(0, 7), min_size=1, max_size=8),
    st.integers(1, 8),
    st.booleans(),
    st.tuples(*[st.integers(0, 50_000)] * 4),
)


@given(st.lists(_PROFILE, min_size=1, max_size=5), st.data())
def test_counters_of_any_table_agree_with_it(drawn: list[MIGProfile], data: st.DataObject) -> None:
    profiles = [_renamed(one, at) for at, one in enumerate(drawn)]
    division = _divide(profiles)
    placements = [(profile, start) for profile in profiles for start in profile.starts]
    layout = data.draw(st.lists(st.sampled_from(placements), unique=True, max_size=8))
    assert _by_counters(division, layout, _taken(division)) is _by_table(layout)


def _renamed(profile: MIGProfile, at: int) -> MIGProfile:
    return MIGProfile(
        id=at,
        name=f"{at}g",
        slices=profile.slices,
        size=profile.size,
        starts=profile.starts,
        limit=profile.limit,
        memory_mib=profile.memory_mib,
        takes_media=profile.takes_media,
        engines=profile.engines,
    )


def test_the_whole_gpu_goes_beside_no_partition() -> None:
    division = _divide(draworld.h100_profiles())
    (whole,) = division.consumed_whole()
    assert {name: quantity.parse_whole(one.value) for name, one in whole.counters.items()} == division.totals


def test_placements_that_leave_most_room_come_first() -> None:
    profiles = draworld.h100_profiles()
    small = profiles[0]
    first = partition.preferred_starts(profiles, small)[0]
    rooms = {start: packing.open_places(profiles, [Slot(profile=small.name, start=start)]) for start in small.starts}
    assert rooms[first] == max(rooms.values()) > rooms[0]


def test_taking_the_first_free_placement_leaves_room_for_large_ones() -> None:
    """Three small instances, each at the first placement that is free, leave the half that a 4g takes."""
    profiles = draworld.h100_profiles()
    starts = partition.preferred_starts(profiles, profiles[0])[:3]
    layout = [Slot(profile=profiles[0].name, start=start) for start in starts]
    assert packing.remaining(profiles, layout)["4g.40gb"] == 1


@pytest.mark.parametrize(
    ("profiles", "problem"),
    [
        ((), "no MIG profiles"),
        ((MIGProfile(id=1, name="x", slices=1, size=1 << 40, starts=(0,), limit=1),), "beyond 16"),
        ((MIGProfile(id=1, name="x", slices=1, size=0, starts=(3,), limit=1),), "without any"),
        (tuple(MIGProfile(id=at, name=f"{at}", slices=1, size=1, starts=(0, 1), limit=1) for at in range(40)), "42"),
    ],
)
def test_profiles_that_no_counter_set_can_tell_are_refused_with_the_reason(
    profiles: tuple[MIGProfile, ...], problem: str
) -> None:
    found = partition.plan_division(0, profiles, memory_bytes=1)
    assert isinstance(found, str)
    assert problem in found
