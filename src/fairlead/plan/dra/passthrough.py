"""Describes GPUs that are passed through as devices of claims, and decides by which way their user opens them. Pure.

Names, attributes and the capacity are NVIDIA's. What only a driver of the GPU knows is left out: a node that passes a
GPU through has none. The UUID is no board's: NVIDIA's driver too makes it of the PCI address.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (deviceinfo.go, nvlib.go, vfio-cdi.go) and
api/nvidia.com/resource/v1beta1/vfiodeviceconfig.go; RFC 9562, name-based UUIDs.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from fairlead import errors
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.plan.dra import attribute
from fairlead.plan.gpu import health
from fairlead.plan.vfio import slotoffer
from fairlead.wire.kubernetes.resource import device as wire
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute
from fairlead.wire.nvidia.claimconfig import LEGACY_ONLY, PREFER_IOMMUFD, VFIOConfig

LOST: Final = "Lost"
"""Reason of a GPU that is off the bus; `taints` makes of it what it makes of a driver's."""
MEMORY: Final = "addressableMemory"
Partitions = Iterable[tuple[int, tuple[int, ...]]]
"""Id and module numbers of each NVLink partition."""


class Backend(enum.Enum):
    """By which nodes a GPU's user opens it."""

    GROUP = "group"
    """`/dev/vfio/GROUP`, with `/dev/vfio/vfio`."""
    IOMMUFD = "iommufd"
    """`/dev/vfio/devices/vfioN`, with `/dev/iommu`."""


def device_name(gpu: PassthroughGPU) -> str:
    """Return the name of a GPU that has a number."""
    return f"gpu-vfio-{gpu.number}"


def backends(gpu: PassthroughGPU) -> frozenset[Backend]:
    """Return the ways by which a GPU can be opened on this kernel."""
    found = {Backend.GROUP: gpu.group_nodes, Backend.IOMMUFD: gpu.iommufd_nodes}
    return frozenset(way for way, nodes in found.items() if nodes)


def describe(gpu: PassthroughGPU, partitions: Partitions) -> Device:
    """Return a GPU as it is published, without taints."""
    texts = {
        "type": "vfio",
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, gpu.address)),
        "vendorID": f"0x{gpu.vendor_id:04x}" if gpu.vendor_id else "",
        "deviceID": f"0x{gpu.device_id:04x}" if gpu.device_id else "",
        "productName": gpu.model,
        wire.PCI_BUS_ID: attribute.pci_bus_id(gpu.address),
        wire.PCIE_ROOT: gpu.pcie_root,
    }
    numbers = {wire.NUMA_NODE: gpu.numa_node, "gpuModuleId": gpu.module, **dict(_partitions(gpu, partitions))}
    attributes = {
        **{name: attribute.text(value) for name, value in texts.items() if value},
        "iommuFDEnabled": DeviceAttribute(bool_=bool(gpu.iommufd_nodes)),
        **{name: DeviceAttribute(int_=value) for name, value in numbers.items() if value is not None},
    }
    capacity = attribute.amounts({MEMORY: gpu.addressable_bytes} if gpu.addressable_bytes else {})
    return Device(name=device_name(gpu), attributes=attributes, capacity=capacity)


def _partitions(gpu: PassthroughGPU, partitions: Partitions) -> Iterator[tuple[str, int]]:
    """Yield by size which partition a GPU is in; of a size of which it is in several it has none."""
    own = [(len(modules), found) for found, modules in partitions if gpu.module is not None and gpu.module in modules]
    sizes = Counter(size for size, _ in own)
    yield from ((f"partition{size}", found) for size, found in own if sizes[size] == 1)


def verdict(gpu: PassthroughGPU) -> health.Verdict | None:
    """Return what is held against a GPU's health; None: nothing is."""
    if not gpu.problem:
        return None
    reason = LOST if gpu.is_lost else slotoffer.UNUSABLE
    return health.Verdict(state=health.State.FAULTY, reason=reason, message=gpu.problem)


def choose_backend(wanted: VFIOConfig, ways: Collection[Backend], device: str) -> Backend:
    """Return by which nodes a claim opens a device.

    `LegacyOnly` is groups and nothing else, `PreferIommuFD` iommufd where the kernel has it; without a policy it is
    groups where there are some. Raises: DeviceFault (`VFIONodeMissing`): the device has no such nodes.
    """
    order = {
        LEGACY_ONLY: (Backend.GROUP,),
        PREFER_IOMMUFD: (Backend.IOMMUFD, Backend.GROUP),
        "": (Backend.GROUP, Backend.IOMMUFD),
    }[wanted.backend_policy]
    found = next((way for way in order if way in ways), None)
    if found is not None:
        return found
    if ways:
        message = f"the claim asks for {LEGACY_ONLY}, and this node's kernel gives {device} by iommufd alone"
        hint = f"set iommu.backendPolicy to {PREFER_IOMMUFD}, or start a kernel with CONFIG_VFIO_GROUP"
    else:
        message = f"{device} has no node below /dev/vfio"
        hint = "`fairlead vfio check` on the node says what is missing"
    raise errors.DeviceFault(message, reason="VFIONodeMissing", hint=hint)


def list_nodes(gpu: PassthroughGPU, way: Backend, *, has_api_device: bool) -> tuple[DeviceNode, ...]:
    """Return the nodes that a container gets, the shared one first; empty: they are not there."""
    nodes = gpu.group_nodes if way is Backend.GROUP else gpu.iommufd_nodes
    return nodes if has_api_device else nodes[-1:]
