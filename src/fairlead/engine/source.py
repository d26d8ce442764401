"""Judges the paths that images are made of, before an engine reads them.

They are a caller's words: a pipe would be waited for, and a device without end would be read into memory, by podman as
well as by us. So nothing is opened but a regular file or a folder.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.engine import port

_ARG_INVALID: Final = "BuildArgInvalid"
_ARG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_STAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_MOST_ARGS: Final = 256
_LONGEST_ARG: Final = 4096
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


def check_recipe(recipe: port.Recipe) -> None:
    """Refuse values and stages that no Containerfile can have. Raises: Invalid (`BuildArgInvalid`), with no value."""
    if len(recipe.args) > _MOST_ARGS:
        message = f"{len(recipe.args)} build arguments are given, and at most {_MOST_ARGS} are taken"
        raise errors.Invalid(message, reason=_ARG_INVALID, hint="copy a file of them into the image")
    for name, value in recipe.args.items():
        if not _ARG.fullmatch(name):
            message = f'build argument "{errors.readable(name[:80])}" is not a name'
            raise errors.Invalid(message, reason=_ARG_INVALID, hint="letters, digits and _, as VERSION=1.2")
        if "\0" in value or len(value) > _LONGEST_ARG:
            message = f'build argument "{name}" holds NUL, or more than {_LONGEST_ARG} characters'
            raise errors.Invalid(message, reason=_ARG_INVALID, hint="copy a file into the image instead")
    if recipe.target and not _STAGE.fullmatch(recipe.target):
        message = f'stage "{errors.readable(recipe.target[:80])}" is not the name of one'
        raise errors.Invalid(message, reason=_ARG_INVALID, hint="the word behind AS in a FROM, or its number")


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
