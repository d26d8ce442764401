"""Judges claims that a scheduler makes on one machine as an API server does: none passes its namespace's quotas.

On a cluster the server's admission counts the claims of extended resources like any other. One machine has no such
server, and its scheduler writes to the store itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from fairlead.plan.claim.life import claimquota
from fairlead.plan.pod import userrule
from fairlead.store.port import EVERYTHING, Admitter, Change, Listing, PatchingStore, Reader, Selector
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

T = TypeVar("T", bound=Object)


class _Inner(PatchingStore, Admitter, Protocol):
    """What is passed on to."""


def check_quota(claim: ResourceClaim, seen: Reader, *, user_devices: int) -> None:
    """Let a claim pass that its namespace's quotas have room for.

    Args:    user_devices: of a class for one user of the machine at once; 0: any.
    Raises:  Denied (`Forbidden`).
    """
    namespace = claim.metadata.namespace
    limit = user_devices if userrule.uid_of(namespace) is not None else 0
    claimquota.check_seen(claim, seen, most_devices=limit)


class CheckedClaims:
    """A `PatchingStore` in which a new claim is counted and stored in one step."""

    def __init__(self, store: _Inner, *, user_devices: int = 0) -> None:
        """Take the machine's store. Args: user_devices: see `check_quota`."""
        self._store, self._user_devices = store, user_devices

    async def create(self, item: T) -> T:
        """See `Store.create`. Raises: Denied (`Forbidden`): a quota has no room for the claim."""
        if not isinstance(item, ResourceClaim):
            return await self._store.create(item)
        claim, most = item, self._user_devices
        return await self._store.create_checked(item, lambda seen: check_quota(claim, seen, user_devices=most))

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """See `Store.get`."""
        return await self._store.get(kind, name, namespace)

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        """See `Store.list`."""
        return await self._store.list(kind, selector)

    def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        """See `Store.watch`."""
        return self._store.watch(kind, selector, since=since)

    async def update(self, item: T) -> T:
        """See `Store.update`."""
        return await self._store.update(item)

    async def update_status(self, item: T) -> T:
        """See `Store.update_status`."""
        return await self._store.update_status(item)

    async def apply(self, item: T, *, manager: str) -> T:
        """See `Store.apply`."""
        return await self._store.apply(item, manager=manager)

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, grace_s: int | None = None, uid: str | None = None
    ) -> None:
        """See `Store.delete`."""
        await self._store.delete(kind, name, namespace, grace_s=grace_s, uid=uid)

    async def patch(self, before: T, after: T, *, is_status: bool = False) -> T:
        """See `Patcher.patch`."""
        return await self._store.patch(before, after, is_status=is_status)
