"""Plays the node of a VFIO group by a file: it takes one opener, and a process that dies lets go of it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from fairlead import errors


class NodeHold:
    """A node that is kept open."""

    def __init__(self, handle: int) -> None:
        """Take its descriptor."""
        self._handle = handle

    def close(self) -> None:
        """Let go of it; nothing the second time."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def open_alone(path: Path, *, may_make: bool = False) -> int:
    """Open a node; returns the descriptor. Raises: OSError (EBUSY): somebody has it. Args: may_make: or make it."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if may_make else 0), 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise OSError(errno.EBUSY, "Device or resource busy") from error
    return handle


def hold(path: Path, name: str, *, may_make: bool = False) -> NodeHold:
    """Keep a node open as the third gate does. Raises: Conflict: somebody has it. Args: name: which one, in words."""
    try:
        return NodeHold(open_alone(path, may_make=may_make))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise errors.Conflict(f"{name} is in use", reason="VFIONodeInUse") from error
