"""A tenant's machine within the node's: QEMU with KVM, which TCG emulates, and GPUs by `vfio-pci` on root ports.

The node reads emulator, kernel and initramfs from a disk of its own. `line` is what a launcher runs there; `reports`
reads what the tenant's process 1 (`tenant.sh`) has said. Its memory are huge pages: a window of the IOMMU for each page
of 4 KiB, told to each function, takes half a minute where all is emulated.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import machine
from hgx import emulator
from hgx.node import Node, NodeError

MOUNTED = Path("/tenant")
"""Where the node has the disk."""
MEMORY_MIB = 64
_APPEND = "console=ttyS0 loglevel=3 panic=-1 no_timer_check nowatchdog"
_INIT = Path(__file__).parent / "tenant.sh"
LOOK = (
    "/bin/sh",
    "-c",
    "leave=\nword()" + _INIT.read_text().partition("\nword()")[2].partition("\nwhile ")[0] + "\nexec sleep 100000",
)
"""The same look as a container's command."""
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


def disk(target: Path, folder: Path, shared: Mapping[str, Path] = MappingProxyType({})) -> Path:
    """Make the disk: QEMU, the kernel with iommufd, the tenant's initramfs.

    Args: shared: further files and folders, by name.
    """
    top = folder / "tenant"
    top.mkdir()
    shutil.copytree(emulator.ROOT, top / "qemu", symlinks=True, ignore=shutil.ignore_patterns("*.rom", "*.dtb"))
    shutil.copy(emulator.own_kernel().image, top / "vmlinux")
    _initramfs(top / "initramfs", "tenant.sh")
    _add_verifier(top)
    for name, path in shared.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, top / name, symlinks=True)
        else:
            shutil.copy(path, top / name)
    with target.open("wb") as file:
        file.truncate((256 + (256 if shared else 0)) << 20)
    subprocess.run(("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(top), str(target)), check=True)
    shutil.rmtree(top)
    return target


def _initramfs(target: Path, init: str) -> None:
    with target.open("wb") as file:
        archive = machine.Archive(file)
        for name in ("dev", "proc", "sys"):
            archive.add(name, mode=0o040755)
        archive.add_file(Path("/usr/bin/busybox"), "/bin/busybox")
        archive.add_file(Path(__file__).parent / init, "/init")
        archive.close()


def _add_verifier(top: Path) -> None:
    """Add the image of a verifier's machine, and QEMU as one program that gives it huge pages."""
    image = top / "verifier"
    image.mkdir()
    os.link(top / "vmlinux", image / "kernel")
    _initramfs(image / "initramfs", "verifier.sh")
    (image / "command-line").write_text(f"{_APPEND}\n")
    memory = f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,hugetlb=on,hugetlbsize=2M"
    words = shlex.join([*emulator.program(MOUNTED / "qemu"), "-machine", "memory-backend=memory", "-object", memory])
    program = top / "verifier-qemu"
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)


def prepare(node: Node, *, at_once: int = 1) -> None:
    """Mount the disk, which is the node's last, and reserve huge pages for so many tenants at once."""
    device = f"/dev/vd{'abcdefgh'[len(node.disks) - 1]}"
    node.output(f"mkdir -p {MOUNTED} && mount -t ext4 -o ro {device} {MOUNTED}")
    pages = at_once * MEMORY_MIB // 2
    reserved = node.output(f"echo {pages} >/proc/sys/vm/nr_hugepages && cat /proc/sys/vm/nr_hugepages")
    if int(reserved) < pages:
        raise NodeError(f"{reserved.strip()} of {pages} huge pages: give the node more memory")


def verifier_env(node: Node) -> dict[str, str]:
    """Return what has the agent verify GPUs in machines of this disk's image; one person may approve a baseline."""
    digest = node.fairlead("vfio", "image-digest", str(MOUNTED / "verifier"))
    if digest.code:
        raise NodeError(digest.err)
    return {
        "FAIRLEAD_LEASE_VERIFIER_IMAGE": digest.out.strip(),
        "FAIRLEAD_LEASE_VERIFIER_EMULATOR": str(MOUNTED / "verifier-qemu"),
        "FAIRLEAD_LEASE_VERIFIER_MEMORY_MIB": str(MEMORY_MIB),
        "FAIRLEAD_LEASE_VERIFIER_PROCESSORS": "1",
        "FAIRLEAD_LEASE_APPROVALS": "1",
    }


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
    words = [*emulator.program(MOUNTED / "qemu"), "-M", "q35,accel=kvm,memory-backend=memory", "-cpu", "host"]
    words += ["-smp", "1", "-m", str(MEMORY_MIB)]
    words += ["-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,hugetlb=on,hugetlbsize=2M"]
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
