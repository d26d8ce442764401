"""Makes the file tree that a driver would leave on a simulated machine, under a folder of ours.

Device nodes carry NVIDIA's own major where this host leaves it free, so that a container's device rules are the rules
of a real machine and the kernel enforces them; no driver answers behind them. Majors that are dynamic on a real machine
are chosen free of this host's and kept for as long as they stay free. Building again over an existing tree changes only
what differs, so containers that have parts of it mounted keep them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.sim import elf, lending, machine, smi, treefile
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
        names = ("nvidia", *_FREE_MAJOR_NAMES, *lending.major_names(host))
        self.majors = _choose_majors(names, _taken(host_root), dict(driver.list_majors(path)))

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
        treefile.write(marker, self._identity())
        with self._host.lock:
            for name, text in self._texts():
                treefile.write(self.path / name, text)
            self._libraries()
            self._buses()
            lending.build(self.path, self._host, self.majors.get(lending.MAJOR_NAME, 0))
            self._nodes()
            self.refresh()

    def refresh(self) -> None:
        """Bring MIG's capability nodes and the stand-in nvidia-smi up to date; hold the machine's lock."""
        treefile.write(self.path / "usr/bin/nvidia-smi", smi.script(self._host), mode=0o755)
        wanted = {"nvidia-cap1": (1, 0o400), "nvidia-cap2": (2, 0o444)}
        capabilities = self.path / "proc/driver/nvidia/capabilities"
        shutil.rmtree(capabilities, ignore_errors=True)
        for name, minor in (("mig/config", 1), ("mig/monitor", 2), *self._instances()):
            wanted.setdefault(f"nvidia-cap{minor}", (minor, 0o444))
            treefile.write(capabilities / name, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        folder = self.path / "dev/nvidia-caps"
        for node, (minor, mode) in wanted.items():
            treefile.ensure_node(folder / node, self.majors["nvidia-caps"], minor, mode=mode)
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
            treefile.write_bytes(folder / f"{name}.so.{version}", data)
            treefile.ensure_link(folder / soname, f"{name}.so.{version}")
            entries.append(ldcache.Entry(soname=soname, path=f"/{_LIBRARY_FOLDER}/{soname}"))
            if name in _WITH_PLAIN_LINK:
                treefile.ensure_link(folder / f"{name}.so", soname)
        treefile.write_bytes(self.path / "etc/ld.so.cache", ldcache.emit_ldcache(entries))

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
                treefile.write(folder / name, f"{text}\n")
            treefile.ensure_link(folder / "driver", "../../drivers/nvidia")

    def _nodes(self) -> None:
        dev, main = self.path / "dev", self.majors["nvidia"]
        for gpu in self._host.gpus:
            treefile.ensure_node(dev / f"nvidia{gpu.board.minor}", main, gpu.board.minor)
        treefile.ensure_node(dev / "nvidiactl", main, 255)
        treefile.ensure_node(dev / "nvidia-modeset", main, 254)
        treefile.ensure_node(dev / "nvidia-uvm", self.majors["nvidia-uvm"], 0)
        treefile.ensure_node(dev / "nvidia-uvm-tools", self.majors["nvidia-uvm"], 1)


def _taken(host_root: Path) -> set[int]:
    """Character majors in use on this host; nothing readable means none."""
    path = host_root / "proc/devices"
    text = path.read_text().partition("Block devices:")[0] if path.exists() else ""
    return {int(line.split()[0]) for line in text.splitlines() if line[:3].strip().isdigit()}


def _choose_majors(names: Iterable[str], taken: set[int], earlier: dict[str, int]) -> dict[str, int]:
    """Give each driver a major that reaches no driver of this host; earlier choices stay while they are free.

    A real NVIDIA driver on this host holds 195: then the simulated nodes get another, or they would open real GPUs.
    """
    free = (major for major in range(_HIGHEST_MAJOR, _LOWEST_MAJOR - 1, -1) if major not in taken)
    chosen: dict[str, int] = {}
    for name in names:
        kept = earlier.get(name, NVIDIA_MAJOR if name == "nvidia" else None)
        is_free = kept is not None and kept not in taken and kept not in chosen.values()
        chosen[name] = kept if is_free and kept is not None else next(m for m in free if m not in earlier.values())
    return chosen
