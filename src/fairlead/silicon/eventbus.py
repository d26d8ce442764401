"""Carries events from driver threads to listeners in the event loop.

`EventBus` hands every event to every subscription; a subscription without a reader is dropped. A GPU can
report the same fault thousands of times a second, so what waits in a subscription is coalesced: of equal events the
last stays, and of each GPU so many at most; what is let go beyond that leaves a request to scan that GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import weakref
from collections import Counter
from typing import Final

from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID

WAITING: Final = 64
"""Different events of one GPU that may wait: more than there are XIDs that a GPU reports at once."""


class Subscription:
    """An endless async iterator over events, in the order in which each happened last."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: dict[object, GPUEvent] = {}
        """By what is equal in equal events."""
        self._counts: Counter[GPUUUID | None] = Counter()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> GPUEvent:
        while True:
            with self._lock:
                if self._waiting:
                    return self._pop(next(iter(self._waiting)))
                self._more.clear()
            await self._more.wait()

    def put(self, event: GPUEvent) -> None:
        """Append from any thread; a loop that has ended no longer listens."""
        with self._lock:
            is_first = not self._waiting
            self._push(event)
            if self._counts[event.uuid] > WAITING:
                self._pop(next(key for key, one in self._waiting.items() if one.uuid == event.uuid))
                self._push(GPUEvent(kind=EventKind.CHANGED, uuid=event.uuid, message="too many events to list: rescan"))
        if is_first:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._more.set)

    def _push(self, event: GPUEvent) -> None:
        key = dataclasses.replace(event, message="")
        if key in self._waiting:
            self._pop(key)
        self._waiting[key] = event
        self._counts[event.uuid] += 1

    def _pop(self, key: object) -> GPUEvent:
        event = self._waiting.pop(key)
        self._counts[event.uuid] -= 1
        return event


class EventBus:
    """Every subscription of one silicon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._is_listening = False

    def subscribe(self) -> Subscription:
        """Return a new subscription, to be called in the event loop; it begins now."""
        subscription = Subscription()
        with self._lock:
            self._subscriptions.add(subscription)
            if self._is_listening:
                subscription.put(_rescan())
        return subscription

    def publish(self, event: GPUEvent) -> None:
        """Hand out one event, from any thread."""
        with self._lock:
            for subscription in self._subscriptions:
                subscription.put(event)

    def listening(self) -> None:
        """Announce that from now on no event is missed, and that earlier ones may have been."""
        with self._lock:
            self._is_listening = True
        self.publish(_rescan())


def _rescan() -> GPUEvent:
    return GPUEvent(kind=EventKind.CHANGED, uuid=None, message="listening to driver events")
