"""Declares what is read of a GPU between two tenants: which board it is, its firmware, its link, its error counts."""

from __future__ import annotations

from fairlead.frozen import frozen
from fairlead.model.ids import GPUUUID


@frozen
class Evidence:
    """One reading. None or empty where the device does not report a field; the firmware's own claims are not proved."""

    gpu: GPUUUID
    serial: str = ""
    part: str = ""
    """Board part number, 900-21010-0000-000."""
    device: str = ""
    """PCI device and vendor id as eight hexadecimal digits, 233010de."""
    subsystem: str = ""
    """PCI subsystem id, likewise."""
    pci_bus_id: str = ""
    vbios: str = ""
    """96.00.74.00.01."""
    inforom: str = ""
    """Version of the InfoROM's image, G520.0200.00.05."""
    driver: str = ""
    link_width: int | None = None
    """PCIe lanes in use."""
    link_width_max: int | None = None
    """PCIe lanes that board and slot have."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded, or the GPU reset."""
    ecc_mode: bool | None = None
    ecc_mode_pending: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None

    @property
    def board(self) -> str:
        """Key of the board model under which a baseline is kept: device, subsystem and part number."""
        return "-".join(one for one in (self.device, self.subsystem, self.part) if one)
