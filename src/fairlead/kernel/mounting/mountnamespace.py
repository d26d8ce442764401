"""Gives this process a mount namespace of its own, in which one folder is empty.

What the host mounts later still arrives. What is mounted here reaches the host as before, but for that folder: engines
keep network namespaces as mounts, and one that only a process knew that is gone breaks them for everybody. The
namespace is that of the process and of the children that it starts afterwards, so this comes before the first thread.
Source: mount_namespaces(7), unshare(2); ip-netns(8), whose folder is a shared mount that podman uses too.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel.mounting import mount

_CLONE_NEWNS: Final = 0x00020000
NETWORKS: Final = Path("/run/netns")


def hide(folder: Path, networks: Path = NETWORKS) -> None:
    """Replace a folder by an empty one in memory, for this process and its children only.

    Args:   networks: where engines mount network namespaces; it becomes a shared mount, as they make it themselves.
    Raises: Unavailable (`NamespaceRefused`): the kernel refuses, for want of CAP_SYS_ADMIN or of the folder.
    """
    target = folder.resolve()
    try:
        _share(networks)
        _unshare()
        mount.mount(mount.find_mount(target), mount.SLAVE)
        mount.mount(target, mount.NOSUID | mount.NODEV | mount.NOEXEC, kind="tmpfs", options="mode=0755,size=16m")
    except OSError as error:
        message = f"cannot hide {folder} from the other processes of this machine: {error.strerror}"
        raise errors.Unavailable(
            message, reason="NamespaceRefused", hint="run it as root with CAP_SYS_ADMIN"
        ) from error


def _share(folder: Path) -> None:
    """Make a folder a mount whose own mounts reach every copy of it in other namespaces."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mount.mount(folder, mount.SHARED)
    except OSError as error:
        if error.errno != errno.EINVAL:  # it is no mount yet
            raise
        mount.bind(folder, folder)
        mount.mount(folder, mount.SHARED)


def _unshare() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:  # Python has os.unshare from 3.12 on
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
