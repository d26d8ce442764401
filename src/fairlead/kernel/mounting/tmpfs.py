"""Mounts file systems in memory that a pod asks for, and takes them away. Source: tmpfs(5)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel.mounting import mount as mounts

unmount: Final = mounts.unmount


def mount(folder: Path, *, size_bytes: int | None) -> None:
    """Mount a file system in memory that every user may write to.

    Args:    size_bytes: what it may hold; None: half of the machine's memory, as the kernel has it.
    Raises:  Unavailable (`MemoryVolumeFailed`): the kernel refuses.
    """
    options = "mode=1777" if size_bytes is None else f"mode=1777,size={size_bytes}"
    try:
        mounts.mount(folder, mounts.NOSUID | mounts.NODEV, kind="tmpfs", options=options)
    except OSError as error:
        message = f"cannot mount memory at {folder}: {error.strerror}"
        hint = "the service needs CAP_SYS_ADMIN for it; or ask for a volume on disk"
        raise errors.Unavailable(message, reason="MemoryVolumeFailed", hint=hint) from error
