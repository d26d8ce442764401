"""Writes into a claim's status how far it is prepared here, beside the kubelet's calls and never in their way.

What happens within `GATHER_S` is one write: a claim that is prepared at once is written once. A write that the server
refuses for good (a cluster whose roles do not allow it) is logged once and not tried again for `REFUSED_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.dra import devicestatus
from fairlead.plan.dra.devicestatus import Progress
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

GATHER_S: Final = 0.1
REFUSED_S: Final = 600.0
_ROUNDS: Final = 5
_WAIT_S: Final = 5.0
"""Before what could not be written is tried again."""
_MOST: Final = 4096
"""Claims that wait to be written; of more the oldest are left out, as their next step is written anyway."""
Key = tuple[str, str, str]
"""Namespace, name and UID of a claim."""


class ClaimStatuses:
    """What is to be said of the claims of one node."""

    def __init__(
        self, store: PatchingStore, driver: str, pool: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take where claims are, and whose entries of their status are ours."""
        self._store, self._driver, self._pool, self._clock = store, driver, pool, clock
        self._waiting: dict[Key, Progress | None] = {}
        """None: it is unprepared."""
        self._news = asyncio.Event()
        self._refused_until = 0.0

    def tell(self, key: Key, progress: Progress | None) -> None:
        """Have it said how far a claim is; None: it is unprepared. Never waits."""
        self._waiting.pop(key, None)
        self._waiting[key] = progress
        while len(self._waiting) > _MOST:
            del self._waiting[next(iter(self._waiting))]
        self._news.set()

    async def run(self) -> None:
        """Write what is told, for ever."""
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            await self._write_all()

    async def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if self._clock() < self._refused_until:
            return
        for key, progress in waiting.items():
            if key in self._waiting:
                continue  # it is further by now
            try:
                await self._write(key, progress)
            except (errors.Unavailable, errors.Conflict) as error:
                telemetry.log.debug("claim's status not written", claim=f"{key[0]}/{key[1]}", reason=error.reason)
                self._waiting = {**waiting, **self._waiting} if isinstance(error, errors.Unavailable) else self._waiting
                self._waiting.setdefault(key, progress)
                asyncio.get_running_loop().call_later(_WAIT_S, self._news.set)
                return
            except errors.FairleadError as error:
                if isinstance(error, errors.Denied):
                    self._refused_until = self._clock() + REFUSED_S
                telemetry.log.warning(
                    "claim's status not written",
                    claim=f"{key[0]}/{key[1]}",
                    reason=error.reason,
                    error=errors.sentence(error),
                )
                if isinstance(error, errors.Denied):
                    return

    async def _write(self, key: Key, progress: Progress | None) -> None:
        """Write one claim's entries; a claim that is gone, or another of its name, is passed over."""
        namespace, name, uid = key
        for left in reversed(range(_ROUNDS)):
            try:
                claim = await self._store.get(ResourceClaim, name, namespace)
            except errors.NotFound:
                return
            if claim.metadata.uid != uid:
                return
            if progress is None:
                wanted = devicestatus.without(claim, self._driver, self._pool)
            else:
                wanted = devicestatus.with_progress(claim, self._driver, self._pool, progress)
            if wanted == claim:
                return
            try:
                await self._store.patch(claim, wanted, is_status=True)
            except errors.NotFound:
                return
            except errors.Conflict:
                if not left:
                    raise
                continue
            return
