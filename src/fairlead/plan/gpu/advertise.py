"""Decides which devices a node offers, by resource, from inventory and verdicts. Pure.

One resource for each vendor's whole GPUs. A GPU that was known and no longer answers stays listed, Unhealthy and with
its reason, so that the kubelet keeps its capacity and nobody wonders where it went. A GPU in MIG mode cannot be given
whole and is left out here. Whatever lives on a GPU shares its verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import health

AMD_RESOURCE: Final = "amd.com/gpu"


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
) -> tuple[Advertisement, ...]:
    """List the devices of every resource that has any.

    Args:    verdicts: by GPU; a readable GPU without one is healthy.   known: every GPU read so far, for those that
             do not answer now.
    Returns: one value a resource, devices in index order.
    """
    resources = {Vendor.NVIDIA: nvidia_resource, Vendor.AMD: AMD_RESOURCE}
    found: list[Advertisement] = []
    for vendor, resource in resources.items():
        devices = [
            *((gpu.index, _device(gpu, verdicts)) for gpu in inventory.gpus if _is_whole(gpu, vendor)),
            *(
                (gone.index, _absent(gone, vendor, verdicts, known))
                for gone in inventory.unreadable
                if _was(gone, vendor, known)
            ),
        ]
        if devices:
            ordered = tuple(device for _, device in sorted(devices, key=lambda item: (item[0], item[1].id)))
            found.append(Advertisement(resource=resource, vendor=vendor, devices=ordered))
    return tuple(found)


def resource_of(gpu: GPU, *, nvidia_resource: str) -> str:
    """Return the resource under which a GPU is offered whole; empty: it is not."""
    resources = {Vendor.NVIDIA: nvidia_resource, Vendor.AMD: AMD_RESOURCE}
    return "" if gpu.mig_enabled else resources.get(gpu.vendor, "")


def _is_whole(gpu: GPU, vendor: Vendor) -> bool:
    return gpu.vendor is vendor and not gpu.mig_enabled


def _was(gone: UnreadableGPU, vendor: Vendor, known: Mapping[GPUUUID, GPU]) -> bool:
    if gone.uuid is None:
        return False  # never read since this process began: without an id it cannot be listed
    return _is_whole(known[gone.uuid], vendor) if gone.uuid in known else vendor is Vendor.NVIDIA


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
