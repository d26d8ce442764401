"""Implements the ComputeModes port through NVML, and finds the driver's MPS control program.

The mode is the driver's, not this program's: it stays when a process ends, and is DEFAULT again once the driver is
loaded anew.
Source: nvml.h, nvmlComputeMode_t, nvmlDeviceSetComputeMode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from fairlead import errors
from fairlead.model.gpu import ComputeMode
from fairlead.model.ids import GPUUUID
from fairlead.silicon import port
from fairlead.silicon.nvidia import asynccalls, binding, gpureader
from fairlead.silicon.nvidia.files import library

T = TypeVar("T")

_PROGRAM: Final = "usr/bin/nvidia-cuda-mps-control"

_CODES: Final = {mode: code for code, mode in gpureader.COMPUTE_MODES.items()}
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND = 3, 4, 6


def find_program(root: Path, driver_root: Path) -> port.MPSProgram | None:
    """Return the MPS control program below the driver's root; None: it is not there.

    It needs the libraries of its own root: where that is another than ours it is run there.
    """
    found = library.find_program(root, driver_root, _PROGRAM)
    return None if found is None else port.MPSProgram(argv=(found,), root=str(root))


class NVMLComputeModes:
    """Sets compute modes by NVML's calls, each in a thread of its GPU."""

    def __init__(
        self,
        open_binding: Callable[[], binding.Binding],
        *,
        threads: asynccalls.AsyncCallThreads,
        call_timeout_s: float,
        turn: asyncio.Lock,
    ) -> None:
        """Take how to call. Args: turn: of one silicon: threads refuse a second call while one runs."""
        self._open, self._threads, self._timeout_s, self._turn = open_binding, threads, call_timeout_s, turn

    async def read_mode(self, gpu: GPUUUID) -> ComputeMode:
        """Read the mode; see the port."""
        code = await self._call(gpu, "read", lambda nvml, handle: int(nvml.nvml.nvmlDeviceGetComputeMode(handle)))
        if code not in gpureader.COMPUTE_MODES:
            message = f"GPU {gpu} reports compute mode {code}, which this version does not know"
            raise errors.Unavailable(message, reason="ComputeModeUnknown", hint="`nvidia-smi -q -d COMPUTE` shows it")
        return gpureader.COMPUTE_MODES[code]

    async def set_mode(self, gpu: GPUUUID, mode: ComputeMode) -> None:
        """Set the mode; see the port."""
        await self._call(gpu, "set", lambda nvml, handle: nvml.nvml.nvmlDeviceSetComputeMode(handle, _CODES[mode]))

    async def _call(self, gpu: GPUUUID, what: str, call: Callable[[binding.Binding, Any], T]) -> T:
        run = binding.gpu_call(
            self._open, gpu, call, lambda error: _translated(error, f"{what} the compute mode of {gpu}")
        )
        async with self._turn:
            return await self._threads.run(f"compute mode {gpu}", run, timeout_s=self._timeout_s)


def _translated(error: Exception, what: str) -> errors.FairleadError:
    code, message = binding.code_of(error), f"cannot {what}: {error}"
    if code == _NOT_SUPPORTED:
        return errors.Invalid(message, reason="ComputeModeNotSupported", hint="the GPU has none, or is a vGPU")
    if code == _NO_PERMISSION:
        return errors.Unavailable(message, reason="DriverNoPermission", hint="run as root")
    if code == _NOT_FOUND:
        return errors.NotFound(message, reason="GPUGone", hint="`fairlead gpus` lists the GPUs there are")
    return binding.gpu_error(error)
