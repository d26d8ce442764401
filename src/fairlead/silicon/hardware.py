"""Joins the silicon of every vendor that this machine may have."""

from __future__ import annotations

from fairlead import settings
from fairlead.silicon import amd, composite, intel
from fairlead.silicon.nvidia import driver, nvml


def open_hardware(chosen: settings.SiliconSettings) -> composite.CompositeSilicon:
    """Return this machine's hardware, without reading any of it yet."""
    nvidia = nvml.NVMLSilicon(
        chosen.root, chosen.driver_root, call_timeout_s=chosen.call_timeout_s, search=driver.search_of(chosen)
    )
    return composite.CompositeSilicon([nvidia, amd.AMDSilicon(chosen.root), intel.IntelSilicon(chosen.root)])
