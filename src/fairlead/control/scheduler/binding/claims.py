"""Writes the devices of a pod's claims, and that the claims are reserved for it, before the pod is bound.

The finalizer is written first, then allocation and reservation at once. Where another pod shares the claim and is
written at the same time, one write says both. A write that is lost to another writer is not repeated: what the store
has counts, and the pod is decided anew. Where the store does not say whether it took a write, the claim counts as
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
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.claim.ask import NAME, Ask
from fairlead.plan.schedule.claim.claims import BINDING_S, Claims, Write
from fairlead.plan.schedule.constraint import Noted, Reservation
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

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
            decided anew; Unavailable: the store does not answer, and `resolve` finds out what it took.
    """
    known = _claims(cache)
    for at, one in enumerate(reserved.writes):
        assert isinstance(one, Write)  # noqa: S101 what `Claims` reserves
        try:
            async with _locks.setdefault(one.uid, asyncio.Lock()):
                await _write(store, known, one, cache.heed)
        except _LOST:
            for rest in reserved.writes[at + 1 :]:  # nobody else would write them
                cache.heed(known.settle(rest, known.known.seen(rest.uid)))
            raise


async def resolve(store: PatchingStore, cache: Cache, reserved: Reservation) -> None:
    """Ask the store how claims stand of which it is not known. Raises: Unavailable."""
    for one in reserved.writes:
        assert isinstance(one, Write)  # noqa: S101 what `Claims` reserves
        cache.heed(_claims(cache).settle(one, await _find(store, one)))


def _claims(cache: Cache) -> Claims:
    known = cache.constraints[NAME]
    assert isinstance(known, Claims)  # noqa: S101 by its name
    return known


async def _write(store: PatchingStore, known: Claims, write: Write, heed: Callable[[Noted], None]) -> None:
    sent = known.known.by_uid(write.uid)
    if sent is None:
        raise errors.NotFound(f'resourceclaim "{write.name}" is gone', reason="NotFound")
    if not _is_for(sent, write):
        raise errors.Conflict(f'resourceclaim "{write.name}" is decided anew', reason="ClaimChanged")
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


async def _find(store: PatchingStore, write: Write) -> ResourceClaim | None:
    """Return a claim as it is stored, None where it is gone or is another one by now. Raises: Unavailable."""
    found = None
    with contextlib.suppress(errors.NotFound):
        found = await store.get(ResourceClaim, write.name, write.namespace)
    return found if found is not None and found.metadata.uid == write.uid else None
