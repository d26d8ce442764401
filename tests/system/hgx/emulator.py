"""QEMU with vfio-user and the kernels of the machine, as `tests/system/hgx/setup.sh` brings them; nothing is installed.

The emulator is of a newer Debian than this machine may be: it runs by its own dynamic loader, from where it was
unpacked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import machine
import oci_bundle
import pytest

_CACHE = Path.home() / ".cache/fairlead/debian"
ROOT = _CACHE / "qemu-11"
CONFIGURATION = Path(__file__).parent / "kernel.config"
MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "vfio_pci", "vfio_iommu_type1", "kvm_amd")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel that the machine boots."""

    image: Path
    modules: tuple[str, ...] = ()
    """What the initramfs loads."""


def program(root: Path = ROOT) -> list[str]:
    """Return QEMU's command line so far; `root` is where the folder is from within a machine."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [
        *(str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(libraries)),
        *(str(root / "usr/bin/qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios"), "-no-reboot"),
    ]


def built() -> Path:
    """Return where the kernel of our configuration is, or would be."""
    digest = hashlib.sha256(CONFIGURATION.read_bytes()).hexdigest()
    return _CACHE / f"linux-hgx-{digest[:12]}"


def require() -> None:
    """Skip where `tests/system/setup.sh` could not bring the emulator."""
    oci_bundle.require("busybox", "gcc", "mkfs.ext4")
    if not ROOT.is_dir():
        pytest.skip(f"needs QEMU 11 in {ROOT}: run tests/system/setup.sh as root")


def own_kernel() -> Kernel:
    """Return the kernel with iommufd; skips where it was not built."""
    require()
    if not (built() / "vmlinux").is_file():
        pytest.skip(f"needs a kernel in {built()}: run tests/system/setup.sh as root")
    return Kernel(image=built() / "vmlinux")


def debian_kernel() -> Kernel:
    """Return Debian's own, which has VFIO groups and no iommufd; skips where it is not there."""
    require()
    if not machine.KERNEL.is_dir():
        pytest.skip(f"needs a Debian kernel in {machine.KERNEL}: run tests/system/setup.sh as root")
    (image,) = (machine.KERNEL / "boot").glob("vmlinuz-*")
    return Kernel(image=image, modules=MODULES)
