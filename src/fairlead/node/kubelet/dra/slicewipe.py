"""Deletes ResourceSlices of this node whose driver may not be there: all at the kubelet's start, then a driver's own.

A scheduler allocates what slices say. A driver that is there publishes its slices again as soon as it sees them go.
Source: Kubernetes pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

DELAY_S: Final = 30.0
"""How long a driver may be away before its slices go."""
_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 300.0


async def wipe(store: Store, node: str, driver: str = "") -> int:
    """Delete a driver's slices of a node; returns how many. Args: driver: empty: of every driver."""
    listing = await store.list(ResourceSlice, Selector(fields={"spec.nodeName": node}))
    mine = [one for one in listing.items if not driver or one.spec.driver == driver]
    for one in mine:
        with contextlib.suppress(errors.NotFound, errors.Conflict):  # its driver was first
            await store.delete(ResourceSlice, one.metadata.name, uid=one.metadata.uid)
    return len(mine)


class SliceWipe:
    """Wipes at the start, and after a driver was away for a while."""

    def __init__(self, store: Store, node: str, *, delay_s: float = DELAY_S) -> None:
        """Take where slices are, and how long a driver may be away."""
        self._store, self._node, self._delay_s = store, node, delay_s
        self._due: dict[str, float] = {"": 0.0}
        """By driver: the loop's time at which its slices go."""
        self._changed = asyncio.Event()

    def leave(self, driver: str) -> None:
        """Note that no instance of a driver is connected any more."""
        self._due.setdefault(driver, asyncio.get_running_loop().time() + self._delay_s)
        self._changed.set()

    def come(self, driver: str) -> None:
        """Note that an instance of a driver is connected."""
        self._due.pop(driver, None)
        self._changed.set()

    async def run(self) -> None:
        """Wipe what is due until cancelled; a store that is away is asked again."""
        waits, clock = Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S), asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            due = [driver for driver, at in self._due.items() if at <= clock()]
            try:
                for driver in due:
                    await self._wipe(driver)
                waits.reset()
            except errors.FairleadError as error:
                telemetry.log.warning("slices not deleted", reason=error.reason, error=errors.sentence(error))
                await asyncio.sleep(waits.next())
                continue
            await self._wait(clock)

    async def _wipe(self, driver: str) -> None:
        count = await wipe(self._store, self._node, driver)
        self._due.pop(driver, None)
        if count:
            telemetry.log.info("slices deleted", resource=driver or "every driver", count=count)

    async def _wait(self, clock: Callable[[], float]) -> None:
        next_at = min(self._due.values(), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if next_at is None else max(0.0, next_at - clock())):
                await self._changed.wait()
