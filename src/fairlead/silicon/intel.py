"""Reads Intel GPUs from sysfs: the i915 and xe drivers' DRM devices.

One scan is one pass over `/sys/class/drm` in a thread. A physical function whose virtual functions are in use is left
out, because they are what is given away. Intel reports no events this way: watchers wait, and rescans notice.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Final

from fairlead.model.driver import DriverFiles, Module
from fairlead.model.gpu import GPU, Driver, GPUHealth, Inventory, Link, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.silicon.pci import devnode, pci, vitals

_VENDOR_ID: Final = 0x8086
_DRIVERS: Final = ("i915", "xe")
_CARD: Final = re.compile(r"card\d+")
_NAMES: Final = {
    0x0BD5: "Intel Data Center GPU Max 1550",
    0x0BDA: "Intel Data Center GPU Max 1100",
    0x56C0: "Intel Data Center GPU Flex 170",
    0x56C1: "Intel Data Center GPU Flex 140",
    0x56A0: "Intel Arc A770",
    0xE20B: "Intel Arc B580",
}
_MEMORY_FILES: Final = ("lmem_total_bytes", "tile0/vram0/size", "drm/{card}/lmem_total_bytes")


def _list_cards(root: Path) -> list[tuple[str, Path]]:
    """Return (PCI address, device folder) of every Intel GPU to give away, in address order."""
    found = {}
    base = root / "sys/class/drm"
    for card in base.iterdir() if base.is_dir() else ():
        folder = card / "device"
        if not _CARD.fullmatch(card.name) or pci.read_int(folder / "vendor") != _VENDOR_ID:
            continue
        address = folder.resolve().name
        if pci.driver_of(root, address) in _DRIVERS and not pci.read_int(folder / "sriov_numvfs"):
            found[address] = folder
    return sorted(found.items())


def _version(root: Path) -> str:
    return pci.read_text(root / "proc/sys/kernel/osrelease") or "unknown"


def scan(root: Path) -> Inventory:
    """Read every GPU now. Args: root: where /dev, /proc and /sys lie."""
    gpus: list[GPU] = []
    unreadable: list[UnreadableGPU] = []
    for index, (address, folder) in enumerate(_list_cards(root)):
        gpu = _read(root, address, folder, index)
        if isinstance(gpu, GPU):
            gpus.append(gpu)
        else:
            unreadable.append(gpu)
    if not gpus and not unreadable:
        return Inventory()
    return Inventory(
        gpus=tuple(gpus),
        unreadable=tuple(unreadable),
        links=tuple(
            Link(a=a.uuid, b=b.uuid, kind=pci.link_kind(root, a.pci_bus_id, b.pci_bus_id))
            for a, b in itertools.combinations(gpus, 2)
        ),
        drivers=(Driver(vendor=Vendor.INTEL, version=_version(root)),),
    )


def _read(root: Path, address: str, folder: Path, index: int) -> GPU | UnreadableGPU:
    if vitals.is_gone(folder):
        return vitals.fallen(address, index)
    renders = sorted(path.name for path in (folder / "drm").glob("renderD*"))
    device = pci.read_int(folder / "device")
    if not renders or device is None:
        return UnreadableGPU(
            index=index,
            pci_bus_id=address,
            uuid=GPUUUID(address),
            reason="Unreadable",
            message=f"sysfs of {address} has no render node (see dmesg for i915 and xe messages)",
        )
    return GPU(
        uuid=GPUUUID(address),
        vendor=Vendor.INTEL,
        index=index,
        minor=int(renders[0].removeprefix("renderD")),
        pci_bus_id=pci.normalise(address),
        name=_NAMES.get(device, f"Intel GPU 0x{device:04x}"),
        memory_bytes=_memory(folder),
        numa_node=pci.numa_node(root, address),
        nics=pci.list_near_nics(root, address),
        kernel_driver=pci.driver_of(root, address) or "",
        device_nodes=tuple(pci.list_drm_nodes(root, address)),
        health=_health(folder),
    )


def _memory(folder: Path) -> int:
    """Local memory in bytes; 0 for a GPU that uses the machine's, or where the driver does not report it."""
    card = next((path.name for path in sorted((folder / "drm").glob("card*"))), "card0")
    sizes = (pci.read_int(folder / name.format(card=card)) for name in _MEMORY_FILES)
    return next((size for size in sizes if size), 0)


def _health(folder: Path) -> GPUHealth:
    temperature, limit = vitals.read_temperature(folder)
    return GPUHealth(temperature_c=temperature, limit_c=limit)


def scan_driver(root: Path) -> DriverFiles | None:
    """Read device nodes and modules; None where there is no trace of the driver."""
    cards = _list_cards(root)
    if not cards:
        return None
    paths = [root / name.lstrip("/") for address, _ in cards for name in pci.list_drm_nodes(root, address)]
    nodes = [node for path in paths if (node := devnode.read_node(root, path)) is not None]
    bound = {pci.driver_of(root, address) for address, _ in cards}
    problems = () if nodes else ("no render node /dev/dri/renderD*: is udev running?",)
    return DriverFiles(
        vendor=Vendor.INTEL,
        version=_version(root),
        nodes=tuple(nodes),
        modules=tuple(Module(name=name, is_loaded=True) for name in _DRIVERS if name in bound),
        problems=problems,
    )
