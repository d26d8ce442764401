"""Mounts file systems in memory, and takes them away.

Source: mount(2), umount2(2), tmpfs(5).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from fairlead import errors

_NOSUID: Final = 0x2
_NODEV: Final = 0x4
_DETACH: Final = 0x2
"""MNT_DETACH: out of the tree at once, gone with its last user."""
_FLAGS: Final = _NOSUID | _NODEV

_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(folder: Path, *, size_bytes: int | None) -> None:
    """Mount a file system in memory that every user may write to.

    Args:    size_bytes: what it may hold; None: half of the machine's memory, as the kernel has it.
    Raises:  Unavailable (`MemoryVolumeFailed`): the kernel refuses.
    """
    options = "mode=1777" if size_bytes is None else f"mode=1777,size={size_bytes}"
    if _libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _FLAGS, options.encode()) != 0:
        why = os.strerror(ctypes.get_errno())
        message = f"cannot mount memory at {folder}: {why}"
        hint = "the service needs CAP_SYS_ADMIN for it; or ask for a volume on disk"
        raise errors.Unavailable(message, reason="MemoryVolumeFailed", hint=hint)


def unmount(folder: Path) -> None:
    """Take away what is mounted there; nothing mounted is not an error."""
    _libc.umount2(os.fsencode(folder), _DETACH)
