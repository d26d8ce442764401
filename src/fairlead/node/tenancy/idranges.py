"""Knows whose user ids a pod's user namespace has: its tenancy's, or those of the user of a shared machine.

A tenancy's range is in its status. A user has no object but the namespace of their containers, so the range of a user
is an annotation of it, written before the first container that needs it. Users take every second range, which leaves
the others to tenancies: a range is chosen here and by the tenancies' controller, neither of which sees what the other
is about to write.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import userrule
from fairlead.plan.tenancy import userids
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, names

_DIGITS: Final = 10


class IDRanges:
    """The ranges of ids of this machine's tenants."""

    def __init__(self, store: Store) -> None:
        """Take the store that has namespaces and tenancies."""
        self._store = store
        self._choosing = asyncio.Lock()

    async def find(self, pod: core.Pod, tenancy: Tenancy | None) -> userids.Owner | None:
        """Return whose ids a pod's containers have; None: it is a pod of the machine's own, which has the host's.

        Args:   tenancy: the pod's.
        Raises: Insufficient (`UserIDsTaken`).
        """
        if tenancy is not None:
            return userids.Owner(name=f'tenancy "{tenancy.metadata.name}"', first=tenancy.status.first_user_id)
        uid = userrule.uid_of(pod.metadata.namespace)
        if uid is None:
            return None
        async with self._choosing:
            try:
                first = await self._of_user(pod.metadata.namespace)
            except errors.NotFound:
                first = 0  # the namespace goes, and the pod with it
        return userids.Owner(name=f"user {uid}", first=first)

    async def _of_user(self, namespace: str) -> int:
        known = first_user_id(await self._store.get(core.Namespace, namespace))
        if known:
            return known
        namespaces = (await self._store.list(core.Namespace)).items
        tenancies = (await self._store.list(Tenancy)).items
        taken = {first_user_id(one) for one in namespaces} | {one.status.first_user_id for one in tenancies}
        first = userids.choose(namespace, taken, is_user=True)

        def noted(fresh: core.Namespace) -> core.Namespace | None:
            if first_user_id(fresh):
                return None
            annotations = {**fresh.metadata.annotations, names.USER_IDS: str(first)}
            return msgspec.structs.replace(
                fresh, metadata=msgspec.structs.replace(fresh.metadata, annotations=annotations)
            )

        return first_user_id(await retry.change(self._store, core.Namespace, namespace, noted))


def first_user_id(item: core.Namespace) -> int:
    """Return the first of the ids that a user's namespace notes; 0: it notes none of ours."""
    text = item.metadata.annotations.get(names.USER_IDS, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0
    return number if userids.base(number) == number else 0
