"""Device nodes as they stand on this host now: the facts that injection compares a spec with.

Read anew at every injection and never kept: driver reloads move majors, and a cached number would open another
device to a container. `plan.edits` takes the reader as an argument, so that decisions stay free of I/O.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from fairlead import errors


class HostNode(NamedTuple):
    """One path on the host."""

    type: str
    """`b`, `c`, `p`; `link`, or `other` for anything no container can be given as a device."""
    major: int = 0
    minor: int = 0
    mode: int = 0
    """Permission bits."""


StatNode = Callable[[str], HostNode | None]
"""Path to what stands there, symbolic links not followed; None: nothing."""


def stat_node(path: str) -> HostNode | None:
    """Read what stands at `path`; None: nothing does.

    Raises: Unavailable: the path cannot be looked at (permission, broken file system).
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        message = f"cannot look at {path}: {error}"
        raise errors.Unavailable(message, reason="DeviceNodeUnreadable", path=path) from error
    mode = found.st_mode
    for kind, matches in (("c", stat.S_ISCHR), ("b", stat.S_ISBLK)):
        if matches(mode):
            return HostNode(kind, os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(mode))
    kind = "p" if stat.S_ISFIFO(mode) else "link" if stat.S_ISLNK(mode) else "other"
    return HostNode(kind, mode=stat.S_IMODE(mode))


class HostFile(NamedTuple):
    """What matters about a file or folder that a runtime will trust; symbolic links followed."""

    mode: int
    uid: int
    is_file: bool

    @property
    def is_writable_by_others(self) -> bool:
        """Whether anyone but its owner may write it; a sticky folder keeps others' hands off its entries."""
        is_sticky = not self.is_file and bool(self.mode & stat.S_ISVTX)
        return bool(self.mode & (stat.S_IWGRP | stat.S_IWOTH)) and not is_sticky


StatFile = Callable[[str], HostFile | None]


def stat_file(path: str) -> HostFile | None:
    """Read owner and permissions of what `path` leads to; None: nothing, or nothing that can be looked at."""
    try:
        found = os.stat(path)  # noqa: PTH116 - no pathlib on a container's start
    except (OSError, ValueError):
        return None
    return HostFile(stat.S_IMODE(found.st_mode), found.st_uid, stat.S_ISREG(found.st_mode))
