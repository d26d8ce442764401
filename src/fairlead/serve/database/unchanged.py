"""Caches what was read from the database until any process commits to it.

SQLite counts for each connection what other connections commit. One connection that never writes thus sees every
commit; it is asked before a cached value is used, which takes some µs. PostgreSQL has no such count: there nothing is
cached, and every read goes to the database.
Source: SQLite, "PRAGMA data_version".
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Final, Generic, TypeVar

from sqlalchemy import event
from sqlalchemy.ext import asyncio as sqla

T = TypeVar("T")

Mark = tuple[int, int]
"""Number of the counting connection, and its count."""
_MOST: Final = 1024


class Commits:
    """Counts commits to a database; to be used from the event loop's thread only."""

    def __init__(self, database: sqla.AsyncEngine) -> None:
        """Args: database: an existing file, or PostgreSQL; disposing of the engine closes this too."""
        name = database.url.database if database.url.get_backend_name() == "sqlite" else None
        self._path = Path(name) if name else None
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        event.listen(database.sync_engine, "engine_disposed", self._close)

    def mark(self) -> Mark | None:
        """Return a mark that differs from an earlier one if any process committed in between; None: not known."""
        if self._path is None:
            return None
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=0
                )
                self._connection.execute("PRAGMA query_only = ON")
                self._opened += 1  # another connection begins to count again
            return self._opened, self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            self._forget()
            return None

    def _forget(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _close(self, _engine: object) -> None:
        self._path = None
        self._forget()


class Unchanged(Generic[T]):
    """What was read, by a name each; the least recently used is forgotten first."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._read_at: Mark | None = None
        self._kept: OrderedDict[str, T] = OrderedDict()

    def mark(self) -> Mark | None:
        """Return the mark for a read that begins now; forget what was read before the last commit."""
        now = self._commits.mark()
        if now is None or now != self._read_at:
            self._kept.clear()
        self._read_at = now
        return now

    def find(self, name: str) -> T | None:
        """Return what was kept, if it would be read so now."""
        self.mark()
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def keep(self, name: str, value: T, *, read_at: Mark | None) -> None:
        """Keep what was read, unless a process has committed since. Args: read_at: what `mark` returned before it."""
        if read_at is None or read_at != self.mark():
            return
        self._kept[name] = value
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
