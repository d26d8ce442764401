"""Decides on CUDA forward compatibility: whether a container uses the libcuda that its image brings.

Images for a newer CUDA than the host's driver carry a libcuda of their own below /usr/local/cuda/compat. It is never
mounted or run by us (CVE-2024-0132, CVE-2025-23359 are about peers that did): the folder is named to the container's
linker ahead of the driver's, and the container itself loads from it, or not.
Source: NVIDIA "CUDA Compatibility" guide, section "Forward Compatibility".
"""

import _stat
import posix

from fairlead.inject import fastjson, rootfs
from fairlead.inject.hook import elf

FOLDER = "/usr/local/cuda/compat"
_PREFIX = "libcuda.so."
_MOST_DIGITS = 9


def is_needed(root: rootfs.Root, folder: str, driver: str) -> bool:
    """Whether the image's libcuda is of a newer major version than the driver and says that it works with it.

    A folder with none, with several, or with a link in a library's place is left alone.
    """
    try:
        names = [name for name in root.list(folder) if name.startswith(_PREFIX) and "." in name[len(_PREFIX) :]]
        if len(names) != 1:
            return False
        handle = root.open(f"{folder}/{names[0]}", posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not _stat.S_ISREG(posix.fstat(handle).st_mode):
            return False
        majors = _majors(elf.forward_note(handle))
    except OSError:
        return False
    finally:
        posix.close(handle)
    ours, theirs = _major(driver), _major(names[0][len(_PREFIX) :])
    return 0 < ours < theirs and (majors is None or ours in majors)


def _majors(note: str | None) -> list[int] | None:
    """Return the driver majors a note names; None: there is no such note."""
    try:
        found = fastjson.decode(note.encode()) if note else None
    except ValueError:
        return None
    named = found.get("Driver") if isinstance(found, dict) else None
    return [_major(str(item)) for item in named] if isinstance(named, list) else None


def _major(version: str) -> int:
    text = version.partition(".")[0]
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
