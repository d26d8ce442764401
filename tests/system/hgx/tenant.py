"""A tenant's machine within the node's: QEMU with KVM, which TCG emulates, and GPUs by `vfio-pci` on root ports.

The node reads emulator, kernel and initramfs from a disk of its own. `line` is what a launcher runs there; `reports`
reads what the tenant's process 1 (`tenant.sh`) has said.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import machine
from hgx import emulator

MOUNTED = Path("/tenant")
"""Where the node has the disk."""
_APPEND = "console=ttyS0 loglevel=3 panic=-1 no_timer_check nowatchdog"
_REPORT = re.compile(r"TENANT gpu=(\S+) device=(\S+) boot0=(\S+) pins=(\d) found=(\S+)")


@dataclass(frozen=True, kw_only=True)
class GPU:
    """What a tenant saw of one GPU."""

    address: str
    device: str
    boot0: int
    module: int
    found: int
    """First word of its memory before the tenant wrote any."""


def disk(target: Path, folder: Path) -> Path:
    """Make the disk: QEMU, the kernel with iommufd, the tenant's initramfs."""
    top = folder / "tenant"
    top.mkdir()
    shutil.copytree(emulator.ROOT, top / "qemu", symlinks=True, ignore=shutil.ignore_patterns("*.rom", "*.dtb"))
    shutil.copy(emulator.own_kernel().image, top / "vmlinux")
    with (top / "initramfs").open("wb") as file:
        archive = machine.Archive(file)
        for name in ("dev", "proc", "sys"):
            archive.add(name, mode=0o040755)
        archive.add_file(Path("/usr/bin/busybox"), "/bin/busybox")
        archive.add_file(Path(__file__).parent / "tenant.sh", "/init")
        archive.close()
    with target.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(top), str(target)), check=True)
    shutil.rmtree(top)
    return target


def line(
    addresses: Sequence[str],
    *,
    with_iommufd: bool,
    leave: int | None = None,
    is_staying: bool = False,
    more: Sequence[str] = (),
) -> str:
    """Return the line of shell that runs a tenant's machine to its end.

    Args: addresses: of the GPUs.   leave: the word that it leaves in each GPU's memory.
        is_staying: it runs until its process is killed.
    """
    words = [*emulator.program(MOUNTED / "qemu"), "-M", "q35,accel=kvm", "-cpu", "host", "-smp", "1", "-m", "128"]
    append = [_APPEND, *([f"leave={leave:08x}"] if leave is not None else []), *(["stay"] if is_staying else [])]
    words += ["-kernel", str(MOUNTED / "vmlinux"), "-initrd", str(MOUNTED / "initramfs"), "-append", " ".join(append)]
    words += ["-serial", "stdio", "-monitor", "none", *(["-object", "iommufd,id=iommufd0"] if with_iommufd else [])]
    for number, address in enumerate(addresses):
        words += ["-device", f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1}"]
        by = ",iommufd=iommufd0" if with_iommufd else ""
        words += ["-device", f"vfio-pci,host={address},bus=port{number}{by}"]
    return f"exec {shlex.join([*words, *more])}"


def reports(output: str) -> list[GPU]:
    """Return what a tenant saw, in the order in which it has its GPUs."""
    return [
        GPU(
            address=address,
            device=device,
            boot0=int(boot0, 16),
            module=(int(pins) ^ 4) + 1,  # this subsystem has the third pin inverted
            found=int(found, 16),
        )
        for address, device, boot0, pins, found in _REPORT.findall(output)
    ]
