"""Makes the file tree that a driver would leave on a simulated machine, under a folder of ours.

Device nodes carry NVIDIA's own major where this host leaves it free, so that a container's device rules are the rules
of a real machine and the kernel enforces them; no driver answers behind them. Majors that are dynamic on a real machine
are chosen free of this host's and kept for as long as they stay free. Building again over an existing tree changes only
what differs, so containers that have parts of it mounted keep them.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import errors, files
from fairlead.silicon.nvidia import driver
from fairlead.silicon.sim import elf, machine, smi
from fairlead.wire.text import ldcache

NVIDIA_MAJOR: Final = 195
_LIBRARY_FOLDER: Final = "usr/lib/x86_64-linux-gnu"
_LIBRARIES: Final = {
    "libcuda": 1,
    "libcudadebugger": 1,
    "libnvidia-allocator": 1,
    "libnvidia-cfg": 1,
    "libnvidia-ml": 1,
    "libnvidia-nvvm": 4,
    "libnvidia-opencl": 1,
    "libnvidia-ptxjitcompiler": 1,
}
_WITH_PLAIN_LINK: Final = frozenset({"libcuda", "libnvidia-ml"})
_MODULES: Final = ("nvidia", "nvidia_uvm", "nvidia_modeset")
_HIGHEST_MAJOR, _LOWEST_MAJOR = 511, 384
_FREE_MAJOR_NAMES: Final = ("nvidia-uvm", "nvidia-caps")


class FakeRoot:
    """One machine's tree; `path` is handed to the silicon as its root."""

    def __init__(self, path: Path, host: machine.Machine, *, host_root: Path = Path("/")) -> None:
        """Choose majors, write nothing yet.

        Args:    path: the tree's folder.   host_root: where this host's /proc/devices is read.
        """
        self.path = path
        self._host = host
        self.majors = _choose_majors(_taken(host_root), dict(driver.list_majors(path)))

    def build(self) -> None:
        """Write the tree, or what of it is missing or differs; a tree of another profile is removed first.

        Raises:  Unavailable: device nodes may not be made (reason `DeviceNodesRefused`).
        """
        marker = self.path / ".fairlead-simulated"
        if self.path.exists() and any(self.path.iterdir()) and not marker.exists():
            message = f"{self.path} is not a simulated root of ours"
            raise errors.Unavailable(message, reason="SimulationFolderTaken", hint="choose another state folder")
        if marker.exists() and marker.read_text() != self._identity():
            shutil.rmtree(self.path)
        _write(marker, self._identity())
        with self._host.lock:
            for name, text in self._texts():
                _write(self.path / name, text)
            self._libraries()
            self._buses()
            self._nodes()
            self.refresh()

    def refresh(self) -> None:
        """Bring MIG's capability nodes and the stand-in nvidia-smi up to date; hold the machine's lock."""
        _write(self.path / "usr/bin/nvidia-smi", smi.script(self._host), mode=0o755)
        wanted = {"nvidia-cap1": (1, 0o400), "nvidia-cap2": (2, 0o444)}
        capabilities = self.path / "proc/driver/nvidia/capabilities"
        shutil.rmtree(capabilities, ignore_errors=True)
        for name, minor in (("mig/config", 1), ("mig/monitor", 2), *self._instances()):
            wanted.setdefault(f"nvidia-cap{minor}", (minor, 0o444))
            _write(capabilities / name, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        folder = self.path / "dev/nvidia-caps"
        for node, (minor, mode) in wanted.items():
            _ensure_node(folder / node, self.majors["nvidia-caps"], minor, mode=mode)
        for stale in folder.iterdir():
            if stale.name not in wanted:
                stale.unlink()

    def _identity(self) -> str:
        return "\n".join([self._host.profile.driver, *(gpu.board.uuid for gpu in self._host.gpus)]) + "\n"

    def _instances(self) -> Iterator[tuple[str, int]]:
        """Capability file and minor of every instance that exists."""
        for gpu in self._host.gpus:
            minor = gpu.board.minor
            for number, item in gpu.partition.instances.items():
                base = f"gpu{minor}/mig/gi{number}"
                yield f"{base}/access", smi.cap_minor(minor, number)
                for compute in item.computes:
                    yield f"{base}/ci{compute}/access", smi.cap_minor(minor, number, compute)

    def _texts(self) -> Iterator[tuple[str, str]]:
        version = self._host.profile.driver
        rows = sorted((major, name) for name, major in self.majors.items())
        yield "proc/devices", "Character devices:\n" + "".join(f"{m:3d} {n}\n" for m, n in rows) + "\nBlock devices:\n"
        yield (
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Kernel Module  {version}  SIMULATED by Fairlead\n",
        )
        yield "proc/modules", "".join(f"{name} 1 0 - Live 0x0\n" for name in _MODULES)
        for name in _MODULES:
            yield f"sys/module/{name}/version", f"{version}\n"
        yield "proc/driver/nvidia-caps/mig-minors", "".join(f"{n} {m}\n" for n, m in self._mig_minors())
        for gpu in self._host.gpus:
            board = gpu.board
            yield (
                f"proc/driver/nvidia/gpus/{board.pci}/information",
                f"Model: \t\t {board.part.name}\nGPU UUID: \t {board.uuid}\nBus Type: \t PCIe\n"
                f"Bus Location: \t {board.pci}\nDevice Minor: \t {board.minor}\n",
            )

    def _mig_minors(self) -> Iterator[tuple[str, int]]:
        yield "config", 1
        yield "monitor", 2
        for gpu in self._host.gpus:
            if not gpu.board.part.mig:
                continue
            for instance in range(15):
                base = f"gpu{gpu.board.minor}/gi{instance}"
                yield f"{base}/access", smi.cap_minor(gpu.board.minor, instance)
                for compute in range(8):
                    yield f"{base}/ci{compute}/access", smi.cap_minor(gpu.board.minor, instance, compute)

    def _libraries(self) -> None:
        version, entries = self._host.profile.driver, []
        folder = self.path / _LIBRARY_FOLDER
        for name, number in _LIBRARIES.items():
            soname = f"{name}.so.{number}"
            data = elf.library(soname, remark="simulated by Fairlead\n")
            _write_bytes(folder / f"{name}.so.{version}", data)
            _ensure_link(folder / soname, f"{name}.so.{version}")
            entries.append(ldcache.Entry(soname=soname, path=f"/{_LIBRARY_FOLDER}/{soname}"))
            if name in _WITH_PLAIN_LINK:
                _ensure_link(folder / f"{name}.so", soname)
        _write_bytes(self.path / "etc/ld.so.cache", ldcache.emit_ldcache(entries))

    def _buses(self) -> None:
        devices = self.path / "sys/bus/pci/devices"
        (self.path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        for gpu in self._host.gpus:
            folder, board = devices / gpu.board.pci, gpu.board
            for name, text in (
                ("vendor", "0x10de"),
                ("device", f"0x{board.part.device_id:04x}"),
                ("class", "0x030200"),
                ("numa_node", str(board.numa)),
            ):
                _write(folder / name, f"{text}\n")
            _ensure_link(folder / "driver", "../../drivers/nvidia")

    def _nodes(self) -> None:
        dev, main = self.path / "dev", self.majors["nvidia"]
        for gpu in self._host.gpus:
            _ensure_node(dev / f"nvidia{gpu.board.minor}", main, gpu.board.minor)
        _ensure_node(dev / "nvidiactl", main, 255)
        _ensure_node(dev / "nvidia-modeset", main, 254)
        _ensure_node(dev / "nvidia-uvm", self.majors["nvidia-uvm"], 0)
        _ensure_node(dev / "nvidia-uvm-tools", self.majors["nvidia-uvm"], 1)


def _taken(host_root: Path) -> set[int]:
    """Character majors in use on this host; nothing readable means none."""
    path = host_root / "proc/devices"
    text = path.read_text().partition("Block devices:")[0] if path.exists() else ""
    return {int(line.split()[0]) for line in text.splitlines() if line[:3].strip().isdigit()}


def _choose_majors(taken: set[int], earlier: dict[str, int]) -> dict[str, int]:
    """Give each driver a major that reaches no driver of this host; earlier choices stay while they are free.

    A real NVIDIA driver on this host holds 195: then the simulated nodes get another, or they would open real GPUs.
    """
    free = (major for major in range(_HIGHEST_MAJOR, _LOWEST_MAJOR - 1, -1) if major not in taken)
    chosen: dict[str, int] = {}
    for name in ("nvidia", *_FREE_MAJOR_NAMES):
        kept = earlier.get(name, NVIDIA_MAJOR if name == "nvidia" else None)
        is_free = kept is not None and kept not in taken and kept not in chosen.values()
        chosen[name] = kept if is_free and kept is not None else next(m for m in free if m not in earlier.values())
    return chosen


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    _write_bytes(path, text.encode(), mode=mode)


def _write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file unless it is already so; by rename, because containers may have the old one mounted."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, data, mode=mode, durable=False)


def _ensure_link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _ensure_node(path: Path, major: int, minor: int, *, mode: int = 0o666) -> None:
    device = os.makedev(major, minor)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        state = path.lstat()
    except FileNotFoundError:
        state = None
    if state is not None and stat.S_ISCHR(state.st_mode) and state.st_rdev == device:
        return
    try:
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, device)
        path.chmod(mode)  # mknod's mode passes through the umask
    except PermissionError as error:
        message = f"this process may not make the device node {path} (c {major}:{minor})"
        hint = "simulated silicon needs root and CAP_MKNOD"
        raise errors.Unavailable(message, reason="DeviceNodesRefused", hint=hint) from error
