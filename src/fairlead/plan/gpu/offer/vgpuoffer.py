"""Decides how the vGPUs that this machine lends are offered: one resource a type, in the field's words. Pure.

A resource is named by its type as NVIDIA's KubeVirt plugin names it: `nvidia.com/NVIDIA_L40S-12Q`. Its devices bring
VFIO's nodes and, as launchers of virtual machines expect them, their names in a variable: UUIDs of mediated devices in
`MDEV_PCI_RESOURCE_…`, PCI addresses of virtual functions in `PCI_RESOURCE_…`. A vGPU shares the verdict of its board.

A board that lends vGPUs is not given whole: its user would reach what the guests compute on.
Source: NVIDIA kubevirt-gpu-device-plugin, README and its resource names; KubeVirt user guide, "Host Devices Assignment"
(a resource's name in a variable: in upper case, `/` and `.` as `_`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.driver import VGPU, DriverFiles
from fairlead.model.gpu import GPU, Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.offer.advertise import Advertisement

UNUSABLE: Final = "VGPUUnusable"
"""Reason of a vGPU without nodes, or in an IOMMU group that is not viable."""
SHARED_NODES: Final = ("/dev/vfio/vfio",)
_LONGEST: Final = 63
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.\-]+")


def type_of(vgpu: VGPU, gpus: Iterable[GPU]) -> str:
    """Return the name of a vGPU's type, by its files or else by its board's list; empty: neither says it."""
    if vgpu.type:
        return vgpu.type
    board = next((gpu for gpu in gpus if gpu.pci_bus_id == vgpu.parent), None)
    return dict(board.vgpu_types).get(vgpu.type_id or 0, "") if board is not None else ""


def resource_name(type_name: str, domain: str) -> str:
    """Return the resource of a type; empty: its name has nothing that Kubernetes takes."""
    name = _FOREIGN.sub("_", type_name.strip())[:_LONGEST].strip("-_.")
    return f"{domain}/{name}" if name else ""


def plan_vgpus(
    drivers: Iterable[DriverFiles],
    inventory: Inventory,
    *,
    domain: str,
    verdicts: Mapping[GPUUUID, health.Verdict],
    known: Mapping[GPUUUID, GPU],
    taken: Collection[str] = (),
) -> tuple[Advertisement, ...]:
    """List the vGPUs of every type, in the order of the types' names.

    Args:   domain: of the resources, `nvidia.com`.   known: every GPU read so far.
            taken: resources that are something else already; a type of such a name is not offered.
    """
    found: dict[str, list[Device]] = {}
    boards = {gpu.pci_bus_id: gpu for gpu in known.values()}
    gone = {gpu.pci_bus_id: gpu.reason for gpu in inventory.unreadable}
    for vgpu in (one for driver in drivers for one in driver.vgpus):
        resource = resource_name(type_of(vgpu, boards.values()), domain)
        if not resource or resource in taken:
            continue
        board = boards.get(vgpu.parent)
        verdict = verdicts.get(board.uuid, health.Verdict()) if board is not None else health.Verdict()
        reason = "" if verdict.is_healthy else verdict.reason
        reason = reason or gone.get(vgpu.parent, "") or (UNUSABLE if vgpu.problem else "")
        found.setdefault(resource, []).append(
            Device(
                id=DeviceID(vgpu.id),
                cdi_name=cdikind.qualified(cdikind.LENT, vgpu.id),
                gpu=board.uuid if board is not None else GPUUUID(vgpu.parent),
                vgpu=vgpu.id,
                is_healthy=not reason,
                reason=reason,
                numa_node=vgpu.numa_node,
                nodes=tuple(node.path for node in vgpu.nodes),
            )
        )
    return tuple(
        Advertisement(resource=resource, vendor=Vendor.NVIDIA, devices=tuple(devices))
        for resource, devices in sorted(found.items())
    )


def without_lenders(
    offered: Iterable[Advertisement], drivers: Iterable[DriverFiles], known: Mapping[GPUUUID, GPU]
) -> tuple[Advertisement, ...]:
    """Leave out the boards of which vGPUs are lent, whole and in replicas; a resource without others ends."""
    lending = {vgpu.parent for driver in drivers for vgpu in driver.vgpus}
    boards = {gpu.uuid for gpu in known.values() if gpu.pci_bus_id in lending}
    kept = (
        dataclasses.replace(ad, devices=tuple(device for device in ad.devices if device.gpu not in boards))
        for ad in offered
    )
    return tuple(ad for ad in kept if ad.devices)


def variables(resource: str, names: Sequence[str]) -> dict[str, str]:
    """Return the variables that tell a launcher of virtual machines which vGPUs its container has."""
    name = re.sub(r"[/.]", "_", resource.upper())
    found = {
        f"MDEV_PCI_RESOURCE_{name}": [one for one in names if ":" not in one],
        f"PCI_RESOURCE_{name}": [one for one in names if ":" in one],
    }
    return {key: ",".join(values) for key, values in found.items() if values}
