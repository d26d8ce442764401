"""Reads NVIDIA's GPUs where NVML does not speak for them: Tegra's integrated one, and those of Windows under WSL2.

Each machine has one device, named as NVIDIA's plugin names it: `tegra`, whose nodes and user space the machine's own
lists name, and `all`, every GPU behind /dev/dxg with the driver store that Windows mounts. Neither reports load, health
or memory in files, so such a device is healthy while its nodes are there.
Source: k8s-device-plugin v0.20, internal/rm; Jetson Linux, /etc/nv_tegra_release; CUDA's list of compute capabilities.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.model.driver import DriverFiles, ModeFiles, Module
from fairlead.model.gpu import GPU, Driver, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia.files import library, modefiles
from fairlead.silicon.pci import sysfs

DEVICES: Final = {"csv": GPUUUID("tegra"), "wsl": GPUUUID("all")}
"""By platform, see `modefiles.detect_platform`: the device's name."""
_NAMES: Final = {"csv": "NVIDIA Tegra", "wsl": "NVIDIA GPUs of Windows"}
_MODULES: Final = {"csv": "nvgpu", "wsl": "dxgkrnl"}
_TREE: Final = "sys/firmware/devicetree/base"
_RELEASE: Final = re.compile(r"# R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
_CAPABILITIES: Final = {"tegra210": (5, 3), "tegra186": (6, 2), "tegra194": (7, 2), "tegra234": (8, 7)}
_NOTHING: Final = {
    "csv": f"none of the device nodes that Tegra's lists name is there (*.csv in {modefiles.CSV_FOLDER}): install "
    "JetPack's container packages, which bring the lists",
    "wsl": "/dev/dxg is there, Windows' driver store is not: install NVIDIA's driver in Windows, then `wsl --shutdown`",
}
_LARGEST: Final = 4096
"""Bytes of a file that names the machine."""


def open_integrated(platform: str, place: modefiles.Place) -> sysfs.SysfsSilicon:
    """Return the silicon of a platform in `DEVICES`."""
    scans = functools.partial(scan, platform, place), functools.partial(scan_driver, platform, place)
    return sysfs.SysfsSilicon(place.root, *scans)


def scan(platform: str, place: modefiles.Place, _root: Path) -> Inventory:
    """Read the device now; one whose lists cannot be read, or lead to nothing, is listed as unreadable."""
    try:
        found = modefiles.scan(platform, place)
    except errors.ProtocolError as error:
        return Inventory(unreadable=(_unreadable(platform, error.reason, errors.sentence(error)),))
    nodes = [node for device in found.devices for node in device.nodes]
    if not nodes:
        is_there = platform == "csv" or (place.dev / "dev/dxg").exists()
        return Inventory(unreadable=(_unreadable(platform, "Unreadable", _NOTHING[platform]),) if is_there else ())
    gpu = GPU(
        uuid=DEVICES[platform],
        index=0,
        minor=0,
        pci_bus_id="",
        name=_name(platform, place),
        memory_bytes=0,
        compute_capability=_capability(place) if platform == "csv" else None,
        device_nodes=tuple(node.path for node in nodes),
    )
    return Inventory(gpus=(gpu,), drivers=(Driver(vendor=Vendor.NVIDIA, version=_version(place) or "unknown"),))


def _unreadable(platform: str, reason: str, message: str) -> UnreadableGPU:
    return UnreadableGPU(index=0, pci_bus_id=None, uuid=DEVICES[platform], reason=reason, message=message)


def scan_driver(platform: str, place: modefiles.Place, _root: Path) -> DriverFiles | None:
    """Read nodes and user space; None where there is no trace of them."""
    try:
        found, problems = modefiles.scan(platform, place), tuple[str, ...]()
    except errors.ProtocolError as error:
        found, problems = ModeFiles(), (errors.sentence(error),)
    nodes = tuple(node for device in found.devices for node in device.nodes)
    if not nodes and not problems:
        return None
    name = _MODULES[platform]
    return DriverFiles(
        vendor=Vendor.NVIDIA,
        version=_version(place),
        nodes=nodes,
        files=found.files,
        modules=(Module(name=name, is_loaded=True),) if (place.root / "sys/module" / name).is_dir() else (),
        companions=modefiles.list_companions(place),
        problems=problems,
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _name(platform: str, place: modefiles.Place) -> str:
    """Return the machine's own name of a Tegra board; Windows' GPUs are not told apart here."""
    told = _read(place.root / _TREE / "model").strip("\0 \n") if platform == "csv" else ""
    return told if told.isprintable() and told else _NAMES[platform]


def _capability(place: modefiles.Place) -> tuple[int, int] | None:
    chips = (each.partition(",")[2] for each in _read(place.root / _TREE / "compatible").split("\0"))
    return next((_CAPABILITIES[chip] for chip in chips if chip in _CAPABILITIES), None)


def _version(place: modefiles.Place) -> str | None:
    """Return the release of Jetson Linux, `36.4.3`; None where nothing says it."""
    found = _RELEASE.match(_read(library.base_of(place.root, place.driver_root) / "etc/nv_tegra_release"))
    return f"{found[1]}.{found[2]}" if found else None
