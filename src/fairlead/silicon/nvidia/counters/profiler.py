"""Reads how busy a GPU's units were, by NVML's GPU performance monitoring (GPM), which Hopper and later GPUs have.

A figure is what happened between two samples, so the last sample of each GPU and GPU instance is kept until the next
one; the first reading takes two. Everything here blocks and runs in that GPU's thread; no two threads share an entry.
Samples of a library that was let go of meanwhile (as for a reset) ended with it.
Source: NVML API reference, "GPM Functions"; nvml.h, nvmlGpmMetricId_t (units).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.model.ids import GPUUUID
from fairlead.model.sample import UNKNOWN, Activity
from fairlead.silicon.nvidia import binding

_PERCENT: Final = 1 / 100
_MIB: Final = float(1 << 20)
_METRICS: Final[Mapping[int, tuple[str, float]]] = {
    1: ("graphics_active", _PERCENT),
    2: ("sm_active", _PERCENT),
    3: ("sm_occupancy", _PERCENT),
    5: ("tensor_active", _PERCENT),
    10: ("dram_active", _PERCENT),
    11: ("fp64_active", _PERCENT),
    12: ("fp32_active", _PERCENT),
    13: ("fp16_active", _PERCENT),
    20: ("pcie_sent_bytes_s", _MIB),
    21: ("pcie_received_bytes_s", _MIB),
}
"""Field of `Activity` and how much of it one of NVML's units is, by metric id."""
_VERSION: Final = 1
_FIRST_S: Final = 0.1
"""Between the two samples of a first reading; NVML has figures of no shorter time."""


@dataclass(slots=True)
class _Kept:
    """What is kept of one GPU."""

    library: binding.Binding
    is_supported: bool
    samples: dict[int | None, Any] = field(default_factory=dict)
    """The last sample by GPU instance; None: of the whole GPU."""


class Profiler:
    """Remembers the last sample of each GPU of one driver."""

    def __init__(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Take how to wait between two samples."""
        self._kept: dict[GPUUUID, _Kept] = {}
        self._wait = wait

    def read(
        self, nvml: binding.Binding, handle: Any, gpu: GPUUUID, instances: Iterable[int] = ()
    ) -> dict[int | None, Activity]:
        """Return the activity by GPU instance, None for the whole GPU; nothing where the GPU has no GPM.

        Raises: NVMLError (of the binding): the GPU is lost.
        """
        kept = self._kept.get(gpu)
        if kept is None or kept.library is not nvml:
            support = nvml.reading("nvmlGpmQueryDeviceSupport", handle)
            kept = self._kept[gpu] = _Kept(nvml, bool(support and support.isSupportedDevice))
        if not kept.is_supported:
            return {}
        wanted: list[int | None] = [None, *instances]
        for gone in kept.samples.keys() - set(wanted):
            nvml.reading("nvmlGpmSampleFree", kept.samples.pop(gone))
        if fresh := [one for one in wanted if one not in kept.samples]:
            for one in fresh:
                kept.samples[one] = _take(nvml, handle, one)
            self._wait(_FIRST_S)
        return {one: self._renew(nvml, handle, kept, one) for one in wanted}

    def _renew(self, nvml: binding.Binding, handle: Any, kept: _Kept, instance: int | None) -> Activity:
        """Take another sample; return what happened since the last one, which is freed."""
        now = _take(nvml, handle, instance)
        before, kept.samples[instance] = kept.samples[instance], now
        try:
            return UNKNOWN if before is None or now is None else _compare(nvml, before, now)
        finally:
            if before is not None:
                nvml.reading("nvmlGpmSampleFree", before)


def _take(nvml: binding.Binding, handle: Any, instance: int | None) -> Any:
    """Return a sample; None where the driver takes none, as of an instance that is gone since."""
    sample = nvml.reading("nvmlGpmSampleAlloc")
    if sample is None:
        return None
    where = ("nvmlGpmSampleGet", handle) if instance is None else ("nvmlGpmMigSampleGet", handle, instance)
    try:
        taken = nvml.reading(*where, sample)
    except nvml.error:
        nvml.reading("nvmlGpmSampleFree", sample)
        raise
    if taken is None:
        nvml.reading("nvmlGpmSampleFree", sample)
    return taken


def _compare(nvml: binding.Binding, before: Any, now: Any) -> Activity:
    asked = nvml.nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = _VERSION, len(_METRICS)
    asked.sample1, asked.sample2 = before, now
    for place, metric in enumerate(_METRICS):
        asked.metrics[place].metricId = metric
    if nvml.reading("nvmlGpmMetricsGet", asked) is None:
        return UNKNOWN
    found = {asked.metrics[place].metricId: asked.metrics[place] for place in range(len(_METRICS))}
    figures = {
        name: found[metric].value * unit for metric, (name, unit) in _METRICS.items() if found[metric].nvmlReturn == 0
    }
    return Activity(**figures)
