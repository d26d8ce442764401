"""Says what drivers publish: pools, whether they can be used, what is free of them, and their devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import note
from fairlead.cli.layer.dra.read import Objects
from fairlead.plan.cel import literal
from fairlead.plan.claim import expression
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool import poolstatus, taintrule
from fairlead.plan.claim.pool.pool import Pool, Pools
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import PoolStatus
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

SHOWN: Final = 50
"""Pools, or devices of all pools, that are shown."""
_NAMES: Final = 3
_LONGEST: Final = 200


class PublishedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device as its driver publishes it."""

    name: str
    node: str = ""
    """Where it says so itself."""
    attributes: Mapping[str, str] = {}
    """As CEL writes them."""
    capacity: Mapping[str, str] = {}
    counters: Mapping[str, str] = {}
    """What it takes of `SET/COUNTER`."""
    taints: tuple[str, ...] = ()
    """`KEY=VALUE:EFFECT`, those of rules too."""
    is_shared: bool = False


class PublishedPool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool at its highest generation."""

    driver: str
    pool: str
    generation: int
    node: str
    """`node-1`, `all nodes`, or who is selected."""
    slices: int
    slices_wanted: int
    older_slices: tuple[str, ...]
    """Slices of generations before: nothing is allocated from them."""
    devices: int
    tainted: int
    """Devices that claims without a toleration do not get."""
    problem: str
    """Why nothing is allocated of it; empty: it can be."""
    counters: Mapping[str, str]
    """What devices share, by `SET/COUNTER`."""
    device_list: tuple[PublishedDevice, ...] = ()
    more_devices: int = 0
    """Devices that are not in the list, where it was asked for."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What is published."""

    pools: tuple[PublishedPool, ...]
    left_out: tuple[str, ...] = ()


def published(found: Objects, gates: Gates, *, has_devices: bool, every: bool) -> Published:
    """Return what is published, by driver and pool.

    Args:    has_devices: with the devices.   every: however many there are.
    """
    slices = taintrule.tainted(found.of(ResourceSlice), found.of(DeviceTaintRule))
    index = Pools(slices, gates)
    by_pool = defaultdict[tuple[str, str], list[ResourceSlice]](list)
    for one in slices:
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    names = index.names()
    shown = names if every else names[:SHOWN]
    left: int | None = None if every else SHOWN
    pools: list[PublishedPool] = []
    for name in shown:
        pool = _pool(index.whole(name), by_pool[name], most=left if has_devices else 0, has_devices=has_devices)
        left = None if left is None else left - len(pool.device_list)
        pools.append(pool)
    more = f"not shown: {note.count(len(names) - len(shown), 'pool')}; --all shows them"
    return Published(pools=tuple(pools), left_out=(*((more,) if len(shown) < len(names) else ()), *note.unread(found)))


def _pool(whole: Pool, every: Sequence[ResourceSlice], *, most: int | None, has_devices: bool) -> PublishedPool:
    slices = sorted(note.newest(every), key=lambda one: one.metadata.name)
    known = {id(one) for one in slices}
    older = [one for one in every if id(one) not in known]
    there = [one for each in slices for one in each.spec.devices]
    shown = there if most is None else there[:most]
    wanted = slices[0].spec.pool.resource_slice_count
    sets = [one for each in slices for one in each.spec.shared_counters]
    return PublishedPool(
        driver=errors.readable(whole.driver),
        pool=errors.readable(whole.name),
        generation=slices[0].spec.pool.generation,
        node=errors.readable(_where(slices)),
        slices=len(slices),
        slices_wanted=wanted,
        older_slices=tuple(errors.readable(one.metadata.name) for one in older[:SHOWN]),
        devices=len(there),
        tainted=sum(any(_keeps_off(taint) for taint in one.taints) for one in there),
        problem=errors.readable(_problem(whole, len(slices), wanted)),
        counters={
            errors.readable(f"{one.name}/{key}"): errors.readable(str(counter.value))
            for one in sets
            for key, counter in one.counters.items()
        },
        device_list=tuple(_device(whole.driver, one) for one in shown),
        more_devices=len(there) - len(shown) if has_devices else 0,
    )


def _where(slices: Iterable[ResourceSlice]) -> str:
    """Return which nodes have a pool, in words."""
    found = []
    for one in slices:
        spec = one.spec
        if spec.node_name:
            found.append(spec.node_name)
        elif spec.node_selector is not None:
            found.append(note.nodes_of(spec.node_selector).replace("the nodes of its", "by"))
        elif spec.per_device_node_selection:
            found.append("each device's")
        else:
            found.append("all nodes" if spec.all_nodes else "no node")
    return note.listed(list(dict.fromkeys(found)), most=_NAMES)


def _problem(whole: Pool, slices: int, wanted: int) -> str:
    if whole.is_incomplete:
        return f"{slices} of {wanted} slices are there: nothing is allocated of it until they are"
    return f"nothing is allocated of it: {whole.invalid}" if whole.invalid else ""


def _keeps_off(taint: DeviceTaint) -> bool:
    return taint.effect in {"NoSchedule", "NoExecute"}


def _device(driver: str, device: Device) -> PublishedDevice:
    taints = [f"{one.key}{f'={one.value}' if one.value else ''}:{one.effect}" for one in device.taints]
    return PublishedDevice(
        name=errors.readable(device.name),
        node=errors.readable(device.node_name or ""),
        attributes=_attributes(driver, device),
        capacity={errors.readable(key): errors.readable(str(one.value)) for key, one in device.capacity.items()},
        counters={
            errors.readable(f"{one.counter_set}/{key}"): errors.readable(str(counter.value))
            for one in device.consumes_counters
            for key, counter in one.counters.items()
        },
        taints=tuple(map(errors.readable, taints)),
        is_shared=bool(device.allow_multiple_allocations),
    )


def _attributes(driver: str, device: Device) -> dict[str, str]:
    """Return attributes as selectors see them; a device that no selector can be asked about says why."""
    try:
        view = expression.of_device(driver, device)
    except errors.FairleadError as error:
        return dict.fromkeys(map(errors.readable, device.attributes), f"unreadable: {error.message}")
    own = f"{driver}/"
    return {
        errors.readable(name.removeprefix(own)): errors.readable(literal.written(value, longest=_LONGEST))
        for name, value in view.flat_attributes.items()
    }


def lines(found: Published) -> Iterator[str]:
    """Yield what is published for a terminal."""
    rows = [("POOL", "NODE", "GEN", "SLICES", "DEVICES", "STATE")]
    for one in found.pools:
        slices = f"{one.slices}/{one.slices_wanted}"
        rows.append((f"{one.driver}/{one.pool}", one.node, str(one.generation), slices, str(one.devices), _state(one)))
    yield from note.table(rows)
    for one in found.pools:
        if one.device_list or one.more_devices:
            yield f"{one.driver}/{one.pool}"
        for device in one.device_list:
            yield from note.wrapped(f"{device.name}: {_said(device)}", indent=6, first=2)
        if one.more_devices:
            yield f"  {note.count(one.more_devices, 'device')} more; --all shows them"
    for text in found.left_out:
        yield from note.wrapped(text, indent=2, first=0)


def _state(one: PublishedPool) -> str:
    counters = note.listed([f"{key} {value}" for key, value in one.counters.items()], most=_NAMES)
    parts = [
        one.problem or "complete",
        f"{one.tainted} tainted" if one.tainted else "",
        f"counters {counters}" if counters else "",
        f"older slices: {note.listed(one.older_slices, most=_NAMES)}" if one.older_slices else "",
    ]
    return "; ".join(part for part in parts if part)


def _said(device: PublishedDevice) -> str:
    parts = [
        f"on {device.node}" if device.node else "",
        ", ".join(f"{key} {value}" for key, value in device.attributes.items()),
        ", ".join(f"{key} {value}" for key, value in device.capacity.items()),
        "shared" if device.is_shared else "",
        ", ".join(f"takes {key} {value}" for key, value in device.counters.items()),
        ", ".join(f"taint {one}" for one in device.taints),
    ]
    return "; ".join(part for part in parts if part) or "no attributes"


class FreePool(msgspec.Struct, frozen=True, kw_only=True):
    """What is free of one pool."""

    status: PoolStatus
    """As a ResourcePoolStatusRequest answers."""
    usable_devices: int | None
    """Available devices whose counters others have not taken; null: the pool has no counters."""
    problem: str
    """Why the scheduler takes nothing of it; empty: it can."""


class FreeSum(msgspec.Struct, frozen=True, kw_only=True):
    """What is free of all pools of one driver, those that are not shown too."""

    driver: str
    pools: int
    total_devices: int
    """Of pools that have as many slices as they say."""
    usable_devices: int
    """What the scheduler can give out."""


class FreeList(msgspec.Struct, frozen=True, kw_only=True):
    """What is free."""

    pools: tuple[FreePool, ...]
    drivers: tuple[FreeSum, ...]
    left_out: tuple[str, ...] = ()


def free(found: Objects, gates: Gates, *, attribute: str | None, every: bool) -> FreeList:
    """Return what is free of each pool.

    Args:    attribute: what groups partitions where slices name none; None: nothing.   every: however many pools.
    """
    slices = taintrule.tainted(found.of(ResourceSlice), found.of(DeviceTaintRule))
    index = Pools(slices, gates)
    counted = poolstatus.free(
        slices,
        found.of(ResourceClaim),
        has_types=gates.partitionable_devices_type,
        default_type_attribute=attribute,
    )
    pools = [_free(one, index) for one in counted]
    shown = pools if every else pools[:SHOWN]
    more = f"not shown: {note.count(len(pools) - len(shown), 'pool')}; --all shows them"
    return FreeList(
        pools=tuple(shown),
        drivers=tuple(_sums(pools)),
        left_out=(*((more,) if len(shown) < len(pools) else ()), *note.unread(found)),
    )


def _free(one: poolstatus.Free, index: Pools) -> FreePool:
    status = one.status
    whole = index.whole((status.driver, status.pool_name))
    problem = "the pool does not have as many slices as it says" if whole.is_incomplete else whole.invalid
    return FreePool(status=_readable(status), usable_devices=one.usable, problem=errors.readable(problem))


def _readable(status: PoolStatus) -> PoolStatus:
    shared = status.shareable_summary
    if shared is not None:
        capacity = tuple(msgspec.structs.replace(one, name=errors.readable(one.name)) for one in shared.capacity)
        shared = msgspec.structs.replace(shared, capacity=capacity)
    return msgspec.structs.replace(
        status,
        driver=errors.readable(status.driver),
        pool_name=errors.readable(status.pool_name),
        node_name=errors.readable(status.node_name) if status.node_name is not None else None,
        partition_summary=tuple(
            msgspec.structs.replace(one, attribute=errors.readable(one.attribute), type=errors.readable(one.type))
            for one in status.partition_summary
        ),
        shareable_summary=shared,
    )


def free_lines(found: FreeList) -> Iterator[str]:
    """Yield what is free for a terminal."""
    rows = [("POOL", "TOTAL", "ALLOCATED", "UNAVAILABLE", "AVAILABLE", "NOTE")]
    for one in found.pools:
        status = one.status
        counts = (status.total_devices, status.allocated_devices, status.unavailable_devices, status.available_devices)
        rows.append((f"{status.driver}/{status.pool_name}", *map(_count, counts), _note(one)))  # type: ignore[arg-type]
    yield from note.table(rows)
    for each in found.drivers:
        if each.pools > 1:
            count = f"{each.usable_devices} of {each.total_devices} devices can be allocated, in {each.pools} pools"
            yield from note.wrapped(f"{each.driver}: {count}", indent=2, first=0)
    for text in found.left_out:
        yield from note.wrapped(text, indent=2, first=0)


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _note(one: FreePool) -> str:
    status, shared = one.status, one.status.shareable_summary
    available = status.available_devices or 0
    is_short = one.usable_devices is not None and one.usable_devices < available
    parts = [
        status.validation_error or "",
        f"nothing is allocated of it: {one.problem}" if one.problem and not status.validation_error else "",
        f"counters are left for {one.usable_devices} of the available" if is_short else "",
        *(f"{each.allocatable} of {each.total} {each.type}" for each in status.partition_summary),
        *(f"{each.available} of {each.total} {each.name} left" for each in (shared.capacity if shared else ())),
    ]
    return "; ".join(part for part in parts if part)


def _sums(pools: Sequence[FreePool]) -> Iterator[FreeSum]:
    by_driver = defaultdict[str, list[FreePool]](list)
    for one in pools:
        by_driver[one.status.driver].append(one)
    for driver, there in sorted(by_driver.items()):
        yield FreeSum(
            driver=driver,
            pools=len(there),
            total_devices=sum(one.status.total_devices or 0 for one in there),
            usable_devices=sum(map(_usable, there)),
        )


def _usable(one: FreePool) -> int:
    if one.problem or one.status.available_devices is None:
        return 0
    usable = one.usable_devices
    return one.status.available_devices if usable is None else min(usable, one.status.available_devices)
