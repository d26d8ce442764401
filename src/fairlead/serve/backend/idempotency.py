"""Carries out a request that makes a pod once, however often it comes with the same `Idempotency-Key`.

On one machine the request is stored with the pod, in one step (`LocalRequests`); on a cluster the pod carries it
(`ClusterRequests`), under a name that is made of the key, so that the API server refuses the second one.
Source: IETF draft-ietf-httpapi-idempotency-key-header-07 (same key and another body: 422; still under way: 409).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec

from fairlead import errors, telemetry
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead.podrequest import PodRequest, PodRequestSpec
from fairlead.wire.kubernetes import core, meta

KEPT_S: Final = 86400.0
"""How long a machine remembers a request; a cluster, as long as its pod exists."""
_LOOK_S: Final = 3600.0
_KEY: Final = re.compile(r"[!-~]{1,255}", re.ASCII)
_LABEL: Final = "idempotency-key"
"""Label of pods on a cluster. It has no fairlead.dev prefix, since users may not set such names themselves."""
_ANNOTATION: Final = "idempotency-digest"
_NAME_DIGITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """One request that is carried out once."""

    name: str
    """Digest of who asks and of the key."""
    digest: str
    """Of the body."""
    answer: Callable[[core.Pod], str]
    """Returns the answer that is sent for the pod it made, as JSON."""

    def part(self, number: int) -> Once:
        """Return the part of the request that makes one pod of several."""
        return replace(self, name=_hash(f"{self.name}#{number}"))

    def record(self, pod: core.Pod) -> PodRequest:
        """Return what is stored beside the pod."""
        about = pod.metadata
        spec = PodRequestSpec(
            digest=self.digest,
            pod_namespace=about.namespace,
            pod_name=about.name,
            pod_uid=about.uid,
            answer=self.answer(pod),
        )
        return PodRequest(metadata=meta.ObjectMeta(name=self.name), spec=spec)

    def check(self, digest: str) -> None:
        """Refuse another request under the same key. Raises: Invalid (`IdempotencyKeyReused`)."""
        if digest != self.digest:
            message = "this Idempotency-Key came with another request before"
            hint = "a new request needs a new key; the old one has to be the same byte by byte"
            raise errors.Invalid(message, reason="IdempotencyKeyReused", hint=hint)


def once(who: str, key: str, body: bytes, *, answer: Callable[[core.Pod], str]) -> Once | None:
    """Return the record that identifies a request; None: it has no key.

    Args:    who: the caller; equal keys of two callers are different keys.
    Raises:  RequestError (`IdempotencyKeyInvalid`).
    """
    if not key:
        return None
    if not _KEY.fullmatch(key):
        message = "the Idempotency-Key is not of 1 to 255 visible ASCII characters"
        raise errors.RequestError(message, reason="IdempotencyKeyInvalid", hint="for example a random UUID")
    return Once(name=_hash(f"{who}\0{key}"), digest=hashlib.sha256(body).hexdigest(), answer=answer)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class Requests(Protocol):
    """Requests that made pods."""

    async def find(self, wanted: Once, namespace: str) -> str | None:
        """Return the answer that a request was given; None: it was not carried out.

        Raises: Invalid (`IdempotencyKeyReused`).
        """
        ...

    def under_way(self, wanted: Once) -> contextlib.AbstractContextManager[None]:
        """Hold a request for a block. Raises: Conflict (`RequestInFlight`): it is carried out already."""
        ...


class _InFlight:
    """Requests that this process carries out now."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @contextlib.contextmanager
    def under_way(self, wanted: Once) -> Iterator[None]:
        """See `Requests.under_way`."""
        if wanted.name in self._names:
            message = "a request with this Idempotency-Key is being carried out"
            raise errors.Conflict(message, reason="RequestInFlight", hint="send it again in a moment")
        self._names.add(wanted.name)
        try:
            yield
        finally:
            self._names.discard(wanted.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRequests:
    """A `Requests` of a machine's store."""

    store: Store
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)
    in_flight: _InFlight = field(default_factory=_InFlight)

    async def find(self, wanted: Once, namespace: str) -> str | None:  # noqa: ARG002 the key says where
        """See `Requests.find`."""
        try:
            found = await self.store.get(PodRequest, wanted.name)
        except errors.NotFound:
            return None
        if self._is_old(found):
            await self._forget(found)
            return None
        wanted.check(found.spec.digest)
        return found.spec.answer

    def under_way(self, wanted: Once) -> contextlib.AbstractContextManager[None]:
        """See `Requests.under_way`."""
        return self.in_flight.under_way(wanted)

    async def prune(self) -> int:
        """Forget requests that are older than a day; return how many."""
        old = [one for one in (await self.store.list(PodRequest)).items if self._is_old(one)]
        for one in old:
            await self._forget(one)
        return len(old)

    async def keep(self) -> None:
        """Forget old requests, now and every hour, until cancelled; a failure of that is logged."""
        while True:
            try:
                await self.prune()
            except errors.FairleadError as error:
                telemetry.log.error("old requests not forgotten", reason=error.reason, error=errors.sentence(error))
            await asyncio.sleep(_LOOK_S)

    def _is_old(self, found: PodRequest) -> bool:
        made = dt.datetime.fromisoformat(found.metadata.creation_timestamp or "1970-01-01T00:00:00Z")
        return (self.now() - made).total_seconds() >= KEPT_S

    async def _forget(self, found: PodRequest) -> None:
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.store.delete(PodRequest, found.metadata.name, uid=found.metadata.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequests:
    """A `Requests` of an API server's pods: a request is known as long as its pod is there."""

    store: Store
    in_flight: _InFlight = field(default_factory=_InFlight)

    async def find(self, wanted: Once, namespace: str) -> str | None:
        """See `Requests.find`; the answer is the pod as it is now."""
        try:
            found = (await self.store.list(core.Pod, Selector(namespace=namespace, labels={_LABEL: wanted.name}))).items
        except errors.Denied:
            return None  # the user may not list pods: the name made of the key still refuses a second one
        for pod in found:
            wanted.check(pod.metadata.annotations.get(_ANNOTATION, ""))
            return wanted.answer(pod)
        return None

    def under_way(self, wanted: Once) -> contextlib.AbstractContextManager[None]:
        """See `Requests.under_way`."""
        return self.in_flight.under_way(wanted)


def carrying(pod: core.Pod, wanted: Once) -> core.Pod:
    """Return a pod that says which request made it; one without a name gets one that is made of the key."""
    about = pod.metadata
    named = about.name or f"{about.generate_name}{wanted.name[:_NAME_DIGITS]}"
    marked = msgspec.structs.replace(
        about,
        name=named,
        generate_name="",
        labels={**about.labels, _LABEL: wanted.name},
        annotations={**about.annotations, _ANNOTATION: wanted.digest},
    )
    return msgspec.structs.replace(pod, metadata=marked)
