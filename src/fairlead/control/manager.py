"""Runs controllers: the watches and workers of all of them in one task tree.

A controller names the kinds it watches, turns each change into keys, and reconciles one key at a time from fresh state.
It is first called once all of its kinds have been listed: a decision on part of the objects could give away a device
that is taken. A kind that may not be there is waited for too, but no longer than `LISTED_S`; the log says what is
decided without. A watch that ends (history compacted, store restored or away) is listed again (`store.reflector`); a
list is reported in one step without a pause, so that no reader sees a cache half filled, and what was deleted meanwhile
is reported as DELETED. A reconcile that raises a `FairleadError` is retried by the queue. A bug in any controller ends
the process: its supervisor starts it again from the store, which holds all state there is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fairlead import telemetry
from fairlead.store import reflector
from fairlead.store.port import EVERYTHING, Change, ChangeKind, Selector, Store
from fairlead.workqueue import WorkQueue

LISTED_S: Final = 60.0
"""How long reconciling waits for the first list of an optional kind that is neither answered nor refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One kind to follow."""

    kind: type[Any]
    keys: Callable[[Change[Any]], Iterable[str]]
    """What to reconcile after a change; also keeps the controller's own cache up to date."""
    selector: Selector = EVERYTHING
    reset: Callable[[], None] | None = None
    """Empties the cache before everything is reported again: a restored store may lack what the cache knows."""
    is_optional: bool = False
    """A kind that the server does not know or refuses to list counts as empty, and is asked for again."""


class Controller(Protocol):
    """One reconciler."""

    name: str

    def watches(self) -> tuple[Watch, ...]:
        """Return what to follow."""
        ...

    async def reconcile(self, key: str) -> float | None:
        """Bring one object to where it should be; returns seconds until it wants to be called again, or None."""
        ...


async def run_controllers(
    store: Store, controllers: tuple[Controller, ...], *, meter: telemetry.Meter = telemetry.UNMETERED
) -> None:
    """Run all controllers for ever."""
    async with asyncio.TaskGroup() as tasks:
        for controller in controllers:
            queue = WorkQueue(controller.name, controller.reconcile, meter=meter)
            followers = [_Follower(store, watch, queue, meter) for watch in controller.watches()]
            for follower in followers:
                tasks.create_task(follower.run(), name=f"{controller.name} watches {follower.kind}")
            tasks.create_task(_work(queue, followers), name=controller.name)


async def _work(queue: WorkQueue, followers: Sequence[_Follower]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LISTED_S):
            for follower in followers:
                await follower.is_listed.wait()
    for follower in followers:
        if not follower.is_optional:
            await follower.is_listed.wait()
        elif not follower.is_listed.is_set():
            telemetry.log.warning("decides without objects", role=follower.kind, reason="NotListed")
    await queue.run()


class _Follower:
    """One watch of one controller."""

    def __init__(self, store: Store, watch: Watch, queue: WorkQueue, meter: telemetry.Meter) -> None:
        self.kind, self.is_optional = watch.kind.KIND, watch.is_optional
        self.is_listed = asyncio.Event()
        self._store = store
        self._watch = watch
        self._queue = queue
        self._meter = meter
        self._known: dict[str, Any] = {}
        """The last state reported of each object, by uid."""

    async def run(self) -> None:
        """Follow for ever."""
        watch = self._watch
        await reflector.follow(
            self._store,
            watch.kind,
            watch.selector,
            listed=self._list,
            changed=self._tell,
            is_optional=watch.is_optional,
        )

    def _list(self, items: tuple[Any, ...]) -> None:
        """Report everything again, without a pause, so that nothing reconciles in between."""
        if self.is_listed.is_set():
            self._meter.add(telemetry.WATCHES, self.kind, "listed")
        present = {item.metadata.uid for item in items}
        gone = [item for uid, item in self._known.items() if uid not in present]
        if self._watch.reset is not None:
            self._watch.reset()
        for item in gone:  # first, because another object may have its name by now
            self._tell(Change(kind=ChangeKind.DELETED, object=item))
        for item in items:
            self._tell(Change(kind=ChangeKind.ADDED, object=item))
        self.is_listed.set()

    def _tell(self, change: Change[Any]) -> None:
        if change.kind is ChangeKind.DELETED:
            self._known.pop(change.object.metadata.uid, None)
        else:
            self._known[change.object.metadata.uid] = change.object
        for key in self._watch.keys(change):
            self._queue.add(key)
