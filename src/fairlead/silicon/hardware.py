"""Joins the silicon of every vendor that this machine may have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import settings
from fairlead.silicon import amd, composite, integrated, intel, port
from fairlead.silicon.nvidia import inspector, nvml
from fairlead.silicon.nvidia.files import driver, modefiles
from fairlead.silicon.pci import sysfs

_PLATFORMS: Final = {"nvml": "nvml", "tegra": "csv", "wsl": "wsl"}
"""By `silicon.discovery`; what is not there is found out."""


def open_hardware(chosen: settings.SiliconSettings) -> composite.CompositeSilicon:
    """Return this machine's hardware; of it nothing but its platform is read yet."""
    return composite.CompositeSilicon([open_nvidia(chosen), open_amd(chosen.root), open_intel(chosen.root)])


def open_nvidia(chosen: settings.SiliconSettings) -> port.SampledSilicon:
    """Return NVIDIA's GPUs, by NVML or, on Tegra and under Windows, by the files that stand in for it."""
    search = driver.search_of(chosen)
    platform = _PLATFORMS.get(chosen.discovery) or modefiles.detect_platform(chosen.root, chosen.driver_root)
    if platform in integrated.DEVICES:
        place = modefiles.Place(root=chosen.root, driver_root=chosen.driver_root, search=search)
        return integrated.open_integrated(platform, place)
    return nvml.NVMLSilicon(
        chosen.root,
        chosen.driver_root,
        call_timeout_s=chosen.call_timeout_s,
        search=search,
        scrub=inspector.program(chosen.scrub_program),
    )


def open_amd(root: Path) -> sysfs.SysfsSilicon:
    """Return AMD's GPUs. Args: root: where /dev, /proc and /sys lie."""
    return sysfs.SysfsSilicon(root, amd.scan, amd.scan_driver)


def open_intel(root: Path) -> sysfs.SysfsSilicon:
    """Return Intel's GPUs. Args: as `open_amd`."""
    return sysfs.SysfsSilicon(root, intel.scan, intel.scan_driver)
