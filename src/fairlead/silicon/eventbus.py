"""Events from driver threads to whoever listens in the event loop, and the memory of which GPU was where.

`EventBus` hands every event to every subscription; a subscription that nobody holds any more is dropped. `KnownGPUs`
knows the GPUs seen so far, so that one that no longer answers can still be named, and turns "answers" and "does not
answer" into LOST and RECOVERED, each once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from dataclasses import dataclass

from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID


class Subscription:
    """An endless async iterator over events, in the order they happened."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[GPUEvent] = asyncio.Queue()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> GPUEvent:
        return await self._queue.get()

    def put(self, event: GPUEvent) -> None:
        """Append from any thread; a loop that has ended no longer listens."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


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
        """Tell everybody that from now on no event is missed, and that earlier ones may have been."""
        with self._lock:
            self._is_listening = True
        self.publish(_rescan())


def _rescan() -> GPUEvent:
    return GPUEvent(kind=EventKind.CHANGED, uuid=None, message="listening to driver events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A GPU as last seen at an index."""

    uuid: GPUUUID
    pci_bus_id: str


class KnownGPUs:
    """The GPUs seen so far by index, and which of them do not answer now."""

    def __init__(self, feed: EventBus) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._seen: dict[int, Seen] = {}
        self._absent: dict[GPUUUID, str] = {}

    def find(self, index: int) -> Seen | None:
        """Return the GPU last seen at an index."""
        with self._lock:
            return self._seen.get(index)

    def is_absent(self, index: int) -> bool:
        """Whether the GPU last seen at an index does not answer."""
        with self._lock:
            seen = self._seen.get(index)
            return seen is not None and seen.uuid in self._absent

    def has_absent(self) -> bool:
        """Whether any GPU does not answer."""
        with self._lock:
            return bool(self._absent)

    def answered(self, index: int, seen: Seen) -> None:
        """Note a GPU that answers; one that did not before is RECOVERED."""
        with self._lock:
            self._seen[index] = seen
            was_absent = self._absent.pop(seen.uuid, None)
        if was_absent is not None:
            self._feed.publish(
                GPUEvent(kind=EventKind.RECOVERED, uuid=seen.uuid, message=f"answers again: {seen.uuid}")
            )

    def silent(self, index: int, message: str) -> None:
        """Note that the GPU at an index does not answer; one that did before is LOST."""
        with self._lock:
            seen = self._seen.get(index)
            is_news = seen is not None and seen.uuid not in self._absent
            if seen is not None:
                self._absent[seen.uuid] = message
        if is_news and seen is not None:
            self._feed.publish(GPUEvent(kind=EventKind.LOST, uuid=seen.uuid, message=message))
