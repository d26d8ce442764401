"""Files we own on a host: written whole or not at all, and never destroyed because they could not be read.

Every file another process may read is written beside its final name with its final mode, flushed to disk and renamed.
State that cannot be read is renamed aside and kept. Standard library only: the container hook uses this room too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from fairlead import errors

_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` with `data` in one step, final mode before the rename.

    Args:    path: its folder must exist.   data: whole new content.   mode: permission bits of the new file.
             durable: flush file and folder to disk before returning (off for state that a reboot voids anyway).
    Raises:  Unavailable: the disk is full or refuses the write; the old content is untouched.
    """
    try:
        _replace(path, data, mode=mode, durable=durable)
    except OSError as error:
        hint = "free some space; the old content is untouched" if error.errno in _FULL else None
        message = f"cannot write {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="StateWriteFailed", hint=hint, path=str(path)) from error


def _replace(path: Path, data: bytes, *, mode: int, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    if durable:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def set_aside(path: Path, *, why: str) -> Path:
    """Rename an unreadable file to `NAME.WHY-N`, the first N that is free, and return the new name.

    Raises: Unavailable: the folder refuses; the file is where it was.
    """
    for number in range(1, 10_000):
        target = path.with_name(f"{path.name}.{why}-{number}")
        if os.path.lexists(target):
            continue
        try:
            path.rename(target)
            flush_folder(path.parent)
        except OSError as error:
            message = f"cannot set {path} aside: {error.strerror}"
            raise errors.Unavailable(message, reason="StateSetAsideFailed", path=str(path)) from error
        return target
    message = f"cannot set {path} aside: 9999 earlier copies are in the way"
    raise errors.Unavailable(message, reason="StateSetAsideFull", hint="remove old copies you no longer need")
