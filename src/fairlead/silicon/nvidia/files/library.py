"""Finds the driver's libraries below a driver root; `userspace` finds the rest.

Directories come from a fixed list, from the linker's cache and from callers that name more; a library belongs to the
driver when its name ends in the driver's version, or when it is one of the few with versions of their own. Symbolic
links are followed only inside their own folder, so no link leads out of the root.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from fairlead import errors
from fairlead.model.driver import MACHINES, HostFile
from fairlead.wire.text import ldcache

_NVML: Final = "libnvidia-ml.so.1"
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
OWN_VERSIONS: Final = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
"""Libraries of the driver that do not carry the driver's version."""
EXPLICIT: Final = (
    "libEGL.so.1",
    "libGL.so.1",
    "libGLESv1_CM.so.1",
    "libGLESv2.so.2",
    "libGLX.so.0",
    "libGLdispatch.so.0",
    "libOpenCL.so.1",
    "libOpenGL.so.0",
    "libnvidia-api.so.1",
)
"""The vendor-neutral dispatch libraries, by the name programs ask for."""
_ANCHORS: Final = ("libcuda.so.", "libnvidia-ml.so.")
_ELF: Final = b"\x7fELF"
_ELF_32: Final = _ELF + b"\x01"
_ELF_64: Final = _ELF + b"\x02"
_E_MACHINE: Final = slice(18, 20)


def base_of(root: Path, driver_root: Path) -> Path:
    """Return where the driver's user space lies on this host: `driver_root` below `root`.

    Raises: Invalid (`SettingInvalid`): it is relative.
    """
    if not driver_root.is_absolute():
        message = f'setting silicon.driver_root = "{errors.readable(str(driver_root)[:200])}" is not an absolute path'
        raise errors.Invalid(message, reason="SettingInvalid", hint="write it as it is below the silicon root, from /")
    return root / PurePosixPath(driver_root).relative_to("/")


def find_program(root: Path, driver_root: Path, program: str) -> str | None:
    """Return a program of the driver, as `/usr/bin/nvidia-smi` below `root`; None: it is not there.

    Args: program: its path below the driver's root, where it is looked for first, or below `root`.
    """
    places = dict.fromkeys((base_of(root, driver_root), root))
    return next((inside(root, base / program) for base in places if (base / program).is_file()), None)


def list_folders(base: Path, more: Iterable[Path] = ()) -> list[Path]:
    """Return the folders that may hold libraries, each real folder once, all inside `base`.

    Args: more: folders to look in first, as they are called below `base`, or in full as nvidia-ctk takes them.
    """
    named = [place for name in more for place in _places(base, name)]
    named += [base / name for name in LIBRARY_FOLDERS]
    named += [base / PurePosixPath(entry.path).parent.relative_to("/") for entry in _read_cache(base)]
    inside, seen, found = base.resolve(), set(), []
    for folder in named:
        real = folder.resolve()
        if real not in seen and real.is_relative_to(inside) and real.is_dir():
            seen.add(real)
            found.append(folder)
    return found


def _places(base: Path, name: Path) -> list[Path]:
    below = base / PurePosixPath(name).relative_to("/")
    return [below, name] if name.is_relative_to(base) else [below]


def _read_cache(base: Path) -> list[ldcache.Entry]:
    """The cache's driver entries; a cache that cannot be read is not an error, the fixed folders remain."""
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
            yield from _list_folder(base, place, (f"*.so.{version}", *OWN_VERSIONS))
        yield from _list_explicit(base, folder)


def _list_folder(base: Path, place: Path, patterns: Iterable[str]) -> Iterator[HostFile]:
    try:
        with os.scandir(place) as found:
            entries = list(found)
    except OSError:  # not there, or not ours to read: as empty
        return
    # One pass for all patterns, and no Path an entry: a driver has hundreds of files in folders of thousands.
    matches = re.compile("|".join(map(fnmatch.translate, patterns))).match
    files = sorted(entry.name for entry in entries if matches(entry.name) and entry.is_file(follow_symlinks=False))
    links = _links(entries) if files else {}
    for name in files:
        path = place / name
        names = tuple(sorted(links.get(name, ())))
        start = _read_start(path)
        yield HostFile(
            path=inside(base, path),
            host_path=str(path),
            kind="library32" if start.startswith(_ELF_32) else "library",
            soname=_soname(names),
            links=names,
            machine=_machine(start),
        )


def _list_explicit(base: Path, folder: Path) -> Iterator[HostFile]:
    """Yield the dispatch libraries that are there: the file itself, under the name that programs ask for."""
    for name in EXPLICIT:
        path = folder / name
        if not path.exists():
            continue
        real = path.resolve()
        if real.parent == folder.resolve() and real.is_file() and not _read_start(real).startswith(_ELF_32):
            yield HostFile(path=inside(base, path), host_path=str(folder / real.name), kind="explicit")


def _links(entries: Iterable[os.DirEntry[str]]) -> dict[str, list[str]]:
    """Return a folder's symbolic links by the name of the file they end at, followed within the folder only."""
    step: dict[str, str] = {}
    for entry in entries:
        if entry.is_symlink():
            end = PurePosixPath(os.readlink(entry.path))  # noqa: PTH115  a Path an entry is what this avoids
            if len(end.parts) == 1:
                step[entry.name] = end.name
    ends: dict[str, list[str]] = {}
    for name, first in step.items():
        last, seen = first, {name}
        while last in step and last not in seen:
            seen.add(last)
            last = step[last]
        ends.setdefault(last, []).append(name)
    return ends


def _soname(links: tuple[str, ...]) -> str | None:
    """The link a program asks for: the one that ends in `.so.N`."""
    return next((name for name in links if name.rpartition(".so.")[2].isdigit()), None)


def is_elf(path: Path) -> bool:
    """Return whether a file is a program or library, and no script around one."""
    return _read_start(path).startswith(_ELF)


def _machine(start: bytes) -> str:
    """Return what a 64-bit library runs on; empty: not known."""
    return MACHINES.get(int.from_bytes(start[_E_MACHINE], "little"), "") if start.startswith(_ELF_64) else ""


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_E_MACHINE.stop)


def find_nvml(base: Path, more: Iterable[Path] = ()) -> Path | None:
    """Return NVML's library: of the folders given first, else of the usual ones below a root of its own.

    Returns: None where the linker finds it, since the base is the host's own; else a path, absent if there is none.
    """
    own = base != Path("/")
    folders = list_folders(base, more) if own else [place for name in more for place in _places(base, name)]
    found = next((folder / _NVML for folder in folders if (folder / _NVML).exists()), None)
    return found or (base / "usr/lib" / _NVML if own else None)


def inside(base: Path, path: Path) -> str:
    """Return what a path below `base` is called there."""
    return f"/{path.relative_to(base)}"
