"""Writes files on a host whole or not at all, and never destroys one because it could not be read.

Every file another process may read is written beside its final name with its final mode, flushed to disk and renamed.
State that cannot be read is renamed aside and kept. Standard library only: the container hook uses this room too.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from fairlead import errors

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MARK_BYTES = 4
"""Random bytes, in hex at the end of an unfinished file's name."""
_HEX = set("0123456789abcdef")
_AT_WORK_S = 60
_LOGS = ("-wal", "-shm")
"""What SQLite writes beside a database."""


def write_atomic(
    path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True, keeps_rename: bool = True
) -> None:
    """Replace `path` with `data` in one step, final mode before the rename.

    Args:    path: its folder must exist.   data: whole new content.   mode: permission bits of the new file.
             durable: flush file and folder to disk before returning (off for state that a reboot voids anyway).
             keeps_rename: flush the folder too (off where a power cut makes the old file as good as the new one).
    Raises:  Unavailable: the disk is full or refuses the write; the old content is untouched.
    """
    try:
        _replace(path, data, mode=mode, durable=durable)
        if durable and keeps_rename:
            flush_folder(path.parent)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="StateWriteFailed", hint=next_step(error), path=str(path)) from error


def next_step(error: OSError) -> str | None:
    """Return what to do about a refused write; None: the system's own word says it."""
    if error.errno in _FULL:
        return "free some space; the old content is untouched"
    return "run as root, or choose another place" if error.errno in _FORBIDDEN else None


def check_room(folder: Path, least_bytes: int = 1 << 20) -> None:
    """Return if files can be written below a folder. Raises: Unavailable: its disk is full or read-only, or gone."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        message = f"cannot look at {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="StateUnwritable", hint="is its disk mounted?") from error
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_flag & os.ST_RDONLY:
        message = f"{folder} lies on a disk that is mounted read-only"
        raise errors.Unavailable(message, reason="StateUnwritable", hint="look at the kernel's log, then remount it")
    if free_bytes < least_bytes or (disk.f_files and not disk.f_favail):
        what = f"{free_bytes >> 10} KiB" if free_bytes < least_bytes else "no file"
        message = f"{folder} lies on a disk that is full: {what} left"
        raise errors.Unavailable(
            message, reason="StateDiskFull", hint="free some space; nothing that is stored is lost"
        )


def stamp(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when the file is replaced or written; None: it is not there or not readable."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def rewrite(path: Path, data: bytes) -> None:
    """Replace the content of another owner's file in one step: mode, owner and attributes stay, a link is followed.

    Raises: Unavailable: it is not there or not a regular file, or the disk refuses; the old content is untouched.
    """
    try:
        real = path.resolve(strict=True)
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _not_regular(path)
        _replace(real, data, mode=stat.S_IMODE(status.st_mode), durable=True, like=real)
        flush_folder(real.parent)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="FileWriteFailed", hint=next_step(error), path=str(path)) from error


def read_regular(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the content of another owner's file, a link followed; None: there is nothing, not even a link.

    A pipe or a device is refused and never waited for, and so is a link that leads nowhere: a new file in its place
    would not be what its owner meant.
    Raises: Unavailable (`FileUnreadable`).
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            message = f"cannot read {path}: it is a link to {path.readlink()}, which is not there"
            raise errors.Unavailable(message, reason="FileUnreadable", hint="mend or remove the link") from error
        return None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="FileUnreadable", hint="run as root", path=str(path)) from error
    except ValueError as error:  # NUL, or what is not UTF-8
        message = f"cannot read {str(path)!r}: {error}"
        raise errors.Unavailable(message, reason="FileUnreadable", hint="it is not a path") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise _not_regular(path)
    with os.fdopen(handle, "rb") as file:
        if status.st_size > limit_bytes:
            message = f"{path} has {status.st_size} bytes, at most {limit_bytes} are read"
            raise errors.Unavailable(message, reason="FileUnreadable", hint="is that the right file?")
        try:
            return file.read()
        except OSError as error:  # what the kernel shows as a file and lets no process read
            message = f"cannot read {path}: {error.strerror}"
            raise errors.Unavailable(message, reason="FileUnreadable", path=str(path)) from error


LARGEST_BYTES = 16 << 20
"""Largest document that a command line or a variable may name."""


LARGEST_WORDS_BYTES = 256 << 10
"""Bytes that are read of a command line or environment of a process, unless one may really have more."""


def read_beginning(path: Path, *, limit_bytes: int = LARGEST_WORDS_BYTES) -> bytes:
    """Return what a file holds, or its first bytes: whoever made it may have made it without end.

    A process may have the kernel show gigabytes of its memory as its command line and environment, with no right at all
    (prctl(2), PR_SET_MM_MAP). Raises: OSError.
    """
    with path.open("rb") as file:
        return file.read(limit_bytes)


def read_bounded(path: Path, *, limit_bytes: int = LARGEST_BYTES) -> bytes:
    """Return what a named file holds. Raises: OSError: not there, refused, or without end (`EFBIG`)."""
    with path.open("rb") as file:
        return _bounded(file, path, limit_bytes)


def _bounded(file: io.BufferedReader, path: Path, limit_bytes: int) -> bytes:
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
    return data


def read_judged(path: Path) -> tuple[os.stat_result, bytes]:
    """Return what a file holds and what the kernel says of this very file: its owner, its mode.

    Raises: OSError: not there, refused, not a regular file (`EINVAL`), or without end (`EFBIG`).
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return status, _bounded(file, path, LARGEST_BYTES)


def _not_regular(path: Path) -> errors.Unavailable:
    message = f"{path} is, or leads to, something that is not a regular file"
    return errors.Unavailable(message, reason="FileUnreadable", hint="put a file there, or remove it", path=str(path))


def _copy_attributes(source: Path, handle: int) -> None:
    """Give a new file the owner and the extended attributes of another, as far as we may."""
    status = source.stat()
    os.fchown(handle, status.st_uid, status.st_gid)
    for name in os.listxattr(source):
        with contextlib.suppress(OSError):  # labels that only the kernel may write
            os.setxattr(handle, name, os.getxattr(source, name))


def _replace(path: Path, data: bytes, *, mode: int, durable: bool, like: Path | None = None) -> None:
    # What tempfile.mkstemp does (a name that cannot be guessed, made by us or not at all), without the 5 ms that it
    # takes to load: it brings shutil and its compressors.
    temporary = beside(path)
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            if like is not None:
                _copy_attributes(like, file.fileno())
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def beside(path: Path) -> Path:
    """Return a name for what will be renamed to `path`: one that cannot be guessed, and that `sweep` knows."""
    return path.parent / f".{path.name}.{os.urandom(_MARK_BYTES).hex()}"


def find_unfinished(folder: Path, name: str = "") -> tuple[Path, ...]:
    """Return what writers that were killed before their rename have left in a folder.

    Only what has lain there for a minute: a writer at work in another process is left its file.
    Args: name: what was to be written; empty: anything.
    """
    with contextlib.suppress(OSError):
        return tuple(one for one in sorted(folder.iterdir()) if _is_unfinished(one, name))
    return ()


def list_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders in a folder, by name, links left out; what cannot be looked at has none."""
    with contextlib.suppress(OSError):
        return tuple(sorted(Path(one.path) for one in os.scandir(folder) if one.is_dir(follow_symlinks=False)))
    return ()


def _is_unfinished(path: Path, name: str) -> bool:
    start, _, mark = path.name.rpartition(".")
    for end in _LOGS:
        mark = mark.removesuffix(end)
    if not start.startswith(".") or len(start) < 2 or (name and start != f".{name}"):
        return False
    is_ours = len(mark) == _MARK_BYTES * 2 and set(mark) <= _HEX
    with contextlib.suppress(OSError):
        return is_ours and stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_mtime < time.time() - _AT_WORK_S
    return False


def sweep(path: Path) -> None:
    """Remove what writers of `path` that were killed before their rename have left beside it."""
    remove(find_unfinished(path.parent, path.name))


def remove(found: Iterable[Path]) -> None:
    """Remove files; what cannot be removed stays: what is left of a writer does no harm but take room."""
    for one in found:
        with contextlib.suppress(OSError):
            one.unlink()


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
