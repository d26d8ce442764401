"""Judges the paths that images are made of, before an engine reads them.

They are an asker's words: a pipe would be waited for, and a device without end would be read into memory, by podman as
well as by us. So nothing is opened but a regular file or a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from fairlead import errors

_HEAD_BYTES: Final = 512
_TAR_MAGIC: Final = (257, b"ustar")  # POSIX.1-2001 ustar header, field magic
_PACKED_MAGICS: Final = (b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, xz, zstd
_ROOT_HINT: Final = "give a folder, or a tar (also .gz, .xz, .zst) of a root file system"


def is_folder(source: Path) -> bool:
    """Return whether a root file system is a folder; else it is a tar. Raises: Invalid (`ImageSourceInvalid`)."""
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            return True
        head = _head(source)
    except (OSError, ValueError) as error:
        raise _unreadable(source, error, hint=_ROOT_HINT) from error
    offset, magic = _TAR_MAGIC
    if head[offset:].startswith(magic) or head.startswith(_PACKED_MAGICS):
        return False
    message = f"{source} is neither a folder nor a tar"
    raise errors.Invalid(message, reason="ImageSourceInvalid", hint=_ROOT_HINT)


def check_containerfile(context: Path, file: Path | None) -> None:
    """Refuse a Containerfile that no build could read to its end. Raises: Invalid (`ImageSourceInvalid`).

    Args: file: None: whichever of the two that podman looks for is in the context.
    """
    for path in [context / "Containerfile", context / "Dockerfile"] if file is None else [file]:
        try:
            _head(path)
        except FileNotFoundError:
            continue  # podman says so, in its own words
        except (OSError, ValueError) as error:
            raise _unreadable(path, error, hint="give the path of a Containerfile") from error


def _head(path: Path) -> bytes:
    """Return how a file begins. Raises: OSError; ValueError: no path has such characters."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.read(handle, _HEAD_BYTES)
    finally:
        os.close(handle)


def _unreadable(path: Path, error: OSError | ValueError, *, hint: str) -> errors.Invalid:
    why = error.strerror if isinstance(error, OSError) else error
    message = f"cannot read {errors.readable(str(path))}: {why}"
    return errors.Invalid(message, reason="ImageSourceInvalid", hint=hint)
