"""Counts what is free in each pool, as the answer to a ResourcePoolStatusRequest does.

Counts are of devices, so a partition whose counters another partition has is still available there; `Free.usable` has
those alone that can still be given out. A pool is what its slices of the highest generation say, whatever the node.
Source: kubernetes 1.37 pkg/controller/resourcepoolstatusrequest controller.go and views.go (behaviour).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairlead import errors
from fairlead.plan.claim.pool.held import PoolName
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import Device, Quantity
from fairlead.wire.kubernetes.resource.poolstatusrequest import (
    PartitionTypeStatus,
    PoolStatus,
    ShareableCapacityStatus,
    ShareableSummaryStatus,
)
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_MOST: Final = 32
"""Entries of a list of the status."""
_LONGEST: Final = 256
"""Bytes of a validation error."""
_UNAVAILABLE: Final = frozenset({"NoSchedule", "NoExecute"})

_Counters = dict[tuple[str, str], Fraction]
"""By set and counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What is free of one pool."""

    status: PoolStatus
    usable: int | None = None
    """Available devices whose counters, each by itself, are not taken by others; None: the pool has no counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """What claims have of one pool; those with admin access have nothing."""

    devices: frozenset[str]
    consumed: tuple[tuple[str, Quantity], ...]
    """Capacity, once a share."""


_NONE: Final = _Used(devices=frozenset(), consumed=())


class _Wrong(Exception):
    """A view of a pool cannot be made; the text is its validation error."""


def free(
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    *,
    has_types: bool = False,
    default_type_attribute: str | None = None,
) -> tuple[Free, ...]:
    """Return what is free of each pool, by driver and name.

    Args:    slices: tainted by rules already.   has_types: the gate DRAPartitionableDevicesType is on.
             default_type_attribute: what groups partitions of pools whose slices name no attribute.
    """
    pools = defaultdict[PoolName, list[ResourceSlice]](list)
    for one in slices:
        pools[one.spec.driver, one.spec.pool.name].append(one)
    used = _used(claims)
    return tuple(
        _pool(name, there, used.get(name, _NONE), has_types=has_types, default=default_type_attribute)
        for name, there in sorted(pools.items())
    )


def _used(claims: Iterable[ResourceClaim]) -> dict[PoolName, _Used]:
    devices = defaultdict[PoolName, set[str]](set)
    consumed = defaultdict[PoolName, list[tuple[str, Quantity]]](list)
    for claim in claims:
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            if not one.admin_access:
                devices[one.driver, one.pool].add(one.device)
                consumed[one.driver, one.pool] += one.consumed_capacity.items()
    return {
        name: _Used(devices=frozenset(there), consumed=tuple(consumed.get(name, ()))) for name, there in devices.items()
    }


def _pool(name: PoolName, every: Sequence[ResourceSlice], used: _Used, *, has_types: bool, default: str | None) -> Free:
    generation = max(one.spec.pool.generation for one in every)
    slices = [one for one in every if one.spec.pool.generation == generation]
    nodes = {one.spec.node_name or "" for one in slices}
    node = (nodes.pop() or None) if len(nodes) == 1 else None
    wanted = slices[0].spec.pool.resource_slice_count
    shown = "/".join(name)
    if len(slices) < wanted:
        counts = f"observed {len(slices)}/{wanted} slices at generation {generation}"
        error = _bounded(f"PoolIncomplete: pool {shown} is incomplete: {counts}")
        status = PoolStatus(
            driver=name[0], pool_name=name[1], generation=generation, node_name=node, validation_error=error
        )
        return Free(status=status)
    devices = [device for one in slices for device in one.spec.devices]
    unavailable = sum(map(_is_unavailable, devices))
    wrong, shareable, usable = "", None, None
    partitions: tuple[PartitionTypeStatus, ...] = ()
    try:
        usable = _usable(slices, devices, used.devices)
        partitions = _partitions(name, slices, used, default) if has_types or default is not None else ()
    except _Wrong as error:
        wrong = str(error)
    try:
        shareable = _shareable(shown, devices, used)
    except _Wrong as error:
        wrong = wrong or str(error)
    status = PoolStatus(
        driver=name[0],
        pool_name=name[1],
        generation=generation,
        resource_slice_count=len(slices),
        total_devices=len(devices),
        allocated_devices=len(used.devices),
        available_devices=max(0, len(devices) - len(used.devices) - unavailable),
        unavailable_devices=unavailable,
        node_name=node,
        validation_error=_bounded(wrong) if wrong else None,
        partition_summary=partitions if not wrong else (),
        shareable_summary=shareable,
    )
    return Free(status=status, usable=usable)


def _bounded(text: str) -> str:
    return text.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")


def _is_unavailable(device: Device) -> bool:
    return any(one.effect in _UNAVAILABLE for one in device.taints)


def _left(slices: Sequence[ResourceSlice], devices: Sequence[Device], used: frozenset[str]) -> _Counters:
    """Return what counters have left; a device counts once, however many share it. Raises: _Wrong."""
    sets = [one for each in slices for one in each.spec.shared_counters]
    left = {(one.name, key): _amount(counter.value) for one in sets for key, counter in one.counters.items()}
    for device in devices:
        if device.name in used:
            _take(device, left)
    return left


def _take(device: Device, left: _Counters) -> None:
    for key, amount in _cost(device):
        if key in left:
            left[key] -= amount


def _fits(device: Device, left: _Counters) -> bool:
    return all(key in left and left[key] >= amount for key, amount in _cost(device))


def _cost(device: Device) -> list[tuple[tuple[str, str], Fraction]]:
    return [
        ((one.counter_set, key), _amount(counter.value))
        for one in device.consumes_counters
        for key, counter in one.counters.items()
    ]


def _usable(slices: Sequence[ResourceSlice], devices: Sequence[Device], used: frozenset[str]) -> int | None:
    if not any(one.spec.shared_counters for one in slices):
        return None
    left = _left(slices, devices, used)
    return sum(one.name not in used and not _is_unavailable(one) and _fits(one, left) for one in devices)


def _partitions(
    name: PoolName, slices: Sequence[ResourceSlice], used: _Used, default: str | None
) -> tuple[PartitionTypeStatus, ...]:
    """Return how many partitions of each type are there, and how many more can be given out. Raises: _Wrong."""
    shown = "/".join(name)
    declares = any(one.spec.partition_type_attribute and one.spec.devices for one in slices)
    pairs = [
        (one.spec.partition_type_attribute or (default if not declares else None) or "", device)
        for one in slices
        for device in one.spec.devices
    ]
    if not any(attribute for attribute, _ in pairs):
        return ()
    if not any(one.spec.shared_counters for one in slices):
        message = f"pool {shown} declares partitionTypeAttribute but publishes no sharedCounters"
        raise _Wrong(f"PartitionTypeMissing: {message}")
    groups = defaultdict[tuple[str, str], list[Device]](list)
    for attribute, device in pairs:
        if not attribute or not device.consumes_counters:
            continue
        kind = _type_of(name[0], device, attribute)
        if kind is None:
            message = f'device "{device.name}" in pool {shown} does not carry partition type attribute "{attribute}"'
            raise _Wrong(f"PartitionTypeMissing: {message}")
        group = groups[attribute, kind]
        if group and sorted(_cost(group[0])) != sorted(_cost(device)):
            message = f'devices of partition type "{kind}" in pool {shown} consume different counters'
            raise _Wrong(f"PartitionCostMismatch: {message}")
        group.append(device)
    if len(groups) > _MOST:
        message = f"pool {shown} has {len(groups)} partition types, exceeding the maximum of {_MOST}"
        raise _Wrong(f"PartitionSummaryOverCap: {message}")
    left = _left(slices, [device for _, device in pairs], used.devices)
    return tuple(
        PartitionTypeStatus(
            attribute=attribute, type=kind, total=len(group), allocatable=_allocatable(group, left, used.devices)
        )
        for (attribute, kind), group in sorted(groups.items())
    )


def _allocatable(group: Iterable[Device], left: _Counters, used: frozenset[str]) -> int:
    """Return how many devices of a type can be given out one after the other."""
    rest, count = dict(left), 0
    for device in group:
        if device.name not in used and _fits(device, rest):
            _take(device, rest)
            count += 1
    return count


def _type_of(driver: str, device: Device, attribute: str) -> str | None:
    found = device.attributes.get(attribute)
    if found is None and attribute.startswith(f"{driver}/"):
        found = device.attributes.get(attribute.removeprefix(f"{driver}/"))
    return found.string if found is not None else None


def _shareable(shown: str, devices: Sequence[Device], used: _Used) -> ShareableSummaryStatus | None:
    """Return what devices that are shared have left; None: there are none. Raises: _Wrong."""
    shared = [one for one in devices if one.allow_multiple_allocations]
    if not shared:
        return None
    total: dict[str, quantity.Quantity] = {}
    for device in shared:
        for key, capacity in device.capacity.items():
            total[key] = _sum(total.get(key), capacity.value)
    consumed: dict[str, quantity.Quantity] = {}
    for key, amount in used.consumed:
        consumed[key] = _sum(consumed.get(key), amount)
    if len(total) > _MOST:
        message = f"pool {shown} has {len(total)} shareable capacity keys, exceeding the maximum of {_MOST}"
        raise _Wrong(f"ShareableSummaryOverCap: {message}")
    partly = sum(one.name in used.devices for one in shared)
    return ShareableSummaryStatus(
        fully_available_devices=len(shared) - partly,
        partially_available_devices=partly,
        capacity=tuple(_capacity(key, total[key], consumed) for key in sorted(total)),
    )


def _capacity(key: str, total: quantity.Quantity, consumed: Mapping[str, quantity.Quantity]) -> ShareableCapacityStatus:
    taken = consumed.get(key, quantity.Quantity(Fraction(0)))
    rest = quantity.Quantity(max(Fraction(0), total.value - taken.value), total.form)
    return ShareableCapacityStatus(name=key, total=str(total), consumed=str(taken), available=str(rest))


def _sum(before: quantity.Quantity | None, text: Quantity) -> quantity.Quantity:
    now = _parsed(text)
    return now if before is None or not before.value else quantity.Quantity(before.value + now.value, before.form)


def _amount(text: Quantity) -> Fraction:
    return _parsed(text).value


def _parsed(text: Quantity) -> quantity.Quantity:
    """Return an amount. Raises: _Wrong: it is none, which no API server stores."""
    try:
        return quantity.parse(text)
    except errors.Invalid as error:
        raise _Wrong(f"QuantityInvalid: {error.message}") from error
