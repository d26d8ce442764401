"""Finds the nodes by which VFIO hands a device to a user: its IOMMU group's, else its own of the newer interface.

Works on the sysfs folder of any VFIO device: a PCI function or a mediated device.
Source: kernel Documentation/driver-api/vfio.rst, "IOMMUFD and vfio_iommu_type1".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead.model.driver import DeviceNode
from fairlead.silicon.pci import devnode

CONTAINER: Final = "vfio/vfio"
"""Below /dev: what every user of groups opens first."""


def group_of(folder: Path) -> str:
    """Return the number of a device's IOMMU group; empty: it has none."""
    link = folder / "iommu_group"
    return link.readlink().name if link.is_symlink() else ""


def find_nodes(base: Path, folder: Path) -> list[DeviceNode]:
    """Return the nodes that a user of the device needs beside `CONTAINER`; none: it has none.

    Args: base: has `dev`.   folder: of the device in sysfs.
    """
    group = group_of(folder)
    of_group = devnode.find_nodes(base, [f"vfio/{group}"]) if group.isdecimal() else []
    return of_group or _iommufd(base, folder / "vfio-dev")


def _iommufd(base: Path, folder: Path) -> list[DeviceNode]:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = devnode.find_nodes(base, [f"vfio/devices/{name}" for name in names])
    return [*found, *devnode.find_nodes(base, ["iommu"])] if found else []
