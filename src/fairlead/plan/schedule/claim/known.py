"""Keeps claims, what those that are allocated hold, and what was decided before the watch says it.

What is decided counts at once (`assume`), until it is confirmed and its echo came, or it is withdrawn. A late event of
before our own write must not make its devices look free again: until the echo comes, or `ECHO_S` after the write, the
claim stands as we wrote it.
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/dra_manager.go (behaviour).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.claim.pool import held
from fairlead.plan.claim.pool.candidate import CounterID, DeviceID
from fairlead.plan.claim.pool.held import Held, HeldPool, PoolName
from fairlead.plan.schedule.claim import implicit
from fairlead.plan.schedule.claim.published import Gone
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim

ECHO_S: Final = 30.0
_FREE: Final = held.NOTHING


@dataclass(slots=True)
class _Entry:
    """One claim."""

    seen: ResourceClaim | None = None
    """As the watch said last; None: not yet."""
    ours: ResourceClaim | None = None
    """As we decided, until the watch says so too."""
    ends_at: float = math.inf
    """When `seen` is believed again, once `ours` is written."""

    @property
    def claim(self) -> ResourceClaim | None:
        return self.seen if self.ours is None else self.ours


class KnownClaims:
    """Claims by namespace and name, and by uid; see the module."""

    def __init__(self, *, shares: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any. Args: shares: the gate DRAConsumableCapacity is on.   clock: monotonic seconds."""
        self._shares, self._clock = shares, clock
        self._entries: dict[str, _Entry] = {}
        self._named: dict[tuple[str, str], str] = {}
        self._counted: dict[str, tuple[str, tuple[DeviceRequestAllocationResult, ...]]] = {}
        """By uid: whose devices count in `_held`, and which."""
        self._held: dict[PoolName, Held] = {}
        self._of_pool: dict[PoolName, dict[str, None]] = {}
        """By pool: uids of the claims that hold of it."""
        self._gone: dict[PoolName, dict[str, Gone]] = {}
        """By pool and name: devices that are held and published no more."""
        self._made: dict[str, dict[str, None]] = {}
        """By pod's uid: uids of the claims that were made for its extended resources."""
        self._written: dict[str, None] = {}
        """Uids of claims that we wrote and whose echo has not come, the oldest first."""

    @property
    def is_empty(self) -> bool:
        """Whether no claim is known."""
        return not self._entries

    def find(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim as it counts now."""
        entry = self._entries.get(self._named.get((namespace, name), ""))
        return None if entry is None else entry.claim

    def by_uid(self, uid: str) -> ResourceClaim | None:
        """Return a claim as it counts now."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.claim

    def seen(self, uid: str) -> ResourceClaim | None:
        """Return a claim as the watch said it last."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.seen

    def is_written(self, uid: str) -> bool:
        """Return whether a claim stands in the store as it counts here."""
        entry = self._entries.get(uid)
        return entry is not None and (entry.ours is None or math.isfinite(entry.ends_at))

    def note(self, claim: ResourceClaim, *, is_gone: bool = False) -> set[PoolName]:
        """Take in what the watch says; returns the pools of which another part is held now."""
        uid, key = claim.metadata.uid, (claim.metadata.namespace, claim.metadata.name)
        found = self._expire()
        if is_gone:
            self._entries.pop(uid, None)
            self._forget_made(claim)
            if self._named.get(key) == uid:
                del self._named[key]
            return found | self._count(uid, None)
        entry = self._entries.setdefault(uid, _Entry())
        self._named[key] = uid
        entry.seen = claim
        self._keep_made(claim)
        if entry.ours is not None and _says(claim, entry.ours, is_written=math.isfinite(entry.ends_at)):
            entry.ours, entry.ends_at = None, math.inf
        return found | self._count(uid, entry.claim)

    def forget(self) -> None:
        """Reset: a list follows; what we decided stays."""
        for uid, entry in tuple(self._entries.items()):
            seen, entry.seen = entry.seen, None
            if entry.ours is None:
                del self._entries[uid]
                if seen is not None:
                    self._forget_made(seen)
                self._count(uid, None)
        self._named = {
            (one.metadata.namespace, one.metadata.name): uid
            for uid, entry in self._entries.items()
            if (one := entry.claim) is not None
        }

    def assume(self, after: ResourceClaim) -> set[PoolName]:
        """Count a claim as it will be written."""
        entry = self._entries.setdefault(after.metadata.uid, _Entry())
        entry.ours, entry.ends_at = after, math.inf
        self._keep_made(after)
        return self._count(after.metadata.uid, after)

    def adopt(self, draft: ResourceClaim, created: ResourceClaim) -> set[PoolName]:
        """Count a claim that was made under the uid that its server gave it. Args: draft: as it was assumed."""
        pools, about = self.drop(draft), created.metadata
        entry = self._entries.setdefault(about.uid, _Entry())
        finalizers = (*about.finalizers, *(one for one in draft.metadata.finalizers if one not in about.finalizers))
        decided = msgspec.structs.replace(about, finalizers=finalizers)
        entry.ours, entry.ends_at = msgspec.structs.replace(draft, metadata=decided), math.inf
        self._named[about.namespace, about.name] = about.uid
        self._keep_made(created)
        return pools | self._count(about.uid, entry.claim)

    def drop(self, draft: ResourceClaim) -> set[PoolName]:
        """Forget a claim that is not made."""
        self._entries.pop(draft.metadata.uid, None)
        self._forget_made(draft)
        return self._count(draft.metadata.uid, None)

    def made_for(self, pod: str) -> tuple[ResourceClaim, ...]:
        """Return the claims that were made for the extended resources of a pod. Args: pod: its uid."""
        found = (self.by_uid(uid) for uid in self._made.get(pod, ()))
        return tuple(one for one in found if one is not None)

    def _keep_made(self, claim: ResourceClaim) -> None:
        if pod := implicit.made_for(claim):
            self._made.setdefault(pod, {})[claim.metadata.uid] = None

    def _forget_made(self, claim: ResourceClaim) -> None:
        pod = implicit.made_for(claim)
        uids = self._made.get(pod, {})
        uids.pop(claim.metadata.uid, None)
        if not uids:
            self._made.pop(pod, None)

    def withdraw(self, before: ResourceClaim, after: ResourceClaim) -> set[PoolName]:
        """Take back what was assumed, unless it was written or something else was assumed since."""
        uid = after.metadata.uid
        entry = self._entries.get(uid)
        if entry is None or entry.ours is not after:
            return set()
        if implicit.is_new(after):
            return self.drop(after)
        # What was assumed before it counts again, where that is not what the watch says.
        entry.ours = None if before is entry.seen or self._is_older(entry, before) else before
        if entry.claim is None:
            del self._entries[uid]
        return self._count(uid, entry.claim)

    def settle(self, uid: str, found: ResourceClaim | None) -> set[PoolName]:
        """Believe what the store says of a claim that we wrote, or tried to. Args: found: None: it is gone."""
        entry = self._entries.get(uid)
        if entry is None:
            return set()
        entry.ours, entry.ends_at = None, math.inf
        if found is not None:
            return self.note(found)
        if entry.seen is not None:
            return self.note(entry.seen, is_gone=True)
        del self._entries[uid]
        return self._count(uid, None)

    def confirm(self, sent: ResourceClaim, written: ResourceClaim) -> set[PoolName]:
        """Note that the store has taken a claim. Args: sent: what was assumed when it was sent."""
        uid = written.metadata.uid
        entry = self._entries.get(uid)
        if entry is None or entry.ours is None:
            return set()  # gone meanwhile, or its echo was faster
        if entry.ours is not sent:  # more was assumed meanwhile, which is still to be written on top
            entry.ours = msgspec.structs.replace(entry.ours, metadata=written.metadata)
            return set()
        if entry.seen is not None and entry.seen.metadata.resource_version == written.metadata.resource_version:
            entry.ours, entry.ends_at = None, math.inf
        else:
            entry.ours, entry.ends_at = written, self._clock() + ECHO_S
            self._written[uid] = None
        return self._count(uid, entry.claim)

    def take_out(self, gone: Iterable[Gone]) -> None:
        """Remember what held devices take of counters that no slice says any more."""
        for device, consumed in gone:
            pool = (device.driver, device.pool)
            if device.device in self._held.get(pool, _FREE).pool(*pool):
                self._gone.setdefault(pool, {})[device.device] = (device, consumed)

    def held(self, pools: Iterable[PoolName]) -> Held:
        """Return what is held of pools."""
        found: dict[PoolName, HeldPool] = {}
        remembered: dict[DeviceID, tuple[tuple[CounterID, int], ...]] = {}
        for name in pools:
            if name in self._held:
                found[name] = self._held[name].pool(*name)
                remembered |= dict(self._gone.get(name, {}).values())
        return Held(pools=found, remembered=remembered)

    def holding(self, pools: Iterable[PoolName]) -> dict[str, ResourceClaim]:
        """Return the claims that hold devices of pools, by namespace and name (`held.holder`)."""
        uids = {uid for pool in pools for uid in self._of_pool.get(pool, ())}
        claims = (self.by_uid(uid) for uid in uids)
        return {held.holder(one): one for one in claims if one is not None}

    def _is_older(self, entry: _Entry, before: ResourceClaim) -> bool:
        """Return whether the watch has said something since `before` stood there."""
        seen = entry.seen
        return seen is not None and seen.metadata.resource_version != before.metadata.resource_version

    def _expire(self) -> set[PoolName]:
        """Believe the watch again of claims whose echo has not come in time."""
        found, now = set[PoolName](), self._clock()
        for uid in tuple(self._written):
            entry = self._entries.get(uid)
            if entry is not None and entry.ours is not None and entry.ends_at > now:
                break
            del self._written[uid]
            if entry is not None and math.isfinite(entry.ends_at) and entry.ours is not None:
                entry.ours, entry.ends_at = None, math.inf
                if entry.seen is None:
                    del self._entries[uid]
                found |= self._count(uid, entry.seen)
        return found

    def _count(self, uid: str, claim: ResourceClaim | None) -> set[PoolName]:
        """Count what a claim holds now in place of what it held; returns the pools that differ."""
        allocation = claim.status.allocation if claim is not None else None
        results = allocation.devices.results if allocation is not None else ()
        owner, had = self._counted.pop(uid, ("", ()))
        if results and claim is not None:
            self._counted[uid] = (held.holder(claim), results)
        if had == results:
            return set()
        pools = {(one.driver, one.pool) for one in (*had, *results) if not one.admin_access}
        for pool in pools:
            known = self._held.get(pool, _FREE)
            known = known.minus(owner, _of(had, pool), shares=self._shares)
            known = known.plus(self._counted[uid][0], _of(results, pool), shares=self._shares) if results else known
            self._held[pool] = known
            self._of_pool.setdefault(pool, {}).pop(uid, None)
            self._of_pool[pool] |= {uid: None} if _of(results, pool) else {}
            there = known.pool(*pool)
            for name in [name for name in self._gone.get(pool, ()) if name not in there]:
                del self._gone[pool][name]
            if not there.names():
                for one in (self._held, self._of_pool, self._gone):
                    one.pop(pool, None)
        return pools


def _of(results: Iterable[DeviceRequestAllocationResult], pool: PoolName) -> list[DeviceRequestAllocationResult]:
    return [one for one in results if (one.driver, one.pool) == pool]


def _says(claim: ResourceClaim, ours: ResourceClaim, *, is_written: bool) -> bool:
    """Return whether an event is our own write, or came after it."""
    if is_written and claim.metadata.resource_version == ours.metadata.resource_version:
        return True
    if claim.status.allocation is None or ours.status.allocation is None:
        return claim.status.allocation is ours.status.allocation
    users = {one.uid for one in claim.status.reserved_for}
    is_same = claim.status.allocation.devices.results == ours.status.allocation.devices.results
    return not is_same or users >= {one.uid for one in ours.status.reserved_for}
