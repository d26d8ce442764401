"""Decides which devices are shared, and offers a shared device as its replicas. Pure.

An entry of the configuration names a resource and some of its devices; the first entry that is about a device counts,
and a device that none is about stays whole under its own resource. Replicas have their device's health, reason and NUMA
node, so a fault of a GPU is a fault of every replica. Whatever is offered can be shared by time, MIG devices too; by
MPS only NVIDIA's whole GPUs, and where a file asks for both means MPS counts, as with NVIDIA's plugin.
Source: NVIDIA k8s-device-plugin, README "Shared access to GPUs", internal/rm/device_map.go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from fairlead.model import replica
from fairlead.model.device import Device
from fairlead.model.gpu import Vendor
from fairlead.model.ids import DeviceID
from fairlead.plan.gpu.nodeconfig import NodeConfig
from fairlead.plan.gpu.offer.advertise import Advertisement, SharingRule
from fairlead.wire.nvidia.pluginconfig import DeviceChoice, Replicas, Sharing

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"


def plan_shared(offered: Sequence[Advertisement], config: NodeConfig) -> tuple[Advertisement, ...]:
    """Return the advertisements with shared devices as replicas, each under the name that its entry gives it."""
    by_mps = config.document.mps is not None
    sharing = config.document.mps or config.document.time_slicing
    if sharing is None:
        return tuple(offered)
    rule = SharingRule(
        means=MPS if by_mps else TIME_SLICING,
        fails_above_one=sharing.fails_above_one,
        packs=config.packs_replicas,
        needs_different_gpus=config.document.own.different_gpus and not by_mps,
        needs_one_gpu=by_mps,
    )
    devices: dict[str, list[Device]] = {}
    vendors: dict[str, Vendor] = {}
    shared: set[str] = set()
    for ad in offered:
        for position, device in enumerate(ad.devices):
            is_able = not by_mps or (ad.vendor is Vendor.NVIDIA and device.mig is None)
            entry = _entry_of(ad, position, device, sharing) if is_able else None
            name = ad.resource if entry is None else sharing.resource_of(entry)
            devices.setdefault(name, []).extend([device] if entry is None else replicas(device, entry.replicas))
            # Another vendor's devices go by CDI alone, which suits NVIDIA's as well.
            vendors[name] = ad.vendor if vendors.get(name, Vendor.NVIDIA) is Vendor.NVIDIA else vendors[name]
            shared |= {name} if entry is not None else set()
    plain = SharingRule()
    return tuple(
        Advertisement(resource=name, vendor=vendors[name], devices=tuple(items), rule=rule if name in shared else plain)
        for name, items in devices.items()
    )


def _entry_of(ad: Advertisement, position: int, device: Device, sharing: Sharing) -> Replicas | None:
    return next(
        (one for one in sharing.resources if one.name == ad.resource and is_chosen(one.devices, position, device)),
        None,
    )


def is_chosen(devices: DeviceChoice, position: int, device: Device) -> bool:
    """Return whether an entry is about a device. Args: position: in its resource's list."""
    if devices.is_all:
        return True
    if devices.count is not None:
        return position < devices.count
    return bool({device.index, device.name} & set(devices.names))


def replicas(device: Device, count: int) -> Iterator[Device]:
    """Yield a device's replicas."""
    for number in range(count):
        yield dataclasses.replace(device, id=DeviceID(replica.name(device.id, number)), replica_of=DeviceID(device.id))
