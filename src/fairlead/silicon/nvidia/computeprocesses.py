"""Reads through NVML which programs calculate on a GPU, Fairlead's and any other.

Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia import binding

LIMIT_S: Final = 1.0
"""Longest wait for all GPUs together: Allocate waits for the answer."""
_CALL: Final = "nvmlDeviceGetComputeRunningProcesses_v3"


def read(open_binding: Callable[[], binding.Binding], gpus: Iterable[GPUUUID]) -> dict[GPUUUID, tuple[int, ...]]:
    """Return the pids by GPU, of those that have any; blocks.

    Raises: Unavailable: the library cannot be opened.
    """
    nvml = open_binding()
    found: dict[GPUUUID, tuple[int, ...]] = {}
    for gpu in gpus:
        try:
            told = nvml.reading(_CALL, nvml.nvml.nvmlDeviceGetHandleByUUID(gpu))
        except nvml.error:
            continue  # it is gone, or does not answer: its health says so
        if told:
            found[gpu] = tuple(sorted({int(one.pid) for one in told}))
    return found
