"""Finds what is wrong between objects of resource.k8s.io: pools in pieces, devices given twice, counters overdrawn.

Each object may be right by itself and the whole not: a driver that restarted left old slices, a second scheduler gave a
device away, a partition was allocated beside the whole. Nothing here depends on how claims are allocated, so it judges
every scheduler's work. Source: k8s.io/api/resource/v1 types.go, 1.37 (ResourcePool, CounterSet, `shareID`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairlead import errors
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import Device, Quantity
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

Pool = tuple[str, str]
"""Driver and name."""
DeviceID = tuple[str, str, str]
"""Driver, pool and name."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One sentence about one object."""

    item: str
    """`ResourceClaim team/train`, `pool gpu.example.com/node-1`."""
    text: str


@dataclass(frozen=True, slots=True)
class _Use:
    """One device of one claim."""

    claim: str
    result: DeviceRequestAllocationResult


def problems(
    slices: Iterable[ResourceSlice], claims: Sequence[ResourceClaim], classes: Iterable[DeviceClass]
) -> tuple[Problem, ...]:
    """Return what is wrong between objects, by object; classes and pools that are not among them are not missed.

    A class is missed where any class is there, and a device where its pool is whole.
    """
    pools = _by_pool(slices)
    newest = {pool: _newest(there) for pool, there in pools.items()}
    uses = _uses(claims)
    found = [
        *(one for pool, there in pools.items() for one in _of_pool(pool, there)),
        *_missing_classes(claims, frozenset(one.metadata.name for one in classes)),
        *_of_uses(uses, newest),
        *(one for pool, there in newest.items() for one in _of_counters(pool, there, uses)),
    ]
    return tuple(sorted(found))


def _by_pool(slices: Iterable[ResourceSlice]) -> dict[Pool, list[ResourceSlice]]:
    found = defaultdict[Pool, list[ResourceSlice]](list)
    for one in slices:
        found[one.spec.driver, one.spec.pool.name].append(one)
    return dict(sorted(found.items()))


def _newest(there: Sequence[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    generation = max(one.spec.pool.generation for one in there)
    return tuple(one for one in there if one.spec.pool.generation == generation)


def _is_whole(newest: Sequence[ResourceSlice]) -> bool:
    return len(newest) >= max(one.spec.pool.resource_slice_count for one in newest)


def _of_pool(pool: Pool, there: Sequence[ResourceSlice]) -> Iterator[Problem]:
    item, newest = f"pool {'/'.join(pool)}", _newest(there)
    generation = newest[0].spec.pool.generation
    for one in there:
        if one.spec.pool.generation != generation:
            mine = one.spec.pool.generation
            text = f"is of generation {mine} of its pool, which has {generation}: nothing is allocated from it"
            yield Problem(f"ResourceSlice {one.metadata.name}", text)
    counts = sorted({one.spec.pool.resource_slice_count for one in newest})
    if len(counts) > 1:
        yield Problem(item, f"its slices say {' and '.join(map(str, counts))} of how many there are")
    if not _is_whole(newest):
        yield Problem(item, f"has {len(newest)} of {counts[-1]} slices: nothing is allocated of it until all are there")
    named = Counter(device.name for one in newest for device in one.spec.devices)
    for name, count in sorted(named.items()):
        if count > 1:
            yield Problem(item, f"has {count} devices named {name}: nothing is allocated from it")


def _missing_classes(claims: Iterable[ResourceClaim], known: frozenset[str]) -> Iterator[Problem]:
    if not known:
        return
    for claim in claims:
        for one in claim.spec.devices.requests or ():
            asked = [one.exactly] if one.exactly is not None else [*one.first_available]
            for name in dict.fromkeys(each.device_class_name for each in asked if each.device_class_name not in known):
                yield Problem(_name(claim), f'request {one.name} is of DeviceClass "{name}", which is not there')


def _name(claim: ResourceClaim) -> str:
    return f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name}"


def _uses(claims: Iterable[ResourceClaim]) -> dict[DeviceID, list[_Use]]:
    """Return who has each device; those who only look at it, with admin access, are left out."""
    found = defaultdict[DeviceID, list[_Use]](list)
    for claim in claims:
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            if not one.admin_access:
                found[one.driver, one.pool, one.device].append(_Use(_name(claim), one))
    return dict(sorted(found.items()))


def _of_uses(
    uses: Mapping[DeviceID, Sequence[_Use]], newest: Mapping[Pool, Sequence[ResourceSlice]]
) -> Iterator[Problem]:
    devices = {pool: {one.name: one for each in there for one in each.spec.devices} for pool, there in newest.items()}
    for (driver, pool, name), mine in uses.items():
        shown, here = f"device {driver}/{pool}/{name}", newest.get((driver, pool))
        alone = [one for one in mine if one.result.share_id is None]
        if alone and len(mine) > 1:
            for one in mine:
                others = ", ".join(dict.fromkeys(other.claim for other in mine if other is not one))
                yield Problem(one.claim, f"has {shown}, which is given to {others} as well")
        device = devices.get((driver, pool), {}).get(name)
        if device is None and here is not None and _is_whole(here):
            for one in mine:
                yield Problem(one.claim, f"has {shown}, which its driver does not publish any more")
        if device is not None:
            yield from _of_capacity(shown, device, mine)


def _of_capacity(shown: str, device: Device, mine: Sequence[_Use]) -> Iterator[Problem]:
    for name, capacity in sorted(device.capacity.items()):
        shares = [one.result.consumed_capacity[name] for one in mine if name in one.result.consumed_capacity]
        taken, there = sum(map(_amount, shares), Fraction(0)), _amount(capacity.value)
        if taken > there:
            yield Problem(shown, f"{len(shares)} claims have {_shown(taken)} of its {name}, which is {capacity.value}")


def _of_counters(
    pool: Pool, newest: Sequence[ResourceSlice], uses: Mapping[DeviceID, Sequence[_Use]]
) -> Iterator[Problem]:
    sets = {one.name: one.counters for each in newest for one in each.spec.shared_counters}
    taken = defaultdict[tuple[str, str], Fraction](Fraction)
    by = defaultdict[tuple[str, str], list[str]](list)
    for device in (one for each in newest for one in each.spec.devices if (*pool, one.name) in uses):
        for consumed in device.consumes_counters:
            for name, counter in consumed.counters.items():
                taken[consumed.counter_set, name] += _amount(counter.value)
                by[consumed.counter_set, name].append(device.name)
    for (of, name), amount in sorted(taken.items()):
        there = sets.get(of, {}).get(name)
        if there is not None and amount > _amount(there.value):
            devices = ", ".join(by[of, name])
            text = f"{devices} take {_shown(amount)} of counter {name} in {of}, which is {there.value}"
            yield Problem(f"pool {'/'.join(pool)}", text)


def _amount(text: Quantity) -> Fraction:
    try:
        return quantity.parse_quantity(text)
    except errors.Invalid:
        return Fraction(0)  # said where the object is judged by itself


def _shown(amount: Fraction) -> str:
    return str(amount.numerator) if amount.denominator == 1 else f"{float(amount):.12g}"
