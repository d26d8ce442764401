"""Keeps objects in one SQLite file: durable at every step and shared by several processes.

One thread writes: verbs that arrive while it flushes share the next transaction and its flush, each behind a savepoint
of its own, so that one refusal takes nothing else with it. Transactions begin IMMEDIATE, which makes SQLite's lock the
single writer across processes. Single reads and news for watchers are short and run on the event loop; listings run in
a second thread. `notify` says when there is news, `database` guards the file, `transaction` knows the rules.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import datetime as dt
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from fairlead import errors, telemetry
from fairlead.store import port
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import history, match, transaction, typed, validation
from fairlead.store.embedded.document import Document, Key
from fairlead.store.sqlite import database, notify
from fairlead.wire.kubernetes import core

_FEED_KEPT = 1024
_BATCH = 64
_RECORDS_AT_ONCE = 512
_EVENT: Final = match.kind_of(core.Event)
_INDEXED: Final = {"involvedObject.uid": "about_uid", "involvedObject.name": "about_name"}
"""Fields of Events by which `database` indexes them."""

_Pending: TypeAlias = tuple[typed.Act, concurrent.futures.Future[Document]]


class SQLiteStore(typed.TypedStore):
    """A `store.port.Store` over one file; opening makes or checks it (see `database.ensure` for the errors)."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        history_kept: int = transaction.HISTORY_KEPT,
    ) -> None:
        database.ensure(path)
        self._sqlite = _SQLiteBackend(path, now, new_uid, history_kept)
        super().__init__(self._sqlite)

    def close(self) -> None:
        """Finish what is being written and close the file; watches must have ended."""
        self._sqlite.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SQLiteBackend:
    """Backend over three connections: the writer's, the lister's, and the event loop's own."""

    def __init__(
        self, path: Path, now: Callable[[], dt.datetime], new_uid: Callable[[], str], history_kept: int
    ) -> None:
        self._path = path
        self._now = now
        self._new_uid = new_uid
        self._history_kept = history_kept
        with contextlib.ExitStack() as stack:
            self._writing = stack.enter_context(contextlib.closing(database.connect(path, writes=True)))
            self._listing = stack.enter_context(contextlib.closing(database.connect(path, writes=False)))
            self._inline = stack.enter_context(contextlib.closing(database.connect(path, writes=False)))
            self._connections = stack.pop_all()
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._lister = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store-lister")
        self._pending: collections.deque[_Pending] = collections.deque()
        self._feed = history.Feed(keep=_FEED_KEPT)
        self._watchers = 0
        self._notifier: notify.Notifier | None = None

    def close(self) -> None:
        self._writer.shutdown()
        self._lister.shutdown()
        self._connections.close()

    async def commit(self, act: typed.Act) -> Document:
        outcome: concurrent.futures.Future[Document] = concurrent.futures.Future()
        self._pending.append((act, outcome))
        self._writer.submit(self._drain)
        result = await asyncio.wrap_future(outcome)
        if self._watchers:
            self._pull()
        return result

    async def find(self, key: Key) -> str | None:
        with database.translated(self._path):
            return _find(self._inline, key)

    def mark(self) -> int:
        # Of this connection, which never writes: what others commit, the writer's thread and other processes.
        with database.translated(self._path):
            return int(self._inline.execute("PRAGMA data_version").fetchone()[0])

    async def list(self, kind: str, selector: port.Selector) -> tuple[Sequence[str], int]:
        return await asyncio.get_running_loop().run_in_executor(self._lister, self._list, kind, selector)

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[history.Feed]:
        if not self._watchers:
            self._notifier = notify.Notifier(self._path, self._heard)
            with database.translated(self._path):
                self._feed.restart(_meta(self._inline, "version"))
        self._watchers += 1
        try:
            self._pull()
            yield self._feed
        finally:
            self._watchers -= 1
            if not self._watchers and self._notifier is not None:
                self._notifier.close()
                self._notifier = None

    def records(self, position: int) -> Sequence[history.Record]:
        with database.translated(self._path):
            forgotten = _meta(self._inline, "forgotten")
            if position < forgotten:
                raise history.gone(position, forgotten + 1)
            return _records(self._inline, position, limit=_RECORDS_AT_ONCE)

    def _heard(self) -> None:
        try:
            self._pull()
        except errors.FairleadError as error:
            self._feed.fail(error)

    def _pull(self) -> None:
        """Bring the feed up to date with the file."""
        with database.translated(self._path):
            if records := _records(self._inline, self._feed.last, limit=-1):
                self._feed.extend(records)

    def _list(self, kind: str, selector: port.Selector) -> tuple[Sequence[str], int]:
        where, values = _narrow(kind, selector)
        with database.translated(self._path), _reading(self._listing) as connection:
            version = _meta(connection, "version")
            rows = connection.execute(
                f"SELECT document FROM objects WHERE {where} ORDER BY namespace, name",  # noqa: S608 - see _narrow
                values,
            ).fetchall()
        return [row[0] for row in rows], version

    def _drain(self) -> None:
        """Run the verbs that are waiting in one transaction (writer thread)."""
        batch: collections.deque[_Pending] = collections.deque()
        while self._pending and len(batch) < _BATCH:
            act, outcome = self._pending.popleft()
            if outcome.set_running_or_notify_cancel():
                batch.append((act, outcome))
        try:
            settled = self._write([act for act, _ in batch]) if batch else []
        except BaseException as error:
            for _, outcome in batch:
                outcome.set_exception(error)
            raise
        for (_, outcome), result in zip(batch, settled, strict=True):
            if isinstance(result, errors.FairleadError):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

    def _write(self, acts: Sequence[typed.Act]) -> Sequence[Document | errors.FairleadError]:
        with database.translated(self._path):
            with _writing(self._writing) as connection:
                settled = [self._attempt(connection, act) for act in acts]
            telemetry.crash_point("store-committed")
            notify.notify(self._path)
        return settled

    def _attempt(self, connection: sqlite3.Connection, act: typed.Act) -> Document | errors.FairleadError:
        rows = _SQLiteRows(connection, self._history_kept)
        result: Document | errors.FairleadError
        connection.execute("SAVEPOINT act")
        try:
            result = act(transaction.Transaction(rows, now=self._now(), new_uid=self._new_uid))
        except errors.FairleadError as error:
            connection.execute("ROLLBACK TO act")
            result = error
        connection.execute("RELEASE act")
        return result


class _SQLiteRows:
    """Objects and history inside one transaction."""

    def __init__(self, connection: sqlite3.Connection, history_kept: int) -> None:
        self._connection = connection
        self._history_kept = history_kept

    def find(self, key: Key) -> Document | None:
        text = _find(self._connection, key)
        return None if text is None else documents.decode(text)

    def put(self, key: Key, before: Document | None, after: Document | None) -> None:
        version = _meta(self._connection, "version")
        text = None if after is None else documents.encode(after)
        was = None if before is None else documents.encode(before)
        if after is None or text is None:
            self._run("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", *key)
        else:
            validation.check_size(after, text)
            self._run(
                "INSERT INTO objects (kind, namespace, name, uid, version, document) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET uid = excluded.uid, version = excluded.version, "
                "document = excluded.document",
                *key,
                after["metadata"]["uid"],
                version,
                text,
            )
        self._own(key, _owners(before), _owners(after))
        self._run("INSERT INTO changes VALUES (?, ?, ?, ?)", version, key.kind, was, text)

    def next_version(self) -> int:
        self._run("UPDATE meta SET value = value + 1 WHERE name = 'version'")
        return _meta(self._connection, "version")

    def dependants(self, uid: str) -> list[Key]:
        return self._keys("SELECT kind, namespace, name FROM owners WHERE owner_uid = ?", uid)

    def namespaces_of(self, uid: str) -> list[str]:
        return [row[0] for row in self._run("SELECT namespace FROM objects WHERE uid = ?", uid)]

    def within(self, namespace: str, kind: str | None = None) -> list[Key]:
        statement = "SELECT kind, namespace, name FROM objects WHERE namespace = ?"
        if kind is None:
            return self._keys(f"{statement} ORDER BY kind, name", namespace)
        return self._keys(f"{statement} AND kind = ? ORDER BY name", namespace, kind)

    def surplus(self, kind: str, keep: int) -> list[Key]:
        statement = "SELECT kind, namespace, name FROM objects WHERE kind = ? ORDER BY version DESC LIMIT -1 OFFSET ?"
        return self._keys(statement, kind, keep)

    def forget(self, keep: int) -> None:
        newest = _meta(self._connection, "version")
        forgotten = newest - min(keep, self._history_kept)
        if forgotten > 0:
            self._run("DELETE FROM changes WHERE version <= ?", forgotten)
            self._run("UPDATE meta SET value = max(value, ?) WHERE name = 'forgotten'", forgotten)

    def _own(self, key: Key, before: set[str], after: set[str]) -> None:
        for uid in before - after:
            self._run("DELETE FROM owners WHERE owner_uid = ? AND kind = ? AND namespace = ? AND name = ?", uid, *key)
        for uid in after - before:
            self._run("INSERT OR IGNORE INTO owners VALUES (?, ?, ?, ?)", uid, *key)

    def _keys(self, statement: str, *values: object) -> list[Key]:
        return [Key(*row) for row in self._run(statement, *values).fetchall()]

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


def _owners(found: Document | None) -> set[str]:
    return set() if found is None else {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}


def _find(connection: sqlite3.Connection, key: Key) -> str | None:
    statement = "SELECT document FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
    row = connection.execute(statement, key).fetchone()
    return None if row is None else str(row[0])


def _meta(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])


def _records(connection: sqlite3.Connection, position: int, *, limit: int) -> list[history.Record]:
    statement = "SELECT version, kind, before, after FROM changes WHERE version > ? ORDER BY version LIMIT ?"
    return [history.Record(*row) for row in connection.execute(statement, (position, limit))]


def _narrow(kind: str, selector: port.Selector) -> tuple[str, list[str]]:
    """Return a condition, constant but for `?`, that keeps out of Python most of what the selector does not take.

    Only text that is there and differs rules a field out: absent ones may have a default that `match` knows. What
    an Event is about has none but "", so it is looked up in the index.
    """
    terms, values = ["kind = ?"], [kind]
    if selector.namespace is not None:
        terms.append("namespace = ?")
        values.append(selector.namespace)
    for field, wanted in selector.fields.items():
        if kind == _EVENT and field in _INDEXED and wanted:
            terms.append(f"{_INDEXED[field]} = ?")
            values.append(wanted)
        elif '"' not in field:  # SQLite's paths cannot escape one
            path = "$" + "".join(f'."{name}"' for name in field.split("."))
            terms.append("NOT coalesce(json_type(document, ?) = 'text' AND json_extract(document, ?) <> ?, 0)")
            values += [path, path, wanted]
    for name, wanted in selector.labels.items():
        if '"' not in name:
            terms.append("json_extract(document, ?) = ?")
            values += [f'$.metadata.labels."{name}"', wanted]
    return " AND ".join(terms), values


@contextlib.contextmanager
def _reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Show one version of the file throughout the block."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


@contextlib.contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Keep everything the block wrote, on disk when the block ends, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
