"""Writes into each Queue's status what the queue has, waits for and is due; at most every few seconds."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Final

from fairlead import errors
from fairlead.plan.schedule import queuestatus
from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.workloads import Workloads
from fairlead.store.port import Store
from fairlead.wire.kubernetes.scheduling import queue

EVERY_S: Final = 2.0


class QueueReport:
    """What was said of queues last, and when the next is due."""

    def __init__(self, store: Store, workloads: Workloads, clock: Callable[[], float]) -> None:
        """Take where it is written and what is counted; `clock` gives monotonic seconds."""
        self._store, self._workloads, self._clock = store, workloads, clock
        self._written_at = -EVERY_S
        self._is_writing = self._is_quiet = False

    def wake(self) -> None:
        """Note that something may have changed."""
        self._is_quiet = False

    @property
    def is_due(self) -> bool:
        """Whether something is to be said now."""
        if not self._workloads.has_queues or self._is_writing or self._clock() - self._written_at < EVERY_S:
            return False
        self._workloads.ledger.tick(time.time())
        self._is_quiet = not self._changes()
        return not self._is_quiet

    @property
    def due_s(self) -> float | None:
        """Seconds after which to ask again, None where nothing is to come."""
        if self._is_quiet or not self._workloads.has_queues:
            return None
        return max(0.1, EVERY_S - (self._clock() - self._written_at))

    def restore(self, item: queue.Queue) -> None:
        """Take over the usage that was counted before this process began."""
        said = item.status
        if said.usage and said.usage_at:
            age_s = time.time() - dt.datetime.fromisoformat(said.usage_at).timestamp()
            usage = {name: value * tree.UNIT for name, value in said.usage.items()}
            self._workloads.ledger.restore(item.metadata.name, usage, age_s)

    async def write(self, fail: Callable[[errors.FairleadError], None]) -> None:
        """Write the status of every queue that changed; a queue that changed meanwhile is written the next time."""
        self._is_writing, self._written_at = True, self._clock()
        try:
            for item in self._changes():
                try:
                    await self._store.update_status(item)
                except (errors.NotFound, errors.Conflict):
                    continue  # the watch brings it as it is now
                except (errors.Denied, errors.Invalid):
                    return  # said by the rights that are lacking
        except errors.FairleadError as error:
            fail(error)
        finally:
            self._is_writing = False

    def _changes(self) -> list[queue.Queue]:
        return queuestatus.changed(self._workloads, time.time())
