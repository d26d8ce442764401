"""Plans the ResourceSlices of a node: what should be in them, and the fewest writes that lead there. Pure.

The pool has the node's name. `plan_contents` divides devices and counters among slices as the server wants them;
`plan_changes` compares those with the stored ones. A pool counts at its highest generation, and only with as many
slices as they say; so one slice that changes is written alone, at its generation, and where more than one changes or
some are missing the generation is counted up and every slice is written. A slice begins its name with its place,
because schedulers look at the slices of a pool in the order of their names and take the first device that fits.

A server drops fields whose feature is off, without a word. `find_dropped` compares what was written with what was
stored; what cannot be said then is planned otherwise (`Dropped`), and `explain` says it.
Source: k8s.io/dynamic-resource-allocation v0.37.2 resourceslice/resourceslicecontroller.go (behaviour).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from fairlead.frozen import frozen
from fairlead.plan.claim.validate.resourceslice import ADVANCED_MOST, COUNTER_SETS_MOST
from fairlead.plan.dra import attribute, share, taints
from fairlead.plan.dra.offered import DRIVER, Kind, OfferedDevice
from fairlead.wire.kubernetes.meta import ObjectMeta, OwnerReference
from fairlead.wire.kubernetes.resource.device import CounterSet, Device, DeviceCapacity, DeviceTaint
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec

DEVICES_MOST: Final = ADVANCED_MOST
"""Devices of a slice. Without taints and counters 128 are allowed; a taint must not rearrange the whole pool."""
_SPLIT_FROM: Final = (1, 35)
"""Kubernetes from which counters have slices of their own; before, they stand in the slice of their devices."""
_DIGITS: Final = 5
_INDEX: Final = re.compile(r"([0-9a-f]{5})-", re.ASCII)
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})", re.ASCII)


class Dropped(enum.Enum):
    """What a server does not keep of a slice; the value is the feature gate that is off."""

    COUNTERS = "DRAPartitionableDevices"
    TAINTS = "DRADeviceTaints"
    SHARING = "DRAConsumableCapacity"


EXPLAINED: Final[Mapping[Dropped, str]] = {
    Dropped.COUNTERS: "GPUs are published whole, and no MIG devices that are made for claims",
    Dropped.TAINTS: "devices that taints would keep claims off are left out of the slices, and no pod is evicted",
    Dropped.SHARING: "devices are published for one claim each",
}


@frozen
class Server:
    """What is known of an API server."""

    has_split_counters: bool = True
    """Counters have slices of their own."""
    dropped: frozenset[Dropped] = frozenset()
    """What it was seen not to keep."""
    is_counting_proven: bool = True
    """It keeps counters, or shows that it does not before a pool is whole. False: counters are written first, alone."""


@frozen
class Content:
    """What one slice holds."""

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@frozen
class Place:
    """Whose slices they are."""

    node: str
    node_uid: str

    @property
    def owner(self) -> OwnerReference:
        """The Node: with it the slices go."""
        return OwnerReference(api_version="v1", kind="Node", name=self.node, uid=self.node_uid, controller=True)


@frozen
class Changes:
    """Writes in the order in which they are made: delete, update, create."""

    delete: tuple[ResourceSlice, ...] = ()
    update: tuple[tuple[ResourceSlice, ResourceSlice], ...] = ()
    """Stored slices, each with what it becomes."""
    create: tuple[ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def read_server(version: str) -> Server:
    """Return what a version such as `v1.34.2` says of a server; one that cannot be read is taken for a new one."""
    found = _VERSION.match(version)
    has_split = found is None or (int(found[1]), int(found[2])) >= _SPLIT_FROM
    return Server(has_split_counters=has_split, is_counting_proven=has_split)


def plan_contents(
    devices: Iterable[OfferedDevice], tainted: Mapping[str, tuple[DeviceTaint, ...]], server: Server
) -> tuple[Content, ...]:
    """Return the slices of a pool in their order; one without devices where nothing is offered.

    Devices with counters have a slice for each GPU, behind the slices of the counters, so that what befalls one GPU
    changes one slice.
    """
    kept = [one for one in devices if _is_sayable(one, server)]
    said = [(one, device) for one in kept if (device := _said(one, tainted.get(one.name, ()), server)) is not None]
    sets = {one.counters.name: one.counters for one in kept if one.counters and Dropped.COUNTERS not in server.dropped}
    if not sets:
        return tuple(map(_plain, _chunks([device for _, device in said]))) or (Content(),)
    if server.has_split_counters:
        totals = [
            Content(shared_counters=tuple(list(sets.values())[at : at + COUNTER_SETS_MOST]))
            for at in range(0, len(sets), COUNTER_SETS_MOST)
        ]
        return (*totals, *(_plain(chunk) for group in _by_gpu(said) for chunk in _chunks(group)))
    return tuple(_beside(said, sets, server))


def _plain(devices: Sequence[Device]) -> Content:
    return Content(devices=tuple(devices))


def _beside(
    said: Sequence[tuple[OfferedDevice, Device]], sets: Mapping[str, CounterSet], server: Server
) -> Iterator[Content]:
    """Yield slices with the counters of their devices; devices beyond the limit have no slice, `explain` says so."""
    without = [device for one, device in said if one.counters is None]
    yield from map(_plain, _chunks(without))
    for name, counters in sets.items():
        own = [device for one, device in said if one.counters is not None and one.counters.name == name]
        devices = tuple(own[:DEVICES_MOST]) if server.is_counting_proven else ()
        yield Content(devices=devices, shared_counters=(counters,))


def _by_gpu(said: Iterable[tuple[OfferedDevice, Device]]) -> Iterator[list[Device]]:
    found = dict[str, list[Device]]()
    for one, device in said:
        found.setdefault(one.gpu, []).append(device)
    yield from found.values()


def _chunks(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    for at in range(0, len(devices), DEVICES_MOST):
        yield devices[at : at + DEVICES_MOST]


def _is_sayable(one: OfferedDevice, server: Server) -> bool:
    """Return whether a device can be published: partitions without counters would all be given away."""
    return one.kind is not Kind.PARTITION or Dropped.COUNTERS not in server.dropped


def _said(one: OfferedDevice, held: tuple[DeviceTaint, ...], server: Server) -> Device | None:
    """Return a device as this server keeps it; None: it would be given away though a taint forbids it."""
    device = msgspec.structs.replace(one.device, taints=held)
    if Dropped.TAINTS in server.dropped:
        if taints.is_kept_off(held):
            return None
        device = msgspec.structs.replace(device, taints=())
    if Dropped.COUNTERS in server.dropped:
        device = msgspec.structs.replace(device, consumes_counters=())
    return _exclusive(device) if Dropped.SHARING in server.dropped else device


def _exclusive(device: Device) -> Device:
    capacity = {name: DeviceCapacity(value=one.value) for name, one in device.capacity.items() if name != share.SHARES}
    attributes = {name: one for name, one in device.attributes.items() if name != share.ENFORCED_BY}
    return msgspec.structs.replace(device, capacity=capacity, attributes=attributes, allow_multiple_allocations=None)


def explain(
    devices: Iterable[OfferedDevice], tainted: Mapping[str, tuple[DeviceTaint, ...]], server: Server
) -> tuple[str, ...]:
    """Return what the slices on this server do not say, a sentence each."""
    every = tuple(devices)
    needs = {
        Dropped.COUNTERS: any(one.counters for one in every),
        Dropped.TAINTS: bool(tainted),
        Dropped.SHARING: any(one.device.allow_multiple_allocations for one in every),
    }
    off = [one for one in Dropped if one in server.dropped and needs[one]]
    found = [f"the API server drops what needs the feature gate {one.value}: {EXPLAINED[one]}" for one in off]
    if Dropped.TAINTS in off:
        left_out = [one.name for one in every if taints.is_kept_off(tainted.get(one.name, ()))]
        found += [f"left out: {', '.join(left_out)}"] if left_out else []
    if not server.has_split_counters and Dropped.COUNTERS not in server.dropped:
        counted = [one.gpu for one in every if one.counters is not None]
        surplus = {gpu: counted.count(gpu) - DEVICES_MOST for gpu in dict.fromkeys(counted)}
        found += [
            f"{count} devices of {gpu} are not published: a slice has {DEVICES_MOST} at most"
            for gpu, count in surplus.items()
            if count > 0
        ]
    return tuple(found)


def plan_changes(
    place: Place,
    contents: Sequence[Content],
    existing: Iterable[ResourceSlice],
    remembered: Mapping[str, Device] = MappingProxyType({}),
) -> Changes:
    """Return the writes that make the stored slices of a node and driver say what they should.

    Args: existing: every slice of the driver on the node; those of another pool or an older generation go.
          remembered: devices by name as they were last stored, for the times of taints where slices were deleted.
    """
    there = tuple(existing)
    own = [one for one in there if one.spec.pool.name == place.node and one.metadata.deletion_timestamp is None]
    generation = max((one.spec.pool.generation for one in own), default=0)
    matched = _match([one for one in own if one.spec.pool.generation == generation], len(contents))
    used = {one.metadata.name for one in matched.values()}
    delete = tuple(one for one in there if one.metadata.name not in used and one.metadata.deletion_timestamp is None)
    before = {**remembered, **{device.name: device for one in own for device in one.spec.devices}}
    contents = tuple(_since(one, before) for one in contents)
    pool = ResourcePool(name=place.node, generation=generation, resource_slice_count=len(contents))
    changed = {at for at, one in matched.items() if _planned(one, contents[at], pool, place) != one}
    if len(matched) < len(contents) or len(changed) > 1:
        pool = msgspec.structs.replace(pool, generation=generation + 1)
        changed = set(matched)
    return Changes(
        delete=delete,
        update=tuple((matched[at], _planned(matched[at], contents[at], pool, place)) for at in sorted(changed)),
        create=tuple(_new(at, one, pool, place) for at, one in enumerate(contents) if at not in matched),
    )


def _since(content: Content, before: Mapping[str, Device]) -> Content:
    devices = tuple(taints.with_times(one, before.get(one.name)) for one in content.devices)
    return Content(devices=devices, shared_counters=content.shared_counters)


def _match(own: Iterable[ResourceSlice], count: int) -> dict[int, ResourceSlice]:
    """Return stored slices by the place that their names begin with; of two with one place the first in order."""
    found: dict[int, ResourceSlice] = {}
    for one in sorted(own, key=lambda item: item.metadata.name):
        if (at := read_index(one.metadata.name)) is not None and at < count:
            found.setdefault(at, one)
    return found


def read_index(name: str) -> int | None:
    """Return the place that a slice's name begins with; None: it begins otherwise."""
    found = _INDEX.match(name)
    return int(found[1], 16) if found else None


def _planned(stored: ResourceSlice, content: Content, pool: ResourcePool, place: Place) -> ResourceSlice:
    """Return a stored slice with what it should say; equal to the stored one where that says it."""
    spec = msgspec.structs.replace(
        stored.spec,
        driver=DRIVER,
        pool=pool,
        node_name=place.node,
        devices=content.devices,
        shared_counters=content.shared_counters,
        partition_type_attribute=None,
        skip_node_operations=(),
    )
    metadata = stored.metadata
    if place.owner not in metadata.owner_references:
        metadata = msgspec.structs.replace(metadata, owner_references=(place.owner,))
    return msgspec.structs.replace(stored, metadata=metadata, spec=spec)


def _new(at: int, content: Content, pool: ResourcePool, place: Place) -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(generate_name=f"{at:0{_DIGITS}x}-{DRIVER}-{place.node}-", owner_references=(place.owner,)),
        spec=ResourceSliceSpec(
            driver=DRIVER,
            pool=pool,
            node_name=place.node,
            devices=content.devices,
            shared_counters=content.shared_counters,
        ),
    )


def find_dropped(written: ResourceSlice, stored: ResourceSlice) -> frozenset[Dropped]:
    """Return what the server did not keep of a slice that was written."""
    pairs = tuple(zip(written.spec.devices, stored.spec.devices, strict=False))
    lost = {
        Dropped.COUNTERS: bool(written.spec.shared_counters) > bool(stored.spec.shared_counters)
        or any(bool(one.consumes_counters) > bool(other.consumes_counters) for one, other in pairs),
        Dropped.TAINTS: any(len(one.taints) > len(other.taints) for one, other in pairs),
        Dropped.SHARING: any(_shares(one) > _shares(other) for one, other in pairs),
    }
    return frozenset(one for one, is_lost in lost.items() if is_lost)


def _shares(device: Device) -> bool:
    memory = device.capacity.get(attribute.MEMORY)
    return bool(device.allow_multiple_allocations) and (memory is None or memory.request_policy is not None)


def is_kept(written: ResourceSlice, stored: ResourceSlice) -> bool:
    """Return whether the server stored what was written, but for the times at which taints began."""
    before = {one.name: one for one in stored.spec.devices}
    devices = tuple(taints.with_times(one, before.get(one.name)) for one in written.spec.devices)
    return msgspec.structs.replace(written.spec, devices=devices) == stored.spec
