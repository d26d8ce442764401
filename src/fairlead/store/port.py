"""Declares the port to objects; memory, SQLite and a Kubernetes API server pass one contract suite.

Semantics are Kubernetes' own: opaque resource versions that only equality may compare, conflicts on stale updates,
spec and status written apart, generation counted on spec changes only, deletion in two steps while finalizers remain,
dependants removed with their last owner. A watch starts at a version and misses nothing after it.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fairlead.store.fence import Fence
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which objects of a kind; every part must match."""

    namespace: str | None = None
    """None: all namespaces."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Equality only; more operators are decided by the reader."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """`metadata.name`, `spec.nodeName`, `involvedObject.uid`, …: dotted camelCase paths compared as text."""


EVERYTHING = Selector()


class ChangeKind(enum.Enum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[T]):
    """One step of an object's history; for DELETED the last state before it went."""

    kind: ChangeKind
    object: T
    renamed_to: str = ""
    """Under which name a deleted object goes on, with its uid; empty: it is gone.

    The next change of its kind adds it: a reader that keeps objects by uid leaves this one out. Embedded stores alone
    say so: in an API server an annotation that says it may be anybody's.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """A consistent list and the version from which a watch continues it."""

    items: tuple[T, ...]
    resource_version: str


class Store(Protocol):
    """Objects by kind, namespace and name."""

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """Return one object. Raises: NotFound."""
        ...

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        """Return all matching objects, in (namespace, name) order, as of one version."""
        ...

    def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        """Yield every change after `since`, in order, for ever.

        With `since=None` the present objects come first as ADDED. An object that stops matching the selector is
        yielded as DELETED, one that starts matching as ADDED. Raises: Gone: history back to `since` is not kept.
        """
        ...

    async def create(self, item: T) -> T:
        """Store a new object; fills uid, resourceVersion, generation 1, creationTimestamp, generateName.

        Raises: Conflict (`AlreadyExists`), Invalid.
        """
        ...

    async def update(self, item: T) -> T:
        """Replace metadata and spec, never status; counts generation when the spec differs.

        An empty resourceVersion overwrites; an object with deletionTimestamp and no finalizers left is removed.
        Raises: NotFound, Conflict (`StaleVersion`).
        """
        ...

    async def update_status(self, item: T) -> T:
        """Replace status only. Raises: NotFound, Conflict (`StaleVersion`)."""
        ...

    async def apply(self, item: T, *, manager: str) -> T:
        """Create, or merge the given fields into metadata and spec; last writer wins for each field. Idempotent.

        Raises: Conflict: a `uid` is given and the object has another, or is gone.
        """
        ...

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, grace_s: int | None = None, uid: str | None = None
    ) -> None:
        """Delete; with finalizers left, or for a pod bound to a node with `grace_s` not 0, only mark it.

        A marked object carries deletionTimestamp; for a bound pod the node's agent deletes again with `grace_s=0`.
        `grace_s=None` is the object's default (a pod's terminationGracePeriodSeconds).
        Raises: NotFound; Conflict: `uid` is given and differs.
        """
        ...


class Patcher(Protocol):
    """A store that writes the difference of two versions."""

    async def patch(self, before: T, after: T, *, is_status: bool = False) -> T:
        """Write what differs between two versions of an object, as long as the stored one is the version of `before`.

        Metadata and spec, or with `is_status` the status; lists are replaced as a whole. Costs one request where
        `update` costs two.
        Raises: NotFound; Conflict (`StaleVersion`): it is another version, or another object; Invalid.
        """
        ...


class PatchingStore(Store, Patcher, Protocol):
    """A store whose objects can be patched."""


class Fencible(Store, Protocol):
    """A store whose writes can be bound to a leadership."""

    def fenced(self, fence: Fence) -> Store:
        """Return the same objects; writes raise Conflict (`LeaseLost`), and write nothing, once the lease moved on."""
        ...


class Reader(Protocol):
    """The objects that a transaction sees."""

    def list(self, kind: type[T], namespace: str) -> tuple[T, ...]:
        """Return the objects of a kind in one namespace, in the order of their names."""
        ...


class Admitter(Protocol):
    """A store that can look and create in one step."""

    async def create_checked(
        self, item: T, check: Callable[[Reader], None], *, beside: Callable[[T], Object] | None = None
    ) -> T:
        """Create, unless `check` raises; whatever it reads cannot change before the object is stored.

        It holds across processes. Neither `check` nor `beside` may await, and both may run in another thread.
        Args:   beside: makes of the stored object another one that is stored in the same step, or neither is.
        Raises: as `Store.create`, of either object; whatever `check` raises.
        """
        ...

    async def update_checked(self, item: T, check: Callable[[Reader], None]) -> T:
        """Replace metadata and spec, unless `check` raises; as `create_checked` otherwise.

        Raises: as `Store.update`; whatever `check` raises.
        """
        ...


class Renamer(Protocol):
    """A store that can give an object another name."""

    async def rename(self, item: T, name: str, check: Callable[[Reader], None]) -> T:
        """Give an object another name, unless `check` raises; as `Admitter.create_checked` otherwise.

        It keeps its uid and all else; its dependants name it so. A watch yields it as DELETED, with `renamed_to`,
        and then as ADDED, both of one step.
        Raises: NotFound; Conflict: another has the name (`AlreadyExists`), the stored one is another version
                (`StaleVersion`); Invalid: no name of such an object; whatever `check` raises.
        """
        ...


class AdmittingStore(Store, Admitter, Renamer, Protocol):
    """A store that admits pods itself, because no API server does."""
