"""Writes the devices of a pod's claims, and that the claims are reserved for it, before the pod is bound.

The finalizer is written first, then allocation and reservation at once. Where another pod shares the claim and is
written at the same time, one write says both. A write that is lost to another writer is not repeated: what the store
has counts, and the pod is decided again. Where the store does not say whether it took a write, the claim counts as
allocated until it has been asked (`resolve`).
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go, bindClaim (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from fairlead import errors, telemetry
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.claim import implicit
from fairlead.plan.schedule.claim.ask import NAME, Ask
from fairlead.plan.schedule.claim.claims import BINDING_S, Claims, Write
from fairlead.plan.schedule.claim.implicit import Creation, Removal
from fairlead.plan.schedule.constraint import Noted, Reservation
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import FINALIZER, ResourceClaim, ResourceClaimStatus

REASON: Final = "WaitsForDevices"
HOLD_S: Final = BINDING_S
_LOST: Final = (errors.Conflict, errors.NotFound, errors.Invalid, errors.Denied)
_locks: Final = WeakValueDictionary[str, asyncio.Lock]()
"""By claim's uid: one writer at a time; a lock is gone once no writer has it."""


def words(ask: constraint.Ask) -> str:
    """Return what a pod waits for until it is bound."""
    return "the devices of its claims are ready there" if isinstance(ask, Ask) else ""


async def bind(store: PatchingStore, cache: Cache, reserved: Reservation) -> None:
    """Write what is reserved.

    Raises: Conflict, NotFound, Invalid, Denied: another writer was faster, or the store refuses it: the pod is to be
            decided again; Unavailable: the store does not answer, and `resolve` finds out what it took.
    """
    known = _claims(cache)
    for at, one in enumerate(reserved.writes):
        if isinstance(one, Removal):
            await _remove(store, known, one, cache.heed)
            continue
        assert isinstance(one, Write)  # noqa: S101 what `Claims` reserves
        try:
            async with _locks.setdefault(one.uid, asyncio.Lock()):
                await _write(store, known, one, cache.heed)
        except _LOST:
            for rest in reserved.writes[at + 1 :]:  # nobody else would write them
                assert isinstance(rest, Write | Removal)  # noqa: S101 what `Claims` reserves
                cache.heed(known.settle(rest, known.known.seen(rest.uid)))
            raise


async def resolve(store: PatchingStore, cache: Cache, reserved: Reservation) -> None:
    """Ask the store how claims stand of which it is not known. Raises: Unavailable."""
    known = _claims(cache)
    for one in reserved.writes:
        assert isinstance(one, Write | Removal)  # noqa: S101 what `Claims` reserves
        cache.heed(known.settle(one, await _find(store, one)))
    for made in reserved.made:
        assert isinstance(made, Creation)  # noqa: S101 what `Claims` reserves
        await _resolve_made(store, known, made, cache.heed)


async def make(store: PatchingStore, cache: Cache, reserved: Reservation, pod: core.Pod) -> core.Pod:
    """Make the claim of a pod's extended resources, give it its devices, and name it in the pod's status.

    Returns: the pod as it is stored then.
    Raises:  as `bind`; but for Unavailable nothing is left of the claim.
    """
    for one in reserved.made:
        assert isinstance(one, Creation)  # noqa: S101 what `Claims` reserves
        pod = await _make(store, _claims(cache), one, pod, cache.heed)
    return pod


async def undo(store: PatchingStore, cache: Cache, reserved: Reservation, pod: core.Pod) -> None:
    """Remove the claim that `make` made. Raises: as `bind`; Conflict: the pod is bound after all."""
    known = _claims(cache)
    names = {one.claim.metadata.name for one in reserved.made if isinstance(one, Creation)}
    for claim in known.known.made_for(pod.metadata.uid):
        if claim.metadata.name in names:
            await _remove(store, known, implicit.removal(claim, pod), cache.heed)


async def _make(
    store: PatchingStore, known: Claims, one: Creation, pod: core.Pod, heed: Callable[[Noted], None]
) -> core.Pod:
    draft, about = one.claim, one.claim.metadata
    bare = msgspec.structs.replace(about, uid="", finalizers=())
    telemetry.crash_point("scheduler.before-claim-made")
    try:
        created = await store.create(msgspec.structs.replace(draft, metadata=bare, status=ResourceClaimStatus()))
    except _LOST as error:
        telemetry.log.warning("claim not made", claim=about.name, reason=error.reason, error=error.message)
        heed(known.drop(draft))
        raise
    heed(known.adopt(draft, created))
    telemetry.crash_point("scheduler.after-claim-made")
    try:
        sent = known.known.by_uid(created.metadata.uid)
        if sent is None:
            raise errors.NotFound(f'resourceclaim "{about.name}" is gone', reason="NotFound")
        heed(known.confirm(sent, await _store(store, created, sent)))
        written = await store.patch(pod, implicit.with_status(pod, one.told), is_status=True)
    except _LOST as error:
        telemetry.log.warning("claim not given", claim=about.name, reason=error.reason, error=error.message)
        await _remove(store, known, implicit.removal(created, pod), heed)
        raise
    telemetry.crash_point("scheduler.after-claim-named")
    return written


async def _resolve_made(store: PatchingStore, known: Claims, one: Creation, heed: Callable[[Noted], None]) -> None:
    """Ask the store how a claim stands that was to be made; one that is there is of an earlier try from now on."""
    about, pod = one.claim.metadata, implicit.made_for(one.claim)
    found = None
    with contextlib.suppress(errors.NotFound):
        found = await store.get(ResourceClaim, about.name, about.namespace)
    heed(known.drop(one.claim))
    uids = {each.metadata.uid for each in known.known.made_for(pod) if each.metadata.name == about.name}
    for uid in uids | ({found.metadata.uid} if found is not None and implicit.made_for(found) == pod else set()):
        there = found if found is not None and found.metadata.uid == uid else None
        heed(known.resolve(uid, there))


async def _remove(store: PatchingStore, known: Claims, one: Removal, heed: Callable[[Noted], None]) -> None:
    """Remove a claim that was made for a pod, unless the pod is bound: then the claim is what it runs with.

    Raises: Conflict: it is bound, or the claim is another one by now; Unavailable.
    """
    with contextlib.suppress(errors.NotFound):
        pod = await store.get(core.Pod, one.pod_name, one.namespace)
        if pod.metadata.uid == one.pod and pod.spec.node_name:
            raise errors.Conflict(f'pod "{one.pod_name}" is bound: claim "{one.name}" stays', reason="PodBound")
    found = await _find(store, one)
    if found is not None:
        with contextlib.suppress(errors.NotFound):
            if left := tuple(name for name in found.metadata.finalizers if name != FINALIZER):
                telemetry.log.debug("claim has more finalizers", claim=one.name, count=len(left))
            about = msgspec.structs.replace(found.metadata, finalizers=left)
            if len(left) < len(found.metadata.finalizers):
                found = await store.patch(found, msgspec.structs.replace(found, metadata=about))
            await store.delete(ResourceClaim, one.name, one.namespace, uid=one.uid)
    heed(known.settle(one, None))


def _claims(cache: Cache) -> Claims:
    known = cache.constraints[NAME]
    assert isinstance(known, Claims)  # noqa: S101 by its name
    return known


async def _write(store: PatchingStore, known: Claims, write: Write, heed: Callable[[Noted], None]) -> None:
    sent = known.known.by_uid(write.uid)
    if sent is None:
        raise errors.NotFound(f'resourceclaim "{write.name}" is gone', reason="NotFound")
    if not _is_for(sent, write):
        raise errors.Conflict(f'resourceclaim "{write.name}" is decided again', reason="ClaimChanged")
    if known.known.is_written(write.uid):
        return  # by another pod that shares it
    try:
        heed(known.confirm(sent, await _store(store, known.known.seen(write.uid) or sent, sent)))
    except _LOST as error:
        telemetry.log.warning("claim not written", claim=write.name, reason=error.reason, error=error.message)
        heed(known.settle(write, await _find(store, write)))
        raise


async def _store(store: PatchingStore, base: ResourceClaim, decided: ResourceClaim) -> ResourceClaim:
    """Write a claim as it was decided; returns it as it is stored.

    Args:    base: as the watch says it is stored.
    Raises:  Conflict: another writer allocated it, or reserved it for a pod, since it was decided.
    """
    if _is_overtaken(base, decided):
        message = f'resourceclaim "{base.metadata.name}" was written by another scheduler meanwhile'
        raise errors.Conflict(message, reason="ClaimChanged")
    telemetry.crash_point("scheduler.before-claim")
    if missing := tuple(one for one in decided.metadata.finalizers if one not in base.metadata.finalizers):
        about = msgspec.structs.replace(base.metadata, finalizers=(*base.metadata.finalizers, *missing))
        base = await store.patch(base, msgspec.structs.replace(base, metadata=about))
    telemetry.crash_point("scheduler.between-claim-writes")
    allocation, users = decided.status.allocation, decided.status.reserved_for
    devices = base.status.devices if allocation is not None else ()
    status = msgspec.structs.replace(base.status, allocation=allocation, reserved_for=users, devices=devices)
    written = await store.patch(base, msgspec.structs.replace(base, status=status), is_status=True)
    telemetry.crash_point("scheduler.after-claim")
    return written


def _is_overtaken(base: ResourceClaim, decided: ResourceClaim) -> bool:
    """Return whether a claim that is stored has what the decision did not know."""
    had, new = base.status, decided.status
    if new.allocation is None:
        return base.metadata.resource_version != decided.metadata.resource_version
    if had.allocation is not None and had.allocation.devices.results != new.allocation.devices.results:
        return True
    return not {one.uid for one in had.reserved_for} <= {one.uid for one in new.reserved_for}


def _is_for(claim: ResourceClaim, write: Write) -> bool:
    """Return whether a claim still is as it was decided for a pod."""
    if not write.pod:
        return claim.status.allocation is None
    return any(one.uid == write.pod for one in claim.status.reserved_for)


async def _find(store: PatchingStore, write: Write | Removal) -> ResourceClaim | None:
    """Return a claim as it is stored, None where it is gone or is another one by now. Raises: Unavailable."""
    found = None
    with contextlib.suppress(errors.NotFound):
        found = await store.get(ResourceClaim, write.name, write.namespace)
    return found if found is not None and found.metadata.uid == write.uid else None
