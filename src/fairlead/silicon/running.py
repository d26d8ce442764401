"""Reads what runs on this machine now, and fingerprints all that its CDI specs depend on. No driver is asked.

/proc and /sys send no events when they change, so the fingerprint is what a watcher compares from time to time. It
costs a few milliseconds: nothing is opened that need not be, and libraries count by their folders' times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.gpu import Vendor
from fairlead.silicon.nvidia.files import driver, library
from fairlead.silicon.pci import devnode, iommu, pci, vgpuhost

_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_MODULES: Final = {Vendor.AMD: ("amdgpu",), Vendor.INTEL: ("i915", "xe")}
_TEXTS: Final = ("proc/driver/nvidia/version", "proc/driver/nvidia-caps/mig-minors")
_NODES: Final = (
    "nvidia*",
    "nvidia-caps/*",
    "nvidia-caps-imex-channels/*",
    "dri/*",
    "kfd",
    "dxg",
    "gdrdrv",
    "infiniband/*",
    "vfio/*",
    "vfio/devices/*",
    "nvhost-*",
    "nvmap",
)
_TREES: Final = (
    "proc/driver/nvidia/capabilities/gpu*/mig/gi*/**/access",
    "proc/driver/nvidia/gpus/*",
    "sys/bus/pci/drivers/nvidia/*:*",
    "sys/bus/pci/drivers/amdgpu/*:*",
    "sys/bus/pci/drivers/i915/*:*",
    "sys/bus/pci/drivers/xe/*:*",
)
_NOTED: Final = ("nvidia", "amdgpu", "i915", "xe", "vfio", "gdrdrv")


@frozen
class Running:
    """The kernel's boot and the drivers that are loaded in it."""

    boot_id: str
    """Empty: the kernel does not say."""
    versions: dict[str, str]
    """By vendor (`Vendor.value`)."""


def read_running(root: Path) -> Running:
    """Read both below a root; a root without the kernel's files has this machine's boot."""
    boot_id = pci.read_text(root / _BOOT_ID) or pci.read_text(Path("/", _BOOT_ID)) or ""
    versions = {Vendor.NVIDIA.value: driver.kernel_version(root) or ""}
    release = pci.read_text(root / "proc/sys/kernel/osrelease") or ""
    for vendor, names in _MODULES.items():
        loaded = [root / "sys/module" / name for name in names if (root / "sys/module" / name).is_dir()]
        if loaded:
            versions[vendor.value] = pci.read_text(loaded[0] / "version") or release
    return Running(boot_id=boot_id, versions={vendor: text for vendor, text in versions.items() if text})


def fingerprint(root: Path, driver_root: Path, search: driver.Search = driver.EVERYWHERE_USUAL) -> object:
    """Return a value that differs when modules, nodes, MIG instances, boards, bindings or driver files have changed."""
    base = library.base_of(root, driver_root)
    dev = root if search.dev_root is None else library.base_of(root, search.dev_root)
    return (
        tuple(pci.read_text(root / name) for name in _TEXTS),
        tuple(driver.list_majors(root)),
        tuple(_modules(root)),
        tuple((node.path, node.major, node.minor, node.mode) for node in devnode.find_nodes(dev, _NODES)),
        tuple(iommu.list_bindings(root)),
        tuple((one.id, one.type_id) for one in vgpuhost.list_vgpus(root, dev)),
        tuple(sorted(str(path) for pattern in _TREES for path in root.glob(pattern))),
        tuple(_times(itertools.chain(library.list_folders(base, search.libraries), (base / "etc/ld.so.cache",)))),
    )


def _modules(root: Path) -> Iterator[str]:
    for line in (pci.read_text(root / "proc/modules") or "").splitlines():
        name = line.partition(" ")[0]
        if name.startswith(_NOTED):
            yield name


def _times(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    for path in paths:
        try:
            yield str(path), path.stat().st_mtime_ns
        except OSError:
            continue
