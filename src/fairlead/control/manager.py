"""The controller manager: every controller's watches and workers in one task tree.

A controller names the kinds it watches, turns each change into keys, and reconciles one key at a time from fresh
state. Watches that end (history compacted, store away) are listed and watched again with back-off; a reconcile that
fails with an error of the house is retried by the queue. A bug in any controller ends the process: its supervisor
starts it again from the store, which holds all state there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead import errors, telemetry
from fairlead.store.port import EVERYTHING, Change, Selector, Store
from fairlead.workqueue import WorkQueue

_FIRST_WAIT_S, _LAST_WAIT_S = 0.2, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One kind to follow."""

    kind: type[Any]
    keys: Callable[[Change[Any]], Iterable[str]]
    """What to reconcile after a change; also keeps the controller's own cache up to date."""
    selector: Selector = EVERYTHING
    reset: Callable[[], None] | None = None
    """Called before a fresh list arrives, so that a cache forgets what it may have missed the end of."""


class Controller(Protocol):
    """One reconciler."""

    name: str

    def watches(self) -> tuple[Watch, ...]:
        """Return what to follow."""
        ...

    async def reconcile(self, key: str) -> float | None:
        """Bring one object to where it should be; returns seconds until it wants to be called again, or None."""
        ...


async def run_controllers(store: Store, controllers: tuple[Controller, ...]) -> None:
    """Run all controllers for ever."""
    async with asyncio.TaskGroup() as tasks:
        for controller in controllers:
            queue = WorkQueue(controller.name, controller.reconcile)
            tasks.create_task(queue.run(), name=controller.name)
            for watch in controller.watches():
                tasks.create_task(_follow(store, watch, queue), name=f"{controller.name} watches {watch.kind.KIND}")


async def _follow(store: Store, watch: Watch, queue: WorkQueue) -> None:
    wait_s = _FIRST_WAIT_S
    while True:
        if watch.reset is not None:
            watch.reset()
        try:
            async for change in store.watch(watch.kind, watch.selector):
                wait_s = _FIRST_WAIT_S
                for key in watch.keys(change):
                    queue.add(key)
        except errors.FairleadError as error:
            telemetry.log.warning(
                "watch ended, will list again", role=watch.kind.KIND, reason=error.reason, error=error.message
            )
        await asyncio.sleep(wait_s)
        wait_s = min(_LAST_WAIT_S, wait_s * 2)
