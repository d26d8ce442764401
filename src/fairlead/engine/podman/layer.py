"""Closes a container's own folders to the other accounts of the machine.

For a container in a user namespace podman lets everybody pass the folders above its root file system and its host names
(`--x` for others), since root of the namespace must reach them. Below them the rights are those that the container
gives: another account could read its files, write those that all may write, and run its set-uid programs. The last
folder on the way is made the first user's of the namespace instead, and closed to others; podman leaves the folders of
that user as they are.
Source: podman 4.3 libpod/container_internal_linux.go, makeAccessible.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MOUNTED: Final = "merged"
"""Name of the root file system in a layer of the overlay driver.  Source: containers/storage drivers/overlay."""
_CLOSED: Final = 0o700


def close(root: Path, run: Path, first_user_id: int) -> str:
    """Close the folders of a container; returns what stays open and why, empty: nothing does.

    Args: root: its root file system, as podman wrote it for the OCI runtime.   run: has its host names.
          first_user_id: of its user namespace.
    """
    if root.name != _MOUNTED:
        return f"{root} is no layer of the overlay driver, which alone has a folder for each container"
    return _close(root.parent, first_user_id) or _close(run, first_user_id)


def _close(folder: Path, owner: int) -> str:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    try:
        os.fchown(handle, owner, owner)
        os.fchmod(handle, _CLOSED)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    finally:
        os.close(handle)
    return ""
