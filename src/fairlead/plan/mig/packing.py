"""Chooses where GPU instances stand on one GPU, and measures what a layout wastes. Pure.

A layout is a set of slots: profiles at places that do not overlap. Of all layouts that hold what is wanted, the one
with the best value is chosen: it keeps the most worth of what stands already (instances in use are worth more than all
the others together), and of equal ones it leaves the most placements open for later. The search takes profiles from
the largest to the smallest and starts in order, so instances of one profile are never tried in two orders. Real parts
have at most 8 memory slices and a few hundred layouts; `STEPS` bounds what a longer table of a simulated part costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from fairlead.model.mig import MIGProfile, Slot

STEPS: Final = 100_000
"""Slots tried in one search; the best layout so far is the answer where it ends there."""

Layout = tuple[Slot, ...]


def pack(
    profiles: Sequence[MIGProfile], wanted: Mapping[str, int], *, worth: Mapping[Slot, int] | None = None
) -> Layout | None:
    """Return the best layout with so many instances of each profile, in order of their places; None: none holds them.

    Args: wanted: names of `profiles`.   worth: what it is worth to have a slot in the layout; others are worth nothing.
    """
    return _Search(profiles, Counter(wanted), dict(worth or {})).run()


class _Search:
    def __init__(self, profiles: Sequence[MIGProfile], wanted: Counter[str], worth: Mapping[Slot, int]) -> None:
        self._all = profiles
        self._wanted = sorted(
            ((one, wanted[one.name]) for one in profiles if wanted[one.name] > 0),
            key=lambda pair: (-pair[0].size, -pair[0].slices, pair[0].name),
        )
        self._worth = worth
        self._steps = 0
        self._best: Layout | None = None
        self._value: tuple[int, int] = (-1, -1)

    def run(self) -> Layout | None:
        is_over = any(count > one.limit for one, count in self._wanted)
        if is_over or sum(count for one, count in self._wanted if one.takes_media) > 1:
            return None
        self._descend(0, 0, ())
        return self._best

    def _descend(self, position: int, taken: int, layout: Layout) -> None:
        if position == len(self._wanted):
            # In this order: no number of open places outweighs an instance that would have to be moved.
            value = sum(self._worth.get(slot, 0) for slot in layout), open_places(self._all, layout)
            if value > self._value:
                self._best, self._value = tuple(sorted(layout, key=lambda slot: (slot.start, slot.profile))), value
            return
        profile, count = self._wanted[position]
        free = [start for start in profile.starts if not taken & _mask(profile, start)]
        # Placements of existing instances first: the search may stop at its limit of steps.
        free.sort(key=lambda start: (-self._worth.get(Slot(profile=profile.name, start=start), 0), start))
        for starts in combinations(free, count):
            self._steps += 1
            if self._steps > STEPS:
                return
            masks = [_mask(profile, start) for start in starts]
            # Slices taken twice are one bit of the union and two of the sum: one comparison stands for all pairs.
            union = _union(masks)
            if union.bit_count() == sum(mask.bit_count() for mask in masks):
                slots = tuple(Slot(profile=profile.name, start=start) for start in starts)
                self._descend(position + 1, taken | union, (*layout, *slots))


def _mask(profile: MIGProfile, start: int) -> int:
    """Return the memory slices of one instance as bits."""
    return ((1 << profile.size) - 1) << start


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def occupied(profiles: Sequence[MIGProfile], layout: Collection[Slot]) -> int:
    """Return the memory slices of a layout as bits; slots of profiles that are not listed occupy nothing."""
    by_name = {one.name: one for one in profiles}
    return _union(_mask(by_name[slot.profile], slot.start) for slot in layout if slot.profile in by_name)


def remaining(profiles: Sequence[MIGProfile], layout: Collection[Slot]) -> dict[str, int]:
    """Return how many more instances of each profile fit beside a layout, if nothing else is created."""
    taken, used = occupied(profiles, layout), Counter(slot.profile for slot in layout)
    is_media_taken = any(one.takes_media and used[one.name] for one in profiles)
    found: dict[str, int] = {}
    for one in profiles:
        top = 0 if one.takes_media and is_media_taken else one.limit - used[one.name]
        found[one.name] = max(min(top, sum(1 for _ in _disjoint(one, taken))), 0)
    return found


def _disjoint(profile: MIGProfile, taken: int) -> Iterator[int]:
    """Yield free starts from the lowest on: of intervals of one length no other choice holds more."""
    end = 0
    for start in profile.starts:
        if start >= end and not taken & _mask(profile, start):
            yield start
            end = start + profile.size


def open_places(profiles: Sequence[MIGProfile], layout: Collection[Slot]) -> int:
    """Return memory slices that instances could still take, summed over profiles: the more, the better a layout."""
    left = remaining(profiles, layout)
    return sum(one.size * left[one.name] for one in profiles)


def fragmentation(profiles: Sequence[MIGProfile], layout: Collection[Slot]) -> float:
    """Return the share of placements that better places of the same instances would open: 0 none, 1 all of them."""
    best = pack(profiles, Counter(slot.profile for slot in layout))
    most = open_places(profiles, best) if best is not None else 0
    return 1 - open_places(profiles, layout) / most if most else 0.0
