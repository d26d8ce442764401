"""Packing against brute force on every published profile table, and what fragmentation measures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import hypothesis
import pytest
from hypothesis import strategies

from fairlead.model.mig import MIGProfile, Slot
from fairlead.plan.mig import packing, table
from fairlead.silicon.sim import profile as simulated

SHAPES = {
    tuple((one.size, one.starts, one.limit, one.takes_media) for one in model.profiles): model
    for model in table.MODELS.values()
}
"""One model of each shape: names change nothing."""
TABLES = sorted(table.MODELS)


def layouts(profiles: Sequence[MIGProfile], wanted: Counter[str]) -> Iterator[tuple[Slot, ...]]:
    """Every layout that holds the wanted: each start of each instance in turn, unless it overlaps."""
    if any(wanted[one.name] > one.limit for one in profiles):
        return
    if sum(wanted[one.name] for one in profiles if one.takes_media) > 1:
        return
    by_name = {one.name: one for one in profiles}
    yield from _below([by_name[name] for name in sorted(wanted.elements())], ())


def _below(
    left: Sequence[MIGProfile], made: tuple[Slot, ...], taken: frozenset[int] = frozenset()
) -> Iterator[tuple[Slot, ...]]:
    if not left:
        yield made
        return
    first = left[0]
    lowest = made[-1].start + 1 if made and made[-1].profile == first.name else 0
    for start in first.starts:
        cells = frozenset(range(start, start + first.size))
        if start >= lowest and not taken & cells:
            yield from _below(left[1:], (*made, Slot(profile=first.name, start=start)), taken | cells)


@strategies.composite
def cases(draw: strategies.DrawFn) -> tuple[Sequence[MIGProfile], Counter[str], dict[Slot, int]]:
    profiles = table.MODELS[draw(strategies.sampled_from(TABLES))].profiles
    names = [one.name for one in profiles]
    wanted = Counter(draw(strategies.lists(strategies.sampled_from(names), max_size=5)))
    slots = [Slot(profile=one.name, start=at) for one in profiles for at in one.starts]
    worth = draw(strategies.dictionaries(strategies.sampled_from(slots), strategies.integers(1, 1000), max_size=4))
    return profiles, wanted, worth


@hypothesis.given(cases())
@hypothesis.settings(max_examples=100, deadline=None)
def test_packing_is_as_good_as_trying_everything(
    case: tuple[Sequence[MIGProfile], Counter[str], dict[Slot, int]],
) -> None:
    profiles, wanted, worth = case
    found = packing.pack(profiles, wanted, worth=worth)
    every = list(layouts(profiles, wanted))
    values = [(sum(worth.get(slot, 0) for slot in one), packing.open_places(profiles, one)) for one in every]
    if found is None:
        assert not values
        return
    assert Counter(slot.profile for slot in found) == wanted
    assert set(found) in [set(one) for one in every]
    assert max(values) == (sum(worth.get(slot, 0) for slot in found), packing.open_places(profiles, found))


@pytest.mark.parametrize("model", SHAPES.values(), ids=lambda model: model.title)
def test_remaining_says_how_many_more_fit_on_every_shape(model: table.Model) -> None:
    profiles = model.profiles
    for count, one in itertools.product(range(3), profiles):
        layout = packing.pack(profiles, {one.name: count})
        if layout is None:
            continue
        left = packing.remaining(profiles, layout)
        for other in profiles:
            fits = [
                more
                for more in range(other.limit + 1)
                if any(
                    set(layout) <= set(whole)
                    for whole in layouts(profiles, Counter({one.name: count}) + Counter({other.name: more}))
                )
            ]
            assert left[other.name] == max(fits), (layout, other.name)


def test_no_table_costs_the_search_its_bound() -> None:
    steps: list[int] = []
    for model in SHAPES.values():
        names = [one.name for one in model.profiles]
        for wanted in itertools.combinations_with_replacement(names, 3):
            search = packing._Search(model.profiles, Counter(wanted), {})
            search.run()
            steps.append(search._steps)
    assert max(steps) < packing.STEPS / 10


def test_instances_go_to_the_ends_that_leave_large_ones_room() -> None:
    profiles = table.MODELS["h100-80"].profiles
    assert packing.remaining(profiles, packing.pack(profiles, {"1g.10gb": 1}) or ())["3g.40gb"] == 1
    assert packing.remaining(profiles, [Slot(profile="1g.10gb", start=0)])["4g.40gb"] == 0
    assert packing.remaining(profiles, packing.pack(profiles, {"1g.10gb": 2}) or ())["4g.40gb"] == 1


def test_fragmentation_is_what_better_places_would_open() -> None:
    profiles = table.MODELS["a100-40"].profiles
    assert packing.fragmentation(profiles, ()) == 0
    packed = packing.pack(profiles, {"1g.5gb": 2}) or ()
    assert packing.fragmentation(profiles, packed) == 0
    scattered = [Slot(profile="1g.5gb", start=0), Slot(profile="1g.5gb", start=4)]
    assert packing.fragmentation(profiles, scattered) > 0.2


def test_tables_are_the_simulated_parts_tables() -> None:
    for name in ("a100x8", "h100x8", "h200x8", "b200x8"):
        part = simulated.load(name).boards[0].part
        model = table.find_model(part.device_id)
        assert model is not None
        told = [(row.id, row.name, row.slices, row.size, row.starts, row.limit, row.takes_media) for row in part.mig]
        ours = [
            (one.id, one.name, one.slices, one.size, one.starts, one.limit, one.takes_media) for one in model.profiles
        ]
        assert ours == told
