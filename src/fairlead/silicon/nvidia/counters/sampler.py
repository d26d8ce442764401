"""Reads one GPU's counters through NVML: load, clocks, temperatures, power, memory, error counts.

Everything here blocks and runs in that GPU's thread. What GPU or driver does not offer becomes None. A MIG device has
its memory, and from Hopper on its instance's share of the units (`profiler`); clocks and power are its GPU's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.sample import UNKNOWN, Sample
from fairlead.silicon.nvidia import binding, gpureader
from fairlead.silicon.nvidia.counters import profiler

_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU: Final = 0
_FIELD_MEMORY_TEMPERATURE: Final = 82
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_MEMORY_V2: Final = 0x2000028
"""nvmlMemory_v2: the version in the highest byte, the size of the structure below it."""


def read(nvml: binding.Binding, index: int, profiled: profiler.Profiler) -> tuple[Sample, ...]:
    """Read the GPU at one index of NVML's enumeration: the GPU first, then its MIG devices.

    Args:    profiled: remembers what profiling read last.

    Raises:  NVMLError (of the binding): the GPU is lost, or has no UUID.
    """
    handle = nvml.nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = GPUUUID(nvml.nvml.nvmlDeviceGetUUID(handle))
    mode = nvml.reading("nvmlDeviceGetMigMode", handle)
    whole = _board(nvml, handle, uuid)
    parts = _mig_samples(nvml, handle, uuid) if mode and mode[0] else {}
    shares = profiled.read(nvml, handle, uuid, {instance for instance in parts.values() if instance is not None})
    inside = (
        part if place is None else dataclasses.replace(part, activity=shares.get(place, UNKNOWN))
        for part, place in parts.items()
    )
    return (dataclasses.replace(whole, activity=shares.get(None, UNKNOWN)), *inside)


def _board(nvml: binding.Binding, handle: Any, uuid: GPUUUID) -> Sample:
    rates = nvml.reading("nvmlDeviceGetUtilizationRates", handle)
    rows = nvml.reading("nvmlDeviceGetRemappedRows", handle)
    total, used, free, reserved = _memory(nvml, handle)
    return Sample(
        gpu=uuid,
        utilization_percent=int(rates.gpu) if rates else None,
        memory_copy_percent=int(rates.memory) if rates else None,
        encoder_percent=_first(nvml.reading("nvmlDeviceGetEncoderUtilization", handle)),
        decoder_percent=_first(nvml.reading("nvmlDeviceGetDecoderUtilization", handle)),
        sm_clock_mhz=nvml.reading("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        memory_clock_mhz=nvml.reading("nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
        temperature_c=nvml.reading("nvmlDeviceGetTemperature", handle, _SENSOR_GPU),
        memory_temperature_c=gpureader.read_field(nvml, handle, _FIELD_MEMORY_TEMPERATURE),
        power_mw=nvml.reading("nvmlDeviceGetPowerUsage", handle),
        power_limit_mw=nvml.reading("nvmlDeviceGetEnforcedPowerLimit", handle),
        energy_mj=nvml.reading("nvmlDeviceGetTotalEnergyConsumption", handle),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=free,
        memory_reserved_bytes=reserved,
        pcie_replays=nvml.reading("nvmlDeviceGetPcieReplayCounter", handle),
        ecc_single_bit=nvml.reading("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
        ecc_double_bit=nvml.reading("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
        remapped_correctable=int(rows[0]) if rows else None,
        remapped_uncorrectable=int(rows[1]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
    )


def _mig_samples(nvml: binding.Binding, handle: Any, uuid: GPUUUID) -> dict[Sample, int | None]:
    """Return the MIG devices with the GPU instances that they are in."""
    found: dict[Sample, int | None] = {}
    for index in range(nvml.reading("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = nvml.reading("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        name = None if device is None else nvml.reading("nvmlDeviceGetUUID", device)
        if name is None:  # destroyed since, or never there
            continue
        total, used, free, reserved = _memory(nvml, device)
        one = Sample(
            gpu=uuid,
            mig=MIGUUID(name),
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=free,
            memory_reserved_bytes=reserved,
        )
        found[one] = nvml.reading("nvmlDeviceGetGpuInstanceId", device)
    return found


def _memory(nvml: binding.Binding, device: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """Return total, used, free and reserved bytes; older drivers count what is reserved as used."""
    newer = nvml.reading("nvmlDeviceGetMemoryInfo", device, _MEMORY_V2)
    if newer is not None:
        return int(newer.total), int(newer.used), int(newer.free), int(newer.reserved)
    older = nvml.reading("nvmlDeviceGetMemoryInfo", device)
    return (int(older.total), int(older.used), int(older.free), None) if older else (None, None, None, None)


def _first(pair: Any) -> int | None:
    """Return the utilization of a (utilization, sampling period) pair."""
    return int(pair[0]) if pair else None
