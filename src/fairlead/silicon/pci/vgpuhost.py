"""Finds the vGPUs that this machine lends to guests, and which GPUs can lend more, from sysfs.

NVIDIA's vGPU manager offers them in two ways, and a machine may have either:

- mediated devices (kernels before 6.8, and boards without SR-IOV): each is a folder of /sys/bus/mdev/devices, named by
  its UUID, with its type and its IOMMU group. What can be created is in /sys/class/mdev_bus.
- SR-IOV virtual functions with NVIDIA's own VFIO driver (vGPU 17 and later on newer kernels): the function stays bound
  to `nvidia`, and `nvidia/current_vgpu_type` says which type it has; 0 is none. Names of types are in
  `creatable_vgpu_types`, which lists what can still be created and so is empty on a GPU that is all lent out: every
  function of the board is read, and what no file names is left to NVML.

A type's number means something on its own board only, so names are never borrowed from another.
Source: kernel Documentation/driver-api/vfio-mediated-device.rst and ABI/testing/sysfs-bus-pci (sriov_numvfs, physfn);
NVIDIA Virtual GPU Software User Guide, "Creating an NVIDIA vGPU on a Linux with KVM Hypervisor".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.model.driver import VGPU, VGPULender
from fairlead.silicon.pci import iommu, pci, vfio

_VENDOR: Final = 0x10DE
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LISTED: Final = re.compile(r"\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*")
_NO_NODE: Final = "it has neither /dev/vfio/{group} nor /dev/vfio/devices/: modprobe vfio"
_MDEV_CLASS: Final = "sys/class/mdev_bus"


def list_vgpus(root: Path, base: Path) -> list[VGPU]:
    """Return every vGPU, mediated devices first, each kind in the order of its names.

    Args: root: has /sys.   base: has `dev`.
    """
    return [*_mediated(root, base), *_functions(root, base)]


def may_lend(root: Path, address: str) -> bool:
    """Return whether a board's driver has the files of either way, so that NVML is worth asking for its types."""
    folder = pci.folder(root, address)
    return any((folder / name).exists() for name in ("mdev_supported_types", "virtfn0", "nvidia"))


def list_lenders(root: Path) -> list[VGPULender]:
    """Return the GPUs that can lend vGPUs, in address order."""
    creatable: dict[str, dict[str, int | None]] = {}
    for folder in _entries(root / _MDEV_CLASS):
        if pci.read_int(folder / "vendor") == _VENDOR:
            address = _physical(folder.resolve())
            kinds = creatable.setdefault(address, {})
            for kind in _entries(folder / "mdev_supported_types"):
                if (name := _name(kind / "name")) and (left := pci.read_int(kind / "available_instances")):
                    # Each virtual function says 1 as long as the board has room for one more at all.
                    kinds[name] = left if folder.name == address else None
    for folder in _boards(root):
        catalogue = _listed(folder)
        if catalogue is not None:
            kinds = creatable.setdefault(_physical(folder), {})
            for name in catalogue.values():
                kinds.setdefault(name, None)
    return [
        VGPULender(
            address=address,
            functions=pci.read_int(pci.folder(root, address) / "sriov_numvfs"),
            most_functions=pci.read_int(pci.folder(root, address) / "sriov_totalvfs"),
            creatable=tuple(kinds.items()),
        )
        for address, kinds in sorted(creatable.items())
    ]


def _mediated(root: Path, base: Path) -> Iterator[VGPU]:
    for folder in _entries(root / "sys/bus/mdev/devices"):
        parent = folder.resolve().parent
        if not _UUID.fullmatch(folder.name) or pci.read_int(parent / "vendor") != _VENDOR:
            continue
        kind, nodes = folder / "mdev_type", vfio.find_nodes(base, folder)
        number = kind.resolve().name.rpartition("-")[2]
        group = vfio.group_of(folder)
        yield VGPU(
            id=folder.name,
            parent=_physical(parent),
            type=_name(kind / "name"),
            type_id=int(number) if number.isdecimal() and len(number) < 10 else None,
            group=group,
            numa_node=pci.numa_node(root, parent.name),
            nodes=tuple(nodes),
            problem="" if nodes else _NO_NODE.format(group=group or "GROUP"),
        )


def _functions(root: Path, base: Path) -> Iterator[VGPU]:
    catalogues: dict[str, dict[int, str]] = {}
    lent: list[tuple[Path, str, int]] = []
    for folder in _boards(root):
        parent = _physical(folder)
        for number, name in (_listed(folder) or {}).items():
            catalogues.setdefault(parent, {}).setdefault(number, name)
        current = pci.read_int(folder / "nvidia/current_vgpu_type")
        if current is not None and current > 0 and parent != folder.name:
            lent.append((folder, parent, current))
    for folder, parent, current in lent:
        nodes, group = vfio.find_nodes(base, folder), vfio.group_of(folder)
        holders = [
            f"{each} is bound to {name}" for each, name in iommu.list_holders(root, group) if each != folder.name
        ]
        problem = "" if nodes else _NO_NODE.format(group=group or "GROUP")
        if holders:
            problem = f"its IOMMU group {group} is not viable while {', '.join(holders)}; unbind it"
        yield VGPU(
            id=folder.name,
            parent=parent,
            type=catalogues.get(parent, {}).get(current, ""),
            type_id=current,
            group=group,
            numa_node=pci.numa_node(root, folder.name),
            nodes=tuple(nodes),
            problem=problem,
        )


def _boards(root: Path) -> Iterator[Path]:
    """Yield the folders of NVIDIA's functions that have the newer framework's files."""
    for folder in _entries(root / "sys/bus/pci/devices"):
        if (
            (folder / "nvidia").is_dir()
            and _ADDRESS.fullmatch(folder.name)
            and pci.read_int(folder / "vendor") == _VENDOR
        ):
            yield folder


def _physical(folder: Path) -> str:
    """Return the address of a function's board: of a virtual function its physical one's."""
    link = folder / "physfn"
    return link.readlink().name if link.is_symlink() else folder.name


def _listed(folder: Path) -> dict[int, str] | None:
    """Return the names of types that a function can still be given, by number; None: it has no such file."""
    text = pci.read_text(folder / "nvidia/creatable_vgpu_types")
    if text is None:
        return None
    found = (_LISTED.fullmatch(line) for line in text.splitlines())
    return {int(match.group(1)): " ".join(match.group(2).split()) for match in found if match}


def _name(path: Path) -> str:
    return " ".join((pci.read_text(path) or "").split())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
