"""Keeps objects in memory, for simulations and tests.

Documents are kept as text, as SQLite keeps them, so that no caller shares a mutable value with the store. Verbs run
whole between two awaits of the event loop, which makes each of them a transaction.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence

from fairlead.store import port
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import history, transaction, typed, validation
from fairlead.store.embedded.document import Document, Key


class MemoryStore(typed.TypedStore):
    """A `store.port.Store` that forgets everything with its process."""

    def __init__(
        self,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        history_kept: int = transaction.HISTORY_KEPT,
    ) -> None:
        super().__init__(_MemoryBackend(now, new_uid, history_kept))


class _MemoryBackend:
    """Backend over dictionaries."""

    def __init__(self, now: Callable[[], dt.datetime], new_uid: Callable[[], str], history_kept: int) -> None:
        self._now = now
        self._new_uid = new_uid
        self._table = _Table()
        self._feed = history.Feed(keep=history_kept)

    async def commit(self, act: typed.Act) -> Document:
        rows = _MemoryRows(self._table, self._feed.last)
        try:
            result = act(transaction.Transaction(rows, now=self._now(), new_uid=self._new_uid))
        except BaseException:
            rows.undo()
            raise
        self._feed.extend(rows.records)
        return result

    async def find(self, key: Key) -> str | None:
        return self._table.texts.get(key)

    def mark(self) -> int:
        return self._feed.last

    async def list(self, kind: str, selector: port.Selector) -> tuple[Sequence[str], int]:
        texts = self._table.texts
        keys = sorted(key for key in texts if key.kind == kind and selector.namespace in {None, key.namespace})
        return [texts[key] for key in keys], self._feed.last

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[history.Feed]:
        yield self._feed

    def records(self, position: int) -> Sequence[history.Record]:
        raise history.gone(position, self._feed.first)


class _Table:
    """Texts by key, and who owns whom."""

    def __init__(self) -> None:
        self.texts: dict[Key, str] = {}
        self.keys_by_uid: dict[str, Key] = {}
        self.owned: collections.defaultdict[str, set[Key]] = collections.defaultdict(set)

    def replace(self, key: Key, before: Document | None, after: Document | None) -> str | None:
        """Put `after` in the place of `before` and return its text."""
        if before is not None:
            self.keys_by_uid.pop(before["metadata"]["uid"], None)
            self.texts.pop(key, None)
            for owner in before["metadata"].get("ownerReferences", ()):
                self.owned[owner["uid"]].discard(key)
        if after is None:
            return None
        text = documents.encode(after)
        validation.check_size(after, text)
        self.texts[key] = text
        self.keys_by_uid[after["metadata"]["uid"]] = key
        for owner in after["metadata"].get("ownerReferences", ()):
            self.owned[owner["uid"]].add(key)
        return text


class _MemoryRows:
    """One step over the table, with what is needed to take it back."""

    def __init__(self, table: _Table, version: int) -> None:
        self._table = table
        self._version = version
        self._done: list[tuple[Key, str | None]] = []
        self.records: list[history.Record] = []

    def undo(self) -> None:
        """Take every change of the step back."""
        for key, text in reversed(self._done):
            self._table.replace(key, self.find(key), None if text is None else documents.decode(text))

    def find(self, key: Key) -> Document | None:
        text = self._table.texts.get(key)
        return None if text is None else documents.decode(text)

    def put(self, key: Key, before: Document | None, after: Document | None) -> None:
        self._done.append((key, self._table.texts.get(key)))
        text = self._table.replace(key, before, after)
        was = None if before is None else documents.encode(before)
        self.records.append(history.Record(self._version, key.kind, was, text))

    def next_version(self) -> int:
        self._version += 1
        return self._version

    def dependants(self, uid: str) -> list[Key]:
        return sorted(self._table.owned.get(uid, ()))

    def namespaces_of(self, uid: str) -> list[str]:
        key = self._table.keys_by_uid.get(uid)
        return [] if key is None else [key.namespace]

    def within(self, namespace: str, kind: str | None = None) -> list[Key]:
        found = (key for key in self._table.texts if key.namespace == namespace and kind in {None, key.kind})
        return sorted(found)

    def surplus(self, kind: str, keep: int) -> list[Key]:
        found = [(self._version_of(text), key) for key, text in self._table.texts.items() if key.kind == kind]
        return [key for _, key in sorted(found)[: max(0, len(found) - keep)]]

    def forget(self, keep: int) -> None:
        """Nothing to do: the feed keeps a fixed number of records."""

    def _version_of(self, text: str) -> int:
        return int(documents.decode(text)["metadata"]["resourceVersion"])
