"""Reads PCI devices from sysfs: addresses, attributes, and how near two devices are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.model.gpu import LinkKind

_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302", "0x0380")


def normalise(address: str) -> str:
    """Return `domain:bus:device.function` in lower case with a four-digit domain, longer only where it must be."""
    domain, rest = address.strip().lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def folder(root: Path, address: str) -> Path:
    """Return the device's sysfs folder."""
    return root / "sys/bus/pci/devices" / address


def read_text(path: Path) -> str | None:
    """Return a sysfs attribute without its newline; None where it is absent or does not answer."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return a numeric sysfs attribute, decimal or 0x hexadecimal; None where there is none."""
    text = read_text(path)
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def numa_node(root: Path, address: str) -> int | None:
    """Return the NUMA node; None where the kernel says -1 or nothing."""
    node = read_int(folder(root, address) / "numa_node")
    return node if node is not None and node >= 0 else None


def root_complex(root: Path, address: str) -> str:
    """Return the root complex above the device, `pci0000:00`; empty where sysfs does not show one.

    Source: Linux, Documentation/PCI/sysfs-pci.rst: `/sys/bus/pci/devices` links into `/sys/devices/pciDDDD:BB`.
    """
    parts = folder(root, address).resolve().parts
    return next((part for part in parts if _ROOT_COMPLEX.fullmatch(part)), "")


def pci_class(root: Path, address: str) -> int | None:
    """Return class, subclass and programming interface as one number; None where sysfs does not show it."""
    return read_int(folder(root, address) / "class")


def list_displays(root: Path, vendor: int) -> Iterator[str]:
    """Yield the addresses of a vendor's display controllers (VGA, 3D, other), in address order."""
    base = root / "sys/bus/pci/devices"
    for path in sorted(base.iterdir()) if base.is_dir() else ():
        kind = read_text(path / "class") or ""
        if read_int(path / "vendor") == vendor and kind.startswith(_DISPLAY_CLASSES):
            yield path.name


def is_virtual_function(root: Path, address: str) -> bool:
    """Return whether a function is an SR-IOV virtual one of another."""
    return (folder(root, address) / "physfn").is_symlink()


def driver_of(root: Path, address: str) -> str | None:
    """Return the kernel driver bound to the device."""
    link = folder(root, address) / "driver"
    return link.readlink().name if link.is_symlink() else None


def list_drm_nodes(root: Path, address: str) -> list[str]:
    """Return `/dev/dri/…` paths of the device that are there, in order: card, then render node."""
    return list_nodes(root, folder(root, address) / "drm")


def list_nodes(root: Path, base: Path) -> list[str]:
    """Return the same of the folder in sysfs that names the nodes."""
    names = sorted(path.name for path in base.iterdir()) if base.is_dir() else []
    wanted = [name for name in names if name.startswith(("card", "renderD"))]
    return [f"/dev/dri/{name}" for name in wanted if (root / "dev/dri" / name).exists()]


def list_near_nics(root: Path, address: str) -> tuple[str, ...]:
    """Return the RDMA devices on a device's PCIe switch, `mlx5_0`: what they send need not pass the host bridge.

    Source: Documentation/ABI/stable/sysfs-class-infiniband; `device` leads to the network card's own PCI device.
    """
    base = root / "sys/class/infiniband"
    names = sorted(path.name for path in base.iterdir()) if base.is_dir() else []
    cards = ((name, (base / name / "device").resolve().name) for name in names)
    return tuple(name for name, card in cards if link_kind(root, address, card) is LinkKind.SINGLE_SWITCH)


def link_kind(root: Path, one: str, other: str) -> LinkKind:
    """Return how two devices reach each other over PCIe, from their places in the kernel's device tree.

    A path of the tree is the host bridge followed by every bridge down to the device. Where the tree does not say,
    the NUMA nodes decide, and without those the answer is the farthest.
    """
    a, b = (folder(root, address).resolve().parts for address in (one, other))
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    bridges = [part for part in a[:common] if part.startswith("pci") or ":" in part]
    if bridges and bridges[0].startswith("pci"):
        below = max(len(a), len(b)) - common - 1
        if len(bridges) == 1:
            return LinkKind.HOST_BRIDGE
        return LinkKind.SINGLE_SWITCH if below <= 1 else LinkKind.MULTI_SWITCH
    nodes = numa_node(root, one), numa_node(root, other)
    return LinkKind.SAME_NODE if nodes[0] is not None and nodes[0] == nodes[1] else LinkKind.SYSTEM
