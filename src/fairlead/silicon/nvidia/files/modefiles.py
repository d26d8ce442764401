"""Finds what each CDI mode besides GPUs needs on a machine: nodes, files, and which of them make one device.

A mode whose nodes belong together is a row of `NODES`; those that must be taken apart (IMEX channels, VFIO groups), or
whose files come from elsewhere (Windows' driver store, Tegra's lists), are a function of their own. `FINDERS` has all
of them. What is made of it is `plan.cdi.source`'s decision. Nothing here asks a driver, so all of it works without
NVML.
Source: what `nvidia-ctk cdi generate` of the container toolkit 1.20.1 writes in each mode; kernel
Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from fairlead import errors, files
from fairlead.frozen import frozen
from fairlead.model.driver import DeviceNode, HostFile, ModeDevice, ModeFiles
from fairlead.silicon.nvidia.files import driver, library
from fairlead.silicon.pci import devnode, iommu, pci, vfio, vgpuhost
from fairlead.wire.oci import mountcsv

NODES: Final[Mapping[str, tuple[str, ...]]] = {
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/uverbs*", "infiniband/rdma_cm"),
    "gdrcopy": ("gdrdrv",),
    "nvswitch": ("nvidia-nvswitchctl", "nvidia-nvswitch*"),
}
"""Modes whose nodes are all one device, with the patterns of those below /dev."""
_FILES: Final[Mapping[str, tuple[str, ...]]] = {"gds": ("etc/cufile.json", "run/udev")}

CSV_FOLDER: Final = Path("/etc/nvidia-container-runtime/host-files-for-container.d")
CSV_FILES: Final = ("devices.csv", "drivers.csv", "l4t.csv")
_LARGEST_LIST: Final = 1 << 20
"""Bytes of one list; those of JetPack have some tens of thousands."""

_MANAGED: Final = ("nvidia*", "nvidia-caps/nvidia-cap*", "nvidia-caps-imex-channels/channel*")
_NOT_MANAGED: Final = ("/dev/nvidia-fs", "/dev/nvidia-nvswitch", "/dev/nvidia-nvlink")
_CHANNEL: Final = re.compile(r"/dev/nvidia-caps-imex-channels/channel(\d+)")
_LAST_CHANNEL: Final = (1 << 20) - 1
_VFIO_VENDORS: Final = {"vfio": 0x10DE, "vfio-amd": 0x1002, "vfio-intel": 0x8086}
_WSL_STORE: Final = "usr/lib/wsl/drivers"
_WSL_LIBRARIES: Final = "usr/lib/wsl/lib"
_WSL_PATTERNS: Final = ("*.so*", "*.bin", "*.dll", "nvidia-smi")


@frozen
class Place:
    """Where and how one mode looks."""

    root: Path = Path("/")
    driver_root: Path = Path("/")
    search: driver.Search = driver.EVERYWHERE_USUAL
    csv_files: tuple[Path, ...] = ()
    """Below the root; empty: the usual ones."""
    csv_ignored: tuple[str, ...] = ()
    """Shell patterns of paths that are left out."""

    @property
    def dev(self) -> Path:
        """The folder below which `dev` is."""
        return self.root if self.search.dev_root is None else library.base_of(self.root, self.search.dev_root)


def scan(mode: str, place: Place) -> ModeFiles:
    """Read what a mode finds; no devices is not an error. Raises: ProtocolError: a Tegra list is malformed.

    Args: mode: a key of `FINDERS`.
    """
    return FINDERS[mode](place)


def list_companions(place: Place) -> tuple[tuple[str, ModeFiles], ...]:
    """Return what containers may get beside GPUs, by mode; modes without a device are left out."""
    found = ((mode, scan(mode, place)) for mode in ("gdrcopy", "gds", "mofed", "imex"))
    return tuple((mode, files) for mode, files in found if files.devices)


def _one_device(mode: str, place: Place) -> ModeFiles:
    nodes = devnode.find_nodes(place.dev, NODES[mode])
    found = (place.root / name for name in _FILES.get(mode, ()))
    files = [_config(place.root, path) for path in found if path.exists()]
    return ModeFiles(devices=_whole(nodes), files=tuple(files) if nodes else ())


def _whole(nodes: Iterable[DeviceNode]) -> tuple[ModeDevice, ...]:
    found = tuple(nodes)
    return (ModeDevice(names=(), nodes=found),) if found else ()


def _config(base: Path, path: Path) -> HostFile:
    return HostFile(path=library.inside(base, path), host_path=str(path), kind="config")


def _management(place: Place) -> ModeFiles:
    """Every node of the driver, with its user space, for a container that manages the machine."""
    nodes = [n for n in devnode.find_nodes(place.dev, _MANAGED) if not n.path.startswith(_NOT_MANAGED)]
    found = driver.scan(place.root, place.driver_root, place.search) if nodes else None
    version, files = (None, ()) if found is None else (found.version, found.files)
    return ModeFiles(version=version, devices=_whole(nodes), files=files)


def _imex(place: Place) -> ModeFiles:
    numbered = ((_CHANNEL.fullmatch(n.path), n) for n in devnode.find_nodes(place.dev, _MANAGED[2:]))
    channels = [(int(match.group(1)), node) for match, node in numbered if match]
    devices = [ModeDevice(names=(str(n),), nodes=(node,)) for n, node in sorted(channels, key=lambda pair: pair[0])]
    return ModeFiles(devices=tuple(device for device in devices if int(device.names[0]) <= _LAST_CHANNEL))


def _vfio(vendor: int, place: Place) -> ModeFiles:
    """Return every GPU of a vendor that is bound for pass-through, by position, PCI address and IOMMU group."""
    devices, problems = [], []
    bound = [a for a in pci.list_displays(place.root, vendor) if iommu.is_vfio(pci.driver_of(place.root, a))]
    for index, address in enumerate(bound):
        number = iommu.group_of(place.root, address) or ""
        nodes = vfio.find_nodes(place.dev, pci.folder(place.root, address))
        holders = [f"{each} is bound to {name}" for each, name in iommu.list_holders(place.root, number)]
        if holders:
            why = f"its IOMMU group {number} is not viable while {', '.join(holders)}; bind to vfio-pci, or unbind"
            problems.append(f"{address} is left out: {why}")
        elif nodes:
            names = (str(index), address, *([f"group{number}"] if number else []))
            devices.append(ModeDevice(names=names, nodes=tuple(nodes)))
        else:
            problems.append(
                f"{address} is left out: it has neither /dev/vfio/{number or 'GROUP'} nor /dev/vfio/devices/"
            )
    shared = devnode.find_nodes(place.dev, [vfio.CONTAINER]) if devices else []
    return ModeFiles(devices=_once(devices), shared=tuple(shared), problems=tuple(problems))


def _once(devices: Iterable[ModeDevice]) -> tuple[ModeDevice, ...]:
    """Keep each name with the first device that has it: GPUs of one IOMMU group share the group's name."""
    seen: set[str] = set()
    found = []
    for device in devices:
        names = tuple(name for name in device.names if name not in seen)
        seen.update(names)
        found.append(ModeDevice(names=names, nodes=device.nodes))
    return tuple(found)


def _vgpu(place: Place) -> ModeFiles:
    """Return every vGPU that this machine lends, by UUID or PCI address and by IOMMU group."""
    found = vgpuhost.list_vgpus(place.root, place.dev)
    devices = [
        ModeDevice(names=(one.id, *([f"group{one.group}"] if one.group else [])), nodes=one.nodes)
        for one in found
        if not one.problem
    ]
    shared = devnode.find_nodes(place.dev, [vfio.CONTAINER]) if devices else []
    problems = tuple(f"{one.id} is left out: {one.problem}" for one in found if one.problem)
    return ModeFiles(devices=_once(devices), shared=tuple(shared), problems=problems)


def _wsl(place: Place) -> ModeFiles:
    """Return the one device of a machine under Windows, with the driver store that Windows mounts into it."""
    nodes = devnode.find_nodes(place.dev, ["dxg"])
    base = library.base_of(place.root, place.driver_root)
    stores = [path.parent for path in sorted((base / _WSL_STORE).glob("*/libcuda.so.1.1"))]
    folders = [*stores, *([base / _WSL_LIBRARIES] if (base / _WSL_LIBRARIES).is_dir() else [])]
    if not nodes or not stores:
        problems = () if not nodes else (f"/dev/dxg is there but no driver store below {base / _WSL_STORE}",)
        return ModeFiles(problems=problems)
    found = {p: None for f in folders for pattern in _WSL_PATTERNS for p in sorted(f.glob(pattern)) if p.is_file()}
    return ModeFiles(devices=_whole(nodes), files=tuple(_wsl_file(base, path) for path in found))


def _wsl_file(base: Path, path: Path) -> HostFile:
    inside = library.inside(base, path)
    if path.name == "nvidia-smi":
        return HostFile(path=inside, host_path=str(path), kind="binary", links=("/usr/bin/nvidia-smi",))
    return HostFile(path=inside, host_path=str(path), kind="library" if ".so" in path.name else "firmware")


def _csv(place: Place) -> ModeFiles:
    base = library.base_of(place.root, place.driver_root)
    named = place.csv_files or tuple(CSV_FOLDER / name for name in CSV_FILES)
    lists = [base / PurePosixPath(path).relative_to("/") for path in named]
    entries = itertools.chain.from_iterable(_entries(base, path, place.csv_ignored) for path in lists)
    nodes: list[DeviceNode] = []
    listed: list[HostFile] = []
    problems: list[str] = []
    for entry in dict.fromkeys(entries):
        pattern = entry.path.lstrip("/")
        known = len(nodes) + len(listed)
        if entry.kind is mountcsv.Kind.DEVICE:
            nodes += devnode.find_nodes(place.dev, [pattern.removeprefix("dev/")])
        else:
            listed += _listed(base, entry.kind, pattern)
        if len(nodes) + len(listed) == known:
            problems.append(f"{entry.path} is left out: the list names it, but it is not there")
    device = ModeDevice(names=("0",), nodes=tuple(nodes))
    return ModeFiles(devices=(device,) if nodes else (), files=tuple(listed), problems=tuple(problems))


def _entries(base: Path, path: Path, ignored: Iterable[str]) -> Iterator[mountcsv.Entry]:
    """Yield a list's lines; one that is not there has none. Raises: ProtocolError: it is not such a list."""
    if not _is_inside(base, path):
        message = f"{path} is a link that leads out of {base}"
        raise errors.ProtocolError(message, reason="MountListMalformed", hint="put the list itself there")
    try:
        data = files.read_regular(path, limit_bytes=_LARGEST_LIST)
        found = mountcsv.parse_mount_csv(data or b"")
    except errors.Unavailable as error:
        raise errors.ProtocolError(error.message, reason="MountListMalformed", hint=error.hint) from error
    except errors.ProtocolError as error:
        message = f"{path}: {error.message}"
        raise errors.ProtocolError(message, reason=error.reason, hint=error.hint, path=str(path)) from error
    patterns = tuple(ignored)
    yield from (entry for entry in found if not any(PurePosixPath(entry.path).match(pattern) for pattern in patterns))


def _listed(base: Path, kind: mountcsv.Kind, pattern: str) -> Iterator[HostFile]:
    """Yield what one line brings; a link comes as what it leads to inside the root, under the link's name."""
    for path in sorted(base.glob(pattern)):
        if not _is_inside(base, path):
            continue
        real = path.resolve()
        if not (real.is_file() or real.is_dir()):
            continue
        is_library = kind is not mountcsv.Kind.FOLDER and ".so" in path.name
        yield HostFile(path=library.inside(base, path), host_path=str(real), kind="library" if is_library else "config")


def _is_inside(base: Path, path: Path) -> bool:
    """Return whether what a path leads to is below the base; a link that leads to itself leads nowhere."""
    try:
        return path.resolve().is_relative_to(base.resolve())
    except (OSError, RuntimeError):
        return False


FINDERS: Final[Mapping[str, Callable[[Place], ModeFiles]]] = {
    "management": _management,
    "imex": _imex,
    "wsl": _wsl,
    "csv": _csv,
    **{mode: functools.partial(_one_device, mode) for mode in NODES},
    "vgpu": _vgpu,
    **{mode: functools.partial(_vfio, vendor) for mode, vendor in _VFIO_VENDORS.items()},
}
"""Mode → what it finds."""


def detect_platform(root: Path, driver_root: Path = Path("/")) -> str:
    """Return which of `wsl`, `csv` and `nvml` speaks for the NVIDIA GPUs of this machine.

    Source: go-nvlib pkg/nvlib/info: dxcore before Tegra's release files before NVML.
    """
    base = library.base_of(root, driver_root)
    if any((base / folder / "libdxcore.so").exists() for folder in (_WSL_LIBRARIES, *library.LIBRARY_FOLDERS)):
        return "wsl"
    family = pci.read_text(root / "sys/devices/soc0/family") or ""
    is_tegra = (base / "etc/nv_tegra_release").exists() or family.lower().startswith("tegra")
    has_nvml = any((folder / "libnvidia-ml.so.1").exists() for folder in library.list_folders(base))
    is_integrated = (root / "sys/module/nvgpu").is_dir() and not (root / "sys/module/nvidia").is_dir()
    return "csv" if is_tegra and (not has_nvml or is_integrated) else "nvml"
