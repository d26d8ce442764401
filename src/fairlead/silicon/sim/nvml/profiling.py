"""Simulates NVML's GPU performance monitoring: samples, and what happened between two of them. Hopper and later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead.silicon.sim import load, machine, profile
from fairlead.silicon.sim.nvml import abi, scope

_HOPPER: Final = (9, 0)
_VERSION: Final = 1
_MOST_SAMPLES: Final = 4095
"""What a handle can tell apart; a caller that never frees meets the end of it."""
_SHARES: Final[Mapping[int, float]] = {
    1: 1.0,  # graphics engine
    2: 0.9,  # multiprocessors
    3: 0.45,  # their occupancy
    5: 0.6,  # tensor pipes
    10: 0.5,  # memory bandwidth
    11: 0.0,  # fp64
    12: 0.2,  # fp32
    13: 0.1,  # fp16
    20: 22.0,  # MiB/s sent over PCIe
    21: 37.0,  # and received
}
"""What one percent of utilization makes of a metric."""


def nvmlGpmQueryDeviceSupport(host: machine.Machine, device: Any, support: Any) -> None:
    gpu = scope.gpu_of(host, device)
    if abi.target(support).version != _VERSION:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    abi.fill(support, isSupportedDevice=int(gpu.board.part.compute_capability >= _HOPPER))


def nvmlGpmSampleAlloc(host: machine.Machine, sample: Any) -> None:
    number = next((one for one in range(1, _MOST_SAMPLES + 1) if one not in host.samples), None)
    if number is None:
        raise abi.RefusedError(abi.INSUFFICIENT_RESOURCES)
    host.samples[number] = None
    abi.put_handle(sample, abi.Kind.SAMPLE, number)


def nvmlGpmSampleFree(host: machine.Machine, sample: Any) -> None:
    del host.samples[_number(host, sample)]


def nvmlGpmSampleGet(host: machine.Machine, device: Any, sample: Any) -> None:
    gpu = _supported(scope.whole_gpu_of(host, device))
    host.samples[_number(host, sample)] = float(host.read(gpu).utilization_percent)


def nvmlGpmMigSampleGet(host: machine.Machine, device: Any, instance: Any, sample: Any) -> None:
    gpu = _supported(scope.whole_gpu_of(host, device))
    found = gpu.partition.instances.get(abi.number(instance))
    if found is None:
        raise abi.RefusedError(abi.NOT_FOUND)
    uuids = [profile.mig_uuid(gpu.board.uuid, found.id, number) for number in found.computes]
    holders = [name for uuid in uuids for name in host.holders.get(uuid, ())]
    readings = load.read(gpu.board.part, holders, host.clock(), utilization_percent=gpu.utilization_percent)
    host.samples[_number(host, sample)] = float(readings.utilization_percent)


def nvmlGpmMetricsGet(host: machine.Machine, asked: Any) -> None:
    struct = abi.target(asked)
    if struct.version != _VERSION:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    taken = [host.samples[_number(host, one)] for one in (struct.sample1, struct.sample2)]
    levels = [one for one in taken if one is not None]
    if len(levels) < len(taken):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    for place in range(struct.numMetrics):
        metric = struct.metrics[place]
        share = _SHARES.get(metric.metricId)
        metric.nvmlReturn = abi.NOT_SUPPORTED if share is None else abi.SUCCESS
        metric.value = (share or 0.0) * sum(levels) / len(levels)


def _supported(gpu: machine.GPUState) -> machine.GPUState:
    if gpu.board.part.compute_capability < _HOPPER:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    return gpu


def _number(host: machine.Machine, sample: Any) -> int:
    kind, number, _, _ = abi.parts_of(sample)
    if kind is not abi.Kind.SAMPLE or number not in host.samples:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    return number
