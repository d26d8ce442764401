"""A machine that has something for every mode of the generator, as a tree of files and nodes."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

VERSION = "550.163.01"
LIB = "usr/lib/x86_64-linux-gnu"
STORE = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_0a1b"
CSV = "etc/nvidia-container-runtime/host-files-for-container.d"
GPU_IDS = ("0x10de", "0x030200")
MEDIATED = "6b2d9c1e-0a57-4c3e-9f11-2d4a5b6c7d8e"
NODES = {
    "nvidia0": (195, 0),
    "nvidia1": (195, 1),
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (510, 0),
    "nvidia-uvm-tools": (510, 1),
    "nvidia-caps/nvidia-cap1": (509, 1),
    "nvidia-caps-imex-channels/channel0": (508, 0),
    "nvidia-caps-imex-channels/channel2": (508, 2),
    "nvidia-caps-imex-channels/channel1048576": (508, 3),
    "nvidia-fs0": (507, 0),
    "gdrdrv": (506, 0),
    "nvidia-nvswitchctl": (505, 255),
    "nvidia-nvswitch0": (505, 0),
    "infiniband/uverbs0": (231, 192),
    "infiniband/rdma_cm": (10, 121),
    "vfio/vfio": (10, 196),
    "vfio/12": (504, 0),
    "vfio/21": (504, 1),
    "vfio/22": (504, 2),
    "vfio/31": (504, 3),
    "vfio/32": (504, 4),
    "vfio/devices/vfio3": (503, 3),
    "iommu": (10, 120),
    "dxg": (10, 122),
    "nvmap": (10, 50),
    "nvhost-gpu": (502, 1),
}


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def add_node(root: Path, name: str, *, mode: int = 0o666) -> None:
    path = root / "dev" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    major, minor = NODES[name]
    os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
    path.chmod(mode)


def add_library(root: Path, name: str, soname: str, folder: str = LIB) -> None:
    write(root / folder / name)
    (root / folder / soname).symlink_to(name)


def bind(root: Path, address: str, driver: str) -> None:
    """Bind a function, or unbind it where the driver is empty."""
    folder = root / "sys/bus/pci/devices" / address
    if (folder / "driver").is_symlink():
        ((folder / "driver").readlink() / address).unlink()
        (folder / "driver").unlink()
    if driver:
        bound = root / "sys/bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(bound)
        (bound / address).symlink_to(folder)


def add_pci(
    root: Path, address: str, *, driver: str, group: str = "", vfio: str = "", ids: tuple[str, str] = GPU_IDS
) -> None:
    """Add a function. Args: ids: vendor and class."""
    folder = root / "sys/bus/pci/devices" / address
    write(folder / "vendor", f"{ids[0]}\n")
    write(folder / "class", f"{ids[1]}\n")
    bind(root, address, driver)
    if group:
        members = root / "sys/kernel/iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(folder)
        (folder / "iommu_group").symlink_to(members.parent)
    if vfio:
        (folder / "vfio-dev" / vfio).mkdir(parents=True)


def add_function(root: Path, board: str, address: str, *, current: int, group: str, creatable: str = "") -> None:
    """Add a virtual function of a board under NVIDIA's own VFIO driver; the board is there already."""
    add_pci(root, address, driver="nvidia", group=group)
    folder = root / "sys/bus/pci/devices" / address
    (folder / "physfn").symlink_to(f"../{board}")
    write(folder / "nvidia/current_vgpu_type", f"{current}\n")
    write(folder / "nvidia/creatable_vgpu_types", f"ID    : vGPU Name\n{creatable}")


def add_mediated(root: Path, board: str, name: str, *, group: str) -> None:
    """Add a mediated device of a board, which is there already."""
    folder = root / "sys/bus/pci/devices" / board
    write(folder / "mdev_supported_types/nvidia-232/name", "GRID T4-4Q\n")
    write(folder / "mdev_supported_types/nvidia-232/available_instances", "3\n")
    (folder / name).mkdir()
    (folder / name / "mdev_type").symlink_to("../mdev_supported_types/nvidia-232")
    members = root / "sys/kernel/iommu_groups" / group / "devices"
    members.mkdir(parents=True)
    (folder / name / "iommu_group").symlink_to(members.parent)
    for link in ("sys/bus/mdev/devices", "sys/class/mdev_bus"):
        (root / link).mkdir(parents=True, exist_ok=True)
    (root / "sys/bus/mdev/devices" / name).symlink_to(folder / name)
    (root / "sys/class/mdev_bus" / board).symlink_to(folder)


def build(root: Path) -> Path:
    """Build all of it."""
    for name in NODES:
        add_node(root, name)
    add_library(root, f"libcuda.so.{VERSION}", "libcuda.so.1")
    add_library(root, f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1")
    add_library(root, f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1")
    for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-imex"):
        write(root / "usr/bin" / name)
    write(root / f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    write(root / "usr/share/vulkan/icd.d/nvidia_icd.json", "{}")
    write(root / "etc/cufile.json", "{}")
    (root / "run/udev").mkdir(parents=True)
    add_pci(root, "0000:41:00.0", driver="vfio-pci", group="12")
    add_pci(root, "0000:42:00.0", driver="vfio-pci", group="12")
    add_pci(root, "0000:61:00.0", driver="vfio-pci", group="13", vfio="vfio3")
    add_pci(root, "0000:81:00.0", driver="vfio-pci", group="14")
    add_pci(root, "0000:c1:00.0", driver="nvidia", group="15")
    add_pci(root, "0000:a1:00.0", driver="vfio-pci", group="21", ids=("0x1002", "0x038000"))
    add_pci(root, "0000:a2:00.0", driver="xe_vfio_pci", group="22", ids=("0x8086", "0x030000"))
    add_function(root, "0000:c1:00.0", "0000:c1:00.4", current=1157, group="31", creatable="1157 : NVIDIA L40S-12Q\n")
    add_mediated(root, "0000:c1:00.0", MEDIATED, group="32")
    for name in ("libcuda.so.1.1", "libcuda_loader.so", "nvcubins.bin", "nvidia-smi"):
        write(root / STORE / name)
    write(root / CSV / "devices.csv", "dev, /dev/nvmap\ndev, /dev/nvhost-gpu\ndev, /dev/nvhost-gone\n")
    lists = f"# comment\nlib, /{LIB}/libcuda.so.550*\nsym, /{LIB}/libcuda.so.1\ndir, /lib/firmware/nvidia\n"
    write(root / CSV / "drivers.csv", lists)
    return root


def add_socket(path: Path) -> socket.socket:
    """Bind a socket; its path may be longer than a socket's may be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_PATH)
    try:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)
    return made
