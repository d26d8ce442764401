"""Reads all GPUs of a verifier's virtual machine through NVML, in the guest; see `wire.fairlead.guestreport`.

A GPU that does not answer is reported as such: the host decides what follows.
Source: nvml.h, nvmlDeviceGetModuleId, nvmlDeviceGetMigMode, nvmlSystemGetConfComputeState.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia import binding, inspector
from fairlead.silicon.pci import pci
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import GPUReport, GuestReport

_LONGEST_FAILURE: Final = 400


def read_guest(library: object | Path | None, nonce: str) -> GuestReport:
    """Read every GPU that the driver lists; blocking.

    Args:    library: a simulated `pynvml.nvmlLib`, the path of a library, or None for the system's.
             nonce: of this start, which the report repeats.
    Raises:  Unavailable: there is no driver, or it does not start.   NVMLError: it does not list its GPUs.
    """
    nvml = binding.Binding(library)
    try:
        count = nvml.nvml.nvmlDeviceGetCount()
        driver = guestreport.printable(str(nvml.nvml.nvmlSystemGetDriverVersion()))
        found = (nvml.nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        mode = _confidential(nvml)
        gpus = (msgspec.structs.replace(_read(nvml, handle), **mode) for handle in found)
        return GuestReport(nonce=nonce, driver=driver, gpus=tuple(gpus))
    finally:
        nvml.shut_down()


def _confidential(nvml: binding.Binding) -> dict[str, bool]:
    """Return the mode of confidential computing, which a driver has for all of its GPUs; nothing: it does not say."""
    try:
        state = nvml.reading("nvmlSystemGetConfComputeState")
    except nvml.error:
        return {}
    return {} if state is None else {"confidential": bool(state.ccFeature), "devtools": bool(state.devToolsMode)}


def _read(nvml: binding.Binding, handle: Any) -> GPUReport:
    address = pci.normalise(nvml.nvml.nvmlDeviceGetPciInfo(handle).busId)
    try:
        seen = inspector.read(nvml, handle, GPUUUID(nvml.nvml.nvmlDeviceGetUUID(handle)))
        mode = nvml.reading("nvmlDeviceGetMigMode", handle)
        module = nvml.reading("nvmlDeviceGetModuleId", handle)
    except nvml.error as error:
        return GPUReport(
            pci=address, failure=guestreport.printable(str(error), _LONGEST_FAILURE) or "it does not answer"
        )
    return _report(address, seen, mode, module)


def _report(address: str, seen: Evidence, mode: tuple[int, int] | None, module: int | None) -> GPUReport:
    return GPUReport(
        pci=address,
        serial=guestreport.printable(seen.serial),
        part=guestreport.printable(seen.part),
        device=seen.device,
        subsystem=seen.subsystem,
        vbios=guestreport.printable(seen.vbios),
        inforom=guestreport.printable(seen.inforom),
        module=module,
        link_width=seen.link_width,
        link_width_max=seen.link_width_max,
        ecc_uncorrected=seen.ecc_uncorrected,
        ecc_mode=seen.ecc_mode,
        ecc_mode_pending=seen.ecc_mode_pending,
        mig_mode=bool(mode[0]) if mode else None,
        mig_mode_pending=bool(mode[1]) if mode else None,
        remap_pending=seen.remap_pending,
        remap_failed=seen.remap_failed,
        recovery_action=seen.recovery_action,
    )
