"""Plans the devices that a node's DRA driver offers to claims, as they are published. Pure.

A GPU is offered whole; as the MIG devices that stand on it; or as all partitions that it can be divided into, which are
made when a claim is prepared, with counters that keep them apart. One that has no driver here and is passed through to
virtual machines is a device of its own kind. Each is described as NVIDIA's driver describes it, so that claims written
for that driver find it. GPUs come in the order of their index and small devices before large ones, since a scheduler
takes the first that fits.

What is not offered is said by `plan_offer` in `Offer.unpublished`, a sentence each.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (deviceinfo.go, mig.go, partitions.go).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import GPU, Driver, GPUHealth, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import MIGProfile, Partition
from fairlead.plan.dra import attribute, partition, passthrough
from fairlead.plan.dra.passthrough import Backend
from fairlead.plan.dra.share import Enforcement, Shares, shared
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.wire.kubernetes.resource.device import CounterSet, Device

DRIVER: Final = attribute.DRIVER
_FREELY_SWITCHED: Final = (9, 0)
"""Compute capability from which MIG mode is switched without a reset.

Source: NVIDIA MIG User Guide, "Enable MIG Mode".
"""
_OTHERS: Final[Mapping[Vendor, str]] = {
    Vendor.AMD: "gpu.amd.com (https://github.com/ROCm/k8s-gpu-dra-driver)",
    Vendor.INTEL: "gpu.intel.com (https://github.com/intel/intel-resource-drivers-for-kubernetes)",
}


class Kind(enum.Enum):
    """What a device is to the driver."""

    GPU = "gpu"
    """A whole GPU."""
    MIG = "mig"
    """A MIG device that exists, and stays when its claim ends."""
    PARTITION = "partition"
    """A MIG device that is made when a claim is prepared, and removed when it ends."""
    VFIO = "vfio"
    """A whole GPU that is bound to VFIO: its user is a virtual machine, or drives it by itself."""


@frozen
class Placement:
    """Where a MIG device stands."""

    start: int
    """Its first memory slice."""
    size: int
    """Memory slices."""


@frozen
class OfferedDevice:
    """One device of the node's pool."""

    name: str
    """`gpu-<minor>`, `gpu-<minor>-mig-<profile without dot>-<GPU instance profile id>-<first memory slice>`;
    `gpu-vfio-<number>` of a GPU that is passed through."""
    kind: Kind
    gpu: GPUUUID
    """UUID of the GPU; of one that is passed through who it is: either is its key in the ledger."""
    minor: int | None = None
    """None: it has no driver here."""
    instance: MIGUUID | None = None
    """Of a MIG device that exists."""
    profile: str = ""
    """`1g.10gb`; empty for a whole GPU."""
    placement: Placement | None = None
    """None for a whole GPU."""
    counters: CounterSet | None = None
    """The counters of its GPU, where the device consumes some; devices of one GPU have the same."""
    shares: Shares | None = None
    """How claims share it, where something holds them to their share; None: nothing does, or it is for one claim."""
    memory_bytes: int = 0
    """Of a GPU as a whole."""
    backends: frozenset[Backend] = frozenset()
    """Of a GPU that is passed through: the ways by which it can be opened now."""
    address: str = ""
    """Of such a GPU: its PCI address now."""
    device: Device = Device()
    """As it is published, without taints."""


@frozen
class Choice:
    """What the node's configuration says about claims."""

    gpus: Collection[GPUUUID] | None = None
    """GPUs that claims get; None: all. Others are served by another door, and are not a matter of this one."""
    partitioned: Collection[GPUUUID] = frozenset()
    """GPUs whose MIG devices are made for claims."""
    made: Collection[MIGUUID] = frozenset()
    """MIG devices that were made for claims. Others stand on a partitioned GPU as they are, and keep their room."""
    shares: Mapping[GPUUUID, Shares] = field(default_factory=dict)
    """GPUs whose devices are shared by claims, as far as they are not partitioned."""


EVERY: Final = Choice()


@frozen
class Offer:
    """What a node offers to claims."""

    devices: tuple[OfferedDevice, ...] = ()
    unpublished: tuple[str, ...] = ()
    """What is not offered and why, a sentence each."""


@frozen
class _Scene:
    """All that one GPU's devices depend on, equal where they are the same."""

    gpu: GPU
    """Without what changes from second to second."""
    driver: Driver | None
    partition: Partition | None
    is_partitioned: bool
    made: frozenset[MIGUUID]
    """Its MIG devices that were made for claims."""
    shares: Shares | None


def plan_devices(
    snapshot: Snapshot, partitions: Iterable[Partition] = (), choice: Choice = EVERY
) -> tuple[OfferedDevice, ...]:
    """Return the devices that a node offers to claims, in the order of preference; see `plan_offer`."""
    return plan_offer(snapshot, partitions, choice).devices


def plan_offer(snapshot: Snapshot, partitions: Iterable[Partition] = (), choice: Choice = EVERY) -> Offer:
    """Return the devices that a node offers to claims, and what it does not offer.

    A GPU that does not answer is offered as it was last read; a taint keeps claims off it.
    Args: partitions: MIG of each GPU as it was last read; one that is missing has no MIG devices offered.
    """
    drivers = {one.vendor: one for one in snapshot.inventory.drivers}
    of_gpu = {one.gpu: one for one in partitions if not one.problem}
    devices: list[OfferedDevice] = []
    notes: list[str] = []
    for gpu in sorted(snapshot.known.values(), key=lambda one: (one.index, one.uuid)):
        if choice.gpus is not None and gpu.uuid not in choice.gpus:
            continue
        if gpu.vendor is not Vendor.NVIDIA:
            notes.append(f"GPU {gpu.index} ({gpu.name}): its claims are served by the DRA driver {_OTHERS[gpu.vendor]}")
            continue
        scene = _Scene(
            gpu=dataclasses.replace(gpu, health=GPUHealth()),
            driver=drivers.get(gpu.vendor),
            partition=of_gpu.get(gpu.uuid),
            is_partitioned=gpu.uuid in choice.partitioned,
            made=frozenset(mig.uuid for mig in gpu.mig_devices if mig.uuid in choice.made),
            shares=choice.shares.get(gpu.uuid),
        )
        for found in _offered(scene):
            if isinstance(found, str):
                notes.append(f"GPU {gpu.index}: {found}")
            else:
                devices.append(found)
    for passed in sorted(snapshot.passthrough, key=lambda one: (one.number or 0, one.address)):
        if choice.gpus is not None and passed.key not in choice.gpus:
            continue
        offered = _offer_passed(passed, snapshot.partition_ids)
        if isinstance(offered, str):
            notes.append(offered)
        else:
            devices.append(offered)
    return _once(devices, notes)


@functools.lru_cache(maxsize=64)
def _offer_passed(gpu: PassthroughGPU, partitions: tuple[tuple[int, tuple[int, ...]], ...]) -> OfferedDevice | str:
    """Return what a GPU that is passed through offers, or why it does not. Bound: every GPU of the largest machine."""
    if gpu.vendor is not Vendor.NVIDIA:
        return f"GPU {gpu.address} ({gpu.model}): its claims are served by the DRA driver {_OTHERS[gpu.vendor]}"
    if gpu.number is None:
        return f"GPU {gpu.address} is not published: the number in its name could not be kept in the state folder"
    device = passthrough.describe(gpu, partitions)
    return OfferedDevice(
        name=device.name,
        kind=Kind.VFIO,
        gpu=gpu.key,
        backends=passthrough.backends(gpu),
        address=gpu.address,
        device=device,
    )


def _once(devices: Iterable[OfferedDevice], notes: Iterable[str]) -> Offer:
    """Leave out devices whose name another has: two with one name make the whole pool invalid."""
    devices = tuple(devices)
    twice = {name for name, count in Counter(one.name for one in devices).items() if count > 1}
    said = (f"{name}: several devices have this name, none of them is published" for name in sorted(twice))
    return Offer(devices=tuple(one for one in devices if one.name not in twice), unpublished=(*notes, *said))


@functools.lru_cache(maxsize=24)
def _offered(scene: _Scene) -> tuple[OfferedDevice | str, ...]:
    """Return what one GPU offers, or does not.

    A MIG device that is made changes one GPU, and the others have 26 devices each: planning these again held the agent
    for 65 ms in the middle of each Prepare. Bound: every GPU of the largest machine, and the changed ones twice.
    """
    return tuple(_offer_gpu(scene))


def _offer_gpu(scene: _Scene) -> Iterator[OfferedDevice | str]:
    gpu = scene.gpu
    if not scene.is_partitioned:
        yield from _offer_standing(scene) if gpu.mig_enabled else (_whole(scene),)
        return
    division = _divide(scene)
    if isinstance(division, str):
        yield f"its MIG devices are not made for claims: {division}"
        yield from _offer_standing(scene) if gpu.mig_enabled else (_whole(scene),)
        return
    yield from _offer_partitions(scene, division)


def _divide(scene: _Scene) -> partition.Division | str:
    gpu = scene.gpu
    if gpu.is_virtual:
        return "it is a vGPU, which a hypervisor divides"
    if scene.partition is None:
        return "its MIG profiles are not known"
    if not gpu.mig_enabled and (gpu.compute_capability or (0, 0)) < _FREELY_SWITCHED:
        return "its MIG mode is off and counts only after a reset; turn it on with `fairlead mig apply`"
    return partition.plan_division(gpu.minor, scene.partition.profiles, memory_bytes=gpu.memory_bytes)


def _offer_standing(scene: _Scene) -> Iterator[OfferedDevice | str]:
    """Yield the MIG devices of a GPU in MIG mode, in the order of their places."""
    if not scene.gpu.mig_devices:
        yield "it is in MIG mode and has no MIG devices"
    for mig in sorted(scene.gpu.mig_devices, key=lambda one: (one.placement_start or 0, one.index)):
        yield _standing(scene, mig, None)


def _standing(scene: _Scene, mig: MIGDevice, division: partition.Division | None) -> OfferedDevice | str:
    """Return a MIG device that exists, or why it is not offered."""
    gpu, start, size = scene.gpu, mig.placement_start, mig.placement_size
    profile = scene.partition.find_profile(mig.profile) if scene.partition is not None else None
    if start is None or size is None:
        return f"MIG device {mig.uuid} is not published: the driver does not say where it stands"
    if profile is None:
        return f"MIG device {mig.uuid} is not published: {mig.profile} is not the profile of a whole GPU instance"
    found = partition.capacities(profile) or attribute.capacities(memory_bytes=mig.memory_bytes, engines=mig.engines)
    slices = {f"memorySlice{at}": 1 for at in range(start, start + min(size, partition.SLICES_MOST))}
    name = partition.device_name(gpu.minor, profile, start)
    device = Device(
        name=name,
        attributes=attribute.of_mig(gpu, scene.driver, profile=profile.name, uuid=mig.uuid),
        capacity=attribute.amounts(found | slices),
        consumes_counters=division.consumed_by(profile, start) if division is not None else (),
    )
    return OfferedDevice(
        name=name,
        kind=Kind.MIG,
        gpu=gpu.uuid,
        minor=gpu.minor,
        instance=mig.uuid,
        profile=profile.name,
        placement=Placement(start=start, size=size),
        counters=division.counters if division is not None else None,
        device=_shared(scene, device),
    )


def _offer_partitions(scene: _Scene, division: partition.Division) -> Iterator[OfferedDevice | str]:
    """Yield a GPU's partitions, the GPU as a whole, and as they are the MIG devices that were not made for a claim."""
    gpu = scene.gpu
    kept = [mig for mig in gpu.mig_devices if mig.uuid not in scene.made]
    for mig in kept:
        yield _standing(scene, mig, division)
    room = [(mig.placement_start or 0, mig.placement_size or partition.SLICES_MOST) for mig in kept]
    for profile, start in partition.places(division.profiles):
        if not partition.overlaps(profile, start, room):
            yield _partition(scene, division, profile, start)
    if kept:
        yield f"it is not published as a whole: {len(kept)} MIG devices on it were not made for claims"
    elif gpu.mig_enabled and (gpu.compute_capability or (0, 0)) < _FREELY_SWITCHED:
        yield "it is not published as a whole: it leaves MIG mode only by a reset"
    else:
        yield _whole(scene, division)
    if scene.shares is not None:
        yield "its devices are for one claim each: a scheduler counts what a partition takes once for each claim"


def _partition(scene: _Scene, division: partition.Division, profile: MIGProfile, start: int) -> OfferedDevice:
    gpu, name = scene.gpu, partition.device_name(scene.gpu.minor, profile, start)
    device = Device(
        name=name,
        attributes=attribute.of_mig(gpu, scene.driver, profile=profile.name),
        capacity=attribute.amounts(partition.capacities(profile)),
        consumes_counters=division.consumed_by(profile, start),
    )
    return OfferedDevice(
        name=name,
        kind=Kind.PARTITION,
        gpu=gpu.uuid,
        minor=gpu.minor,
        profile=profile.name,
        placement=Placement(start=start, size=profile.size),
        counters=division.counters,
        device=_shared(scene, device),
    )


def _whole(scene: _Scene, division: partition.Division | None = None) -> OfferedDevice:
    """Return the whole GPU; where its MIG profiles were read, the engines of the largest are its own."""
    gpu, name = scene.gpu, f"gpu-{scene.gpu.minor}"
    of_profiles = partition.largest(division.profiles) if division is not None else {}
    device = Device(
        name=name,
        attributes=attribute.of_gpu(gpu, scene.driver),
        capacity=attribute.amounts(of_profiles | attribute.capacities(memory_bytes=gpu.memory_bytes)),
        consumes_counters=division.consumed_whole() if division is not None else (),
    )
    shares = scene.shares if not device.consumes_counters else None
    return OfferedDevice(
        name=name,
        kind=Kind.GPU,
        gpu=gpu.uuid,
        minor=gpu.minor,
        shares=shares if shares is not None and shares.enforced_by is not Enforcement.NOTHING else None,
        memory_bytes=gpu.memory_bytes,
        counters=division.counters if division is not None else None,
        device=_shared(scene, device),
    )


def _shared(scene: _Scene, device: Device) -> Device:
    """Return a device as claims share it; one that consumes counters is for one claim.

    A scheduler takes the counters for each claim, so that a second one would never find them: seen with kube-scheduler
    1.37.
    """
    shares = scene.shares
    if shares is None or device.consumes_counters:
        return device
    if "profile" in device.attributes:  # a control daemon serves a whole GPU
        shares = dataclasses.replace(shares, enforced_by=Enforcement.NOTHING)
    return shared(device, shares)
