"""Reads what passthrough needs of the machine beside its functions: IOMMU, VFIO's nodes and drivers, the kernel's list.

Source: kernel Documentation/driver-api/vfio.rst; modules.alias of kmod, whose lines `alias vfio_pci:v…d… MODULE` name
variant drivers (kernel drivers/vfio/pci, MODULE_DEVICE_TABLE with PCI_DRIVER_OVERRIDE_DEVICE_VFIO).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fairlead.model.gpu import Vendor
from fairlead.model.vfio import PassthroughHost, VariantDriver, is_vfio
from fairlead.silicon.pci import devnode
from fairlead.silicon.vfio import attribute

MODULES: Final = (
    "vfio",
    "vfio_iommu_type1",
    "vfio_pci",
    "vfio_pci_core",
    "iommufd",
    "nouveau",
    "nova_core",
    "nvidia",
    "nvidiafb",
    "amdgpu",
)
_PROCESSORS: Final = {"GenuineIntel": Vendor.INTEL, "AuthenticAMD": Vendor.AMD}
_ALIAS: Final = b"alias vfio_pci:"
_LARGEST: Final = 64 << 20
_LONGEST: Final = 256


def scan(root: Path, base: Path) -> PassthroughHost:
    """Read it. Args: root: has /sys, /proc and /lib/modules.   base: has `dev`."""
    kernel = attribute.find_text(f"{root}/proc/sys/kernel/osrelease")
    drivers = attribute.names(f"{root}/sys/bus/pci/drivers")
    return PassthroughHost(
        iommu_groups=len(attribute.names(f"{root}/sys/kernel/iommu_groups")),
        container_node=devnode.read_node(base, base / "dev/vfio/vfio"),
        iommufd_node=devnode.read_node(base, base / "dev/iommu"),
        kernel=kernel,
        modules=tuple(name for name in MODULES if os.path.isdir(f"{root}/sys/module/{name}")),  # noqa: PTH112
        drivers=tuple(name for name in drivers if is_vfio(name)),
        variants=read_variants(root, kernel),
        processor=_processor(root),
    )


def read_variants(root: Path, kernel: str) -> tuple[VariantDriver, ...] | None:
    """Return the lines of modules.alias that name VFIO's drivers; None: the kernel's list cannot be read."""
    if not kernel or "/" in kernel:
        return None
    for folder in ("lib/modules", "usr/lib/modules"):
        try:
            data = attribute.read(f"{root}/{folder}/{kernel}/modules.alias", size=_LARGEST)
        except OSError:
            continue
        return _parse_alias(data)
    return None


def _parse_alias(data: bytes) -> tuple[VariantDriver, ...]:
    found, at = [], data.find(_ALIAS)
    while at >= 0:
        words = data[at : at + _LONGEST].split(b"\n", 1)[0].decode("ascii", "replace").split()
        if len(words) == 3 and (at == 0 or data[at - 1] == ord("\n")):
            found.append(VariantDriver(pattern=words[1].partition(":")[2], module=words[2]))
        at = data.find(_ALIAS, at + 1)
    return tuple(found)


def _processor(root: Path) -> Vendor | None:
    for line in attribute.find_text(f"{root}/proc/cpuinfo").splitlines():
        if line.startswith("vendor_id"):
            return _PROCESSORS.get(line.partition(":")[2].strip())
    return None
