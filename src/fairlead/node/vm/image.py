"""Finds the image of a node's own virtual machine: a folder with a kernel and its initramfs, named with its digest.

`FOLDER@sha256:HEX`. The folder has `kernel`, `initramfs` and, if the kernel needs more than we pass, `command-line`.
The digest is that of the text which `sha256sum command-line initramfs kernel` prints in the folder, without the line
of a file that is not there. What the machine says counts as a verification, so nobody but root may be able to change
the image, and it is read and compared again at each start.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead_cdi.host import trust

_REFERENCE: Final = re.compile(r"(?P<folder>/[^\0@]*)@sha256:(?P<digest>[0-9a-f]{64})")
_FILES: Final = ("command-line", "initramfs", "kernel")
_NEEDED: Final = frozenset({"initramfs", "kernel"})
_LONGEST_LINE: Final = 1500
"""Bytes of a kernel's command line that we take: x86-64's has 2,048."""
INVALID: Final = "VerifierImageInvalid"
CHANGED: Final = "VerifierImageChanged"
UNTRUSTED: Final = "VerifierImageUntrusted"


@frozen
class Image:
    """An image that was read and is what its digest says."""

    kernel: str
    initramfs: str
    command_line: str
    """What the image asks the kernel for; empty: nothing."""
    digest: str
    """sha256:…"""


def check_reference(reference: str) -> tuple[Path, str]:
    """Return folder and digest. Raises: Invalid (`VerifierImageInvalid`)."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        hint = "FOLDER@sha256:HEX; `fairlead vfio image-digest FOLDER` prints it"
        raise errors.Invalid(f"no image of a machine: {reference[:120]!r}", reason=INVALID, hint=hint)
    return Path(found["folder"]), f"sha256:{found['digest']}"


def digest_of(folder: Path) -> str:
    """Return a folder's digest, sha256:…; blocking. Raises: NotFound (`VerifierImageInvalid`): it is no image."""
    lines = ""
    for name in _FILES:
        try:
            with open(folder / name, "rb", opener=_open) as file:
                lines += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n"
        except FileNotFoundError as error:
            if name in _NEEDED:
                hint = "an image has the files kernel and initramfs: see the page on virtual machines"
                raise errors.NotFound(f"{folder / name} is not there", reason=INVALID, hint=hint) from error
        except OSError as error:
            raise errors.Unavailable(f"{folder / name} cannot be read: {error.strerror}", reason=INVALID) from error
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _open(path: str, flags: int) -> int:
    """Open a regular file alone: a pipe in its place would wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def read(reference: str) -> Image:
    """Return an image; blocking: all of it is read.

    Raises: Invalid, NotFound (`VerifierImageInvalid`).   Denied (`VerifierImageUntrusted`): others may change it.
            Conflict (`VerifierImageChanged`): it has another digest.
    """
    folder, wanted = check_reference(reference)
    for name in _FILES:
        assert_ours(folder / name)
    digest = digest_of(folder)
    if digest != wanted:
        message = f"the image in {folder} is {digest}, and {wanted} is asked for"
        hint = "put the right image there, or, if you changed it yourself, name its new digest in the settings"
        raise errors.Conflict(message, reason=CHANGED, hint=hint)
    return Image(
        kernel=str(folder / "kernel"),
        initramfs=str(folder / "initramfs"),
        command_line=_read_line(folder / "command-line"),
        digest=digest,
    )


def _read_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_LINE + 1)
    except FileNotFoundError:
        return ""
    line = " ".join(data.decode(errors="replace").split())
    if len(data) > _LONGEST_LINE or not line.isascii() or not line.isprintable():
        message = f"{path} is no command line of a kernel: at most {_LONGEST_LINE} printable characters"
        raise errors.Invalid(message, reason=INVALID, hint="most images need none: remove the file")
    return line


def assert_ours(path: Path) -> None:
    """Refuse a file that others could change. Raises: Denied (`VerifierImageUntrusted`); Unavailable."""
    try:
        place = trust.find_open(str(path))
    except FileNotFoundError:
        return  # whoever needs it says so
    except OSError as error:
        raise errors.Unavailable(f"{path} cannot be looked at: {error.strerror}", reason=INVALID) from error
    if place:
        message = f"{path} can be changed by others than root (by way of {place}), and has GPUs or their switches"
        hint = f"chown -R root {path.parent} && chmod -R go-w {path.parent}, and the folders above it"
        raise errors.Denied(message, reason=UNTRUSTED, hint=hint)
