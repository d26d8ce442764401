"""Reads what NVML says of vGPUs: the licences of a GPU that a hypervisor lends, and the types that a board can lend.

A licence is leased by the guest's driver, so a machine that lends vGPUs cannot say whether they have one.
Source: nvml.h, nvmlDeviceGetGridLicensableFeatures_v4, nvmlDeviceGetSupportedVgpus; NVIDIA Virtual GPU Client Licensing
User Guide.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.model.gpu import Licence
from fairlead.silicon.nvidia import binding

LENT_BRANDS: Final = frozenset({7, 8, 9, 10, 11})
"""Brands of GPUs that need a licence: NVIDIA's virtual applications, PC, compute server, workstation and gaming."""
_PERMANENT, _VALID = 4, 2
"""Source: nvml.h, NVML_GRID_LICENSE_EXPIRY_*."""


def read(nvml: binding.Binding, handle: Any) -> tuple[Licence, ...] | None:
    """Return the features that a licence enables and that the GPU is set up for; None: the driver does not say."""
    found = nvml.reading("nvmlDeviceGetGridLicensableFeatures_v4", handle)
    if found is None or not found.isGridLicenseSupported:
        return None
    features = found.gridLicensableFeatures[: min(found.licensableFeaturesCount, len(found.gridLicensableFeatures))]
    return tuple(
        Licence(
            product=str(one.productName or one.licenseInfo),
            is_licensed=bool(one.featureState),
            expires=_expiry(one.licenseExpiry),
        )
        for one in features
        if one.featureEnabled or one.featureState
    )


def _expiry(expiry: Any) -> str:
    if expiry.status == _PERMANENT:
        return "permanent"
    if expiry.status != _VALID:
        return ""
    date = f"{expiry.year:04d}-{expiry.month:02d}-{expiry.day:02d}"
    return f"{date} {expiry.hour:02d}:{expiry.min:02d}:{expiry.sec:02d}"


def list_types(nvml: binding.Binding, handle: Any) -> tuple[tuple[int, str], ...]:
    """Return the types of vGPUs that a board can lend, by number and name; the list stays whole while it lends."""
    numbers = nvml.reading("nvmlDeviceGetSupportedVgpus", handle) or ()
    named = ((int(number), nvml.reading("nvmlVgpuTypeGetName", number)) for number in numbers)
    return tuple((number, " ".join(name.split())) for number, name in named if name)
