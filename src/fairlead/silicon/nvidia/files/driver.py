"""Reads NVIDIA's driver from files: device nodes, majors, kernel modules, versions, and what is missing.

Libraries come from `library`, tools and the rest from `userspace`. Nothing here asks the driver anything, so all of it
works while the driver is broken, which is when a person needs it; every gap is said in one sentence with its remedy.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final

from fairlead import settings
from fairlead.model.driver import DeviceNode, DriverFiles, HostFile, Module
from fairlead.model.gpu import Vendor
from fairlead.silicon.nvidia.files import library, userspace
from fairlead.silicon.pci import devnode, pci, vfio, vgpuhost

_MODULES: Final = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_fs", "gdrdrv")
_NEEDED_MODULES: Final = {"nvidia": "modprobe nvidia", "nvidia_uvm": "modprobe nvidia-uvm"}
_NODES: Final = (
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-modeset",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-caps/nvidia-cap*",
    "nvidia-caps-imex-channels/channel*",
    "nvidia-nvswitch*",
    "nvidia-nvlink",
)
_NEEDED_NODES: Final = {
    "/dev/nvidiactl": "nvidia-modprobe -c 0",
    "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0",
}
_MAJOR_PREFIX: Final = "nvidia"
_VENDOR_ID: Final = 0x10DE
_MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d+)")
_VERSION: Final = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where else to look; all paths are below the silicon root or the driver root, whichever they concern."""

    dev_root: Path | None = None
    """Folder that has the driver's `dev`, below the silicon root; None: the silicon root itself."""
    libraries: tuple[Path, ...] = ()
    """More folders of libraries, below the driver root; they come first."""
    configs: tuple[Path, ...] = ()
    """More folders of configuration, below the driver root; they come first."""


EVERYWHERE_USUAL: Final = Search()


def search_of(chosen: settings.SiliconSettings) -> Search:
    """Return where else the driver's files are, as the settings say."""
    libraries, configs = (
        tuple(Path(part) for part in text.split(":") if part.startswith("/"))
        for text in (chosen.library_path, chosen.config_path)
    )
    return Search(dev_root=chosen.dev_root, libraries=libraries, configs=configs)


def scan(root: Path, driver_root: Path, search: Search = EVERYWHERE_USUAL) -> DriverFiles | None:
    """Read the driver's files.

    Args:    root: where /dev, /proc and /sys lie.   driver_root: the user space, below `root`.
    Returns: None where there is no trace of the driver.
    """
    base = library.base_of(root, driver_root)
    folders = library.list_folders(base, search.libraries)
    majors, modules = list_majors(root), list_modules(root)
    kernel, user = kernel_version(root), library.find_version(folders)
    if not majors and kernel is None and user is None:
        return None
    version = kernel or user
    files: list[HostFile] = []
    if version is not None:
        files += library.list_libraries(base, folders, version)
    files += userspace.list_others(base, root, version, search.configs)
    nodes = list_nodes(root, search.dev_root)
    dev = root if search.dev_root is None else library.base_of(root, search.dev_root)
    vgpus = tuple(vgpuhost.list_vgpus(root, dev))
    found = DriverFiles(
        vendor=Vendor.NVIDIA,
        version=version,
        nodes=tuple(nodes),
        files=tuple(files),
        modules=tuple(modules),
        majors=tuple(majors),
        mig_minors=tuple(list_mig_minors(root)),
        vgpus=vgpus,
        vfio_nodes=tuple(devnode.find_nodes(dev, [vfio.CONTAINER]) if vgpus else ()),
        lenders=tuple(vgpuhost.list_lenders(root)),
    )
    problems = (*_kernel_problems(found), *_user_problems(found, kernel, user, base))
    return dataclasses.replace(found, problems=problems)


def find_nvml(root: Path, driver_root: Path, search: Search = EVERYWHERE_USUAL) -> Path | None:
    """Return the path of NVML's library below the roots; None where it is the linker's to find (both are `/`)."""
    return library.find_nvml(library.base_of(root, driver_root), search.libraries)


def kernel_version(root: Path) -> str | None:
    """Return the loaded kernel module's version."""
    text = pci.read_text(root / "proc/driver/nvidia/version") or ""
    found = _VERSION.search(text)
    return found.group(1) if found else pci.read_text(root / "sys/module/nvidia/version")


def list_majors(root: Path) -> list[tuple[str, int]]:
    """Return the driver's character majors from /proc/devices, in its order."""
    text = pci.read_text(root / "proc/devices") or ""
    characters = text.partition("Block devices:")[0]
    pairs = [line.split() for line in characters.splitlines()]
    return [(p[1], int(p[0])) for p in pairs if len(p) == 2 and p[0].isdigit() and p[1].startswith(_MAJOR_PREFIX)]


def list_modules(root: Path) -> list[Module]:
    """Return the driver's modules that are loaded, and the needed ones that are not."""
    text = pci.read_text(root / "proc/modules") or ""
    loaded = {line.split()[0] for line in text.splitlines() if line.strip()}
    loaded |= {name for name in _MODULES if (root / "sys/module" / name).is_dir()}
    return [
        Module(name=name, is_loaded=name in loaded, version=pci.read_text(root / "sys/module" / name / "version"))
        for name in _MODULES
        if name in loaded or name in _NEEDED_MODULES
    ]


def list_nodes(root: Path, dev_root: Path | None = None) -> list[DeviceNode]:
    """Return the driver's character devices that are there, in path order. Args: dev_root: see `Search`."""
    base = root if dev_root is None else library.base_of(root, dev_root)
    nodes = devnode.find_nodes(base, _NODES)
    drm = [name for address in pci.list_displays(root, _VENDOR_ID) for name in pci.list_drm_nodes(root, address)]
    nodes += [node for name in drm if (node := devnode.read_node(base, base / name.lstrip("/"))) is not None]
    return sorted(nodes, key=lambda node: (len(node.path), node.path))


def list_mig_minors(root: Path) -> list[tuple[str, int]]:
    """Return the minor numbers of MIG's capability nodes by name, `gpu0/gi1/access`.

    The driver lists all that may ever exist in one file; where that is missing, those of the instances that exist.
    """
    text = pci.read_text(root / "proc/driver/nvidia-caps/mig-minors")
    if text is not None:
        pairs = [line.split() for line in text.splitlines()]
        return [(pair[0], int(pair[1])) for pair in pairs if len(pair) == 2 and pair[1].isdigit()]
    base = root / "proc/driver/nvidia/capabilities"
    found = []
    for path in sorted(base.glob("gpu*/mig/gi*/**/access")):
        told = _MINOR.search(pci.read_text(path) or "")
        if told:
            found.append((str(path.relative_to(base)).replace("/mig/", "/", 1), int(told.group(1))))
    return found


def _kernel_problems(found: DriverFiles) -> list[str]:
    problems = [
        f"kernel module {module.name} is not loaded: {_NEEDED_MODULES[module.name]}"
        for module in found.modules
        if not module.is_loaded
    ]
    here = {node.path for node in found.nodes}
    problems += [f"device node {path} is missing: {fix}" for path, fix in _NEEDED_NODES.items() if path not in here]
    if not any(re.fullmatch(r"/dev/nvidia\d+", path) for path in here):
        problems.append("no GPU has a device node /dev/nvidia<minor>: nvidia-modprobe -c 0")
    return problems


def _user_problems(found: DriverFiles, kernel: str | None, user: str | None, base: Path) -> list[str]:
    if user is None:
        return [
            f"libcuda.so and libnvidia-ml.so not found below {base}: install the driver's libraries, or set driver_root"
        ]
    if kernel is not None and user != kernel:
        return [f"kernel module is {kernel} but libraries are {user}: reboot, or install libraries {kernel}"]
    names = [Path(file.path).name for file in found.files if file.kind == "library"]
    problems = [
        f"{anchor}.{user} not found below {base}: install the driver's compute libraries"
        for anchor in ("libcuda.so", "libnvidia-ml.so")
        if f"{anchor}.{user}" not in names
    ]
    if not any(file.path.endswith("/nvidia-smi") for file in found.files):
        problems.append(f"nvidia-smi not found below {base}: install the driver's utilities")
    return problems
