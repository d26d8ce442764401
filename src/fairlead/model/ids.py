"""Declares identifiers that must not be mixed up."""

from __future__ import annotations

from typing import NewType

GPUUUID = NewType("GPUUUID", str)
"""`GPU-…` as NVML prints it; for AMD and Intel the PCI address stands in, `tegra` and `all` where there is no NVML."""
MIGUUID = NewType("MIGUUID", str)
"""`MIG-…` as NVML prints it."""
DeviceID = NewType("DeviceID", str)
"""What a device plugin advertises: a GPU's uuid, a MIG device's uuid, or a replica `ID::N`."""
PodUID = NewType("PodUID", str)
NodeName = NewType("NodeName", str)
