"""Decides which devices a node offers, by resource, from inventory and verdicts. Pure.

One resource for each vendor's whole GPUs, for Intel's one for each kernel driver. A GPU that was known and no longer
answers stays listed, Unhealthy and with its reason, so that the kubelet keeps its capacity and operators see where it
went. A GPU in MIG mode cannot be given whole; how its MIG devices are offered is `migoffer`'s. Whatever lives on a GPU
shares its verdict.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import health, migoffer

AMD_RESOURCE: Final = "amd.com/gpu"
INTEL_RESOURCES: Final = {"i915": "gpu.intel.com/i915", "xe": "gpu.intel.com/xe"}
"""By kernel driver, as Intel's plugin names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """All devices of one extended resource."""

    resource: str
    vendor: Vendor
    """Who made the devices."""
    devices: tuple[Device, ...]


def plan_advertisements(
    inventory: Inventory,
    *,
    nvidia_resource: str,
    verdicts: Mapping[GPUUUID, health.Verdict],
    known: Mapping[GPUUUID, GPU],
    mig: migoffer.MIGOffer = migoffer.NOT_OFFERED,
) -> tuple[Advertisement, ...]:
    """List the devices of every resource that has any.

    Args:    verdicts: by GPU; a readable GPU without one is healthy.   known: every GPU read so far, for those that
             do not answer now.   mig: how MIG devices are offered, and their own verdicts.
    Returns: one value a resource, devices in index order.
    """
    resources = [(Vendor.NVIDIA, nvidia_resource), (Vendor.AMD, AMD_RESOURCE)]
    resources += [(Vendor.INTEL, name) for name in INTEL_RESOURCES.values()]
    found: list[Advertisement] = []
    nvidia = _nvidia_gpus(inventory, verdicts, known)
    misfit = migoffer.find_misfit(tuple(gpu for gpu, _ in nvidia)) if mig.strategy == migoffer.SINGLE else ""
    parts = _mig_parts(nvidia, nvidia_resource, mig, misfit)
    for vendor, resource in resources:
        own = functools.partial(_is_offered_as, resource, nvidia_resource=nvidia_resource)
        whole = [
            *((gpu.index, _device(gpu, verdicts)) for gpu in inventory.gpus if own(gpu)),
            *(
                (gone.index, _absent(gone, vendor, verdicts, known))
                for gone in inventory.unreadable
                if _was(gone, vendor, known, own)
            ),
        ]
        is_nvidia = vendor is Vendor.NVIDIA
        kept_back = [(place, _misfit(device) if is_nvidia and misfit else device) for place, device in whole]
        devices = [*kept_back, *(parts.pop(resource, ()) if is_nvidia else ())]
        if devices:
            # GPUs by id where one index is told twice; MIG devices stay in their GPU's order.
            devices.sort(key=lambda item: (item[0], "" if item[1].mig else item[1].id))
            ordered = tuple(device for _, device in devices)
            found.append(Advertisement(resource=resource, vendor=vendor, devices=ordered))
    for resource, items in sorted(parts.items()):
        ordered = tuple(device for _, device in items)
        found.append(Advertisement(resource=resource, vendor=Vendor.NVIDIA, devices=ordered))
    return tuple(found)


def _misfit(device: Device) -> Device:
    """Keep a whole GPU back where the strategy single finds GPUs of both modes."""
    if not device.is_healthy:
        return device
    return dataclasses.replace(device, is_healthy=False, reason=migoffer.NOT_UNIFORM)


def _nvidia_gpus(
    inventory: Inventory, verdicts: Mapping[GPUUUID, health.Verdict], known: Mapping[GPUUUID, GPU]
) -> list[tuple[GPU, health.Verdict]]:
    """Return NVIDIA's GPUs in index order, as last read where they do not answer, each with its verdict."""
    gpus = [(gpu, verdicts.get(gpu.uuid, health.Verdict())) for gpu in inventory.gpus if gpu.vendor is Vendor.NVIDIA]
    gpus += [
        (known[gone.uuid], migoffer.lost(gone.reason, verdicts, gone.uuid))
        for gone in inventory.unreadable
        if gone.uuid is not None and gone.uuid in known and known[gone.uuid].vendor is Vendor.NVIDIA
    ]
    return sorted(gpus, key=lambda pair: pair[0].index)


def _mig_parts(
    gpus: Sequence[tuple[GPU, health.Verdict]], nvidia_resource: str, offer: migoffer.MIGOffer, misfit: str
) -> dict[str, list[tuple[int, Device]]]:
    """Return the MIG devices of each resource with their GPUs' indexes, in order; under `none` there are none."""
    found: dict[str, list[tuple[int, Device]]] = {}
    prefix = nvidia_resource.partition("/")[0]
    for gpu, verdict in gpus if offer.strategy != migoffer.NONE else ():
        for part, device in migoffer.plan_devices(gpu, offer, verdict, misfit=misfit):
            is_single = offer.strategy == migoffer.SINGLE
            name = nvidia_resource if is_single else migoffer.resource_name(part.profile, prefix)
            found.setdefault(name, []).append((gpu.index, device))
    return found


def resource_of(gpu: GPU, *, nvidia_resource: str) -> str:
    """Return the resource under which a GPU is offered whole; empty: it is not.

    Intel's are offered where they have memory of their own: those of processors belong to the machine's screen.
    """
    if gpu.vendor is Vendor.INTEL:
        return INTEL_RESOURCES.get(gpu.kernel_driver, "") if gpu.memory_bytes else ""
    resources = {Vendor.NVIDIA: nvidia_resource, Vendor.AMD: AMD_RESOURCE}
    return "" if gpu.mig_enabled else resources[gpu.vendor]


def _is_offered_as(resource: str, gpu: GPU, *, nvidia_resource: str) -> bool:
    return resource_of(gpu, nvidia_resource=nvidia_resource) == resource


def _was(gone: UnreadableGPU, vendor: Vendor, known: Mapping[GPUUUID, GPU], is_own: Callable[[GPU], bool]) -> bool:
    if gone.uuid is None:
        return False  # never read since this process began: without an id it cannot be listed
    return is_own(known[gone.uuid]) if gone.uuid in known else vendor is Vendor.NVIDIA


def _device(gpu: GPU, verdicts: Mapping[GPUUUID, health.Verdict]) -> Device:
    verdict = verdicts.get(gpu.uuid, health.Verdict())
    reason = "" if verdict.is_healthy else verdict.reason
    return Device(
        id=DeviceID(gpu.uuid),
        cdi_name=_cdi_name(gpu.vendor, gpu.uuid),
        gpu=gpu.uuid,
        is_healthy=verdict.is_healthy,
        reason=reason,
        numa_node=gpu.numa_node,
        index=str(gpu.index),
        nodes=gpu.device_nodes,
    )


def _cdi_name(vendor: Vendor, name: str) -> str:
    return cdikind.qualified(cdikind.ALLOCATED[vendor.value], name)


def _absent(
    gone: UnreadableGPU, vendor: Vendor, verdicts: Mapping[GPUUUID, health.Verdict], known: Mapping[GPUUUID, GPU]
) -> Device:
    uuid = gone.uuid or GPUUUID("")
    verdict = verdicts.get(uuid)
    earlier = known.get(uuid)
    return Device(
        id=DeviceID(uuid),
        cdi_name=_cdi_name(vendor, uuid),
        gpu=uuid,
        is_healthy=False,
        reason=verdict.reason if verdict is not None and not verdict.is_healthy else gone.reason,
        numa_node=earlier.numa_node if earlier else None,
        index=str(gone.index),
        nodes=earlier.device_nodes if earlier else (),
    )
