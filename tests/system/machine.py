"""A virtual machine without KVM: Debian's cloud kernel in QEMU's TCG, with this Python and Fairlead in its initramfs.

`pack` writes the initramfs: busybox, the kernel's modules in the order in which they can be loaded, the programs asked
for with their libraries, and the interpreter, its standard library, Fairlead and what its layer commands import, each
at the path it has here (so nothing is mounted over /tmp, where a checkout may lie). `boot` runs it until it powers
itself off. `tests/system/setup.sh` brings emulator and kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click
import oci_bundle
import onboard
import pytest

import fairlead
import fairlead_cdi

KERNEL = Path.home() / ".cache/fairlead/debian/linux-cloud"
QEMU = "qemu-system-x86_64"
SITE = Path(click.__file__).parent.parent
PACKAGES = ("asyncinotify", "click", "msgspec", "structlog", "yaml")
_UNUSED = frozenset(
    {
        *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip"),
        *("distutils", "pydoc_data", "turtledemo", "unittest"),
    }
)
_UNUSED_NATIVE = ("_tkinter.", "_test", "_curses", "_ctypes_test.", "xxlimited", "readline.")
"""Beginnings of modules of the standard library; the first brings the libraries of a graphical desktop."""
_INIT = """#!/bin/busybox sh
mount() {{ /bin/busybox mount -t "$1" "$1" "$2"; }}
mount proc /proc; mount sysfs /sys; mount devtmpfs /dev; mount cgroup2 /sys/fs/cgroup
mount tmpfs /run
/bin/busybox hostname ring
while read -r module; do /bin/busybox insmod "/modules/$module.ko"; done </modules/order
exec {first}
"""
_START = """#!/bin/busybox sh
PATH=/bin:/usr/sbin:/usr/bin HOME=/root PYTHONPATH={path}
export PATH HOME PYTHONPATH
{python} /guest.py
exec /bin/busybox poweroff -f
"""
_MACHINE = (
    *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-monitor", "none"),
    *("-M", "q35,accel=tcg,kernel-irqchip=split", "-cpu", "max"),
    *("-append", "console=ttyS0 loglevel=4 panic=-1 no_timer_check nowatchdog intel_iommu=on iommu=pt"),
    *("-device", "intel-iommu,intremap=on,caching-mode=on"),
)


class Archive:
    """Writes a cpio archive as the kernel reads it. Source: kernel Documentation/driver-api/early-userspace."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.names = file, set[str]()
        self.stripped: dict[Path, bytes] = {}
        """Programs and libraries without what a debugger wants, by path: a third of an initramfs else."""

    def add(self, name: str, data: bytes = b"", *, mode: int = 0o100755, changed: int = 0) -> None:
        """Add one entry after its folders; a name that is there already is left as it is."""
        name = name.strip("/")
        if name in self.names:
            return
        if (parent := os.path.dirname(name)) != "":  # noqa: PTH120 - a name in an archive is no path of this machine
            self.add(parent, mode=0o040755)
        self.names.add(name)
        raw = name.encode() + b"\0"
        fields = (len(self.names), mode, 0, 0, 1, changed, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + raw
        self.file.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    def add_file(self, path: Path, name: str = "") -> None:
        """Add a file of this machine with its time, which compiled Python modules are told by."""
        found = path.stat()
        data = self.stripped.get(path) or path.read_bytes()
        self.add(name or str(path), data, mode=0o100000 | (found.st_mode & 0o777), changed=int(found.st_mtime))

    def add_tree(self, top: Path) -> None:
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name not in _UNUSED and not name.startswith("config-")]
            for name in names:
                # Compiled for `python -O`, which nobody runs.
                is_unused = name.endswith((".opt-1.pyc", ".opt-2.pyc")) or _is_unused_native(name)
                if not is_unused:
                    self.add_file(Path(folder, name))

    def close(self) -> None:
        self.add("TRAILER!!!", mode=0)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a guest has besides Python and Fairlead."""

    guest: Path
    """The Python program that it runs."""
    modules: Sequence[str]
    programs: Sequence[str]
    """By path; their libraries come with them."""
    files: Mapping[str, bytes]
    """Name → contents; all of them may be run."""
    tree: Path = Path("/")
    """Where Debian packages were unpacked; programs and libraries below it are packed as if below the root."""
    packages: Sequence[str] = ()
    """Of Python, besides those that layer commands import; a module of one file by the file's name."""
    first: str = "/start"
    """Command line of process 1; `/start` runs the guest's program and powers off."""


def require() -> None:
    """Skip where `tests/system/setup.sh` could not bring all of it."""
    oci_bundle.require(QEMU, "busybox", "runc", "crun", "gcc")
    if not KERNEL.is_dir():
        pytest.skip(f"needs a Debian kernel in {KERNEL}: run tests/system/setup.sh as root")


def pack(target: Path, contents: Contents) -> Path:
    """Write an initramfs."""
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    sources = [Path(str(package.__file__)).parent for package in (fairlead, fairlead_cdi)]
    packages = [SITE / name for name in (*PACKAGES, *contents.packages)]
    native = [path for top in (library / "lib-dynload", *packages) for path in top.rglob("*.so")]
    native = [path for path in native if not _is_unused_native(path.name)]
    programs = [python, *native, *map(Path, contents.programs)]
    libraries = _libraries(programs, contents.tree)
    with target.open("wb") as file:
        archive = Archive(file)
        archive.stripped = _strip([*native, *libraries])
        for name in ("dev", "proc", "sys", "tmp", "run", "root", "etc"):
            archive.add(name, mode=0o040755)
        archive.add("bin/sh", b"busybox", mode=0o120777)
        archive.add_file(Path("/usr/bin/busybox"), "/bin/busybox")
        for path in (*programs, *libraries):
            below = path.relative_to(contents.tree) if path.is_relative_to(contents.tree) else path
            archive.add_file(path, str(below))
        for top in (library, *sources, *packages):
            archive.add_file(top) if top.is_file() else archive.add_tree(top)
        archive.add_file(SITE / "typing_extensions.py")
        _add_modules(archive, contents.modules)
        archive.add_file(contents.guest, "/guest.py")
        archive.add_file(Path(onboard.__file__), "/onboard.py")
        for name, data in contents.files.items():
            archive.add(name, data)
        archive.add("init", _INIT.format(first=contents.first).encode())
        where = [SITE, *(source.parent for source in sources)]
        archive.add("start", _START.format(path=":".join(map(str, where)), python=python).encode())
        archive.close()
    return target


def _libraries(programs: Iterable[Path], tree: Path) -> list[Path]:
    folders = [] if tree == Path("/") else [str(path) for path in tree.glob("**/x86_64-linux-gnu/**/") if path.is_dir()]
    line = ("env", f"LD_LIBRARY_PATH={':'.join(folders)}", "ldd", *map(str, programs))
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return [Path(name) for name in sorted(set(re.findall(r"^\s.*?(/\S+) \(0x", done.stdout, re.MULTILINE)))]


def _is_unused_native(name: str) -> bool:
    return name.endswith(".so") and name.startswith(_UNUSED_NATIVE)


def _strip(paths: Iterable[Path]) -> dict[Path, bytes]:
    """Return the contents of libraries without symbols for debuggers, as far as there is a program that strips them."""
    if shutil.which("strip") is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="strip-") as folder:
        copies = {path: Path(folder, str(number)) for number, path in enumerate(paths)}
        for path, copy in copies.items():
            shutil.copyfile(path, copy)
        subprocess.run(("strip", "--strip-unneeded", *map(str, copies.values())), capture_output=True, check=False)
        return {path: copy.read_bytes() for path, copy in copies.items()}


def _add_modules(archive: Archive, names: Iterable[str]) -> None:
    """Add kernel modules and those they depend on, each after its own."""
    known = {path.stem.replace("-", "_"): path for path in (KERNEL / "lib/modules").rglob("*.ko")}
    order: list[str] = []

    def need(name: str) -> None:
        depends = re.search(rb"\0depends=([^\0]*)", known[name].read_bytes())
        for other in (depends.group(1).decode() if depends else "").split(","):
            if other:
                need(other.replace("-", "_"))
        if name not in order:
            order.append(name)

    for name in names:
        need(name)
    for name in order:
        archive.add_file(known[name], f"/modules/{name}.ko")
    archive.add("modules/order", "".join(f"{name}\n" for name in order).encode())


@dataclass(frozen=True, kw_only=True)
class Board:
    """What a machine is made of beside its program."""

    disk: Path | None = None
    """A raw image, `/dev/vda`; what the guest was told is flushed is there after a loss of power."""
    cpus: int = 1
    memory_mib: int = 768


def boot(
    folder: Path, initramfs: Path, *devices: str, limit_s: float, board: Board | None = None, last: str = "done"
) -> dict[str, Any]:
    """Run a machine to its end; returns what its guest reported, by name.

    Args: devices: as for QEMU's `-device`.   last: after this report the power is lost; `done`: it ends by itself.
    """
    (kernel,) = (KERNEL / "boot").glob("vmlinuz-*")
    console, reports = folder / "console", folder / "reports"
    made = board or Board()
    line = [QEMU, *_MACHINE, "-smp", str(made.cpus), "-m", str(made.memory_mib)]
    line += ["-kernel", str(kernel), "-initrd", str(initramfs)]
    line += ["-serial", f"file:{console}", "-serial", f"file:{reports}"]
    for device in devices:
        line += ["-device", device]
    if made.disk is not None:
        line += ["-drive", f"file={made.disk},format=raw,if=virtio,cache=writethrough"]
    reports.unlink(missing_ok=True)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        problem, until = "", time.monotonic() + limit_s
        while process.poll() is None:
            if time.monotonic() > until:
                problem = f"not over after {limit_s:.0f} s"
            if problem or (last != "done" and last in _told(reports)):
                process.kill()
                break
            time.sleep(0.1)
        process.wait()
        if not problem and last == "done" and process.returncode:
            problem = process.stderr.read() if process.stderr is not None else ""
    told = _told(reports)
    if problem or last not in told:
        text = console.read_text(errors="replace") if console.exists() else ""
        last_words = {name: told[name] for name in list(told)[-3:]}
        shown = f"reports: {sorted(told)}, the last ones {str(last_words)[:6000]}"
        pytest.fail(f"the machine ended early ({problem}); {shown}; console:\n{text[-6000:]}")
    return told


def _told(reports: Path) -> dict[str, Any]:
    """Return what a guest has reported so far; a line that is being written counts once it is whole."""
    text = reports.read_text() if reports.exists() else ""
    found = [json.loads(each) for each in text[: text.rfind("\n") + 1].splitlines()]
    return {one["name"]: one["value"] for one in found}
