"""Writes and reads the file of a backup: a plain tar file, checked whole before anything of it is used.

The first member says what it is and the digest of the second, the manifest; the manifest says name, size and digest of
every other. Writing is Python's `tarfile`. Reading is not: a header is 512 bytes in which links, devices, long names,
sparse files, extensions and compression have no meaning here, so what such a file can hold beyond regular files of
known sizes is refused by its first wrong byte, and never unpacked by name.
Source: POSIX.1-2017, pax, "ustar Interchange Format".
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NoReturn

import msgspec

from fairlead import errors
from fairlead.cli.process.backup import parts

FORMAT: Final = 1
_HEAD: Final = "fairlead-backup"
_MANIFEST: Final = "manifest.json"
_BLOCK: Final = 512
_LARGEST_MANIFEST: Final = 8 << 20
_CHUNK: Final = 1 << 20
_OTHERS: Final = 0o022
_OCTAL: Final = re.compile(rb"[0-7]{11}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_LONGEST: Final = 4096
"""Of a text in a manifest."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a backup."""

    path: str
    size_bytes: int
    sha256: str
    schema: str = ""
    """Of a database; empty: it is none, or says none."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a backup says of itself."""

    format: int
    fairlead: str
    """Version that wrote it."""
    made_at: str
    node: str
    machine: str
    """A digest of the machine's id; empty: it has none."""
    state_folder: str
    has_keys: bool
    parts: tuple[Part, ...]
    left_out: dict[str, str] = {}
    """What is not in it, and why."""


class Opened:
    """A file of a backup that was read whole and is what its manifest says."""

    def __init__(self, file: IO[bytes], manifest: Manifest, places: dict[str, int]) -> None:
        """Take the open file, and where each part begins."""
        self._file = file
        self.manifest = manifest
        self._places = places

    def chunks(self, part: Part) -> Iterator[bytes]:
        """Yield what a part holds."""
        self._file.seek(self._places[part.path])
        yield from _exactly(self._file, part.size_bytes)


def write(out: IO[bytes], manifest: Manifest, folder: Path) -> None:
    """Write a backup whose parts lie below a folder. Raises: OSError."""
    document = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    head = f"fairlead backup {FORMAT}\n{hashlib.sha256(document).hexdigest()}\n".encode()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.USTAR_FORMAT, bufsize=_BLOCK * 128) as tar:
        tar.addfile(_info(_HEAD, len(head)), io.BytesIO(head))
        tar.addfile(_info(_MANIFEST, len(document)), io.BytesIO(document))
        for part in manifest.parts:
            with (folder / part.path).open("rb") as file:
                tar.addfile(_info(part.path, part.size_bytes), file)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


def digest(path: Path) -> tuple[int, str]:
    """Return size and digest of a file. Raises: OSError."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            size += len(chunk)
    return size, found.hexdigest()


def open_file(path: Path) -> IO[bytes]:
    """Open the file of a backup.

    Raises: NotFound, Unavailable; Denied (`BackupUntrusted`): another user could have written it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise errors.NotFound(f"there is no file {path}", reason="FileNotFound", hint="check the path") from error
    except (OSError, ValueError) as error:
        message = f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        raise errors.Unavailable(message, reason="FileUnreadable", hint="run as root") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        message = f"{path} is not a regular file"
        raise errors.Invalid(message, reason="BackupInvalid", hint="name the file that `state backup` wrote")
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & _OTHERS:
        os.close(handle)
        message = f"{path} belongs to another user, or others may write it: what it holds would run as root here"
        hint = f"if you know where it is from: `chown root {path}` and `chmod 600 {path}`"
        raise errors.Denied(message, reason="BackupUntrusted", hint=hint)
    return os.fdopen(handle, "rb")


def read(file: IO[bytes], path: Path) -> Opened:
    """Read a backup whole and hold each part against the manifest.

    Raises: ProtocolError: `BackupDamaged`, `BackupForeign`, `BackupFromNewerVersion`; Unavailable: the disk.
    """
    try:
        return _read(file, path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="FileUnreadable", hint="is its disk whole?") from error


def _read(file: IO[bytes], path: Path) -> Opened:
    whole = os.fstat(file.fileno()).st_size
    name, size = _header(file, path, is_first=True)
    if name != _HEAD or size > _BLOCK:
        _foreign(path)
    lines = _content(file, size, path).decode(errors="replace").splitlines()
    if len(lines) != 2 or not lines[0].startswith("fairlead backup "):
        _foreign(path)
    if lines[0] != f"fairlead backup {FORMAT}":
        message = f'{path} says "{errors.readable(lines[0])}", this version reads format {FORMAT}'
        hint = "restore it with the version of fairlead that wrote it; nothing was changed"
        raise errors.ProtocolError(message, reason="BackupFromNewerVersion", hint=hint)
    name, size = _header(file, path)
    if name != _MANIFEST or size > min(_LARGEST_MANIFEST, whole):
        _damaged(path, "its manifest is missing or too large")
    document = _content(file, size, path)
    if hashlib.sha256(document).hexdigest() != lines[1]:
        _damaged(path, "its manifest is not what was written")
    manifest = _manifest(document, path)
    if sum(part.size_bytes for part in manifest.parts) > whole:
        _damaged(path, "it is shorter than what its manifest lists")
    return Opened(file, manifest, _check_parts(file, manifest, path))


def _manifest(document: bytes, path: Path) -> Manifest:
    try:
        found = msgspec.json.decode(document, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _damaged(path, f"its manifest cannot be read: {errors.readable(str(error))}", error)
    names = [part.path for part in found.parts]
    if len(set(names)) != len(names) or len(names) > parts.MOST_FILES:
        _damaged(path, "its manifest lists a file twice, or too many")
    said = (found.fairlead, found.node, found.machine, found.state_folder, *found.left_out, *found.left_out.values())
    if not _TIME.fullmatch(found.made_at) or not all(len(one) <= _LONGEST and one.isprintable() for one in said):
        _damaged(path, "its manifest has texts that no backup has")
    for part in found.parts:
        if not parts.is_safe(part.path) or part.size_bytes < 0:
            _damaged(path, f'it has "{errors.readable(part.path)[:80]}", which no backup has')
    return found


def _check_parts(file: IO[bytes], manifest: Manifest, path: Path) -> dict[str, int]:
    places = {}
    for part in manifest.parts:
        name, size = _header(file, path)
        if (name, size) != (part.path, part.size_bytes):
            _damaged(path, f'it has "{errors.readable(name)[:80]}" where its manifest lists "{part.path}"')
        places[part.path] = file.tell()
        found, left = hashlib.sha256(), size
        for chunk in _exactly(file, size):
            found.update(chunk)
            left -= len(chunk)
        if left or found.hexdigest() != part.sha256:
            _damaged(path, f"{part.path} in it is not what was written")
        _skip_padding(file, size, path)
    if any(file.read(_BLOCK * 2)) or _has_more(file):
        _damaged(path, "it has more than its manifest lists")
    return places


def _has_more(file: IO[bytes]) -> bool:
    """Say whether anything but the zeros at a tar file's end follows; they are fewer than a record of 64 KiB."""
    rest = file.read(_BLOCK * 128 + 1)
    return len(rest) > _BLOCK * 128 or any(rest)


def _header(file: IO[bytes], path: Path, *, is_first: bool = False) -> tuple[str, int]:
    """Return name and size of the next member, which is a regular file as `write` writes it, or nothing of ours."""
    block = file.read(_BLOCK)
    if len(block) != _BLOCK or block[257:265] != b"ustar\x0000" or block[156:157] != b"0":
        _refuse_header(path, is_first=is_first)
    if not _OCTAL.fullmatch(block[124:135]):  # `int` takes signs and blanks, too: a size below 0 is no end
        _refuse_header(path, is_first=is_first)
    size = int(block[124:135], 8)
    try:
        said = int(block[148:156].split(b"\0")[0], 8)
        name = block[:100].rstrip(b"\0").decode("ascii")
    except ValueError:
        _refuse_header(path, is_first=is_first)
    if said != sum(block[:148]) + 8 * 0x20 + sum(block[156:]) or any(block[157:257]) or any(block[345:]):
        _refuse_header(path, is_first=is_first)
    return name, size


def _refuse_header(path: Path, *, is_first: bool) -> NoReturn:
    if is_first:
        _foreign(path)
    _damaged(path, "it is cut off, or a header in it is not ours")


def _content(file: IO[bytes], size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) != size:
        _damaged(path, "it is cut off")
    _skip_padding(file, size, path)
    return data


def _skip_padding(file: IO[bytes], size: int, path: Path) -> None:
    if any(file.read(-size % _BLOCK)):
        _damaged(path, "there is something between two files in it")


def _exactly(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(_CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _foreign(path: Path) -> NoReturn:
    message = f"{path} is not a backup of fairlead"
    hint = "name the file that `fairlead state backup` wrote, unpacked if you packed it; nothing was changed"
    raise errors.ProtocolError(message, reason="BackupForeign", hint=hint)


def _damaged(path: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    message = f"backup {path} is damaged: {why}"
    hint = "restore another one; nothing was changed"
    raise errors.ProtocolError(message, reason="BackupDamaged", hint=hint) from cause
