"""Reads one GPU through NVML: identity, memory, MIG devices, NVLinks, health.

Everything here blocks and runs in that GPU's thread. What the GPU or driver does not offer becomes None; what makes the
GPU unusable (lost, no UUID) is raised as NVML's error and translated by the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import uuid as uuids
from pathlib import Path
from typing import Any, Final

from fairlead.frozen import frozen
from fairlead.model.gpu import GPU, ComputeMode, GPUHealth, MIGDevice, MIGEngines
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.silicon.nvidia import binding, licence
from fairlead.silicon.pci import pci, vgpu, vgpuhost

_FIELD_LINK_COUNT: Final = 91
_FIELD_RECOVERY_ACTION: Final = 230
BRANDS: Final = {
    0: "unknown",
    1: "quadro",
    2: "tesla",
    3: "nvs",
    4: "grid",
    5: "geforce",
    6: "titan",
    7: "nvidiavapps",
    8: "nvidiavpc",
    9: "nvidiavcs",
    10: "nvidiavws",
    11: "nvidiacloudgaming",
    12: "quadrortx",
    13: "nvidiartx",
    14: "nvidia",
    15: "geforcertx",
    16: "titanrtx",
}
"""Source: nvml.h, nvmlBrandType_t; the words are those of CUDA images' NVIDIA_REQUIRE_CUDA."""
ADDRESSING_MODES: Final = {0: "None", 1: "HMM", 2: "ATS"}
"""Source: nvml.h, nvmlDeviceAddressingModeType_t."""
COMPUTE_MODES: Final = {
    0: ComputeMode.DEFAULT,
    1: ComputeMode.EXCLUSIVE_THREAD,
    2: ComputeMode.PROHIBITED,
    3: ComputeMode.EXCLUSIVE_PROCESS,
}
"""Source: nvml.h, nvmlComputeMode_t."""
_REMOTE_GPU: Final = 0
_REMOTE_SWITCH: Final = 2
_MOST_LINKS: Final = 18
_MIB: Final = 1 << 20
_FABRIC_COMPLETED: Final = 3
"""Source: nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED."""


@frozen
class Reading:
    """One GPU as read, with what the topology needs."""

    gpu: GPU
    handle: Any
    """NVML's handle; valid as long as the library stays open."""
    peers: tuple[str, ...]
    """PCI address at the far end of every active NVLink that does not lead to a switch."""


def read(nvml: binding.Binding, index: int, root: Path) -> Reading:
    """Read the GPU at one index of NVML's enumeration.

    Raises:  NVMLError (of the binding): lost, or without UUID, address, minor number or name.
    """
    api = nvml.nvml
    handle = api.nvmlDeviceGetHandleByIndex(index)
    uuid, minor, name = (
        api.nvmlDeviceGetUUID(handle),
        api.nvmlDeviceGetMinorNumber(handle),
        api.nvmlDeviceGetName(handle),
    )
    address = pci.normalise(api.nvmlDeviceGetPciInfo(handle).busId)
    memory = nvml.reading("nvmlDeviceGetMemoryInfo", handle)
    mode = nvml.reading("nvmlDeviceGetMigMode", handle)
    switches, peers = _links(nvml, handle)
    is_mig = bool(mode and mode[0])
    is_virtual, host_driver = vgpu.read(root, address)
    total = int(memory.total) if memory else 0
    brand = nvml.reading("nvmlDeviceGetBrand", handle)
    gpu = GPU(
        uuid=GPUUUID(uuid),
        index=index,
        minor=minor,
        pci_bus_id=address,
        name=name,
        memory_bytes=total,
        serial=nvml.reading("nvmlDeviceGetSerial", handle),
        compute_capability=nvml.reading("nvmlDeviceGetCudaComputeCapability", handle),
        brand=BRANDS.get(brand),
        numa_node=pci.numa_node(root, address),
        pcie_root=pci.root_complex(root, address),
        addressing_mode=_addressing_mode(nvml, handle),
        nics=pci.list_near_nics(root, address),
        mig_enabled=is_mig,
        mig_capable=mode is not None,
        mig_devices=_mig_devices(nvml, handle, total) if is_mig else (),
        device_nodes=(f"/dev/nvidia{minor}", *pci.list_drm_nodes(root, address)),
        nvswitch_links=switches,
        clique=_clique(nvml, handle),
        compute_mode=_compute_mode(nvml, handle),
        pci_class=pci.pci_class(root, address),
        is_virtual=is_virtual,
        host_driver=host_driver,
        licences=licence.read(nvml, handle) if is_virtual or brand in licence.LENT_BRANDS else None,
        vgpu_types=licence.list_types(nvml, handle) if vgpuhost.may_lend(root, address) else (),
        health=_health(nvml, handle, int(memory.used) if memory else None),
    )
    return Reading(gpu=gpu, handle=handle, peers=tuple(peers))


def read_field(nvml: binding.Binding, handle: Any, field: int) -> int | None:
    """Read one of NVML's numbered fields, an unsigned number; None where the device does not report it."""
    values = nvml.reading("nvmlDeviceGetFieldValues", handle, [field])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def _health(nvml: binding.Binding, handle: Any, used: int | None) -> GPUHealth:
    rates = nvml.reading("nvmlDeviceGetUtilizationRates", handle)
    rows = nvml.reading("nvmlDeviceGetRemappedRows", handle)
    return GPUHealth(
        temperature_c=nvml.reading("nvmlDeviceGetTemperature", handle, 0),
        power_mw=nvml.reading("nvmlDeviceGetPowerUsage", handle),
        ecc_uncorrected=nvml.reading("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        recovery_action=read_field(nvml, handle, _FIELD_RECOVERY_ACTION),
        utilization_percent=int(rates.gpu) if rates else None,
        memory_used_bytes=used,
    )


def _compute_mode(nvml: binding.Binding, handle: Any) -> ComputeMode | None:
    code = nvml.reading("nvmlDeviceGetComputeMode", handle)
    return None if code is None else COMPUTE_MODES.get(int(code))


def _addressing_mode(nvml: binding.Binding, handle: Any) -> str | None:
    mode = nvml.reading("nvmlDeviceGetAddressingMode", handle)
    return None if mode is None else ADDRESSING_MODES.get(int(mode))


def _clique(nvml: binding.Binding, handle: Any) -> str:
    """Return the NVLink clique; empty where the GPU's registration with a fabric has not ended well."""
    api = nvml.nvml
    for call, struct in (
        ("nvmlDeviceGetGpuFabricInfoV", api.c_nvmlGpuFabricInfoV_t),
        ("nvmlDeviceGetGpuFabricInfo", api.c_nvmlGpuFabricInfo_t),
    ):
        info = struct()
        if nvml.reading(call, handle, ctypes.byref(info)) is None:
            continue
        cluster = bytes(info.clusterUuid)
        if info.state != _FABRIC_COMPLETED or info.status != 0 or not any(cluster):
            return ""
        return f"{uuids.UUID(bytes=cluster)}.{info.cliqueId}"
    return ""


def _links(nvml: binding.Binding, handle: Any) -> tuple[int, list[str]]:
    """Count links to switches and list the far ends of the others."""
    count = read_field(nvml, handle, _FIELD_LINK_COUNT)
    switches, peers = 0, []
    for link in range(_MOST_LINKS if count is None else count):
        if not nvml.reading("nvmlDeviceGetNvLinkState", handle, link):
            continue
        kind = nvml.reading("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == _REMOTE_SWITCH:
            switches += 1
            continue
        far = nvml.reading("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if far is not None and kind in (None, _REMOTE_GPU):
            peers.append(pci.normalise(far.busId))
    return switches, peers


def _mig_devices(nvml: binding.Binding, handle: Any, total: int) -> tuple[MIGDevice, ...]:
    found = []
    for index in range(nvml.reading("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = nvml.reading("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if device is None:
            continue
        try:
            found.append(_mig_device(nvml, handle, device, index=index, total=total))
        except nvml.error as error:
            if binding.code_of(error) not in binding.ABSENT:  # else destroyed since its handle was fetched
                raise
    return tuple(found)


def _mig_device(nvml: binding.Binding, parent: Any, device: Any, *, index: int, total: int) -> MIGDevice:
    api = nvml.nvml
    instance = api.nvmlDeviceGetGpuInstanceId(device)
    attributes = nvml.reading("nvmlDeviceGetAttributes", device)
    memory_mib = int(attributes.memorySizeMB) if attributes else 0
    start, size = _placement(nvml, parent, instance)
    return MIGDevice(
        uuid=MIGUUID(api.nvmlDeviceGetUUID(device)),
        index=index,
        profile=_mig_profile(nvml.reading("nvmlDeviceGetName", device) or "", attributes, total),
        gpu_instance=instance,
        compute_instance=api.nvmlDeviceGetComputeInstanceId(device),
        placement_start=start,
        placement_size=size,
        memory_bytes=memory_mib * _MIB,
        engines=_engines(attributes) if attributes else None,
    )


def _engines(attributes: Any) -> MIGEngines:
    return MIGEngines(
        multiprocessors=int(attributes.multiprocessorCount),
        instance_slices=int(attributes.gpuInstanceSliceCount),
        slices=int(attributes.computeInstanceSliceCount),
        copy=int(attributes.sharedCopyEngineCount),
        decoder=int(attributes.sharedDecoderCount),
        encoder=int(attributes.sharedEncoderCount),
        jpeg=int(attributes.sharedJpegCount),
        ofa=int(attributes.sharedOfaCount),
    )


def _placement(nvml: binding.Binding, parent: Any, instance: int) -> tuple[int | None, int | None]:
    handle = nvml.reading("nvmlDeviceGetGpuInstanceById", parent, instance)
    info = nvml.reading("nvmlGpuInstanceGetInfo", handle) if handle is not None else None
    return (int(info.placement.start), int(info.placement.size)) if info is not None else (None, None)


def _mig_profile(name: str, attributes: Any, total: int) -> str:
    """Take the profile from the device's name, which ends in it; else compose it from the slices and memory."""
    with contextlib.suppress(ValueError):
        return name[name.rindex(" MIG ") + 5 :].strip()
    if attributes is None or not total:
        return "unknown"
    slices, computes = int(attributes.gpuInstanceSliceCount), int(attributes.computeInstanceSliceCount)
    whole = compose_profile(slices, int(attributes.memorySizeMB), total)
    return whole if computes == slices else f"{computes}c.{whole}"


def compose_profile(slices: int, memory_mib: int, total_bytes: int) -> str:
    """Return a profile's name by its compute slices and its share of the GPU's memory, as the vendor's tools do."""
    if not total_bytes:
        return f"{slices}g"
    eighths = math.ceil(memory_mib * _MIB / total_bytes * 8)
    return f"{slices}g.{round(eighths / 8 * math.ceil(total_bytes / (1 << 30)))}gb"
