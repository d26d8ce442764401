"""Keeps the ledger's rows and their history in one SQLite file, with a flush to disk before every answer.

One thread at a time, one process at a time: `ledger` has both. A file that is damaged is set aside under another name
and a new one is begun, in which nothing is known of any GPU; a file of a newer version is refused and left as it is.
Source: SQLite "Write-Ahead Logging", PRAGMA synchronous.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry
from fairlead.node.lease import ledgerpath
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Row
from fairlead.wire.text import typedjson

NAME: Final = ledgerpath.NAME
SCHEMA: Final = 1
APPLICATION_ID: Final = 0x464C_4544
"""`FLED`: marks a ledger among other SQLite files."""
KEPT: Final = 10_000
"""Entries of the history; older ones are removed, some time later."""
TIDIED: Final = 150
"""Commits after which the log is moved into the file."""

_SCHEMA: Final = """
BEGIN;
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', 1);
CREATE TABLE gpu (key TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE history (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL, event TEXT NOT NULL, document TEXT NOT NULL
);
CREATE INDEX history_key ON history (key, id);
COMMIT;
"""
_NOTES: Final = "CREATE TABLE IF NOT EXISTS note (key TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID"
"""Came later; a version that does not know the table leaves it as it is, so the schema keeps its number."""

Notes = Mapping[str, str | None]
"""Documents that are kept beside the rows, by key: the UID of a ResourceClaim. None: the document is removed."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One transition as the history keeps it."""

    at: float
    event: str
    by: str
    before: str
    """State."""
    row: Row
    """As it was afterwards."""


class LedgerFile:
    """An open ledger."""

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises: ProtocolError (`LedgerFromNewerVersion`): it is left as it is.   Unavailable: the disk refuses.
        """
        self.path = path
        self._untidied = 0
        self.was_set_aside: Path | None = None
        """Where a damaged file was moved; None: it was whole, or there was none."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._translated():
            try:
                self._connection, self._rows, self._notes = _open(path)
            except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
                if isinstance(error, sqlite3.OperationalError) and not _is_damage(error):
                    raise
                self.was_set_aside = ledgerpath.set_aside(path, why="damaged")
                telemetry.log.error("ledger damaged, set aside", path=str(self.was_set_aside), error=str(error))
                self._connection, self._rows, self._notes = _open(path)

    @property
    def rows(self) -> Mapping[str, Row]:
        """Every GPU's row, as it is on disk; replaced as a whole."""
        return self._rows

    @property
    def notes(self) -> Mapping[str, str]:
        """The documents beside the rows, as they are on disk; replaced as a whole."""
        return self._notes

    def commit(self, changes: Sequence[Change], notes: Notes | None = None) -> None:
        """Write rows, history and notes, and flush them; all or nothing.

        Raises: Unavailable: the disk refuses; the rows are what they were.
        """
        with self._translated():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(
                    "INSERT OR REPLACE INTO gpu VALUES (?, ?)",
                    [(one.after.key, msgspec.json.encode(one.after).decode()) for one in changes],
                )
                self._connection.executemany(
                    "INSERT INTO history (key, at, event, document) VALUES (?, ?, ?, ?)", map(_entry, changes)
                )
                for key, document in (notes or {}).items():
                    if document is None:
                        self._connection.execute("DELETE FROM note WHERE key = ?", (key,))
                    else:
                        self._connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (key, document))
                telemetry.crash_point("ledger.before-commit")
                self._connection.execute("COMMIT")
                telemetry.crash_point("ledger.after-commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                # Whether a commit that failed is on disk is only known from the disk.
                self._rows, self._notes = _read_rows(self._connection), _read_notes(self._connection)
                raise
        self._rows = {**self._rows, **{one.after.key: one.after for one in changes}}
        if notes:
            kept = {**self._notes, **notes}
            self._notes = {key: document for key, document in kept.items() if document is not None}
        self._untidied += 1

    def tidy(self) -> None:
        """Move the log into the file and drop old history, once enough has come: no answer waits for it.

        SQLite would do it within some commit, with two flushes more in that one. Raises: Unavailable.
        """
        if self._untidied < TIDIED:
            return
        self._untidied = 0
        with self._translated():
            self._connection.execute("DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - ?", (KEPT,))
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            message = f"cannot use ledger {self.path}: {error}"
            hint = "no GPU is given away until it can be written: look at its disk"
            raise errors.Unavailable(message, reason="LedgerUnusable", hint=hint, path=str(self.path)) from error


def read(path: Path) -> tuple[Mapping[str, Row], Sequence[Entry]]:
    """Return rows and history, oldest entry first, for another process than the agent's; it changes neither.

    Raises: Unavailable (`LedgerMissing`): there is none.   ProtocolError: it is damaged or newer.
    """
    with _read(path) as connection:
        entries = connection.execute("SELECT document FROM history ORDER BY id").fetchall()
        return _read_rows(connection), tuple(typedjson.decode(one[0], type=Entry) for one in entries)


def read_rows(path: Path) -> Mapping[str, Row]:
    """Return the rows alone, which are a few where the history is long. Raises: as `read`."""
    with _read(path) as connection:
        return _read_rows(connection)


@contextlib.contextmanager
def _read(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        message = f"there is no ledger at {path}"
        hint = "the agent of this machine keeps one with lease.ledger=on; --state-folder says where"
        raise errors.Unavailable(message, reason="LedgerMissing", hint=hint)
    try:
        # Not read-only: the log of a process that was killed is replayed by the next process that opens the file.
        with contextlib.closing(_connect(path, mode="rw")) as connection:
            connection.execute("PRAGMA query_only = ON")
            _check(path, connection)
            yield connection
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        message = f"ledger {path} cannot be read: {error}"
        raise errors.ProtocolError(
            message, reason="LedgerDamaged", hint="the agent's next start sets it aside"
        ) from error


def read_notes(path: Path) -> Mapping[str, str]:
    """Return the documents that are kept beside the rows, by key. Raises: as `read`."""
    with _read(path) as connection:
        return _read_notes(connection)


def _open(path: Path) -> tuple[sqlite3.Connection, dict[str, Row], dict[str, str]]:
    if not os.path.lexists(path):
        _create(path)
    connection = _connect(path, mode="rw")
    try:
        _check(path, connection)
        rows = _read_rows(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `tidy`
        connection.execute(_NOTES)
        notes = _read_notes(connection)
    except BaseException:
        connection.close()
        raise
    return connection, rows, notes


def _create(path: Path) -> None:
    """Make a new ledger beside its place and move it there whole; a log that lost its ledger goes aside first."""
    ledgerpath.set_log_aside(path, why="damaged")
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with contextlib.closing(_connect(fresh, mode="rwc")) as connection:
        fresh.chmod(0o600)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.executescript(_SCHEMA)
    fresh.replace(path)
    files.flush_folder(path.parent)


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise sqlite3.DatabaseError("it is not a regular file")
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Return where the file is a whole ledger of a version we know. Raises: DatabaseError, ProtocolError."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise sqlite3.DatabaseError("it is not a ledger")
    if (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(str(problem))
    found = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if found is None or not isinstance(found[0], int):
        raise sqlite3.DatabaseError("it does not name its schema")
    if found[0] > SCHEMA:
        message = f"ledger {path} has schema {found[0]}, this version reads schemas up to {SCHEMA}"
        hint = "run the version of fairlead that wrote it; the file is untouched"
        raise errors.ProtocolError(message, reason="LedgerFromNewerVersion", hint=hint)


def _read_rows(connection: sqlite3.Connection) -> dict[str, Row]:
    found = connection.execute("SELECT key, document FROM gpu").fetchall()
    rows = {key: typedjson.decode(document, type=Row) for key, document in found}
    if wrong := [key for key, row in rows.items() if row.key != key]:
        raise sqlite3.DatabaseError(f"row {wrong[0]} is of another GPU")
    return rows


def _read_notes(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the notes; none where a version without them wrote the file."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'note'").fetchone() is None:
        return {}
    return dict(connection.execute("SELECT key, document FROM note").fetchall())


def _entry(one: Change) -> tuple[str, float, str, str]:
    entry = Entry(at=one.facts.at, event=one.event.value, by=one.facts.by, before=one.before.state.value, row=one.after)
    return one.after.key, one.facts.at, one.event.value, msgspec.json.encode(entry).decode()


def _is_damage(error: sqlite3.OperationalError) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or "no such" in str(error)
