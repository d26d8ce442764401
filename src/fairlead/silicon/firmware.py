"""Reads what a machine's firmware says about the machine, under an injectable root."""

from __future__ import annotations

from pathlib import Path

from fairlead.silicon.pci import pci


def product_name(root: Path) -> str:
    """Return what the vendor calls the machine, `DGX H100`; empty where it is not known.

    Source: SMBIOS System Information (type 1), as Linux shows it in /sys/class/dmi/id.
    """
    return pci.read_text(root / "sys/class/dmi/id/product_name") or ""
