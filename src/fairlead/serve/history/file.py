"""Keeps figures in an SQLite file of their own, `history.db`, of which this process is the only writer.

One row is one series in one bucket: its means and largest values as packed numbers, NaN for a gap. Rows of one bucket
lie beside each other, so a bucket costs a few pages. Coarser resolutions are summed up in the file from finer ones,
when their bucket is over: a restart loses what was measured since the last write and nothing else. What is lost here
costs nobody anything, so a commit does not wait for the disk, and a file that is damaged is set aside and begun again.

Every call blocks. Writes come from one thread, reads from another.
Source: SQLite, "PRAGMA synchronous" (NORMAL in WAL mode: a power cut may
lose the last commits and damages nothing), "Clustered Indexes and the WITHOUT ROWID Optimization".
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.plan.history import figure, tier
from fairlead.plan.history.figure import Interval, Row, Value

T = TypeVar("T")

FILE: Final = "history.db"
SCHEMA: Final = 1
_APPLICATION: Final = 0x4648_6973
"""`FHis`."""
_MOST_SERIES: Final = 1024
"""Series written in one bucket; a machine that has more keeps the first."""
_MOST_HELD: Final = 10_000
"""Holders of one GPU, or devices of one pod, in one answer; the newest are kept."""
_TABLES: Final = """
CREATE TABLE series (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, UNIQUE (kind, key));
CREATE TABLE points (
    tier INTEGER NOT NULL, at INTEGER NOT NULL, series INTEGER NOT NULL, weight INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (tier, at, series)
) WITHOUT ROWID;
CREATE TABLE held (
    gpu TEXT NOT NULL, device TEXT NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    since INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (uid, device, since)
) WITHOUT ROWID;
CREATE INDEX held_gpu ON held (gpu, until);
"""
_WANTED: Final = """
WITH RECURSIVE bucket(at) AS (SELECT ?1 UNION ALL SELECT at + ?2 FROM bucket WHERE at + ?2 < ?3)
SELECT points.at, weight, value FROM bucket
JOIN points ON points.tier = ?4 AND points.at = bucket.at AND points.series = ?5
"""
"""Looks each bucket up by the primary key, which begins with the time."""


@frozen
class Held:
    """Who held a device, and when."""

    gpu: str
    device: str
    """The GPU, a MIG device on it, or a replica of either."""
    uid: str
    """Of the pod."""
    namespace: str
    name: str
    since: int
    until: int

    @property
    def interval(self) -> Interval:
        """When."""
        return Interval(since=self.since, until=self.until)


@frozen
class Size:
    """How much is kept."""

    rows: int = 0
    bytes: int = 0
    begin: int | None = None
    """Unix seconds of the oldest; None: there is nothing yet."""
    series: int = 0


def _pack(row: Row) -> bytes:
    values = (*row.means, *(() if row.means == row.peaks else row.peaks))
    return struct.pack(f"<{len(values)}f", *(math.nan if one is None else one for one in values))


def _unpack(at: int, weight: int, value: bytes, count: int, step_s: int = tier.FINEST_S) -> Row:
    """Return a row. Args: count: of figures; a row of one sample holds each once."""
    found: Sequence[Value] = [None if math.isnan(one) else one for (one,) in struct.iter_unpack("<f", value)]
    means = tuple(found[: len(found) // 2] if len(found) > count else found)
    return Row(at=at, weight=weight, means=means, peaks=tuple(found[len(means) :]) or means, step_s=step_s)


class HistoryFile:
    """The file."""

    def __init__(self, path: Path, *, days: float, most_bytes: int) -> None:
        """Open it, or make it; a damaged one is set aside.

        Args:    days: how long the coarsest resolution is kept.   most_bytes: of the file; beyond, the oldest goes.
        Raises:  Unavailable (`HistoryUnreachable`): the folder cannot be written.
        """
        self._path, self._days, self._most = path, days, most_bytes
        self.set_aside: Path | None = None
        """Where a damaged file was put; None: there was none."""
        self._ids: dict[tuple[str, str], int] = {}
        self._is_doubted = False
        """A reader met damage, which the writer looks for before it writes again."""
        self._reading: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        """The writer's connection that it was opened beside, and the readers'."""
        self._one_reader: Final = threading.Lock()
        self._is_closed = False
        self.size = Size()
        """As of the last minute."""
        try:
            self._connection = self._opened()
        except sqlite3.DatabaseError as error:
            if _is_refused(error):
                raise self._unreachable(error) from error
            self._connection = self._begun_anew(error)
        except OSError as error:
            raise self._unreachable(error) from error
        newest = self._connection.execute("SELECT max(at) FROM points WHERE tier = 0").fetchone()[0]
        self.size = self._measure()
        self.newest_at: int = -1 if newest is None else newest
        """The last bucket that was written before this process: what is in it is not written over."""

    def close(self) -> None:
        """Close it; idempotent. A reader's question is given up (`sqlite3.OperationalError`, `ProgrammingError`)."""
        self._is_closed = True
        self._connection.close()
        if (reading := self._reading) is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # a reader has just opened another in its place
                reading[1].interrupt()
        with self._one_reader:
            if self._reading is not None:
                self._reading[1].close()
                self._reading = None

    def _unreachable(self, error: Exception) -> errors.Unavailable:
        message = f"figures cannot be kept in {self._path}: {error}"
        hint = "free some space, or let this user write the folder; history.days=0 keeps none"
        return errors.Unavailable(message, reason="HistoryUnreachable", hint=hint)

    def _opened(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600, exist_ok=True)
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=2.0, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check the file, and make its tables where it is new. Raises: sqlite3.DatabaseError: it is not ours."""
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
        if (found, schema) == (0, 0) and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
            connection.executescript(f"BEGIN; {_TABLES} {marks} COMMIT;")
        elif (found, schema) != (_APPLICATION, SCHEMA):
            message = f"it is not a history of schema {SCHEMA}"
            raise sqlite3.DatabaseError(message)
        elif (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(str(problem).replace("\n", " "))
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 500")
        connection.execute("PRAGMA journal_size_limit = 4194304")

    def _begun_anew(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        """Set the file aside, over one that was set aside before, and open a new one."""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            for suffix in ("-wal", "-shm"):
                self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)
            self._path.replace(aside)
            self._ids.clear()
            made = self._opened()
        except (OSError, sqlite3.DatabaseError) as again:
            raise self._unreachable(again) from again
        self.set_aside = aside
        telemetry.log.warning("history set aside", path=str(aside), error=str(error), reason="HistoryDamaged")
        return made

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._ids.clear()  # those that were made in it are gone
            raise

    def guarded(self, act: Callable[[], T]) -> T:
        """Return what a call returns.

        Raises: Unavailable (`HistoryUnreachable`); where the file was found damaged, it is set aside first.
        """
        try:
            self._check()
            return act()
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
                self._connection.close()
                self._connection = self._begun_anew(error)
            raise self._unreachable(error) from error

    def doubt(self, error: sqlite3.Error) -> None:
        """Note what a reader met: the pages that the writer touches may all be sound."""
        self._is_doubted = self._is_doubted or (isinstance(error, sqlite3.DatabaseError) and _is_damage(error))

    def _check(self) -> None:
        """Check the whole file where a reader doubts it. Raises: sqlite3.DatabaseError: it is damaged."""
        if not self._is_doubted:
            return
        self._is_doubted = False
        # By a connection of its own: the writer's may have sound pages in memory.
        with contextlib.closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            if (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise _Damaged(str(problem).replace("\n", " "))

    # writing

    def write(self, at: int, rows: Mapping[tuple[str, str], Sequence[Value]]) -> None:
        """Write the samples of one bucket, in place of those that are there. Args: rows: by kind and key."""
        kept = list(rows.items())[:_MOST_SERIES]
        with self._transaction() as connection:
            ids = {key: self._id(connection, key) for key, _ in kept}
            made = [
                (0, at, ids[key], 1, _pack(Row(at=at, weight=1, means=tuple(values), peaks=tuple(values))))
                for key, values in kept
            ]
            connection.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)", made)

    def _id(self, connection: sqlite3.Connection, key: tuple[str, str]) -> int:
        if (found := self._ids.get(key)) is not None:
            return found
        connection.execute("INSERT OR IGNORE INTO series (kind, key) VALUES (?, ?)", key)
        (made,) = connection.execute("SELECT id FROM series WHERE kind = ? AND key = ?", key).fetchone()
        if len(self._ids) > 4 * _MOST_SERIES:
            self._ids.clear()
        self._ids[key] = made
        return int(made)

    def write_held(self, held: Sequence[Held]) -> None:
        """Write who holds what; the same holder since the same time is one row."""
        rows = [(one.gpu, one.device, one.uid, one.namespace, one.name, one.since, one.until) for one in held]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def sum_up(self, now: float) -> None:
        """Sum up each bucket of the coarser resolutions that is over and was not summed up yet."""
        oldest = "SELECT min(at) FROM points WHERE tier = ? AND at >= ?"
        for finer, one in itertools.pairwise(tier.TIERS):
            newest = _newest(self._connection, one.number, tier.floor(now, one.step_s))
            begin = 0 if newest is None else newest + one.step_s
            while True:
                (found,) = self._connection.execute(oldest, (finer.number, begin)).fetchone()
                if found is None or (at := tier.floor(found, one.step_s)) + one.step_s > now:
                    break
                self._sum_up_bucket(finer, one, at)
                begin = at + one.step_s
        self.size = self._measure()

    def _sum_up_bucket(self, finer: tier.Tier, coarser: tier.Tier, at: int) -> None:
        wanted = "SELECT points.at, series, weight, value, kind FROM points JOIN series ON series.id = series "
        where = "WHERE tier = ? AND points.at >= ? AND points.at < ?"
        found: dict[int, list[Row]] = {}
        for when, series, weight, value, kind in self._connection.execute(
            wanted + where, (finer.number, at, at + coarser.step_s)
        ):
            row = _unpack(when, weight, value, len(figure.FIGURES.get(kind, ())))
            found.setdefault(series, []).append(row)
        made = []
        for series, rows in found.items():
            row = figure.merged(at, rows)
            made.append((coarser.number, at, series, row.weight, _pack(row)))
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)", made)

    def forget(self, now: float) -> None:
        """Delete what is older than it is kept, and the oldest of all where the file is larger than it may be."""
        share = 1.0
        self._delete(now, share)
        if self._bytes() > self._most:
            self._delete_later(now)
        while self._bytes() > self._most and share > 0.05:
            share *= 0.8
            self._delete(now, share)
        self._connection.execute("PRAGMA incremental_vacuum")
        self.size = self._measure()

    def _delete(self, now: float, share: float) -> None:
        oldest = int(now - share * tier.keep_s(tier.TIERS[-1], self._days))
        with self._transaction() as connection:
            for one in tier.TIERS:
                before = int(now - share * tier.keep_s(one, self._days))
                connection.execute("DELETE FROM points WHERE tier = ? AND at < ?", (one.number, before))
            connection.execute("DELETE FROM held WHERE until < ?", (oldest,))
            # A series without any point of the resolution that is kept longest has none that anybody may ask for.
            used = "SELECT DISTINCT series FROM points"
            connection.execute(f"DELETE FROM series WHERE id NOT IN ({used})")  # noqa: S608 a constant
        self._ids.clear()

    def _delete_later(self, now: float) -> None:
        """Delete what a clock that was ahead has left: it grows no older, so that its age never removes it."""
        with self._transaction() as connection:
            for one in tier.TIERS:
                sql = "DELETE FROM points WHERE tier = ? AND at > ?"
                connection.execute(sql, (one.number, int(now) + tier.FINEST_S))
            connection.execute("DELETE FROM held WHERE since > ?", (int(now) + tier.FINEST_S,))

    def _bytes(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _measure(self) -> Size:
        (rows,) = self._connection.execute("SELECT count(*) FROM points").fetchone()
        (series,) = self._connection.execute("SELECT count(*) FROM series").fetchone()
        begins = [
            self._connection.execute("SELECT min(at) FROM points WHERE tier = ?", (one.number,)).fetchone()[0]
            for one in tier.TIERS
        ]
        known = [one for one in begins if one is not None]
        return Size(rows=rows, bytes=self._bytes(), begin=min(known, default=None), series=series)

    # reading, by a connection and from a thread of its own, so that no reader delays a sample

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._one_reader:
            if self._is_closed:
                raise sqlite3.ProgrammingError("the history is closed")
            if self._reading is None or self._reading[0] is not self._connection:
                if self._reading is not None:
                    self._reading[1].close()
                uri = f"{self._path.absolute().as_uri()}?mode=ro"
                made = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=2.0, check_same_thread=False)
                self._reading = (self._connection, made)
            yield self._reading[1]

    def read(self, kind: str, key: str, window: tier.Window) -> list[Row]:
        """Return the rows of one series within a window.

        What its resolution has not summed up yet is read from the finer ones.
        Raises: sqlite3.Error.
        """
        with self._reader() as connection:
            return _rows(connection, kind, key, window)

    def read_held(self, *, gpu: str = "", uid: str = "", since: int = 0) -> list[Held]:
        """Return who held a GPU, or what a pod held, as far as it ended after a time; oldest first."""
        where, word = ("uid = ?", uid) if uid else ("gpu = ?", gpu)
        asked = "SELECT gpu, device, uid, namespace, name, since, until FROM held"
        sql = f"{asked} WHERE {where} AND until >= ? ORDER BY since DESC LIMIT {_MOST_HELD}"
        names = ("gpu", "device", "uid", "namespace", "name", "since", "until")
        with self._reader() as connection:
            found = connection.execute(sql, (word, since)).fetchall()
        return [Held(**dict(zip(names, row, strict=True))) for row in reversed(found)]


def _rows(connection: sqlite3.Connection, kind: str, key: str, window: tier.Window) -> list[Row]:
    found = connection.execute("SELECT id FROM series WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    if found is None:
        return []
    begin, count, rows = window.begin, len(figure.FIGURES[kind]), list[Row]()
    for one in reversed(tier.TIERS[: window.tier + 1]):
        if begin >= window.end:
            break
        newest = _newest(connection, one.number, window.end)
        if newest is None:
            continue
        # Each bucket is a look-up: none is made for a time of which this resolution cannot have any.
        (oldest,) = connection.execute("SELECT min(at) FROM points WHERE tier = ?", (one.number,)).fetchone()
        first = max(begin, tier.floor(oldest, one.step_s), newest - one.keep_s)
        asked = (first, one.step_s, min(window.end, newest + one.step_s), one.number, found[0])
        read = connection.execute(_WANTED, asked) if first <= newest else ()
        rows += [_unpack(at, weight, value, count, one.step_s) for at, weight, value in read]
        begin = max(begin, newest + one.step_s)
    return rows


class _Damaged(sqlite3.DatabaseError):
    """A check found it."""


def _newest(connection: sqlite3.Connection, number: int, before: int) -> int | None:
    """Return the newest bucket of a resolution that begins before a time; a clock that was ahead left later ones."""
    asked = "SELECT max(at) FROM points WHERE tier = ? AND at < ?"
    found: int | None = connection.execute(asked, (number, before)).fetchone()[0]
    return found


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    is_found = isinstance(error, _Damaged) or "no such table" in str(error)
    return is_found or code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _is_refused(error: sqlite3.DatabaseError) -> bool:
    """Return whether SQLite could not reach the file, rather than read it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    others = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
    return code in others | {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM}
