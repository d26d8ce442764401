"""Simulates NVML's calls about vGPUs: the types that a board can lend, and the licences of a GPU that is lent."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import abi, scope

_COMPUTE_FEATURE: Final = 4
_PERMANENT: Final = 4
_PRODUCT: Final = b"NVIDIA Virtual Compute Server"


def nvmlDeviceGetSupportedVgpus(host: machine.Machine, device: Any, count: Any, types: Any) -> None:
    lending = scope.whole_gpu_of(host, device).board.lending
    if lending is None:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    room = abi.target(count).value
    abi.put(count, len(lending.types))
    if room < len(lending.types):
        raise abi.RefusedError(abi.INSUFFICIENT_SIZE)
    for place, (number, _) in enumerate(lending.types):
        abi.target(types)[place] = number


def nvmlVgpuTypeGetName(host: machine.Machine, number: Any, buffer: Any, size: Any) -> None:
    wanted = abi.number(number)
    for lending in (gpu.board.lending for gpu in host.gpus if gpu.board.lending):
        if wanted in dict(lending.types):
            abi.put_text(buffer, abi.target(size), dict(lending.types)[wanted])
            return
    raise abi.RefusedError(abi.INVALID_ARGUMENT)


def nvmlDeviceGetGridLicensableFeatures_v4(host: machine.Machine, device: Any, features: Any) -> None:
    licence = scope.whole_gpu_of(host, device).board.licence
    found = abi.target(features)
    found.isGridLicenseSupported, found.licensableFeaturesCount = int(bool(licence)), int(bool(licence))
    if licence:
        one = found.gridLicensableFeatures[0]
        one.featureCode, one.featureEnabled, one.featureState = _COMPUTE_FEATURE, 1, int(licence == "licensed")
        one.productName = _PRODUCT
        one.licenseExpiry.status = _PERMANENT if licence == "licensed" else 0
