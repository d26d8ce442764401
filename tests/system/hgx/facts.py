"""What a test asks of the kernel in the node's machine; packed as a module, called by name. Nothing of Fairlead."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

FUNCTIONS = Path("/sys/bus/pci/devices")
GROUPS = Path("/sys/kernel/iommu_groups")


def functions() -> dict[str, dict[str, Any]]:
    """Return what sysfs has of each function, by address."""
    return {path.name: _function(path) for path in sorted(FUNCTIONS.iterdir())}


def _function(path: Path) -> dict[str, Any]:
    names = ("vendor", "device", "class", "subsystem_device", "numa_node", "current_link_speed", "current_link_width")
    told = {name: (path / name).read_text().strip() for name in names if (path / name).exists()}
    methods = path / "reset_method"
    return {
        **told,
        "group": _name(path / "iommu_group"),
        "driver": _name(path / "driver"),
        "bridge": path.resolve().parent.name,
        "resets": methods.read_text().split() if methods.exists() else [],
    }


def _name(link: Path) -> str:
    return link.readlink().name if link.is_symlink() else ""


def groups() -> dict[str, list[str]]:
    return {path.name: sorted(os.listdir(path / "devices")) for path in GROUPS.iterdir()}  # noqa: PTH208 - names


def word(address: str, offset: int, bar: int = 0) -> int:
    """Read a register of a function by sysfs; its memory space is enabled for that."""
    return int.from_bytes(read(address, offset, 4, bar), "little")


def read(address: str, offset: int, size: int, bar: int = 0) -> bytes:
    with _mapped(address, offset, bar) as window:
        start = offset % mmap.PAGESIZE
        words = range(start, start + size, 4)
        return b"".join(struct.pack("<I", memoryview(window).cast("I")[at // 4]) for at in words)[:size]


def write(address: str, offset: int, data: str, bar: int = 0) -> None:
    """Write text, whose length is a multiple of four."""
    with _mapped(address, offset, bar) as window, memoryview(window) as view, view.cast("I") as words:
        first = offset % mmap.PAGESIZE // 4
        for number, (value,) in enumerate(struct.iter_unpack("<I", data.encode())):
            words[first + number] = value


def text(address: str, offset: int, size: int, bar: int = 0) -> str:
    return read(address, offset, size, bar).decode(errors="replace")


def _mapped(address: str, offset: int, bar: int) -> mmap.mmap:
    path = FUNCTIONS / address
    if (path / "enable").read_text().strip() == "0":
        (path / "enable").write_text("1")
    descriptor = os.open(path / f"resource{bar}", os.O_RDWR | os.O_SYNC)
    try:
        return mmap.mmap(descriptor, mmap.PAGESIZE, offset=offset - offset % mmap.PAGESIZE)
    finally:
        os.close(descriptor)


def vital_data(address: str) -> str:
    """Return vital product data, as far as the kernel finds any."""
    return (FUNCTIONS / address / "vpd").read_bytes().decode("latin-1")


def serial_number(address: str) -> int | None:
    """Return the serial number of a function's extended capability 3; None: it has none."""
    space = (FUNCTIONS / address / "config").read_bytes()
    at = 0x100
    while at and len(space) > at:
        (head,) = struct.unpack_from("<I", space, at)
        if head & 0xFFFF == 3:
            (serial,) = struct.unpack_from("<Q", space, at + 4)
            return int(serial)
        at = head >> 20
    return None


def bind(address: str, driver: str = "vfio-pci") -> str:
    """Bind a function by `driver_override`; returns the driver that it has then."""
    path = FUNCTIONS / address
    (path / "driver_override").write_text(f"{driver}\n")
    if (path / "driver").exists():
        (path / "driver/unbind").write_text(address)
    Path("/sys/bus/pci/drivers_probe").write_text(address)
    return _name(path / "driver")


def unbind(address: str) -> None:
    path = FUNCTIONS / address
    if (path / "driver").exists():
        (path / "driver/unbind").write_text(address)
    (path / "driver_override").write_text("\n")


def reset(address: str, method: str) -> str:
    """Reset a function by sysfs and one method; returns "" or the error's name."""
    path = FUNCTIONS / address
    usual = (path / "reset_method").read_text()
    try:
        (path / "reset_method").write_text(method)
        (path / "reset").write_text("1")
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]
    finally:
        (path / "reset_method").write_text(usual)
    return ""


def wait_for_word(address: str, offset: int, value: int, limit_s: float) -> float:
    """Return after how many seconds a register had a value; -1: never within the limit."""
    begun = time.monotonic()
    while time.monotonic() < begun + limit_s:
        if word(address, offset) == value:
            return time.monotonic() - begun
        time.sleep(0.02)
    return -1
