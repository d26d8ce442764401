"""The driver's user space on disk: libraries, tools, firmware and sockets below a driver root.

Directories come from a fixed list and from the linker's cache; a library belongs to the driver when its name ends in
the driver's version. Symbolic links are followed only inside their own folder, so no link leads out of the root.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from fairlead import errors
from fairlead.model.driver import HostFile
from fairlead.wire import ldcache

LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib32",
    "usr/lib/i386-linux-gnu",
    "usr/lib",
    "usr/local/nvidia/lib64",
)
BINARY_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/nvidia/bin")
BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_ANCHORS: Final = ("libcuda.so.", "libnvidia-ml.so.")
_ELF_32: Final = b"\x7fELF\x01"


def base_of(root: Path, driver_root: Path) -> Path:
    """Return where the driver's user space lies on this host: `driver_root` below `root`."""
    return root / PurePosixPath(driver_root).relative_to("/")


def list_folders(base: Path) -> list[Path]:
    """Return the folders that may hold libraries, each real folder once, all inside `base`."""
    named = [base / name for name in LIBRARY_FOLDERS]
    named += [base / PurePosixPath(entry.path).parent.relative_to("/") for entry in _read_cache(base)]
    inside, seen, found = base.resolve(), set(), []
    for folder in named:
        real = folder.resolve()
        if real not in seen and real.is_relative_to(inside) and real.is_dir():
            seen.add(real)
            found.append(folder)
    return found


def _read_cache(base: Path) -> list[ldcache.Entry]:
    """The cache's driver entries; a cache that cannot be read is no error, the fixed folders remain."""
    try:
        data = (base / "etc/ld.so.cache").read_bytes()
        entries = ldcache.parse_ldcache(data)
    except (OSError, errors.ProtocolError):
        return []
    return [e for e in entries if e.is_elf and e.path.startswith("/") and e.soname.startswith(_ANCHORS)]


def find_version(folders: list[Path]) -> str | None:
    """Return the version in the name of libcuda or libnvidia-ml; the file of the first folder decides."""
    for anchor in _ANCHORS:
        for folder in folders:
            for path in sorted(folder.glob(f"{anchor}*.*")):
                version = path.name.removeprefix(anchor)
                if version.replace(".", "").isdigit() and not path.is_symlink():
                    return version
    return None


def list_libraries(base: Path, folders: list[Path], version: str) -> Iterator[HostFile]:
    """Yield every library of this driver version, folder by folder, with the links that lead to it."""
    for folder in folders:
        for place in (folder, folder / "vdpau"):
            links = _links(place)
            for path in sorted(place.glob(f"lib*.so.{version}")):
                if path.is_symlink() or not path.is_file():
                    continue
                names = tuple(sorted(link for link, end in links.items() if end == path.name))
                yield HostFile(
                    path=_inside(base, path),
                    host_path=str(path),
                    kind="library32" if _is_32_bit(path) else "library",
                    soname=_soname(names),
                    links=names,
                )


def _links(folder: Path) -> dict[str, str]:
    """Every symbolic link of a folder by the name of the file it ends at, followed within the folder only."""
    step: dict[str, str] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink():
            end = path.readlink()
            if len(end.parts) == 1:
                step[path.name] = end.name
    ends = {}
    for name, first in step.items():
        last, seen = first, {name}
        while last in step and last not in seen:
            seen.add(last)
            last = step[last]
        ends[name] = last
    return ends


def _soname(links: tuple[str, ...]) -> str | None:
    """The link a program asks for: the one that ends in `.so.N`."""
    return next((name for name in links if name.rpartition(".so.")[2].isdigit()), None)


def _is_32_bit(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(5) == _ELF_32


def list_others(base: Path, version: str | None) -> Iterator[HostFile]:
    """Yield tools, firmware and the daemons' sockets that are there."""
    for name in BINARIES:
        path = next((base / f / name for f in BINARY_FOLDERS if (base / f / name).is_file()), None)
        if path is not None:
            yield HostFile(path=_inside(base, path), host_path=str(path), kind="binary")
    for path in sorted((base / "lib/firmware/nvidia" / (version or "-")).glob("gsp*.bin")):
        yield HostFile(path=_inside(base, path), host_path=str(path), kind="firmware")
    for name in SOCKETS:
        if (base / name).exists() and stat.S_ISSOCK((base / name).stat().st_mode):
            yield HostFile(path=f"/{name}", host_path=str(base / name), kind="socket")


def find_nvml(base: Path) -> Path:
    """Return libnvidia-ml.so.1 of a driver root that is not the host's own; a path that is absent if there is none."""
    found = next((f / "libnvidia-ml.so.1" for f in list_folders(base) if (f / "libnvidia-ml.so.1").exists()), None)
    return found or base / "usr/lib/libnvidia-ml.so.1"


def _inside(base: Path, path: Path) -> str:
    return f"/{path.relative_to(base)}"
