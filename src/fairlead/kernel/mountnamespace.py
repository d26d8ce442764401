"""Gives this process a mount namespace of its own, in which one folder is empty.

What the host mounts later still arrives (propagation is slave); what is mounted here stays here. The namespace is that
of the process and of the children that it starts afterwards, so this comes before the first thread.
Source: mount_namespaces(7), unshare(2).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel import mount

_CLONE_NEWNS: Final = 0x00020000


def hide(folder: Path) -> None:
    """Replace a folder by an empty one in memory, for this process and its children only.

    Raises: Unavailable (`NamespaceRefused`): the kernel refuses, for want of CAP_SYS_ADMIN or of the folder.
    """
    target = folder.resolve()
    try:
        _unshare()
        mount.mount(Path("/"), mount.RECURSIVE | mount.SLAVE)
        mount.mount(target, mount.NOSUID | mount.NODEV | mount.NOEXEC, kind="tmpfs", options="mode=0755,size=16m")
    except OSError as error:
        message = f"cannot hide {folder} from the other processes of this machine: {error.strerror}"
        raise errors.Unavailable(
            message, reason="NamespaceRefused", hint="run it as root with CAP_SYS_ADMIN"
        ) from error


def _unshare() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:  # Python has os.unshare from 3.12 on
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
