"""Makes the disk of a Service VM for libvirt: UEFI starts Debian's kernel from it, and libvirt's own tree for a node.

The disk is what `qemu-img` makes of a folder: a partition with FAT, and on it the one program that firmware looks for
on a disk which it does not know. Kernel, initramfs and command line are sections of it.
Source: UEFI Specification 2.10, 3.5.1.1; systemd, systemd-stub(7).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import machine
import pytest
from hgx import emulator

from tests.fabricstub import library

HERE = Path(__file__).parent
LIBVIRT = emulator.ROOT.with_name("libvirt-12")
"""As `tests/system/hgx/setup.sh` unpacks it."""
MODULES = ("virtio_pci", "vmw_vsock_virtio_transport")
CONFIGURATION = """user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
stdio_handler = "file"
"""
"""No daemon runs, no cgroup is libvirt's and no user but root is there."""
FILES = {
    "lv/etc/qemu.conf": CONFIGURATION,
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nlibvirt-qemu:x:64055:64055::/:/bin/false\n",
    "etc/group": "root:x:0:\nkvm:x:104:\nlibvirt-qemu:x:64055:\n",
}
"""What `virt-qemu-run -r /lv` needs in the folder that is its root, beside the programs."""
FOLDERS = ("proc", "sys", "dev", "run", "tmp", "root", "etc", "lv/etc")
LINKS = ("bin", "lib", "lib64")
"""Below usr."""
RUN = "/usr/bin/virt-qemu-run -v -r /lv /domain.xml"
_WORDS = "console=ttyS0 loglevel=4 panic=-1 no_timer_check nowatchdog"
_STUB = HERE.parents[1] / "fabricstub"
_STUB_PROGRAM = LIBVIRT / "usr/share/linuxx64.efi.stub"
_SECTION = re.compile(r"^ +\d+ \S+ +([0-9a-f]{8}) +([0-9a-f]{16}) ", re.MULTILINE)
"""Of objdump: size and address."""
_PAGE = 4096


def require() -> None:
    """Skip where `tests/system/setup.sh` could not bring libvirt."""
    emulator.require()
    if not LIBVIRT.is_dir() or not machine.KERNEL.is_dir():
        pytest.skip(f"needs libvirt in {LIBVIRT} and a Debian kernel: run tests/system/setup.sh as root")


def write(folder: Path, *, secret: str, switches: int) -> Path:
    """Write the disk, in qcow2, into a folder. Args: secret: what the agents share.   switches: as the guest counts."""
    made = library.compile_library(folder)
    files = {"stub/libnvfm.so.1": made.read_bytes(), "etc/fabric.secret": secret.encode()}
    files |= {f"stub/tests/fabricstub/{one}": (_STUB / one).read_bytes() for one in ("manager.py", "lattice.py")}
    top = folder / "boot"
    top.mkdir()
    contents = machine.Contents(guest=HERE / "serviceguest.py", modules=MODULES, programs=(), files=files)
    machine.pack(top / "initramfs", contents)
    (kernel,) = (machine.KERNEL / "boot").glob("vmlinuz-*")
    (top / "command-line").write_text(f"{_WORDS} switches={switches}")
    started = top / "EFI/BOOT/BOOTX64.EFI"
    started.parent.mkdir(parents=True)
    parts = {".cmdline": top / "command-line", ".linux": kernel, ".initrd": top / "initramfs"}
    _join(started, parts)
    for name in ("initramfs", "command-line"):
        (top / name).unlink()
    disk = folder / "fm.qcow2"
    line = (*_program("qemu-img"), "convert", "-O", "qcow2", f"fat:{top}", str(disk))
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL)
    shutil.rmtree(top)
    return disk


def _join(target: Path, parts: Mapping[str, Path]) -> None:
    """Write a program for UEFI: the stub with further sections, each behind the one before."""
    shown = subprocess.run(("objdump", "-h", str(_STUB_PROGRAM)), check=True, capture_output=True, text=True).stdout
    found = [(int(size, 16), int(at, 16)) for size, at in _SECTION.findall(shown)]
    end, words = max(size + at for size, at in found), list[str]()
    for name, path in parts.items():
        at = -(-end // _PAGE) * _PAGE
        words += ["--add-section", f"{name}={path}", "--change-section-vma", f"{name}={at:#x}"]
        end = at + path.stat().st_size
    subprocess.run(("objcopy", *words, str(_STUB_PROGRAM), str(target)), check=True)


def write_empty(disk: Path) -> None:
    """Write a disk with nothing on it."""
    line = (*_program("qemu-img"), "create", "-q", "-f", "qcow2", str(disk), "64M")
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL)


def _program(name: str) -> list[str]:
    libraries = LIBVIRT / "usr/lib/x86_64-linux-gnu"
    return [
        *(str(LIBVIRT / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(libraries)),
        str(LIBVIRT / "usr/bin" / name),
    ]
