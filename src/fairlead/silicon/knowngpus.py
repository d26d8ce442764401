"""Remembers the GPUs seen so far by index, so that one that no longer answers can still be named.

It turns "answers" and "does not answer" into the events LOST and RECOVERED, each once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fairlead.frozen import frozen
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID


@frozen
class Seen:
    """A GPU as last seen at an index."""

    uuid: GPUUUID
    pci_bus_id: str


class KnownGPUs:
    """The GPUs seen so far by index, and which of them do not answer now."""

    def __init__(self, publish: Callable[[GPUEvent], object]) -> None:
        """Args: publish: receives LOST and RECOVERED, in the thread that noted them."""
        self._publish = publish
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
            self._publish(GPUEvent(kind=EventKind.RECOVERED, uuid=seen.uuid, message=f"answers again: {seen.uuid}"))

    def silent(self, index: int, message: str) -> None:
        """Note that the GPU at an index does not answer; one that did before is LOST."""
        with self._lock:
            seen = self._seen.get(index)
            is_news = seen is not None and seen.uuid not in self._absent
            if seen is not None:
                self._absent[seen.uuid] = message
        if is_news and seen is not None:
            self._publish(GPUEvent(kind=EventKind.LOST, uuid=seen.uuid, message=message))
