"""Copies a state folder, while a service writes to it, and packs the copy.

Every database is copied by SQLite as it was at one moment: a reading transaction is begun in each, one directly after
the other, before anything is copied. What a service wrote between the first and the last of them differs by some
thousandths of a second; its parts are made to be killed between any two writes, so that is a state it knows. Each copy
is checked before it is packed. Nothing of the folder is changed.
Source: SQLite, "Backup API" (the copy is what the source connection's transaction sees), "Isolation In SQLite".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from fairlead import __version__, errors, files, temporary
from fairlead.cli.process.backup import archive, parts, schemas
from fairlead.store.sqlite import database

_WAIT_S: Final = 5.0
_ROOM: Final = 64 << 20
"""What a copy leaves of the disk, at the least."""
_PREFIX: Final = ".fairlead-backup-"
_MACHINE_ID: Final = "etc/machine-id"


def machine_digest(root: Path) -> str:
    """Return what tells this machine from others, which does not say its id; empty: it has none."""
    try:
        text = (root / _MACHINE_ID).read_text(errors="replace").strip()
    except OSError:
        return ""
    return hashlib.sha256(f"fairlead backup {text}".encode()).hexdigest()[:32] if text else ""


def make(folder: Path, out: IO[bytes], *, node: str, has_keys: bool) -> archive.Manifest:
    """Write a backup of a state folder.

    The copy is made inside that folder, which nobody else may enter: an account that owns the folder where the backup
    is to lie could put a folder of its own in the copy's place, and read the keys.
    Args:    has_keys: whether keys and credentials are in it.
    Raises:  NotFound (`StateEmpty`), Unavailable, ProtocolError: a database is damaged or of a newer version.
    """
    try:
        return _make(folder, out, node=node, has_keys=has_keys)
    except sqlite3.Error as error:
        message = f"a database below {folder} cannot be copied: {error}"
        raise errors.Unavailable(message, reason="BackupFailed", hint="`fairlead state check` looks at it") from error
    except OSError as error:
        message = f"cannot make the backup: {error.strerror}: {error.filename or folder}"
        raise errors.Unavailable(message, reason="BackupFailed", hint=files.next_step(error)) from error


def _make(folder: Path, out: IO[bytes], *, node: str, has_keys: bool) -> archive.Manifest:
    found, left = parts.find(folder)
    kept = [path for path in found if has_keys or not parts.is_key(path)]
    if not any(parts.is_database(path) for path in kept):
        message = f"there is no state in {folder}"
        raise errors.NotFound(message, reason="StateEmpty", hint="`--state-folder` names another")
    _check_sizes(folder, kept)
    temporary.sweep((_PREFIX,), folder)
    with temporary.folder(_PREFIX, folder) as copied:
        copies = list(_copied(folder, kept, copied))
        manifest = archive.Manifest(
            format=archive.FORMAT,
            fairlead=__version__,
            made_at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            node=node,
            machine=machine_digest(Path("/")),
            state_folder=str(folder.resolve()),
            has_keys=has_keys,
            parts=tuple(copies),
            left_out={
                **{one.path: one.why for one in left},
                **{path: "keys were not wanted" for path in found if path not in kept},
                **parts.ELSEWHERE,
            },
        )
        archive.write(out, manifest, copied)
    return manifest


def _check_sizes(folder: Path, kept: Sequence[str]) -> None:
    if len(kept) > parts.MOST_FILES:
        message = f"{folder} has {len(kept)} files, a backup has at most {parts.MOST_FILES}"
        raise errors.Unavailable(message, reason="BackupFailed", hint="is that the right folder?")
    total = 0
    for path in kept:
        with contextlib.suppress(FileNotFoundError):
            size = (folder / path).stat().st_size
            total += size
            if size >= parts.LARGEST:
                message = f"{folder / path} is larger than {parts.LARGEST >> 30} GiB, which a backup cannot hold"
                raise errors.Unavailable(message, reason="BackupFailed", hint="keep less: `fairlead state list`")
    files.check_room(folder, total + _ROOM)  # the service that runs must not be left without room


def _copied(folder: Path, kept: Sequence[str], target: Path) -> Iterator[archive.Part]:
    """Copy files and yield what a manifest says of each."""
    with contextlib.ExitStack() as stack:
        sources = {path: stack.enter_context(_at_one_moment(folder / path)) for path in kept if parts.is_database(path)}
        for path in kept:
            (target / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path not in sources and not _copy_file(folder / path, target / path):
                continue  # it was removed meanwhile
            if path in sources:
                _copy_database(sources[path], target / path)
            schema = schemas.check(target / path, path) if path in sources else ""
            size, digest = archive.digest(target / path)
            yield archive.Part(path=path, size_bytes=size, sha256=digest, schema=schema)


@contextlib.contextmanager
def _at_one_moment(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection that sees the database as it is now, whatever is written to it."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    with (
        database.translated(path),
        contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_WAIT_S)) as connection,
    ):
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield connection


def _copy_database(source: sqlite3.Connection, target: Path) -> None:
    target.touch(mode=0o600, exist_ok=False)
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.backup(copy)
    for beside in database.sidecars(target):
        beside.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> bool:
    """Copy a file of ours; False: it is not there any more. A link or a pipe in its place is refused."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(handle, "rb") as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy)
    return True
