"""Opens the state file: made whole, checked before it is trusted, and left alone when it cannot be.

A new file is built under another name and linked into place, so that an empty file at the final name is always damage
and never a beginning. An existing file is opened read-only first; only one of a schema we know that passes SQLite's
check is opened for writing, and brought to the present schema in one transaction. A new file takes the same steps, so
both are equal. Foreign, damaged or newer state is refused with the file named and never written to. Nothing here
opens the file except through SQLite: closing any other descriptor of it would drop SQLite's locks in this process.
Source: SQLite "How To Corrupt An SQLite Database File" 2.2; "Write-Ahead Logging"; "Result and Error Codes".
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fairlead import errors, files, telemetry

SCHEMA = 2
APPLICATION_ID = 0x4641_4952
"""`FAIR`: marks our state among other SQLite files."""
DAMAGED = "StateDamaged"
"""The reason of every error that names a state file which cannot be read."""
BUSY_S = 5.0
"""How long a writer waits for another process's transaction."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_REFUSED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_OCCUPIED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_SCHEMA_1 = """
BEGIN;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('version', 0), ('forgotten', 0), ('schema', 1);
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    uid TEXT NOT NULL, version INTEGER NOT NULL, document TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);
CREATE INDEX objects_uid ON objects (uid);
CREATE INDEX objects_version ON objects (kind, version);
CREATE TABLE owners (
    owner_uid TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (owner_uid, kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE changes (version INTEGER PRIMARY KEY, kind TEXT NOT NULL, before TEXT, after TEXT);
COMMIT;
"""


def _about(field: str) -> tuple[str, str]:
    """Return the statements that index what Events are about; other kinds have no such column and cost nothing.

    The columns are computed from the document, so an older process that still has the file open keeps them right.
    """
    found = f"json_extract(document, '$.involvedObject.{field}')"
    value = f"CASE WHEN kind = 'v1/Event' AND json_valid(document) THEN {found} END"
    column = f"about_{field}"
    return (
        f"ALTER TABLE objects ADD COLUMN {column} TEXT GENERATED ALWAYS AS ({value}) VIRTUAL",
        f"CREATE INDEX objects_{column} ON objects ({column}, kind, namespace, name) WHERE {column} IS NOT NULL",
    )


_STEPS: Mapping[int, Sequence[str]] = {1: (*_about("uid"), *_about("name"))}
"""What leads from each schema to the next."""


def sidecars(path: Path) -> tuple[Path, ...]:
    """Return the files that belong to a database beside itself: its write-ahead log, and the log's index."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def ensure(path: Path) -> None:
    """Make the state file where there is none, else check it.

    Raises:  ProtocolError (`StateDamaged`, `StateFromNewerVersion`): the file is left as it is.
             Unavailable: the folder cannot be read or written, or is full.
    """
    with translated(path):
        schema = _check(path)
        if schema is None:
            _create(path)
        elif schema < SCHEMA:
            _migrate(path)


def check(path: Path) -> int | None:
    """Return the schema of a whole state file; None: there is none. Raises: as `ensure`; never writes."""
    with translated(path):
        return _check(path)


def _check(path: Path) -> int | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        _refuse_orphaned_log(path)
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not found.st_size:
        _damaged(path, "it is empty")
    return _inspect(path)


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """Open a checked state file for one thread at a time; statements outside `BEGIN` commit by themselves."""
    with translated(path):
        connection = _open(path, mode="rw")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
        return connection


def list_ids(path: Path, kind: str) -> tuple[tuple[str, str, str], ...]:
    """Return namespace, name and uid of each object of a kind, for another process than the service's.

    Args:   kind: as its documents name it, `v1/Pod`.   Raises: as `ensure`; never writes.
    """
    with contextlib.closing(connect(path, writes=False)) as connection, translated(path):
        found = connection.execute("SELECT namespace, name, uid FROM objects WHERE kind = ?", (kind,)).fetchall()
    return tuple((str(namespace), str(name), str(uid)) for namespace, name, uid in found)


def list_documents(path: Path, kind: str) -> tuple[str, ...]:
    """Return the objects of a kind as they are stored. Args, Raises: as `list_ids`."""
    with contextlib.closing(connect(path, writes=False)) as connection, translated(path):
        found = connection.execute("SELECT document FROM objects WHERE kind = ?", (kind,)).fetchall()
    return tuple(str(document) for (document,) in found)


def _open(path: Path, *, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=False)


def _create(path: Path) -> None:
    new = files.beside(path)
    new.touch(mode=0o600, exist_ok=False)
    try:
        with contextlib.closing(_open(new, mode="rw")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.executescript(_SCHEMA_1)
            _advance(connection)
        with contextlib.suppress(FileExistsError):  # another process was first, with the same content
            path.hardlink_to(new)
        files.flush_folder(path.parent)
    finally:
        for leftover in (new, *sidecars(new)):
            leftover.unlink(missing_ok=True)


def _refuse_orphaned_log(path: Path) -> None:
    """A log without its database would be replayed into a new one of the same name."""
    log = sidecars(path)[0]
    if log.exists() and log.stat().st_size:
        _damaged(path, f"it is missing, but its write-ahead log {log.name} is there")


def _migrate(path: Path) -> None:
    """Bring a file that an older version wrote to the present schema: all of it, on disk, or nothing."""
    with contextlib.closing(connect(path, writes=True)) as connection:
        was = _advance(connection)
    if was < SCHEMA:
        telemetry.log.info("state file migrated", path=str(path), state=f"schema {was} to {SCHEMA}")


def _advance(connection: sqlite3.Connection) -> int:
    """Take every step that is left; returns the schema it found. Another process may have been first."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        was: int = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()[0]
        for schema in range(was, SCHEMA):
            for statement in _STEPS[schema]:
                connection.execute(statement)
        connection.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'schema'", (SCHEMA,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return was


def _inspect(path: Path) -> int:
    """Return the schema of a whole file. Raises: ProtocolError."""
    with contextlib.closing(_open(path, mode="ro")) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            _damaged(path, "it is an SQLite file of another program")
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if row is None:
            _damaged(path, "it does not name its schema")
        _check_schema(path, row[0])
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            _damaged(path, str(problem).replace("\n", " "))
        return int(row[0])


def _check_schema(path: Path, schema: object) -> None:
    if not isinstance(schema, int) or schema < 1:
        _damaged(path, f"its schema is {schema!r}")
    if schema > SCHEMA:
        message = f"state file {path} has schema {schema}, this version reads schemas up to {SCHEMA}"
        hint = "run the version of fairlead that wrote it; the file is untouched"
        raise errors.ProtocolError(message, reason="StateFromNewerVersion", hint=hint, path=str(path))


def _damaged(path: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    message = f"state file {path} is damaged: {why}"
    hint = "nothing was written to it: restore it from a copy, or set it aside with `fairlead state repair`"
    raise errors.ProtocolError(message, reason=DAMAGED, hint=hint, path=str(path)) from cause


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say about the state file into our errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise_for(path, error)
    except UnicodeDecodeError as error:  # Python reads SQLite's own words, which quote a damaged schema
        _damaged(path, f"its schema is not UTF-8: {error.reason}", error)
    except OSError as error:
        message = f"cannot open state file {path}: {error.strerror}"
        hint = f"{path.parent} must be a folder that this user may read and write, with space left"
        raise errors.Unavailable(message, reason="StateUnreachable", hint=hint, path=str(path)) from error


def raise_for(path: Path, error: sqlite3.Error) -> NoReturn:
    """Raise the error that names who must act on what SQLite reports."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGED or "no such table" in str(error):
        _damaged(path, str(error), error)
    reason, hint = "StateFailed", "look at the kernel's log for the disk below it"
    if code == sqlite3.SQLITE_FULL or _is_full(path):
        reason, hint = "StateDiskFull", "free some space and try again; what was stored before is untouched"
    elif code in _REFUSED:
        reason, hint = "StateUnreachable", f"this user must be able to read and write {path} and its folder"
    elif code in _OCCUPIED:
        reason, hint = "StateBusy", "another process holds it: try again"
    message = f"state file {path} cannot be used: {error}"
    raise errors.Unavailable(message, reason=reason, hint=hint, path=str(path)) from error


def _is_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
