"""Makes fake sysfs trees of AMD and Intel machines, for tests and demonstrations of discovery.

Only what discovery reads is written: PCI attributes, DRM and KFD entries. Device nodes are made where the process may.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DRM_MAJOR: Final = 226
_KFD_MAJOR: Final = 234


def write(path: Path, text: str) -> None:
    """Write one attribute with its newline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_device(root: Path, address: str, *, under: str, driver: str, attributes: Mapping[str, str]) -> Path:
    """Add a PCI device to the kernel's tree and the bus folder and bind it to a driver.

    Args:    under: path of bridges below `/sys/devices`, `pci0000:00/0000:00:01.0`.
    Returns: its folder in the tree.
    """
    folder = root / "sys/devices" / under / address
    for name, text in attributes.items():
        write(folder / name, text)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(os.path.relpath(folder, bus))
    bound = root / "sys/bus/pci/drivers" / driver
    bound.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(os.path.relpath(bound, folder))
    return folder


def add_drm(root: Path, folder: Path, number: int) -> None:
    """Give a device its DRM card and render node, in sysfs and, where the process may, in /dev."""
    base = root / "sys/class/drm"
    base.mkdir(parents=True, exist_ok=True)
    for name, minor in ((f"card{number}", number), (f"renderD{128 + number}", 128 + number)):
        (folder / "drm" / name).mkdir(parents=True)
        (folder / "drm" / name / "device").symlink_to("../..")
        (base / name).symlink_to(os.path.relpath(folder / "drm" / name, base))
        add_node(root / "dev/dri" / name, _DRM_MAJOR, minor)


def add_node(path: Path, major: int, minor: int) -> None:
    """Make a character device; a plain file stands in where the process may not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(major, minor))
    except PermissionError:
        path.touch()


def build_amd(root: Path, *, count: int = 4, product: str = "AMD Instinct MI300X") -> list[str]:
    """Build a machine whose AMD GPUs are all joined by XGMI, half on each socket; returns the addresses."""
    addresses = [f"0000:{0x05 + 0x10 * number:02x}:00.0" for number in range(count)]
    for number, address in enumerate(addresses):
        folder = add_device(
            root,
            address,
            under=f"pci0000:{number:02x}/0000:{number:02x}:01.0",
            driver="amdgpu",
            attributes={
                "vendor": "0x1002",
                "device": "0x74a1",
                "class": "0x038000",
                "numa_node": str(number * 2 // count),
                "mem_info_vram_total": str(192 << 30),
                "mem_info_vram_used": str(1 << 28),
                "product_name": product,
                "serial_number": f"6923{number:08d}",
                "gpu_busy_percent": "0",
                "hwmon/hwmon1/temp1_input": "41000",
                "hwmon/hwmon1/power1_average": "138000000",
                "ras/umc_err_count": "ue: 0\nce: 0",
            },
        )
        add_drm(root, folder, number)
        bound = root / "sys/module/amdgpu/drivers/pci:amdgpu"
        bound.mkdir(parents=True, exist_ok=True)
        (bound / address).symlink_to(os.path.relpath(folder, bound))
        _add_kfd(root, number, count)
    add_node(root / "dev/kfd", _KFD_MAJOR, 0)
    write(root / "sys/module/amdgpu/version", "6.8.5")
    return addresses


def _add_kfd(root: Path, number: int, count: int) -> None:
    node = root / f"sys/class/kfd/kfd/topology/nodes/{number + 1}"
    write(
        node / "properties",
        f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\ndrm_render_minor {128 + number}",
    )
    for place, other in enumerate(o for o in range(count) if o != number):
        write(node / f"io_links/{place}/properties", f"type 11\nnode_from {number + 1}\nnode_to {other + 1}\nweight 15")


def build_intel(root: Path, *, driver: str = "xe") -> list[str]:
    """Build two Intel GPUs behind one PCIe switch and a third on the other socket; returns the addresses."""
    places = {
        "0000:03:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
        "0000:04:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
        "0000:83:00.0": "pci0000:80/0000:80:01.0",
    }
    for number, (address, under) in enumerate(places.items()):
        folder = add_device(
            root,
            address,
            under=under,
            driver=driver,
            attributes={
                "vendor": "0x8086",
                "device": "0x56c0",
                "class": "0x038000",
                "numa_node": "0" if number < 2 else "1",
                "sriov_numvfs": "0",
                "lmem_total_bytes": str(16 << 30),
                "hwmon/hwmon2/temp1_input": "38000",
            },
        )
        add_drm(root, folder, number)
    write(root / "proc/sys/kernel/osrelease", "6.12.0")
    return list(places)
