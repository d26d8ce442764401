"""Simulates NVML's calls about one GPU or MIG device: identity and readings."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import load, machine, profile
from fairlead.silicon.sim.nvml import abi, scope

_FIELD_MEMORY_TEMPERATURE: Final = 82
_FIELD_LINK_COUNT: Final = 91
_FIELD_RECOVERY_ACTION: Final = 230
_VALUE_UINT: Final = 1
_MEMORY_WARMER_C: Final = 5
"""Between the memory of an H100 and its processor, as one at rest said."""
_TEMPERATURE_V1: Final = 0x100000C
_MEMORY_V2: Final = 0x2000028
_MIB: Final = 1 << 20


def nvmlDeviceGetCount_v2(host: machine.Machine, count: Any) -> None:
    abi.put(count, len(host.gpus))


def nvmlDeviceGetHandleByIndex_v2(host: machine.Machine, index: Any, device: Any) -> None:
    abi.put_handle(device, abi.Kind.GPU, scope.touch(host, abi.number(index)).board.index)


def nvmlDeviceGetHandleByPciBusId_v2(host: machine.Machine, bus_id: Any, device: Any) -> None:
    wanted = abi.text(bus_id).lower()[-12:]
    for gpu in host.gpus:
        if gpu.board.pci == wanted:
            abi.put_handle(device, abi.Kind.GPU, scope.touch(host, gpu.board.index).board.index)
            return
    raise abi.RefusedError(abi.NOT_FOUND)


def nvmlDeviceGetHandleByUUID(host: machine.Machine, uuid: Any, device: Any) -> None:
    wanted = abi.text(uuid)
    for gpu in host.gpus:
        index = gpu.board.index
        if gpu.board.uuid == wanted:
            abi.put_handle(device, abi.Kind.GPU, scope.touch(host, index).board.index)
            return
        for instance, compute in scope.list_mig(gpu):
            if profile.mig_uuid(gpu.board.uuid, instance, compute) == wanted:
                abi.put_handle(device, abi.Kind.MIG, index, instance, compute)
                return
    raise abi.RefusedError(abi.NOT_FOUND)


def nvmlDeviceGetName(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    name, found = scope.gpu_of(host, device).board.part.name, scope.mig_of(host, device)
    if found:
        name = f"{name} MIG {found[1].compute_name(found[2])}"
    abi.put_text(buffer, size, name)


def nvmlDeviceGetUUID(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    uuid, found = scope.gpu_of(host, device).board.uuid, scope.mig_of(host, device)
    abi.put_text(buffer, size, profile.mig_uuid(uuid, found[1].id, found[2].id) if found else uuid)


def nvmlDeviceGetSerial(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    abi.put_text(buffer, size, gpu.serial or gpu.board.serial)


def nvmlDeviceGetMinorNumber(host: machine.Machine, device: Any, minor: Any) -> None:
    abi.put(minor, scope.whole_gpu_of(host, device).board.minor)


def nvmlDeviceGetIndex(host: machine.Machine, device: Any, index: Any) -> None:
    gpu, found = scope.gpu_of(host, device), scope.mig_of(host, device)
    abi.put(index, scope.list_mig(gpu).index((found[1].id, found[2].id)) if found else gpu.board.index)


def put_pci(pointer: Any, pci: str, device_id: int) -> None:
    """Fill an nvmlPciInfo_t; `pci` with a four-digit domain, `device_id` without the vendor."""
    domain, bus, rest = pci.split(":")
    abi.fill(
        pointer,
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(rest.split(".")[0], 16),
        pciDeviceId=device_id << 16 | 0x10DE,
        busId=f"0000{pci}".upper().encode(),
        busIdLegacy=pci.upper().encode(),
    )


def nvmlDeviceGetPciInfo_v3(host: machine.Machine, device: Any, info: Any) -> None:
    board = scope.gpu_of(host, device).board
    put_pci(info, board.pci, board.part.device_id)


def nvmlDeviceGetCudaComputeCapability(host: machine.Machine, device: Any, major: Any, minor: Any) -> None:
    capability = scope.gpu_of(host, device).board.part.compute_capability
    abi.put(major, capability[0])
    abi.put(minor, capability[1])


def nvmlDeviceGetBrand(host: machine.Machine, device: Any, brand: Any) -> None:
    abi.put(brand, scope.gpu_of(host, device).board.part.brand)


def _memory(host: machine.Machine, device: Any) -> tuple[int, int]:
    """Total and used bytes."""
    gpu, found = scope.gpu_of(host, device), scope.mig_of(host, device)
    if found:
        total, uuid = found[1].row.memory_mib, profile.mig_uuid(gpu.board.uuid, found[1].id, found[2].id)
        return total * _MIB, load.memory_used_mib(total, host.holders.get(uuid, ())) * _MIB
    return gpu.board.part.memory_mib * _MIB, host.read(gpu).memory_used_mib * _MIB


def nvmlDeviceGetMemoryInfo(host: machine.Machine, device: Any, info: Any) -> None:
    total, used = _memory(host, device)
    abi.fill(info, total=total, used=used, free=total - used)


def nvmlDeviceGetMemoryInfo_v2(host: machine.Machine, device: Any, info: Any) -> None:
    if abi.target(info).version != _MEMORY_V2:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    total, used = _memory(host, device)
    abi.fill(info, total=total, reserved=0, used=used, free=total - used)


def nvmlDeviceGetTemperature(host: machine.Machine, device: Any, sensor: Any, temperature: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    if abi.number(sensor) != 0:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    abi.put(temperature, host.read(gpu).temperature_c)


def nvmlDeviceGetTemperatureV(host: machine.Machine, device: Any, reading: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    if abi.target(reading).version != _TEMPERATURE_V1:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    abi.fill(reading, temperature=host.read(gpu).temperature_c)


def nvmlDeviceGetEccMode(host: machine.Machine, device: Any, current: Any, pending: Any) -> None:
    scope.whole_gpu_of(host, device)
    abi.put(current, 1)
    abi.put(pending, 1)


def nvmlDeviceGetTotalEccErrors(
    host: machine.Machine, device: Any, error_type: Any, _counter_type: Any, count: Any
) -> None:
    gpu = scope.whole_gpu_of(host, device)
    abi.put(count, gpu.ecc_uncorrected if abi.number(error_type) == 1 else 0)


def nvmlDeviceGetRemappedRows(
    host: machine.Machine, device: Any, corrected: Any, uncorrected: Any, pending: Any, failed: Any
) -> None:
    gpu = scope.whole_gpu_of(host, device)
    if gpu.board.part.compute_capability < (8, 0):
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    for pointer, value in ((corrected, 0), (uncorrected, 0), (pending, gpu.remap_pending), (failed, gpu.remap_failed)):
        abi.put(pointer, int(value))


def nvmlDeviceGetComputeMode(host: machine.Machine, device: Any, mode: Any) -> None:
    abi.put(mode, scope.whole_gpu_of(host, device).compute_mode)


def nvmlDeviceSetComputeMode(host: machine.Machine, device: Any, mode: Any) -> None:
    if not 0 <= abi.number(mode) <= 3:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    scope.whole_gpu_of(host, device).compute_mode = abi.number(mode)
    host.save()  # a driver's mode outlasts the process that set it


def nvmlDeviceGetFieldValues(host: machine.Machine, device: Any, count: Any, values: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    fields = {_FIELD_LINK_COUNT: gpu.board.part.nvlinks if gpu.board.nvlink != "none" else 0}
    if gpu.board.part.compute_capability >= (8, 0):
        fields[_FIELD_RECOVERY_ACTION] = gpu.recovery_action
    if gpu.board.part.has_memory_sensor:
        fields[_FIELD_MEMORY_TEMPERATURE] = host.read(gpu).temperature_c + _MEMORY_WARMER_C
    for value in abi.target(values)[: abi.number(count)]:
        known = value.fieldId in fields
        value.nvmlReturn = abi.SUCCESS if known else abi.NOT_SUPPORTED
        value.valueType = _VALUE_UINT
        value.value.uiVal = fields.get(value.fieldId, 0)
