"""Reads from a node's GPUDevices how its devices are connected, and which of them are free. Pure.

An agent publishes which GPUs a node has, how they reach each other, where its MIG devices stand, and who holds them.
The last is late by a moment: a pod that was placed and has no devices there yet is assumed to hold those that the
device plugin will choose; devices of a pod that has ended are free. All of this weighs between nodes that fit; whether
a node fits is decided by the amounts that its kubelet offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.gpu import LinkKind
from fairlead.model.mig import Slot
from fairlead.plan.pod import admission
from fairlead.plan.schedule.topology import amounts, gpus, instances, replicas
from fairlead.wire.kubernetes import gpudevice, quantity
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.nvidia.pluginconfig import MPS_CORE, MPS_MEMORY

_UNIT: Final = 1000
_GIB: Final = 1 << 30
_UNKNOWN: Final = gpus.BEST
"""What a single device is worth where nothing is known of it: it breaks nothing up."""
Offer = gpus.FreeGPUs | instances.FreeInstances | amounts.FreeAmounts | replicas.FreeReplicas
Pods = Mapping[str, Mapping[str, int]]
"""Pods of a node by uid, in the order in which they came: what each requests, in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What counts of one GPUDevice."""

    bus: str
    index: int
    numa: int | None
    resource: str
    """Under which it is offered whole; empty: it is not."""
    has_nic: bool = False
    """Whether a network card is on its PCIe switch."""
    is_healthy: bool
    ways: tuple[tuple[str, LinkKind, int], ...]
    """PCI address of another GPU, the closest way to it, and its lanes."""
    slots: tuple[tuple[str, str, int, Slot], ...]
    """Its MIG devices: uuid, resource, memory slices and place."""
    holders: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Uid and NAMESPACE/NAME of pods, and the MIG devices that they hold."""
    whole: amounts.Part | None = None
    """Where it is given by amounts: all of it."""
    replicas: int = 0
    """How many of it are offered."""
    shared_as: str = ""
    """The resource of its replicas; empty: there are none, or they are units of an amount."""
    is_mps: bool = False
    """Whether MPS shares it."""
    parts: tuple[tuple[str, str, str, int], ...] = ()
    """Uid and NAMESPACE/NAME of pods, and how many replicas, or units of which amount, they have of it."""


_MPS: Final = "mps"
_MOST_REPLICAS: Final = 1024
"""Devices of one GPU that are distinguished: what a node publishes must not decide how much work it makes."""
_KINDS: Final = {kind.value: kind for kind in LinkKind}


def known(device: GPUDevice) -> Known:
    """Return what counts of an object; ways that are not known are left out."""
    spec, status = device.spec, device.status
    ways = ((bus, link) for link in spec.links if link.kind in _KINDS for bus in link.gpus)
    return Known(
        bus=spec.pci_bus_id,
        index=spec.index,
        numa=spec.numa_node,
        has_nic=bool(spec.nics),
        resource="" if spec.replicas else spec.resource,
        is_healthy=status.health == gpudevice.HEALTHY,
        ways=tuple((bus, _KINDS[link.kind], link.lanes) for bus, link in ways),
        slots=tuple(
            (one.uuid, one.resource, one.size, Slot(profile=one.profile, start=one.start)) for one in spec.mig_devices
        ),
        holders=tuple((one.pod_uid, f"{one.namespace}/{one.pod}", one.mig_devices) for one in status.holders),
        whole=_whole(spec),
        replicas=spec.replicas,
        shared_as=spec.resource if spec.resource != amounts.RESOURCE and 0 < spec.replicas <= _MOST_REPLICAS else "",
        is_mps=spec.sharing == _MPS,
        parts=tuple(
            (one.pod_uid, f"{one.namespace}/{one.pod}", one.resource, len(one.devices))
            for one in status.holders
            if one.resource in amounts.NAMES or (spec.replicas and one.resource == spec.resource)
        ),
    )


def _whole(spec: gpudevice.GPUDeviceSpec) -> amounts.Part | None:
    if spec.resource != amounts.RESOURCE:
        return None
    try:
        return spec.replicas, int(quantity.parse_quantity(spec.memory or "0") // _GIB)
    except errors.Invalid:
        return None  # what an agent wrote that cannot be read is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a node's GPUs are, worked out once for as long as its objects stay the same."""

    whole: tuple[tuple[str, gpus.Fabric, tuple[Known, ...]], ...]
    """Resources under which GPUs are offered whole, with their shape and the GPUs by position."""
    divided: tuple[str, ...]
    """Resources of MIG devices."""
    boards: tuple[Known, ...]
    """GPUs that have MIG devices, in index order."""
    shared: tuple[Known, ...] = ()
    """GPUs that are given by amounts, in index order."""
    replicated: tuple[tuple[str, tuple[Known, ...]], ...] = ()
    """Resources under which replicas alone are offered, with their GPUs in index order."""


def prepare(devices: Iterable[Known]) -> Prepared:
    """Return what does not change with the pods; resources of more than `gpus.MOST` GPUs are left out."""
    rows = sorted(devices, key=lambda one: (one.numa is None, one.numa or 0, one.index))
    whole = list[tuple[str, gpus.Fabric, tuple[Known, ...]]]()
    for resource in sorted({one.resource for one in rows if one.resource}):
        there = tuple(one for one in rows if one.resource == resource)
        if len(there) <= gpus.MOST:
            whole.append((resource, _fabric(there), there))
    divided = {slot[1] for one in rows for slot in one.slots if slot[1]} - {one.resource for one in rows}
    boards = sorted((one for one in rows if one.slots), key=lambda one: one.index)
    shared = sorted((one for one in rows if one.whole is not None), key=lambda one: one.index)
    names = {one.shared_as for one in rows if one.shared_as} - {one.resource for one in rows} - divided
    by_index = sorted(rows, key=lambda one: one.index)
    named = ((name, tuple(one for one in by_index if one.shared_as == name)) for name in sorted(names))
    replicated = ((name, there) for name, there in named if len(there) <= gpus.MOST)
    return Prepared(
        whole=tuple(whole),
        divided=tuple(sorted(divided)),
        boards=tuple(boards),
        shared=tuple(shared),
        replicated=tuple(replicated),
    )


def _fabric(rows: tuple[Known, ...]) -> gpus.Fabric:
    places = {one.bus: position for position, one in enumerate(rows)}
    ways = {
        (place, places[bus], kind, lanes)
        for place, one in enumerate(rows)
        for bus, kind, lanes in one.ways
        if bus in places and place < places[bus]
    }
    order = tuple(sorted(ways, key=lambda way: (way[0], way[1], way[2].value, way[3])))
    return gpus.fabric_of(tuple((one.index, one.numa) for one in rows), order)


def offers(node: Prepared, pods: Pods, name: Callable[[str], str]) -> dict[str, Offer]:
    """Return what is free of each resource that the GPUs of a node are offered under.

    Args: name: NAMESPACE/NAME of a pod by its uid, "" where it has none.
    """
    found: dict[str, Offer] = {}
    for resource, fabric, rows in node.whole:
        if (free := _free_gpus(resource, fabric, rows, pods, name)) is not None:
            found[resource] = free
    for resource in node.divided:
        if (left := _free_instances(resource, node.boards, pods, name)) is not None:
            found[resource] = left
    if node.shared and (parts := _free_amounts(node.shared, pods, name)) is not None:
        found[amounts.RESOURCE] = parts
    for resource, rows in node.replicated:
        if (some := _free_replicas(resource, rows, pods, name)) is not None:
            found[resource] = some
    return found


def _free_gpus(
    resource: str, fabric: gpus.Fabric, rows: tuple[Known, ...], pods: Pods, name: Callable[[str], str]
) -> gpus.FreeGPUs | None:
    free, holders = 0, dict[str, int]()
    for place, one in enumerate(rows):
        free |= one.is_healthy << place
        for uid, full_name, _ in one.holders:
            for key in filter(None, (uid, full_name)):
                holders[key] = holders.get(key, 0) | 1 << place
    late = list[int]()
    for uid, requests in pods.items():
        if count := requests.get(resource, 0) // _UNIT:
            held = holders.get(uid, 0) or holders.get(name(uid), 0)
            free &= ~held
            late.append(max(count - held.bit_count(), 0))
    for count in late:
        if count > free.bit_count():
            return None  # more is placed than is known to be free
        if count:
            free &= ~gpus.chosen(fabric, free, count)
    return gpus.FreeGPUs(fabric, free, sum(one.has_nic << place for place, one in enumerate(rows)))


def _free_instances(
    resource: str, rows: tuple[Known, ...], pods: Pods, name: Callable[[str], str]
) -> instances.FreeInstances | None:
    living = {key for uid in pods for key in (uid, name(uid)) if key}
    boards, held_by = list[instances.Board](), dict[str, int]()
    for one in rows:
        busy = {mig for uid, full_name, migs in one.holders if {uid, full_name} & living for mig in migs}
        for uid, full_name, migs in one.holders:
            ours = sum(slot[0] in migs for slot in one.slots if slot[1] == resource)
            for key in filter(None, (uid, full_name)):
                held_by[key] = held_by.get(key, 0) + ours
        is_free = {slot[0] for slot in one.slots if one.is_healthy and slot[1] == resource} - busy
        boards.append(
            instances.Board(
                one.index,
                tuple(sorted({(slot.profile, size) for _, _, size, slot in one.slots})),
                tuple(slot for uuid, _, _, slot in one.slots if uuid in is_free),
                tuple(slot for uuid, _, _, slot in one.slots if uuid in busy),
            )
        )
    late = (
        requests.get(resource, 0) // _UNIT - (held_by.get(uid, 0) or held_by.get(name(uid), 0))
        for uid, requests in pods.items()
    )
    for count in (one for one in late if one > 0):
        if count > sum(len(board.free) for board in boards):
            return None
        for at, slot in instances.chosen(tuple(boards), count):
            board = boards[at]
            free = tuple(one for one in board.free if one != slot)
            boards[at] = instances.Board(board.index, board.sizes, free, (*board.busy, slot))
    return instances.FreeInstances(tuple(boards))


def _free_amounts(rows: tuple[Known, ...], pods: Pods, name: Callable[[str], str]) -> amounts.FreeAmounts | None:
    living = {key for uid in pods for key in (uid, name(uid)) if key}
    left, served = list[amounts.Shared](), set[str]()
    for one in rows:
        taken = dict.fromkeys(amounts.NAMES, 0)
        for uid, full_name, resource, units in one.parts:
            if {uid, full_name} & living:
                served |= {uid, full_name}
                taken[resource] += units
        core, memory = one.whole or (0, 0)
        free = core - taken[MPS_CORE], memory - taken[MPS_MEMORY]
        if one.is_healthy:
            left.append(amounts.Shared(one.index, (core, memory), free))
    there = tuple(left)
    for uid, requests in pods.items():
        number = amounts.joined(requests, _UNIT)
        if number and not {uid, name(uid)} & served:
            after = amounts.place(there, amounts.part_of(number))
            if after is None:
                return None
            there = after
    return amounts.FreeAmounts(there)


def _free_replicas(
    resource: str, rows: tuple[Known, ...], pods: Pods, name: Callable[[str], str]
) -> replicas.FreeReplicas | None:
    living = {key for uid in pods for key in (uid, name(uid)) if key}
    left, given = list[replicas.Shared](), dict[str, int]()
    for one in rows:
        taken = 0
        for uid, full_name, _, count in one.parts:
            if {uid, full_name} & living:
                taken += count
                for key in filter(None, (uid, full_name)):
                    given[key] = given.get(key, 0) + count
        if one.is_healthy:
            left.append(replicas.Shared(one.index, one.replicas, max(0, one.replicas - taken)))
    there, is_one_gpu = tuple(left), any(one.is_mps for one in rows)
    for uid, requests in pods.items():
        late = requests.get(resource, 0) // _UNIT - (given.get(uid, 0) or given.get(name(uid), 0))
        if late > 0:
            after = replicas.place(there, late, is_one_gpu=is_one_gpu)
            if after is None:
                return None  # more is placed than is known to be free
            there = after
    return replicas.FreeReplicas(there, is_one_gpu)


def asked(requests: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the extended resources that are requested, with how many of each; two amounts of a GPU are one of them."""
    found = {name: value // _UNIT for name, value in requests.items() if value >= _UNIT and admission.is_extended(name)}
    if found.keys() & amounts.NAMES:
        found = {name: count for name, count in found.items() if name not in amounts.NAMES}
        found[amounts.RESOURCE] = amounts.joined(requests, _UNIT)
    return tuple(sorted(found.items()))


Measure = Callable[[Offer | None, int], int]
"""Says of what is free of one resource, and a number of devices, what they are worth, 0 to 100."""


def rails_of(offer: Offer | None, count: int) -> int:
    """Return how many in a hundred of a pod's GPUs have a network card beside them; 0 also where it is not known."""
    return offer.rails(count) if isinstance(offer, gpus.FreeGPUs) else 0


def worth_of(offer: Offer | None, count: int) -> int:
    """Return what devices of one resource are worth. Args: offer: None: nothing is known of them."""
    found = None if offer is None else offer.worth(count)
    if found is None:
        return _UNKNOWN if count == 1 else 0
    return found


def worth(wanted: tuple[tuple[str, int], ...], there: Mapping[str, Offer], of: Measure = worth_of) -> int:
    """Return what a node's devices are worth to a pod, 0 to 100: the least over what it asks for.

    Args: wanted: as `asked` returns it.   there: as `offers` returns it; several devices of which nothing is known
          are worth nothing.
    """
    return min((of(there.get(name), count) for name, count in wanted), default=0)


def words(requests: Mapping[str, int], there: Mapping[str, Offer]) -> str:
    """Return what a decision says of the devices that a pod would get; empty: nothing is known, or matters."""
    found = (there[name].words(count) for name, count in asked(requests) if name in there)
    return "; ".join(one for one in found if one)
