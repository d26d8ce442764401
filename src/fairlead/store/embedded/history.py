"""Keeps the latest changes in order and wakes watchers; both embedded stores use it for their watches.

A `Feed` is the recent end of history in memory. Versions in it have no gaps, so a watcher's position is an index.
Watchers that fell behind its beginning read older records from the store. All of it lives on one event loop; only
`Record`s may be made elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from fairlead import errors
from fairlead.store import port
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import match
from fairlead.wire.kubernetes import meta, names

T = TypeVar("T", bound=meta.Object)


class Record:
    """One change: the object before and after it as JSON, None where it was absent. Typed forms are decoded once."""

    __slots__ = ("_typed", "after", "before", "kind", "version")

    def __init__(self, version: int, kind: str, before: str | None, after: str | None) -> None:
        self.version = version
        self.kind = kind
        self.before = before
        self.after = after
        self._typed: dict[object, object] = {}

    def change(self, kind: type[T], selector: port.Selector) -> port.Change[T] | None:
        """Return what a watcher of this selector sees of the change, None where it sees nothing."""
        was = self._selected(kind, self.before, selector)
        now = self._selected(kind, self.after, selector)
        if now is not None:
            return port.Change(kind=port.ChangeKind.ADDED if was is None else port.ChangeKind.MODIFIED, object=now)
        if was is None or self.before is None:
            return None
        last = was if self.after is None else self._at_version(kind, self.before)
        renamed = last.metadata.annotations.get(names.RENAMED, "") if self.after is None else ""
        return port.Change(kind=port.ChangeKind.DELETED, object=last, renamed_to=renamed)

    def _selected(self, kind: type[T], text: str | None, selector: port.Selector) -> T | None:
        if text is None:
            return None
        item = self._typed.get((kind, text is self.after))
        if not isinstance(item, kind):
            item = self._typed[kind, text is self.after] = match.parse(kind, text)
        return item if match.matches(selector, item, text) else None

    def _at_version(self, kind: type[T], text: str) -> T:
        """Return the last state that matched, at the version of the change that ended it."""
        document = documents.with_metadata(documents.decode(text), resourceVersion=str(self.version))
        return match.from_document(kind, document)


class Feed:
    """The last records and the watchers that wait for the next."""

    def __init__(self, *, keep: int, last: int = 0) -> None:
        self.last = last
        self._keep = keep
        self._records: deque[Record] = deque()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def first(self) -> int:
        """Version of the oldest record kept; `last + 1` where there is none."""
        return self.last + 1 - len(self._records)

    def extend(self, records: Iterable[Record]) -> None:
        """Append records in order and wake every watcher; a gap before them empties what was kept."""
        for record in records:
            if record.version != self.last + 1:
                self._records.clear()
            self._records.append(record)
            self.last = record.version
        while len(self._records) > self._keep:
            self._records.popleft()
        self._wake(None)

    def restart(self, last: int) -> None:
        """Forget the records and go on from a version."""
        self._records.clear()
        self.last = last

    def forget(self, keep: int) -> None:
        """Drop all but the last `keep` records."""
        while len(self._records) > keep:
            self._records.popleft()

    def fail(self, error: errors.FairleadError) -> None:
        """End every wait with an error: history cannot be read."""
        self._wake(error)

    def after(self, position: int) -> list[Record] | None:
        """Return the records after a position, None where some of them are no longer kept here."""
        if position < self.first - 1:
            return None
        return [self._records[at] for at in range(position + 1 - self.first, len(self._records))]

    async def wait(self, position: int) -> None:
        """Return when there is a record after `position`."""
        while self.last <= position:
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    @property
    def waiting(self) -> int:
        """How many watchers wait."""
        return len(self._waiting)

    def _wake(self, error: errors.FairleadError | None) -> None:
        for future in self._waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def parse_version(text: str, *, newest: int) -> int:
    """Return a watch's starting position. Raises: Gone: not a version of this store's present history."""
    if not text.isdecimal() or int(text) > newest:
        message = f"resource version {text!r} is not of this store's history, which ends at {newest}"
        raise errors.Gone(message, reason="VersionUnknown", hint="list again, then watch from that version")
    return int(text)


def gone(position: int, oldest: int) -> errors.Gone:
    """Return the error of a watch that starts before the history kept."""
    message = f"history after version {position} is no longer kept, the oldest change kept is {oldest}"
    return errors.Gone(message, reason="HistoryCompacted", hint="list again, then watch from that version")
