"""Simulates NVML's calls about load, clocks, power and energy."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import abi, scope

_CLOCK_GRAPHICS, _CLOCK_SM, _CLOCK_MEMORY = 0, 1, 2
_SAMPLING_US: Final = 167_000


def nvmlDeviceGetUtilizationRates(host: machine.Machine, device: Any, rates: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    if gpu.mig_enabled:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    load = host.read(gpu).utilization_percent
    abi.fill(rates, gpu=load, memory=load // 2)


def nvmlDeviceGetEncoderUtilization(host: machine.Machine, device: Any, load: Any, period_us: Any) -> None:
    _put_media(host, device, load, period_us)


def nvmlDeviceGetDecoderUtilization(host: machine.Machine, device: Any, load: Any, period_us: Any) -> None:
    _put_media(host, device, load, period_us)


def _put_media(host: machine.Machine, device: Any, load: Any, period_us: Any) -> None:
    """No simulated workload touches the media engines."""
    if scope.whole_gpu_of(host, device).mig_enabled:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    abi.put(load, 0)
    abi.put(period_us, _SAMPLING_US)


def nvmlDeviceGetClockInfo(host: machine.Machine, device: Any, kind: Any, clock: Any) -> None:
    readings = host.read(scope.whole_gpu_of(host, device))
    clocks = {
        _CLOCK_GRAPHICS: readings.sm_clock_mhz,
        _CLOCK_SM: readings.sm_clock_mhz,
        _CLOCK_MEMORY: readings.memory_clock_mhz,
    }
    if abi.number(kind) not in clocks:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    abi.put(clock, clocks[abi.number(kind)])


def nvmlDeviceGetPowerUsage(host: machine.Machine, device: Any, power: Any) -> None:
    abi.put(power, host.read(scope.whole_gpu_of(host, device)).power_mw)


def nvmlDeviceGetEnforcedPowerLimit(host: machine.Machine, device: Any, limit: Any) -> None:
    abi.put(limit, scope.whole_gpu_of(host, device).board.part.full_power_mw)


def nvmlDeviceGetTotalEnergyConsumption(host: machine.Machine, device: Any, energy: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    host.read(gpu)
    abi.put(energy, round(gpu.energy_mj))


def nvmlDeviceGetPcieReplayCounter(host: machine.Machine, device: Any, count: Any) -> None:
    scope.whole_gpu_of(host, device)
    abi.put(count, 0)
