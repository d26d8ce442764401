"""Reads device nodes and files of this host: the facts that injection and lint compare a spec with.

Device nodes are read anew at every injection and never kept: reloading a driver changes majors, and a cached number
would open another device to a container. `inject` takes the reader as an argument, so a test gives it its own host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from fairlead_cdi import errors
from fairlead_cdi.host import trust


class HostNode(NamedTuple):
    """One path on the host."""

    type: str
    """`b`, `c`, `p`; `link`, or `other` for anything that is not a device."""
    major: int = 0
    minor: int = 0
    mode: int = 0
    """Permission bits."""


StatNode = Callable[[str], HostNode | None]
"""Reads what is at a path, without following symbolic links; None: nothing."""


def stat_node(path: str) -> HostNode | None:
    """Read what is at `path`, without following a symbolic link; None: nothing.

    Raises: HostError: the path cannot be read (permission, broken file system).
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        message = f"cannot look at {path}: {error}"
        raise errors.HostError(message, reason="DeviceNodeUnreadable", path=path) from error
    mode = found.st_mode
    for kind, matches in (("c", stat.S_ISCHR), ("b", stat.S_ISBLK)):
        if matches(mode):
            return HostNode(kind, os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(mode))
    kind = "p" if stat.S_ISFIFO(mode) else "link" if stat.S_ISLNK(mode) else "other"
    return HostNode(kind, mode=stat.S_IMODE(mode))


FindOpen = Callable[[str], str]
"""Path to the first place on the way to it that others than root could change; empty: none."""


def find_open(path: str) -> str:
    """See `trust.find_open`; empty also where the way cannot be followed, which is reported elsewhere."""
    try:
        return trust.find_open(os.path.abspath(path))  # noqa: PTH100 - no pathlib on a container's start
    except (OSError, ValueError):
        return ""


class HostFile(NamedTuple):
    """Owner and permissions of a file or folder, symbolic links followed."""

    mode: int
    uid: int
    is_file: bool

    @property
    def is_writable_by_others(self) -> bool:
        """Whether anyone but its owner may write it; a sticky folder, which protects its entries, does not count."""
        is_sticky = not self.is_file and bool(self.mode & stat.S_ISVTX)
        return bool(self.mode & (stat.S_IWGRP | stat.S_IWOTH)) and not is_sticky


StatFile = Callable[[str], HostFile | None]
"""Reads a file or folder; None: it is missing or cannot be read."""


def stat_file(path: str) -> HostFile | None:
    """Read owner and permissions of what `path` leads to; None: it is missing or cannot be read."""
    try:
        found = os.stat(path)  # noqa: PTH116 - no pathlib on a container's start
    except (OSError, ValueError):
        return None
    return HostFile(stat.S_IMODE(found.st_mode), found.st_uid, stat.S_ISREG(found.st_mode))
