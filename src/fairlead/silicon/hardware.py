"""Joins the silicon of every vendor that this machine may have."""

from __future__ import annotations

from pathlib import Path

from fairlead import settings
from fairlead.silicon import amd, composite, intel
from fairlead.silicon.nvidia import driver, nvml
from fairlead.silicon.nvidia.attest import inspector
from fairlead.silicon.pci import sysfs


def open_hardware(chosen: settings.SiliconSettings) -> composite.CompositeSilicon:
    """Return this machine's hardware, without reading any of it yet."""
    nvidia = nvml.NVMLSilicon(
        chosen.root,
        chosen.driver_root,
        call_timeout_s=chosen.call_timeout_s,
        search=driver.search_of(chosen),
        scrub=inspector.program(chosen.scrub_program),
    )
    return composite.CompositeSilicon([nvidia, open_amd(chosen.root), open_intel(chosen.root)])


def open_amd(root: Path) -> sysfs.SysfsSilicon:
    """Return AMD's GPUs. Args: root: where /dev, /proc and /sys lie."""
    return sysfs.SysfsSilicon(root, amd.scan, amd.scan_driver)


def open_intel(root: Path) -> sysfs.SysfsSilicon:
    """Return Intel's GPUs. Args: as `open_amd`."""
    return sysfs.SysfsSilicon(root, intel.scan, intel.scan_driver)
