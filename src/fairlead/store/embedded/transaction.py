"""Applies verbs to a set of objects: one call is one step of history, dependants and namespaces included.

A `Transaction` runs `semantics` over `Rows`, which memory and SQLite provide; both keep what it wrote or nothing of it.
Removing an object removes those that name it as their last owner, in the same step; removing a namespace marks it,
removes what is in it and lets it go when it is empty. On a cluster the garbage collector and the namespace controller
do this; a standalone service has neither, so its stores do it here.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from fairlead import errors
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import semantics, validation
from fairlead.store.embedded.document import Document, Key
from fairlead.wire.kubernetes import names

HISTORY_KEPT = 8192
"""Changes that a watch may reach back."""
EVENTS_KEPT = 20_000
"""Events that stay; on a cluster they end by age, here the oldest make room."""
_TIDY_EVERY = 256
_EVENT = "v1/Event"
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes appends to `generateName`: no vowels, so no words."""
_NAME_ATTEMPTS = 8

View = Callable[[Document], Document]
"""What a writer's type sees of a document."""


class Rows(Protocol):
    """Where objects and history lie, inside one step that is kept whole or not at all."""

    def find(self, key: Key) -> Document | None:
        """Return a fresh copy of one object."""
        ...

    def put(self, key: Key, before: Document | None, after: Document | None) -> None:
        """Replace `before` by `after` (None: absent) and append both to the history at the version they carry."""
        ...

    def next_version(self) -> int:
        """Return one more than the version given last."""
        ...

    def dependants(self, uid: str) -> list[Key]:
        """Return the objects that name `uid` among their owners."""
        ...

    def namespaces_of(self, uid: str) -> list[str]:
        """Return the namespace of the object with this uid (empty where cluster-scoped), nothing where it is gone."""
        ...

    def within(self, namespace: str, kind: str | None = None) -> list[Key]:
        """Return the objects of one namespace, of one kind or of all, in the order of their names."""
        ...

    def surplus(self, kind: str, keep: int) -> list[Key]:
        """Return the objects of a kind beyond the `keep` that were written last."""
        ...

    def forget(self, keep: int) -> None:
        """Drop history beyond the last `keep` changes."""
        ...


class Transaction:
    """One step: verbs on objects by key. The caller commits, or drops everything when a verb raises."""

    def __init__(self, rows: Rows, *, now: dt.datetime, new_uid: Callable[[], str]) -> None:
        self._rows = rows
        self._now = now
        self._new_uid = new_uid
        self._orphans: deque[Key] = deque()

    def find(self, key: Key) -> Document | None:
        """Return one object as it is in this step."""
        return self._rows.find(key)

    def list(self, kind: str, namespace: str) -> list[Document]:
        """Return the objects of a kind in one namespace, in the order of their names."""
        found = (self._rows.find(key) for key in self._rows.within(namespace, kind))
        return [document for document in found if document is not None]

    def create(self, key: Key, given: Document, *, namespaced: bool) -> Document:
        """Store a new object, named after generateName where the key has no name. Raises: Conflict, Invalid, Denied."""
        key = self._named(key, given)
        given = documents.with_metadata(given, name=key.name)
        validation.check(key.kind, given, namespaced=namespaced)
        if self._rows.find(key) is not None:
            message = f"{semantics.describe(given)} already exists"
            raise errors.Conflict(message, reason="AlreadyExists", hint="read it, or choose another name")
        self._refuse_terminating(key)
        created = self._write(key, None, semantics.create(key.kind, given, uid=self._new_uid(), now=self._now))
        if created["metadata"].get("ownerReferences"):
            self._orphans.append(key)
        self._settle()
        return created

    def update(self, key: Key, given: Document, *, view: View, namespaced: bool) -> Document:
        """Replace metadata and spec. Raises: NotFound, Conflict, Invalid."""
        old = self._present(key)
        return self._replace(key, old, semantics.update(old, view(old), given), namespaced=namespaced)

    def update_status(self, key: Key, given: Document, *, view: View) -> Document:
        """Replace status. Raises: NotFound, Conflict."""
        old = self._present(key)
        new = semantics.update_status(old, view(old), given)
        return old if new == old else self._write(key, old, new)

    def apply(self, key: Key, given: Document, *, manager: str, namespaced: bool) -> Document:
        """Create, or set the given fields. Raises: Conflict, Invalid, Denied."""
        old = self._rows.find(key)
        if old is None:
            semantics.refuse_uid_of_none(given)
            return self.create(key, semantics.first_applied(given, manager=manager), namespaced=namespaced)
        return self._replace(key, old, semantics.apply(old, given, manager=manager), namespaced=namespaced)

    def rename(self, key: Key, given: Document, name: str, *, namespaced: bool) -> Document:
        """Move an object to another name, its uid with it. Args: given: as read. Raises: as `port.Renamer.rename`."""
        old = self._present(key)
        semantics.check_identity(old, given)
        new, renamed = key._replace(name=name), documents.with_metadata(old, name=name)
        validation.check(key.kind, renamed, namespaced=namespaced)
        if self._rows.find(new) is not None:
            message = f"{semantics.describe(renamed)} already exists"
            raise errors.Conflict(message, reason="AlreadyExists", hint="choose another name")
        self._refuse_terminating(key)
        notes = {**old["metadata"].get("annotations", {}), names.RENAMED: name}
        version = str(self._rows.next_version())
        self._rows.put(key, documents.with_metadata(old, annotations=notes, resourceVersion=version), None)
        stored = self._write(new, None, renamed)
        uid = old["metadata"]["uid"]
        for one in self._rows.dependants(uid):
            found = self._present(one)
            owners = [
                {**own, "name": name} if own["uid"] == uid else own for own in found["metadata"]["ownerReferences"]
            ]
            self._write(one, found, documents.with_metadata(found, ownerReferences=owners))
        return stored

    def delete(self, key: Key, *, grace_s: int | None, uid: str | None) -> Document:
        """Delete or mark; returns the last or the marked state. Raises: NotFound, Conflict."""
        old = self._present(key)
        semantics.check_uid(old, uid)
        result = self._delete(key, old, grace_s)
        self._settle()
        return result

    def _named(self, key: Key, given: Document) -> Key:
        prefix = given["metadata"].get("generateName", "")
        if key.name or not prefix:
            return key
        for _ in range(_NAME_ATTEMPTS):
            suffix = "".join(random.choices(_SUFFIX_LETTERS, k=5))  # noqa: S311 - a name, not a secret
            named = key._replace(name=prefix[:58] + suffix)
            if self._rows.find(named) is None:
                return named
        message = f"no free name for {semantics.describe(given)} in {_NAME_ATTEMPTS} attempts"
        raise errors.Conflict(message, reason="AlreadyExists", hint="create it again")

    def _refuse_terminating(self, key: Key) -> None:
        home = self._rows.find(Key(semantics.NAMESPACE, "", key.namespace)) if key.namespace else None
        if home is not None and home["metadata"].get("deletionTimestamp"):
            message = f"namespace {key.namespace} is being terminated: nothing new can be created in it"
            raise errors.Denied(
                message, reason="NamespaceTerminating", hint="wait until it is gone, then create it again"
            )

    def _present(self, key: Key) -> Document:
        found = self._rows.find(key)
        if found is None:
            raise missing(key)
        return found

    def _replace(self, key: Key, old: Document, new: Document | None, *, namespaced: bool) -> Document:
        if new is None:
            if self._is_occupied(key):
                return old
            result = self._erase(key, old)
        elif new == old:
            return old
        else:
            validation.check(key.kind, new, namespaced=namespaced)
            result = self._write(key, old, new)
        self._settle()
        return result

    def _delete(self, key: Key, old: Document, grace_s: int | None) -> Document:
        new = semantics.delete(key.kind, old, grace_s=grace_s, now=self._now)
        if new is None and self._is_occupied(key):
            new = self._terminating(old)
        if new is None:
            return self._erase(key, old)
        result = old if new == old else self._write(key, old, new)
        if key.kind == semantics.NAMESPACE:
            self._empty(key.name)
        return result

    def _is_occupied(self, key: Key) -> bool:
        return key.kind == semantics.NAMESPACE and bool(self._rows.within(key.name))

    def _terminating(self, old: Document) -> Document:
        if old["metadata"].get("deletionTimestamp"):
            return old
        marked = documents.with_metadata(
            old, deletionTimestamp=semantics.stamp(self._now), deletionGracePeriodSeconds=0
        )
        return {**marked, "status": {**old.get("status", {}), "phase": "Terminating"}}

    def _empty(self, namespace: str) -> None:
        for key in self._rows.within(namespace):
            if (found := self._rows.find(key)) is not None:
                self._delete(key, found, None)

    def _settle(self) -> None:
        """Remove what the removals of this step left without an owner, until nothing is."""
        while self._orphans:
            key = self._orphans.popleft()
            if (found := self._rows.find(key)) is not None:
                self._collect(key, found)

    def _collect(self, key: Key, found: Document) -> None:
        owners = found["metadata"].get("ownerReferences", [])
        alive = [owner for owner in owners if self._is_alive(owner["uid"], key)]
        if owners and not alive:
            self._delete(key, found, None)
        elif len(alive) < len(owners):
            self._write(key, found, documents.with_metadata(found, ownerReferences=alive))

    def _is_alive(self, uid: str, dependant: Key) -> bool:
        """Owners live in the dependant's namespace or in none; others do not count, as on a cluster."""
        return any(namespace in {"", dependant.namespace} for namespace in self._rows.namespaces_of(uid))

    def _write(self, key: Key, before: Document | None, after: Document) -> Document:
        version = self._rows.next_version()
        stored = documents.with_metadata(after, resourceVersion=str(version))
        self._rows.put(key, before, stored)
        if version % _TIDY_EVERY == 0:
            self._tidy(self._rows.surplus(_EVENT, EVENTS_KEPT))
        return stored

    def _erase(self, key: Key, before: Document) -> Document:
        last = documents.with_metadata(before, resourceVersion=str(self._rows.next_version()))
        self._rows.put(key, last, None)
        self._orphans.extend(self._rows.dependants(before["metadata"]["uid"]))
        self._release_namespace(key.namespace)
        return last

    def _release_namespace(self, namespace: str) -> None:
        """Let a dying namespace go with the last object in it."""
        key = Key(semantics.NAMESPACE, "", namespace)
        home = self._rows.find(key) if namespace else None
        if home is None or not home["metadata"].get("deletionTimestamp"):
            return
        if semantics.is_finished(home["metadata"]) and not self._rows.within(namespace):
            self._erase(key, home)

    def _tidy(self, surplus: Iterable[Key]) -> None:
        self._rows.forget(HISTORY_KEPT)
        for key in surplus:
            if (found := self._rows.find(key)) is not None:
                self._delete(key, found, 0)


def missing(key: Key) -> errors.NotFound:
    """Return the error for an object that is not there."""
    kind = key.kind.rpartition("/")[2]
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    return errors.NotFound(f"{kind} {name} not found", reason="NotFound", kind=kind)
