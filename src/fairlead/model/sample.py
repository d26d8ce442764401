"""Declares what one reading of a GPU's counters says: the figures that metrics and live tables show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairlead.model.ids import GPUUUID, MIGUUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """How busy the units of a GPU or GPU instance were since the last reading; None where the driver does not say."""

    graphics_active: float | None = None
    """Share of the time, 0 to 1, in which the graphics or compute engine was active."""
    sm_active: float | None = None
    """Share of it in which multiprocessors had a warp, and so on for the units below."""
    sm_occupancy: float | None = None
    """Share of the warps that multiprocessors could have."""
    tensor_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    pcie_sent_bytes_s: float | None = None
    pcie_received_bytes_s: float | None = None


UNKNOWN: Final = Activity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One GPU's or MIG device's counters at one moment; None where the device or its driver reports none."""

    gpu: GPUUUID
    mig: MIGUUID | None = None
    """None: the whole GPU."""
    utilization_percent: int | None = None
    """Share of the last sampling period in which a kernel ran."""
    memory_copy_percent: int | None = None
    """Share of it in which memory was read or written."""
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    energy_mj: int | None = None
    """Since the driver was loaded."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    """Kept by driver and firmware; part of neither used nor free."""
    pcie_replays: int | None = None
    ecc_single_bit: int | None = None
    """Volatile corrected ECC errors since the driver was loaded."""
    ecc_double_bit: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_failed: bool | None = None
    activity: Activity = UNKNOWN
