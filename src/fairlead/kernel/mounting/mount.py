"""Calls mount(2) and umount2(2), for which Python has no functions, and reads what is mounted.

Source: mount(2), umount2(2), flags from sys/mount.h; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NOSUID: Final = 0x2
NODEV: Final = 0x4
NOEXEC: Final = 0x8
_BIND: Final = 0x1000
RECURSIVE: Final = 0x4000
SLAVE: Final = 0x80000
"""Mounts of the host still arrive here, ours never reach the host."""
SHARED: Final = 0x100000
"""Mounts in it reach its copies in other namespaces, and theirs arrive here."""
_DETACH: Final = 0x2
"""MNT_DETACH: out of the tree at once, gone with its last user."""

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_libc: Final = ctypes.CDLL(None, use_errno=True)
# Without the types ctypes would hand over the flags as a 32-bit int, where the kernel reads an unsigned long.
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def mount(target: Path, flags: int, *, kind: str | None = None, options: str | None = None) -> None:
    """Mount a file system without a device, or (without `kind`) change how a mount behaves.

    Raises: OSError: the kernel refuses.
    """
    name = kind.encode() if kind else None
    if _libc.mount(name, os.fsencode(target), name, flags, options.encode() if options else None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def bind(source: Path, target: Path) -> None:
    """Show a file or folder in another place too. Raises: OSError: the kernel refuses."""
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


@dataclass(frozen=True, slots=True)
class Mounted:
    """One mount."""

    place: Path
    kind: str
    """Of the file system."""
    source: str


def list_mounts(root: Path = Path("/")) -> Iterator[Mounted]:
    """Yield what is mounted in our mount namespace, as the kernel lists it; no server is asked."""
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, source, *_ = after.split()
        yield Mounted(Path(_plain(before.split()[4])), kind, _plain(source))


def find_mount(place: Path) -> Path:
    """Return where the mount begins in which a path lies, which may be the path itself."""
    found = [one.place for one in list_mounts() if place.is_relative_to(one.place)]
    return max(found, key=lambda one: len(one.parts))


def is_mounted(place: Path) -> bool:
    """Return whether something is mounted there, also a bind of the same file system, which `is_mount` does not see."""
    return any(one.place == place for one in list_mounts())


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda one: chr(int(one[1], 8)), text)


def unmount(target: Path) -> None:
    """Take away what is mounted there; nothing mounted is not an error."""
    _libc.umount2(os.fsencode(target), _DETACH)
