"""Which silicon this process looks at: simulated where settings say so, else every vendor's that may be there."""

from __future__ import annotations

from pathlib import Path

from fairlead import settings
from fairlead.model.gpu import Inventory
from fairlead.silicon import amd, composite, intel, nvml, pci, port
from fairlead.silicon.sim import silicon


def open_silicon(chosen: settings.SiliconSettings, folder: Path) -> port.Silicon:
    """Return this machine's silicon, without reading any hardware yet.

    A simulated one also implements `port.Faults`.

    Args:    folder: where simulated silicon keeps its device tree and state; untouched for real hardware.
    Raises:  Invalid: no such profile.   Unavailable: the simulated device tree cannot be made.
    """
    if chosen.simulate:
        return silicon.SimulatedSilicon(folder, chosen.simulate, call_timeout_s=chosen.call_timeout_s)
    return composite.CompositeSilicon(
        [
            nvml.NVMLSilicon(chosen.root, chosen.driver_root, call_timeout_s=chosen.call_timeout_s),
            amd.AMDSilicon(chosen.root),
            intel.IntelSilicon(chosen.root),
        ]
    )


def has_any(inventory: Inventory) -> bool:
    """Whether there is any GPU, readable or not."""
    return bool(inventory.gpus or inventory.unreadable)


def product_name(root: Path) -> str:
    """Return what the machine's firmware calls it, `DGX H100`; empty where it does not tell. Source: SMBIOS type 1."""
    return pci.read_text(root / "sys/class/dmi/id/product_name") or ""
