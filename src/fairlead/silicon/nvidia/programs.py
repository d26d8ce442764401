"""Reads through NVML which programs are on a GPU, Fairlead's and any other, and what they have of its memory.

Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3; nvml.h,
NVML_VALUE_NOT_AVAILABLE (memory under WDDM, or of a process that the caller may not know).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fairlead.model.ids import GPUUUID
from fairlead.model.neighbour import GPUProcess
from fairlead.silicon.nvidia import binding

LIMIT_S: Final = 1.0
"""Longest wait for all GPUs together: Allocate waits for the answer."""
_CALLS: Final = {
    "nvmlDeviceGetGraphicsRunningProcesses_v3": True,
    "nvmlDeviceGetComputeRunningProcesses_v3": False,
}
"""By call, whether its programs draw. One that does both calculates: the last call counts."""
_NOT_AVAILABLE: Final = (1 << 64) - 1


def read(open_binding: Callable[[], binding.Binding], gpus: Iterable[GPUUUID]) -> dict[GPUUUID, tuple[GPUProcess, ...]]:
    """Return the programs by GPU, of the GPUs that answer; blocks.

    Raises: Unavailable: the library cannot be opened.
    """
    nvml = open_binding()
    found: dict[GPUUUID, tuple[GPUProcess, ...]] = {}
    for gpu in gpus:
        try:
            handle = nvml.nvml.nvmlDeviceGetHandleByUUID(gpu)
            told = {call: nvml.reading(call, handle) for call in _CALLS}
        except nvml.error:
            continue  # it is gone, or does not answer: its health says so
        if all(answer is None for answer in told.values()):
            continue  # this driver has neither call
        each = {
            int(one.pid): GPUProcess(pid=int(one.pid), memory_bytes=_memory(one), is_graphics=_CALLS[call])
            for call, answer in told.items()
            for one in answer or ()
        }
        found[gpu] = tuple(each[pid] for pid in sorted(each))
    return found


def _memory(one: Any) -> int | None:
    used = getattr(one, "usedGpuMemory", None)
    return None if used is None or used in {0, _NOT_AVAILABLE} else int(used)
