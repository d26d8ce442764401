"""Implements the store port over any backend of documents: typed objects, watches that miss nothing.

A backend keeps documents and history (`memory`, `sqlite`); this module is the only place where types meet documents.
A listing is answered again, object for object, until the backend has another state (`listings`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from fairlead import errors
from fairlead.store import port
from fairlead.store.embedded import history, listings, match, transaction
from fairlead.store.embedded.document import Document, Key
from fairlead.store.fence import Fence
from fairlead.wire.kubernetes import coordination, meta

T = TypeVar("T", bound=meta.Object)

Act = Callable[[transaction.Transaction], Document]
"""One verb, run inside a transaction; it may be run again from the start."""


class Backend(Protocol):
    """Documents and their history."""

    async def commit(self, act: Act) -> Document:
        """Run the act in a transaction of its own and keep its outcome, or raise and keep nothing."""
        ...

    async def find(self, key: Key) -> str | None:
        """Return one document as text."""
        ...

    def mark(self) -> int:
        """Return a number that is another after each change, by this process or another."""
        ...

    async def list(self, kind: str, selector: port.Selector) -> tuple[Sequence[str], int]:
        """Return the documents of a kind in (namespace, name) order and the version they show.

        It may leave out any that the selector does not take; which those are is decided by `match`.
        """
        ...

    def subscribe(self) -> contextlib.AbstractContextManager[history.Feed]:
        """Keep a feed up to date while the context is open."""
        ...

    def records(self, position: int) -> Sequence[history.Record]:
        """Return some records after a position, oldest first. Raises: Gone."""
        ...


class _Reader:
    """A `port.Reader` of one transaction."""

    def __init__(self, step: transaction.Transaction) -> None:
        self._step = step

    def list(self, kind: type[T], namespace: str) -> tuple[T, ...]:
        """See `port.Reader.list`."""
        found = self._step.list(match.kind_of(kind), namespace)
        return tuple(match.from_document(kind, document) for document in found)


class TypedStore:
    """A `store.port.Store` over a backend, and a `port.Fencible`, `port.Admitter` and `port.Renamer`."""

    def __init__(self, backend: Backend, fence: Fence | None = None) -> None:
        self._backend = backend
        self._fence = fence
        self._listings = listings.Listings()

    def fenced(self, fence: Fence) -> TypedStore:
        """See `port.Fencible.fenced`: the lease is read in the transaction that writes."""
        return TypedStore(self._backend, fence)

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """See `port.Store.get`."""
        key = Key(match.kind_of(kind), namespace, name)
        text = await self._backend.find(key)
        if text is None:
            raise transaction.missing(key)
        return match.parse(kind, text)

    async def list(self, kind: type[T], selector: port.Selector = port.EVERYTHING) -> port.Listing[T]:
        """See `port.Store.list`."""
        mark = self._backend.mark()
        if (known := self._listings.find(kind, selector, mark)) is not None:
            return known
        texts, version = await self._backend.list(match.kind_of(kind), selector)
        items = tuple(item for text in texts if match.matches(selector, item := match.parse(kind, text), text))
        found = port.Listing(items=items, resource_version=str(version))
        self._listings.keep(kind, selector, found, mark)
        return found

    async def watch(
        self, kind: type[T], selector: port.Selector = port.EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[port.Change[T]]:
        """See `port.Store.watch`."""
        with self._backend.subscribe() as feed:
            if since is None:
                listing = await self.list(kind, selector)
                for item in listing.items:
                    yield port.Change(kind=port.ChangeKind.ADDED, object=item)
                position = int(listing.resource_version)
            else:
                position = history.parse_version(since, newest=feed.last)
            wanted = match.kind_of(kind)
            while True:
                records = feed.after(position)
                for record in self._backend.records(position) if records is None else records:
                    position = record.version
                    if record.kind == wanted and (change := record.change(kind, selector)) is not None:
                        yield change
                await feed.wait(position)

    async def create(self, item: T) -> T:
        """See `port.Store.create`."""
        key, given = match.key_of(item), match.emit(item)
        return await self._commit(item, lambda step: step.create(key, given, namespaced=item.NAMESPACED))

    async def create_checked(
        self, item: T, check: Callable[[port.Reader], None], *, beside: Callable[[T], meta.Object] | None = None
    ) -> T:
        """See `port.Admitter.create_checked`: the check runs in the transaction that writes."""
        key, given = match.key_of(item), match.emit(item)

        def act(step: transaction.Transaction) -> Document:
            check(_Reader(step))
            stored = step.create(key, given, namespaced=item.NAMESPACED)
            if beside is not None:
                other = beside(match.from_document(type(item), stored))
                step.create(match.key_of(other), match.emit(other), namespaced=other.NAMESPACED)
            return stored

        return await self._commit(item, act)

    async def update(self, item: T) -> T:
        """See `port.Store.update`."""
        key, given, view = match.key_of(item), match.emit(item), self._view(item)
        return await self._commit(item, lambda step: step.update(key, given, view=view, namespaced=item.NAMESPACED))

    async def update_checked(self, item: T, check: Callable[[port.Reader], None]) -> T:
        """See `port.Admitter.update_checked`."""
        key, given, view = match.key_of(item), match.emit(item), self._view(item)

        def act(step: transaction.Transaction) -> Document:
            check(_Reader(step))
            return step.update(key, given, view=view, namespaced=item.NAMESPACED)

        return await self._commit(item, act)

    async def rename(self, item: T, name: str, check: Callable[[port.Reader], None]) -> T:
        """See `port.Renamer.rename`."""
        key, given = match.key_of(item), match.emit(item)

        def act(step: transaction.Transaction) -> Document:
            check(_Reader(step))
            return step.rename(key, given, name, namespaced=item.NAMESPACED)

        return await self._commit(item, act)

    async def update_status(self, item: T) -> T:
        """See `port.Store.update_status`."""
        if not hasattr(item, "status"):
            raise errors.Invalid(f"{item.KIND} has no status to update", reason="NoStatus")
        key, given, view = match.key_of(item), match.emit(item), self._view(item)
        return await self._commit(item, lambda step: step.update_status(key, given, view=view))

    async def patch(self, before: T, after: T, *, is_status: bool = False) -> T:
        """See `port.Store.patch`."""
        if is_status and not hasattr(after, "status"):
            raise errors.Invalid(f"{after.KIND} has no status to update", reason="NoStatus")
        key, given, view = match.key_of(before), match.emit(after), self._view(after)
        given["metadata"] |= {"uid": before.metadata.uid, "resourceVersion": before.metadata.resource_version}
        if is_status:
            return await self._commit(after, lambda step: step.update_status(key, given, view=view))
        return await self._commit(after, lambda step: step.update(key, given, view=view, namespaced=after.NAMESPACED))

    async def apply(self, item: T, *, manager: str) -> T:
        """See `port.Store.apply`."""
        key, given, namespaced = match.key_of(item), match.emit(item), item.NAMESPACED
        return await self._commit(item, lambda step: step.apply(key, given, manager=manager, namespaced=namespaced))

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, grace_s: int | None = None, uid: str | None = None
    ) -> None:
        """See `port.Store.delete`."""
        key = Key(match.kind_of(kind), namespace, name)
        await self._write(lambda step: step.delete(key, grace_s=grace_s, uid=uid))

    def _view(self, item: meta.Object) -> transaction.View:
        kind = type(item)
        return lambda document: match.view(kind, document)

    async def _commit(self, item: T, act: Act) -> T:
        return match.from_document(type(item), await self._write(act))

    async def _write(self, act: Act) -> Document:
        fence = self._fence
        if fence is None:
            return await self._backend.commit(act)

        def fenced(step: transaction.Transaction) -> Document:
            found = step.find(Key(match.kind_of(coordination.Lease), fence.namespace, fence.lease))
            fence.check(None if found is None else match.from_document(coordination.Lease, found))
            return act(step)

        return await self._backend.commit(fenced)
