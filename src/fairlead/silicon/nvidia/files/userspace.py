"""Finds the driver's user space besides libraries: tools, firmware, configuration, sockets, X modules.

Every place is a row of a table below a driver root; what is not there is left out. Configuration is looked for below
`/etc` and `/usr/share`, the system's own data folders, and wherever else the caller says.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from fairlead.model.driver import HostFile
from fairlead.silicon.nvidia.files import library
from fairlead.silicon.pci import pci

BINARY_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/nvidia/bin")
BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
    "nv-fabricmanager",
)
SOCKETS: Final = (
    "run/nvidia-persistenced/socket",
    "var/run/nvidia-persistenced/socket",
    "run/nvidia-fabricmanager/socket",
    "var/run/nvidia-fabricmanager/socket",
)
MPS_FOLDER: Final = "tmp/nvidia-mps"
"""A folder of sockets and pipes."""
CONFIG_FOLDERS: Final = ("etc", "usr/local/share", "usr/share")
CONFIGS: Final = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_XORG: Final = (
    "usr/lib/xorg/modules",
    "usr/lib64/xorg/modules",
    "usr/lib/x86_64-linux-gnu/nvidia/xorg",
    "usr/lib/aarch64-linux-gnu/nvidia/xorg",
    "usr/lib/nvidia/xorg",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/X11R6/lib/modules",
)
_FIRMWARE_PATH: Final = "sys/module/firmware_class/parameters/path"


def list_others(base: Path, root: Path, version: str | None, configs: Iterable[Path] = ()) -> Iterator[HostFile]:
    """Yield everything but libraries that is there.

    Args:    base: the driver root on this host.   root: where /proc and /sys lie.   version: the driver's.
             configs: folders to look for configuration in first, as they are called below `base`.
    """
    yield from _binaries(base)
    yield from _firmware(base, root, version)
    yield from _configs(base, configs)
    yield from _sockets(base)
    yield from _xorg(base, version)


def _binaries(base: Path) -> Iterator[HostFile]:
    """Yield each program: the first that is none of the scripts that machines put around a driver in another folder."""
    for name in BINARIES:
        here = [base / f / name for f in BINARY_FOLDERS if (base / f / name).is_file()]
        path = next((one for one in here if library.is_elf(one)), next(iter(here), None))
        if path is not None:
            yield HostFile(path=library.inside(base, path), host_path=str(path), kind="binary")


def _firmware(base: Path, root: Path, version: str | None) -> Iterator[HostFile]:
    """Yield the GSP's firmware from the first of the kernel's search folders that has it."""
    release = pci.read_text(root / "proc/sys/kernel/osrelease") or "-"
    named = PurePosixPath("/", pci.read_text(root / _FIRMWARE_PATH) or "lib/firmware").relative_to("/")
    folders = (
        named,
        f"lib/firmware/updates/{release}",
        "lib/firmware/updates",
        f"lib/firmware/{release}",
        "lib/firmware",
    )
    for folder in folders:
        found = sorted((base / folder / "nvidia" / (version or "-")).glob("gsp*.bin"))
        if found:
            yield from (HostFile(path=library.inside(base, p), host_path=str(p), kind="firmware") for p in found)
            return


def _configs(base: Path, more: Iterable[Path]) -> Iterator[HostFile]:
    folders = [str(PurePosixPath(folder).relative_to("/")) for folder in more]
    for name in CONFIGS:
        found = next((base / f / name for f in (*folders, *CONFIG_FOLDERS) if (base / f / name).is_file()), None)
        if found is not None:
            # Where loaders look in any image; other data folders of the host mean nothing there.
            start = "/etc" if (base / "etc") in found.parents else "/usr/share"
            yield HostFile(path=f"{start}/{name}", host_path=str(found), kind="config")


def _sockets(base: Path) -> Iterator[HostFile]:
    seen: set[Path] = set()
    for name in SOCKETS:
        path = base / name
        real = path.resolve()
        if real not in seen and path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            seen.add(real)
            yield HostFile(path=f"/{name}", host_path=str(path), kind="socket")
    if (base / MPS_FOLDER).is_dir():
        yield HostFile(path=f"/{MPS_FOLDER}", host_path=str(base / MPS_FOLDER), kind="socket")


def _xorg(base: Path, version: str | None) -> Iterator[HostFile]:
    """Yield the X server's driver and GLX module, the first of each."""
    for name in ("drivers/nvidia_drv.so", f"extensions/libglxserver_nvidia.so.{version}"):
        spots = [base / folder / part for folder in _XORG for part in (name, name.partition("/")[2])]
        found = next((path for path in spots if version and path.is_file()), None)
        if found is not None:
            yield HostFile(path=library.inside(base, found), host_path=str(found), kind="library")
