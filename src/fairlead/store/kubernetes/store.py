"""Implements the store port over a Kubernetes API server.

Typed objects are subsets of what the server keeps, so `update` and `update_status` read the object, merge three ways as
the embedded stores do (`store/embedded/document.py`) and replace it at the version that was read: nothing unseen is
dropped, and a writer in between wins or is retried for, as the port says. A pod's first `spec.nodeName` travels as
a binding, the only way a server takes it. `apply` is server-side apply, forced. Garbage collection and the end of
namespaces are the cluster's own business. Lists are read in pages of one moment and decoded into typed objects without
a detour.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final, Self, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.store import port
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import match, semantics
from fairlead.store.embedded.document import Document
from fairlead.store.fence import Fence, awake_clock
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import credentials, path, rawobject, subresource, watch
from fairlead.wire.kubernetes import api, coordination, meta

T = TypeVar("T", bound=meta.Object)

_MOST_PAGES: Final = 20_000
"""Ten million objects: a server that goes on leading to further pages is at fault."""
PAGE: Final = 500
"""Objects asked for at once, as other clients of API servers do."""
_WHOLE_BYTES: Final = 1 << 30
"""Largest list in one piece: 200,000 pods."""
CONFIRMED_S: Final = 1.0
"""How long the server's word that a lease is ours is good for; every write after that asks again."""
_ATTEMPTS: Final = 8
"""How often a write without a version is repeated because another client wrote."""


class KubernetesStore:
    """A `store.port.Store` over an API server; an async context."""

    def __init__(
        self,
        access: credentials.Access,
        *,
        limits: http.Limits = http.LIMITS,
        chance: Callable[[], float] = random.random,
        meter: telemetry.Meter = telemetry.UNMETERED,
    ) -> None:
        """Take where to go and as whom, how hard to ask, what jitters waits (0 to 1), and who counts requests."""
        self._client = http.Client(access, limits=limits, chance=chance, meter=meter)
        self._guard: _LeaseGuard | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    @property
    def client(self) -> http.Client:
        """The connections it uses, for what an API server answers beside objects (`server.Server`)."""
        return self._client

    @property
    def pods(self) -> subresource.KubernetesPods:
        """The subresources of its pods; their writes are fenced as the store's own are."""
        return subresource.KubernetesPods(self._client, self, send=self._send)

    def fenced(self, fence: Fence) -> KubernetesStore:
        """See `port.Fencible.fenced`, and docs/design/store.md for what a check before the write leaves open."""
        view = copy.copy(self)
        view._guard = _LeaseGuard(self, fence)
        return view

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """See `port.Store.get`."""
        return _decode(kind, await self._get(kind, name, namespace))

    async def list(self, kind: type[T], selector: port.Selector = port.EVERYTHING) -> port.Listing[T]:
        """See `port.Store.list`. Raises: Invalid: a field that this kind's server does not select by."""
        for limit in (PAGE, PAGE, None):  # a list that history leaves behind is begun again, at last in one piece
            try:
                pages = [page async for page in self._pages(kind, selector, limit)]
            except errors.Gone:
                continue
            items = sorted((item for page in pages for item in page.items), key=_place)
            return port.Listing(items=tuple(items), resource_version=pages[-1].metadata.resource_version)
        message = f"list of {kind.KIND} was overtaken by history again and again"
        raise errors.Unavailable(message, reason="HistoryCompacted")

    async def watch(
        self, kind: type[T], selector: port.Selector = port.EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[port.Change[T]]:
        """See `port.Store.watch`; a server that is away is waited for. Raises: Gone, ProtocolError."""
        if since is None:
            async with contextlib.aclosing(self._pages(kind, selector, PAGE)) as pages:
                async for page in pages:
                    since = page.metadata.resource_version
                    for item in page.items:
                        yield port.Change(kind=port.ChangeKind.ADDED, object=item)
        following = watch.Watch(self._client, kind, selector, since=since or "")
        async with contextlib.aclosing(following.changes()) as changes:
            async for change in changes:
                yield change

    async def create(self, item: T) -> T:
        """See `port.Store.create`. Raises: NotFound: its namespace; Denied: quota, admission, a dying namespace."""
        request = http.Request(
            method="POST",
            path=path.collection(type(item), item.metadata.namespace),
            body=meta.encode(item),
            repeatable=False,
        )
        return _decode(type(item), await self._send(request))

    async def update(self, item: T) -> T:
        """See `port.Store.update`."""
        return await self._replace(item, self._update)

    async def update_status(self, item: T) -> T:
        """See `port.Store.update_status`."""
        if not hasattr(item, "status"):
            raise errors.Invalid(f"{item.KIND} has no status to update", reason="NoStatus")
        return await self._replace(item, self._update_status)

    async def patch(self, before: T, after: T, *, is_status: bool = False) -> T:
        """See `port.Store.patch`: a merge patch."""
        kind, about = type(after), before.metadata
        old, new = match.emit(before), match.emit(after)
        part = "status" if is_status else ""
        wanted = {"status": documents.difference(old.get("status", {}), new.get("status", {}))}
        if not is_status:
            wanted = documents.difference({**old, "status": None}, {**new, "status": None})
        metadata = {} if is_status else {**wanted.get("metadata", {})}
        metadata |= {"uid": about.uid, "resourceVersion": about.resource_version}
        request = http.Request(
            method="PATCH",
            path=path.named(kind, about.namespace, about.name, part),
            body=documents.encode({**wanted, "metadata": metadata}).encode(),
            content=http.MERGE,
        )
        try:
            return _decode(kind, await self._send(request))
        except errors.Invalid:
            if is_status or not (added := _added_finalizers(old, new)):
                raise
            return match.from_document(kind, await self._add_finalizers(kind, old, added))

    async def apply(self, item: T, *, manager: str) -> T:
        """See `port.Store.apply`."""
        given, about = match.emit(item), item.metadata
        kept = {name: value for name, value in given["metadata"].items() if name not in semantics.SYSTEM_METADATA}
        identity = {"name": about.name, "namespace": about.namespace, "uid": about.uid}
        identity |= {"resourceVersion": about.resource_version}
        metadata = {**kept, **{name: value for name, value in identity.items() if value}}
        request = http.Request(
            method="PATCH",
            path=path.named(type(item), about.namespace, about.name),
            query=path.query(fieldManager=manager, force=True),
            body=documents.encode({**documents.body(given), "metadata": metadata}).encode(),
            content=http.APPLY,
        )
        return _decode(type(item), await self._send(request))

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, grace_s: int | None = None, uid: str | None = None
    ) -> None:
        """See `port.Store.delete`."""
        request = http.Request(
            method="DELETE",
            path=path.named(kind, namespace, name),
            body=api.delete_options(grace_s=grace_s, uid=uid),
        )
        await self._send(request)

    async def _send(self, request: http.Request) -> bytes:
        """Send a write: every one of them passes here, after what it rests on was read."""
        if self._guard is not None:
            await self._guard.confirm()
            request = dataclasses.replace(request, permit=self._guard.fence.check_clock)
        return await self._client.request(request)

    async def _get(self, kind: type[meta.Object], name: str, namespace: str) -> bytes:
        return await self._client.request(http.Request(method="GET", path=path.named(kind, namespace, name)))

    async def _pages(
        self, kind: type[T], selector: port.Selector, limit: int | None
    ) -> AsyncGenerator[api.Page[T], None]:
        """Yield the pages of a list, all of one moment. Raises: Gone: the moment passed out of history meanwhile."""
        where, chosen, following = path.collection(kind, selector.namespace), path.selection(selector), ""
        seen: set[str] = set()
        while True:
            query = path.query(limit=limit, **{"continue": following, **chosen})
            largest = _WHOLE_BYTES if limit is None else None
            request = http.Request(method="GET", path=where, query=query, answer_bytes=largest)
            body = await self._client.request(request)
            try:
                page = api.page_decoder(kind).decode(body)
            except msgspec.MsgspecError as error:
                message = f"list of {kind.KIND} cannot be read: {error}"
                raise errors.ProtocolError(message, reason="ObjectUnreadable") from error
            yield page
            following = page.metadata.continue_
            if not following:
                return
            if following in seen or len(seen) == _MOST_PAGES:
                message = f"list of {kind.KIND} does not end: its {len(seen) + 1}th page leads on to another one"
                raise errors.ProtocolError(message, reason="ListEndless", hint="is a proxy in between?")
            seen.add(following)

    async def _replace(self, item: T, write: Callable[[type[T], Document, Document], Awaitable[Document]]) -> T:
        """Read, merge, write; without a version again until no other write comes between."""
        kind, given, left = type(item), match.emit(item), _ATTEMPTS
        while True:
            left -= 1
            stored = _document(await self._get(kind, item.metadata.name, item.metadata.namespace))
            semantics.check_identity(stored, given)
            try:
                return match.from_document(kind, await write(kind, stored, given))
            except errors.Conflict as error:
                if item.metadata.resource_version or error.reason != "StaleVersion" or not left:
                    raise

    async def _update(self, kind: type[meta.Object], stored: Document, given: Document) -> Document:
        node = _first_node(kind, stored, given)
        if node:
            given = {**given, "spec": {name: value for name, value in given["spec"].items() if name != "nodeName"}}
        wanted = _merged(stored, match.view(kind, stored), given)
        if wanted != stored:
            stored = await self._put(kind, wanted)
        return await self._bind(kind, stored, node) if node else stored

    async def _update_status(self, kind: type[meta.Object], stored: Document, given: Document) -> Document:
        seen = match.view(kind, stored)
        status = documents.merge(stored.get("status", {}), seen.get("status", {}), given.get("status", {}))
        if status == stored.get("status", {}):
            return stored
        return await self._put(kind, {**stored, "status": status}, "status")

    async def _put(self, kind: type[meta.Object], wanted: Document, part: str = "") -> Document:
        about = wanted["metadata"]
        where = path.named(kind, about.get("namespace", ""), about["name"], part)
        body = documents.encode(wanted).encode()
        return _document(await self._send(http.Request(method="PUT", path=where, body=body)))

    async def _add_finalizers(self, kind: type[meta.Object], known: Document, names: tuple[str, ...]) -> Document:
        """Add finalizers to an object whose spec JSON cannot say as it is stored (`rawobject`)."""
        about = known["metadata"]
        where = path.named(kind, about.get("namespace", ""), about["name"])
        found = await self._client.request(http.Request(method="GET", path=where, accept=rawobject.CONTENT))
        body = rawobject.with_finalizers(found, names)
        stored = _document(
            await self._send(http.Request(method="PUT", path=where, body=body, content=rawobject.CONTENT))
        )
        semantics.check_identity(stored, {"metadata": {"uid": about.get("uid", "")}})
        return stored

    async def _bind(self, kind: type[meta.Object], stored: Document, node: str) -> Document:
        about = stored["metadata"]
        name, namespace = about["name"], about["namespace"]
        request = http.Request(
            method="POST",
            path=path.named(kind, namespace, name, "binding"),
            body=api.binding(name, namespace, about["uid"], about["resourceVersion"], node),
            repeatable=False,
        )
        await self._send(request)
        return _document(await self._get(kind, name, namespace))


class _LeaseGuard:
    """Asks the API server whether the lease is still ours, at most once in `CONFIRMED_S`."""

    def __init__(self, store: KubernetesStore, fence: Fence) -> None:
        self.fence = fence
        self._store = store
        self._confirmed_at = float("-inf")

    async def confirm(self) -> None:
        """Return if the lease is ours. Raises: Conflict (`LeaseLost`); what the server refuses to be asked with."""
        self.fence.check_clock()
        asked_at = awake_clock()
        if asked_at - self._confirmed_at < CONFIRMED_S:
            return
        lease = None
        with contextlib.suppress(errors.NotFound):
            lease = await self._store.get(coordination.Lease, self.fence.lease, self.fence.namespace)
        self.fence.check(lease)
        self._confirmed_at = asked_at


def _first_node(kind: type[meta.Object], stored: Document, given: Document) -> str:
    """Return the node that a pod without one is to be bound to, "" where this is not what happens."""
    if match.kind_of(kind) != semantics.POD or stored.get("spec", {}).get("nodeName"):
        return ""
    return str(given.get("spec", {}).get("nodeName", ""))


def _added_finalizers(stored: Document, wanted: Document) -> tuple[str, ...]:
    """Return the finalizers that a write adds, where it does nothing else."""
    old, new = (one["metadata"].get("finalizers", []) for one in (stored, wanted))
    rest = [{**one, "metadata": {**one["metadata"], "finalizers": []}} for one in (stored, wanted)]
    return tuple(name for name in new if name not in old) if rest[0] == rest[1] and set(old) <= set(new) else ()


def _merged(stored: Document, seen: Document, given: Document) -> Document:
    """Return what is stored with the writer's metadata and spec, and the server's own fields as they were."""
    about, old = documents.merge(stored["metadata"], seen["metadata"], given["metadata"]), stored["metadata"]
    about = {name: value for name, value in about.items() if name not in semantics.SYSTEM_METADATA and value != []}
    about |= {name: old[name] for name in semantics.SYSTEM_METADATA if name in old}
    merged = documents.merge(documents.body(stored), documents.body(seen), documents.body(given))
    return {**merged, "metadata": about, **({"status": stored["status"]} if "status" in stored else {})}


def _document(body: bytes) -> Document:
    return documents.decode(body.decode())


def _decode(kind: type[T], body: bytes) -> T:
    try:
        item: T = api.object_decoder(kind).decode(body)
    except msgspec.MsgspecError as error:
        message = f"answer about {kind.KIND} cannot be read: {error}"
        raise errors.ProtocolError(message, reason="ObjectUnreadable") from error
    return item


def _place(item: meta.Object) -> tuple[str, str]:
    return (item.metadata.namespace, item.metadata.name)
