"""Gives this process a mount namespace of its own, in which one folder is empty.

What the host mounts later still arrives (propagation is slave); what is mounted here stays here. The namespace is that
of the process and of the children that it starts afterwards, so this comes before the first thread.
Source: mount_namespaces(7), unshare(2), mount(2).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead import errors

_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000


def hide(folder: Path) -> None:
    """Replace a folder by an empty one in memory, for this process and its children only.

    Raises: Unavailable (`NamespaceRefused`): the kernel refuses, for want of CAP_SYS_ADMIN or of the folder.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.fsencode(folder.resolve())
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    steps: tuple[Callable[[], int], ...] = (
        functools.partial(libc.unshare, _CLONE_NEWNS),
        functools.partial(libc.mount, None, b"/", None, _MS_REC | _MS_SLAVE, None),
        functools.partial(libc.mount, b"tmpfs", target, b"tmpfs", flags, b"mode=0755,size=16m"),
    )
    for step in steps:
        if step() != 0:
            why = os.strerror(ctypes.get_errno())
            message = f"cannot hide {folder} from the other processes of this machine: {why}"
            raise errors.Unavailable(message, reason="NamespaceRefused", hint="run it as root with CAP_SYS_ADMIN")
