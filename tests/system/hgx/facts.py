"""What a test asks of the kernel in the node's machine; packed as a module, called by name. Nothing of Fairlead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FUNCTIONS = Path("/sys/bus/pci/devices")
GROUPS = Path("/sys/kernel/iommu_groups")
COMMAND, MEMORY_ENABLED, GONE = 0x04, 0x2, 0xFFFF
BIND_IOMMUFD = ord(";") << 8 | 100 + 18


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
    """Read a register of a function by sysfs."""
    return int.from_bytes(read(address, offset, 4, bar), "little")


def read(address: str, offset: int, size: int, bar: int = 0) -> bytes:
    with _mapped(address, offset, bar) as window:
        start = offset % mmap.PAGESIZE
        with memoryview(window) as view, view.cast("I") as words:
            return b"".join(struct.pack("<I", words[at // 4]) for at in range(start, start + size, 4))[:size]


def write(address: str, offset: int, data: str, bar: int = 0) -> None:
    """Write text, whose length is a multiple of four."""
    with _mapped(address, offset, bar) as window, memoryview(window) as view, view.cast("I") as words:
        first = offset % mmap.PAGESIZE // 4
        for number, (value,) in enumerate(struct.iter_unpack("<I", data.encode())):
            words[first + number] = value


def text(address: str, offset: int, size: int, bar: int = 0) -> str:
    return read(address, offset, size, bar).decode(errors="replace")


@contextlib.contextmanager
def _mapped(address: str, offset: int, bar: int) -> Iterator[mmap.mmap]:
    """Map a page of a region, of a function that is awake and answers memory accesses meanwhile.

    A bound function cannot be enabled by the file `enable` (EBUSY), so that is done in its command register.
    """
    path = FUNCTIONS / address
    control = path / "power/control"
    before = control.read_text() if control.exists() else ""
    if before:
        control.write_text("on")
    command = _command(path)
    if command != GONE:
        _command(path, command | MEMORY_ENABLED)
    try:
        descriptor = os.open(path / f"resource{bar}", os.O_RDWR | os.O_SYNC)
        try:
            window = mmap.mmap(descriptor, mmap.PAGESIZE, offset=offset - offset % mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        with window:
            yield window
    finally:
        if command != GONE:
            _command(path, command)
        if before:
            control.write_text(before)


def _command(path: Path, value: int | None = None) -> int:
    """Read a function's command register, after writing it if there is a value."""
    with (path / "config").open("r+b", buffering=0) as config:
        if value is not None:
            config.seek(COMMAND)
            config.write(value.to_bytes(2, "little"))
        config.seek(COMMAND)
        return int.from_bytes(config.read(2), "little")


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


def reset_takes(address: str, method: str) -> float:
    """Reset a function; returns the seconds that the kernel took."""
    begun = time.monotonic()
    problem = reset(address, method)
    if problem:
        raise OSError(problem)
    return time.monotonic() - begun


def report_error(address: str, correctable: int, uncorrectable: int) -> None:
    """Have a function report an error, by the bits of its status registers; its port's driver sees no difference.

    Source: Linux, Documentation/PCI/pcieaer-howto.rst, "Software error injection"; drivers/pci/pcie/aer_inject.c.
    """
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    place = (int(bus, 16), int(device, 16), int(function, 16))
    error = struct.pack("<BBBx7I", *place, uncorrectable, correctable, 0, 0, 0, 0, int(domain, 16))
    Path("/dev/aer_inject").write_bytes(error)


def error_counts(address: str) -> dict[str, int]:
    """Return how many errors of each kind the kernel has counted for a function."""
    found = {}
    for kind in ("correctable", "nonfatal", "fatal"):
        text = (FUNCTIONS / address / f"aer_dev_{kind}").read_text()
        found[kind] = int(text.rpartition(" ")[2])
    return found


def wait_for(address: str, is_there: bool, limit_s: float) -> float:
    """Return after how many seconds a function was there, or was not; -1: never within the limit."""
    begun = time.monotonic()
    while time.monotonic() < begun + limit_s:
        if (FUNCTIONS / address).exists() is is_there:
            return time.monotonic() - begun
        time.sleep(0.05)
    return -1


def vsock_loop(port: int) -> str:
    """Send a word to this machine itself over vsock; returns what came."""
    with socket.socket(socket.AF_VSOCK) as listener, socket.socket(socket.AF_VSOCK) as peer:
        listener.bind((socket.VMADDR_CID_ANY, port))
        listener.listen()
        peer.connect((1, port))  # VMADDR_CID_LOCAL
        accepted, _ = listener.accept()
        with accepted:
            peer.sendall(b"word")
            return accepted.recv(8).decode()


def nodes(address: str) -> dict[str, str]:
    """Return the nodes by which VFIO gives a function; "" where the kernel has none."""
    group = _name(FUNCTIONS / address / "iommu_group")
    devices = FUNCTIONS / address / "vfio-dev"
    numbers = os.listdir(devices) if devices.is_dir() else []  # noqa: PTH208 - names
    found = {"group": f"/dev/vfio/{group}", "device": f"/dev/vfio/devices/{numbers[0]}" if numbers else ""}
    return {kind: path if path and Path(path).exists() else "" for kind, path in found.items()}


def holder(address: str) -> dict[str, list[str]]:
    """Return how attempts to have a bound function end while somebody has it, by group and by device.

    Each is "" or the error's name: group held, then the group again and the device; device bound, then the group and
    the device again; at last the group after all that was closed.
    """
    nodes_of = nodes(address)
    with _opened(nodes_of["group"]) as problem:
        told = {"first": [problem], "group held": [_try_group(nodes_of["group"]), _try_bind(nodes_of["device"])]}
    with _bound(nodes_of["device"]) as problem:
        told["device bound"] = [problem, _try_group(nodes_of["group"]), _try_bind(nodes_of["device"])]
    return {**told, "closed": [_try_group(nodes_of["group"])]}


def open_twice(path: str) -> list[str]:
    """Return how opening a node ends, and opening it again meanwhile."""
    with _opened(path) as first:
        return [first, _try_group(path)]


def _try_group(path: str) -> str:
    with _opened(path) as problem:
        return problem


def _try_bind(path: str) -> str:
    with _bound(path) as problem:
        return problem


@contextlib.contextmanager
def _opened(path: str) -> Iterator[str]:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as problem:
        yield errno.errorcode[problem.errno or 0]
        return
    try:
        yield ""
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _bound(path: str) -> Iterator[str]:
    """Bind a device's node to an IOMMU of its own. Source: linux/vfio.h, VFIO_DEVICE_BIND_IOMMUFD."""
    iommu, device = os.open("/dev/iommu", os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        fcntl.ioctl(device, BIND_IOMMUFD, struct.pack("<IIiI", 16, 0, iommu, 0))
    except OSError as problem:
        yield errno.errorcode[problem.errno or 0]
    else:
        yield ""
    finally:
        os.close(device)
        os.close(iommu)


def wait_for_word(address: str, offset: int, value: int, limit_s: float) -> float:
    """Return after how many seconds a register had a value; -1: never within the limit."""
    begun = time.monotonic()
    while time.monotonic() < begun + limit_s:
        if word(address, offset) == value:
            return time.monotonic() - begun
        time.sleep(0.02)
    return -1


def numbers(paths: list[str]) -> dict[str, tuple[int, int]]:
    """Return major and minor number of each node."""
    found = {path: Path(path).stat().st_rdev for path in paths}
    return {path: (os.major(number), os.minor(number)) for path, number in found.items()}


def write_text(path: str, text: str) -> None:
    Path(path).write_text(text)


def wait_until_open(path: str, limit_s: float) -> float:
    """Return after how many seconds a node could be opened; -1: never within the limit."""
    begun = time.monotonic()
    while time.monotonic() < begun + limit_s:
        if not _try_group(path):
            return time.monotonic() - begun
        time.sleep(0.05)
    return -1
