"""Reads IOMMU groups from sysfs: which functions a group has, and which of them make it unusable for passthrough.

The group, not the function, is what the hardware can isolate. So VFIO hands a container or a virtual machine a whole
group, and only while it is *viable*: every function in it is bound to a VFIO driver, to nothing, or to a driver that
does no DMA of its own (bridges, `pci-stub`). Binding one function of a group succeeds all the same; it is the user of
the node who would find out. Who binds and unbinds is not decided here.
Source: kernel Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.model import vfio as passthrough
from fairlead.silicon.pci import pci, vfio


def is_vfio(driver: str | None) -> bool:
    """Return whether a driver is VFIO's or a vendor's variant (`nvgrace_gpu_vfio_pci`). Args: driver: None: unbound."""
    return driver is not None and passthrough.is_vfio(driver)


def group_of(root: Path, address: str) -> str | None:
    """Return the number of a function's group; None: no IOMMU translates for it."""
    return vfio.group_of(pci.folder(root, address)) or None


def list_members(root: Path, group: str) -> list[str]:
    """Return the PCI addresses of a group, in order."""
    folder = root / "sys/kernel/iommu_groups" / group / "devices"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def list_holders(root: Path, group: str) -> list[tuple[str, str]]:
    """Return the functions that keep a group from being viable, each with its driver; none: it is viable."""
    bound = ((address, pci.driver_of(root, address) or "") for address in list_members(root, group))
    members = [passthrough.GroupMember(address=address, driver=name) for address, name in bound]
    return [(one.address, one.driver) for one in members if one.is_in_the_way]


def list_bindings(root: Path) -> list[tuple[str, str | None]]:
    """Return every function of the groups that VFIO has a part of, with its driver: what viability depends on."""
    drivers = root / "sys/bus/pci/drivers"
    names = [path.name for path in drivers.iterdir() if is_vfio(path.name)] if drivers.is_dir() else []
    bound = {path.name for name in names for path in (drivers / name).glob("*:*")}
    groups = {group for address in bound if (group := group_of(root, address))}
    members = sorted(bound.union(*(list_members(root, group) for group in groups)))
    return [(address, pci.driver_of(root, address)) for address in members]
