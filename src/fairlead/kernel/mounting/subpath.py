"""Shows one file or folder of a volume in a place of its own, whatever links the volume's users put there.

A path below a folder that containers write may lead anywhere by the time it is used. So each part of it is opened by
itself, links refused, and what was opened is bound, by its descriptor, to a place that containers cannot reach.
Source: openat(2), O_PATH and O_NOFOLLOW; mount(2), MS_BIND; proc_pid_fd(5).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from fairlead import errors
from fairlead.kernel.mounting import mount

_NEW_MODE = 0o777


def show(volume: Path, path: str, place: Path) -> None:
    """Bind a path of a volume to a place; a folder that is missing is made. Idempotent.

    Raises: Unavailable (`SubPathUnusable`): a link is on the way, or a file where a folder should be.
    """
    if mount.is_mounted(place):
        return
    try:
        found = _opened(volume, path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if stat.S_ISDIR(os.fstat(found).st_mode):
                place.mkdir(exist_ok=True)
            else:
                place.touch()
            mount.bind(Path(f"/proc/self/fd/{found}"), place)
        finally:
            os.close(found)
    except OSError as error:
        message = f'subPath "{errors.readable(path)}" cannot be used: {error.strerror}'
        hint = "links are not followed below a volume: name the file or folder itself"
        raise errors.Unavailable(message, reason="SubPathUnusable", hint=hint) from error


def _opened(volume: Path, path: str) -> int:
    """Return a descriptor of what a path of a volume is. Raises: OSError."""
    here = os.open(volume, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in (part for part in path.split("/") if part not in {"", "."}):
        try:
            below = _step(here, part)
        finally:
            os.close(here)
        here = below
    return here


def _step(folder: int, name: str) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        found = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, _NEW_MODE, dir_fd=folder)
        found = os.open(name, flags | os.O_DIRECTORY, dir_fd=folder)
        Path(f"/proc/self/fd/{found}").chmod(_NEW_MODE)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(40, "it is a link", name)
    return found
