"""Implements the Inspector port through NVML: what a GPU says of itself, its reset, and a scrub by a program.

NVML has no call that clears memory, so a scrub is a program of the operator's, which gets the GPU's UUID and ends with
0 where every byte it could have was overwritten and read back. It runs as a child with a limit, and whatever it has
started is killed with its end.
Source: nvml.h, nvmlDeviceGetVbiosVersion, nvmlDeviceGetInforomImageVersion, nvmlDeviceGetCurrPcieLinkWidth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fairlead import command, errors
from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia import asynccalls, binding, gpureader
from fairlead.silicon.pci import pci
from fairlead_cdi.host import trust

Scrub = Callable[[str], Awaitable[None]]
"""Clears a GPU's memory, given its UUID."""
SCRUB_S: Final = 600.0
_LOUDEST: Final = 1 << 20
"""Bytes that the program may write."""
_FIELD_RECOVERY_ACTION: Final = 230


class NVMLInspector:
    """Reads by NVML's calls, in a thread of its own for each GPU."""

    def __init__(
        self,
        open_binding: Callable[[], binding.Binding],
        *,
        threads: asynccalls.AsyncCallThreads,
        call_timeout_s: float,
        reset: Callable[[GPUUUID], Awaitable[None]],
        scrub: Scrub | None,
    ) -> None:
        """Take how to call. Args: reset: of the partitioner.   scrub: None: there is no program."""
        self._open, self._threads, self._timeout_s = open_binding, threads, call_timeout_s
        self._reset, self._scrub = reset, scrub
        self._turn = asyncio.Lock()

    async def inspect(self, gpu: GPUUUID) -> Evidence:
        """Read what a GPU says of itself; see the port."""
        run = binding.gpu_call(self._open, gpu, lambda nvml, handle: read(nvml, handle, gpu), binding.gpu_error)
        async with self._turn:
            return await self._threads.run(f"inspect {gpu}", run, timeout_s=self._timeout_s)

    async def reset(self, gpu: GPUUUID) -> None:
        """Reset it; see the port."""
        await self._reset(gpu)

    async def scrub(self, gpu: GPUUUID) -> None:
        """Run the program; see the port."""
        if self._scrub is None:
            message = "no program here clears a GPU's memory"
            hint = "name one by --silicon-scrub-program, or set --lease-reuse to reset or less"
            raise errors.Unavailable(message, reason="ScrubNotOffered", hint=hint)
        await self._scrub(gpu)


def program(path: str) -> Scrub | None:
    """Return the scrub by a program; None: no path."""

    async def scrub(gpu: str) -> None:
        await asyncio.to_thread(_assert_ours, path)
        surroundings = command.base_env()
        done = await command.run([path, gpu], env=surroundings, timeout_s=SCRUB_S, largest=_LOUDEST, wholly=True)
        if done.code:
            said = done.last_line or f"exit code {done.code}"
            hint = f"run `{path} {gpu}` by hand"
            raise errors.DeviceFault(f"{path} did not clear {gpu}: {said}", reason="ScrubFailed", hint=hint)

    return scrub if path else None


def _assert_ours(path: str) -> None:
    """Refuse a program that others could put another one in the place of. Raises: Denied (`ScrubUntrusted`)."""
    try:
        place = trust.find_open(str(command.find_program(path) or path))
    except OSError:
        return  # it is not there, which its start says
    if place:
        message = f"{path} can be written by others than root (by way of {place}), and says that GPUs are clean"
        raise errors.Denied(message, reason="ScrubUntrusted", hint="chown it to root and chmod go-w, folders too")


def read(nvml: binding.Binding, handle: Any, gpu: GPUUUID) -> Evidence:
    """Read one GPU; blocking. Raises: NVMLError: it does not answer."""
    info = nvml.nvml.nvmlDeviceGetPciInfo(handle)
    rows = nvml.reading("nvmlDeviceGetRemappedRows", handle)
    ecc = nvml.reading("nvmlDeviceGetEccMode", handle)
    return Evidence(
        gpu=gpu,
        serial=nvml.reading("nvmlDeviceGetSerial", handle) or "",
        part=(nvml.reading("nvmlDeviceGetBoardPartNumber", handle) or "").strip(),
        device=f"{info.pciDeviceId:08x}",
        subsystem=f"{info.pciSubSystemId:08x}",
        pci_bus_id=pci.normalise(info.busId),
        vbios=nvml.reading("nvmlDeviceGetVbiosVersion", handle) or "",
        inforom=nvml.reading("nvmlDeviceGetInforomImageVersion", handle) or "",
        driver=nvml.nvml.nvmlSystemGetDriverVersion(),
        link_width=nvml.reading("nvmlDeviceGetCurrPcieLinkWidth", handle),
        link_width_max=nvml.reading("nvmlDeviceGetMaxPcieLinkWidth", handle),
        ecc_uncorrected=nvml.reading("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        ecc_mode=bool(ecc[0]) if ecc else None,
        ecc_mode_pending=bool(ecc[1]) if ecc else None,
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        recovery_action=gpureader.read_field(nvml, handle, _FIELD_RECOVERY_ACTION),
    )
