"""Describes the MIG devices that a GPU can be divided into as partitions that consume its counters. Pure.

Each placement of each profile is a device of its own. Devices of one GPU consume one counter set: a counter for each
memory slice, so that no two partitions overlap, and one for each capacity that NVIDIA's driver counts. The scheduler
must give exactly what the packing table allows, no less and no more: instances that take the media engines share a
counter of their own, a profile with fewer instances than places is counted, and the amount of a capacity is never less
than what an allowed layout consumes. The whole GPU consumes everything.

Within a profile the placement comes first that leaves the most placements open, since a scheduler takes the first
device that fits.
Source: KEP-4815; kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/partitions.go (names of sets, counters).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.mig import MIGProfile, Slot
from fairlead.plan.dra import attribute
from fairlead.plan.mig import packing
from fairlead.wire.kubernetes.resource.device import Counter, CounterSet, DeviceCounterConsumption

SLICES_MOST: Final = 16
"""Memory slices of a GPU that is divided; real parts have 8. A counter set has room for 32 counters."""
COUNTERS_MOST: Final = 32
MEDIA: Final = "media-engines"
_CAPITAL: Final = re.compile(r"([a-z0-9])([A-Z])")
_FOREIGN: Final = re.compile(r"[^a-z0-9-]+", re.ASCII)


@frozen
class Division:
    """One GPU as it can be divided."""

    minor: int
    profiles: tuple[MIGProfile, ...]
    totals: Mapping[str, int]
    """The GPU's counters by name."""

    @property
    def set_name(self) -> str:
        """The name of its counter set."""
        return f"gpu-{self.minor}-counter-set"

    @property
    def counters(self) -> CounterSet:
        """The counter set as it is published."""
        return CounterSet(name=self.set_name, counters=_counters(self.totals))

    def consumed_by(self, profile: MIGProfile, start: int) -> tuple[DeviceCounterConsumption, ...]:
        """Return what a partition takes of the counters."""
        taken = _consumption(profile, start, _limited(self.profiles))
        return (DeviceCounterConsumption(counter_set=self.set_name, counters=_counters(taken)),)

    def consumed_whole(self) -> tuple[DeviceCounterConsumption, ...]:
        """Return what the whole GPU takes of the counters: everything."""
        return (DeviceCounterConsumption(counter_set=self.set_name, counters=_counters(self.totals)),)


def plan_division(minor: int, profiles: Sequence[MIGProfile], *, memory_bytes: int) -> Division | str:
    """Return how a GPU can be divided, or why its partitions cannot be published."""
    slices = max((start + one.size for one in profiles for start in one.starts), default=0)
    if not slices:
        return "it has no MIG profiles"
    if slices > SLICES_MOST or any(one.size < 1 or start < 0 for one in profiles for start in one.starts):
        return f"its MIG profiles have places beyond {SLICES_MOST} memory slices, or without any"
    totals = _totals(tuple(profiles), slices, memory_bytes)
    if len(totals) > COUNTERS_MOST:
        return f"its MIG profiles need {len(totals)} counters, a counter set has {COUNTERS_MOST}"
    return Division(minor=minor, profiles=tuple(profiles), totals=totals)


def device_name(minor: int, profile: MIGProfile, start: int) -> str:
    """Return the name of a MIG device, that NVIDIA's driver gives it: `gpu-0-mig-1g10gb-19-4`."""
    name = _FOREIGN.sub("-", profile.name.replace(".", "").lower()).strip("-")
    return f"gpu-{minor}-mig-{name}-{profile.id}-{start}"


def capacities(profile: MIGProfile) -> dict[str, int]:
    """Return the capacities of an instance by name."""
    return attribute.capacities(memory_bytes=profile.memory_mib * attribute.MIB, engines=profile.engines)


def largest(profiles: Iterable[MIGProfile]) -> dict[str, int]:
    """Return the most of each capacity that one instance has: that of the whole GPU."""
    found: dict[str, int] = {}
    for one in profiles:
        for name, value in capacities(one).items():
            found[name] = max(found.get(name, 0), value)
    return found


@functools.lru_cache(maxsize=16)
def places(profiles: tuple[MIGProfile, ...]) -> tuple[tuple[MIGProfile, int], ...]:
    """Return every placement, the smallest profiles first, of each profile that first which leaves most placements."""
    ordered = sorted(profiles, key=lambda one: (one.takes_media, one.size, one.slices, one.id))
    return tuple((profile, start) for profile in ordered for start in preferred_starts(profiles, profile))


def preferred_starts(profiles: Sequence[MIGProfile], profile: MIGProfile) -> tuple[int, ...]:
    """Return the starts of a profile in the order in which its instances should be made, one after another.

    Each is the one that leaves the most placements open beside those before it; the lower of two that leave as many.
    """
    chosen: list[Slot] = []
    left = list(profile.starts)
    while left:
        best = max(
            left,
            key=lambda start: (
                packing.open_places(profiles, [*chosen, Slot(profile=profile.name, start=start)]),
                -start,
            ),
        )
        chosen.append(Slot(profile=profile.name, start=best))
        left.remove(best)
    return tuple(slot.start for slot in chosen)


def overlaps(profile: MIGProfile, start: int, standing: Iterable[tuple[int, int]]) -> bool:
    """Return whether a placement takes a memory slice of another. Args: standing: starts and sizes."""
    return any(start < other + size and other < start + profile.size for other, size in standing)


@functools.lru_cache(maxsize=16)
def _totals(profiles: tuple[MIGProfile, ...], slices: int, memory_bytes: int) -> Mapping[str, int]:
    limited = _limited(profiles)
    placed = [(one, start, _consumption(one, start, limited)) for one in profiles for start in one.starts]
    whole = {**largest(profiles)}
    if attribute.MEMORY in whole:
        whole[attribute.MEMORY] = max(whole[attribute.MEMORY], memory_bytes)
    totals = {
        counter_name(name): max(value, _most(placed, counter_name(name), slices)) for name, value in whole.items()
    }
    if any(one.takes_media for one in profiles):
        totals[MEDIA] = 1
    totals |= {_instances(one): one.limit for one in limited}
    return totals | {_slice(at): 1 for at in range(slices)}


@functools.lru_cache(maxsize=16)
def _limited(profiles: tuple[MIGProfile, ...]) -> tuple[MIGProfile, ...]:
    """Return the profiles of which fewer instances are allowed than there is room for."""
    return tuple(one for one in profiles if not one.takes_media and one.limit < _most_disjoint(one))


def _most_disjoint(profile: MIGProfile) -> int:
    return packing.remaining((_unlimited(profile),), ())[profile.name]


def _unlimited(profile: MIGProfile) -> MIGProfile:
    return MIGProfile(
        id=profile.id,
        name=profile.name,
        slices=profile.slices,
        size=profile.size,
        starts=profile.starts,
        limit=len(profile.starts),
    )


def _consumption(profile: MIGProfile, start: int, limited: Sequence[MIGProfile]) -> dict[str, int]:
    counted = {counter_name(name): value for name, value in capacities(profile).items()}
    if profile.takes_media:
        counted[MEDIA] = 1
    if profile in limited:
        counted[_instances(profile)] = 1
    return counted | {_slice(at): 1 for at in range(start, start + profile.size)}


def _most(placed: Sequence[tuple[MIGProfile, int, Mapping[str, int]]], counter: str, slices: int) -> int:
    """Return the most of one counter that instances beside each other consume, one of them with media engines.

    The best layout from each memory slice on is a step to the best one from a later slice, so that each placement is
    looked at twice: with the media engines free and taken.
    """
    best = [[0, 0] for _ in range(slices + 1)]
    for at in reversed(range(slices)):
        for free in (0, 1):
            values = [best[at + 1][free]]
            for profile, start, taken in placed:
                media = int(profile.takes_media)
                if start == at and media <= free:
                    values.append(taken.get(counter, 0) + best[at + profile.size][free - media])
            best[at][free] = max(values)
    return best[0][1]


@functools.lru_cache(maxsize=64)
def counter_name(capacity: str) -> str:
    """Return the counter of a capacity, whose name is a DNS label: `copy-engines` for `copyEngines`."""
    return _CAPITAL.sub(r"\1-\2", capacity).lower()


def _slice(at: int) -> str:
    return f"memory-slice-{at}"


def _instances(profile: MIGProfile) -> str:
    return f"instances-{profile.id}"


def _counters(found: Mapping[str, int]) -> dict[str, Counter]:
    return {name: Counter(value=attribute.amount(value)) for name, value in found.items()}
