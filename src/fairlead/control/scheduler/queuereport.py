"""Writes into each Queue's status what the queue has, waits for and is due; at most every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.schedule import queuestatus
from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.workloads import Workloads
from fairlead.store.port import Store
from fairlead.wire.kubernetes.scheduling import queue
from fairlead.wire.text import timestamp

EVERY_S: Final = 2.0


class QueueReport:
    """Knows when the next report is due, and which queues changed since the last."""

    def __init__(self, store: Store, workloads: Workloads, clock: Callable[[], float]) -> None:
        """Take where it is written and what is counted; `clock` gives monotonic seconds."""
        self._store, self._workloads, self._clock = store, workloads, clock
        self._written_at = -EVERY_S
        self._is_writing = self._is_quiet = False
        self._complaints: dict[str, str] = {}
        """By queue: why its status was refused last."""

    def wake(self) -> None:
        """Note that something may have changed."""
        self._is_quiet = False

    @property
    def is_due(self) -> bool:
        """Whether the status of a queue is to be written now."""
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
        counted_at = timestamp.parse(said.usage_at)
        if said.usage and counted_at is None:
            name = item.metadata.name
            telemetry.log.warning("usage of a queue not read", reason="TimeInvalid", queue=name, error=said.usage_at)
        elif said.usage and counted_at is not None:
            age_s = max(0.0, time.time() - counted_at)
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
                except (errors.Denied, errors.Invalid) as error:
                    self._complain(item.metadata.name, error)
        except errors.FairleadError as error:
            fail(error)
        finally:
            self._is_writing = False

    def _complain(self, name: str, error: errors.FairleadError) -> None:
        """Log why a status is not written, once for each reason."""
        if self._complaints.get(name) != error.reason:
            self._complaints[name] = error.reason
            telemetry.log.warning("queue not reported", queue=name, reason=error.reason, error=error.message)

    def _changes(self) -> list[queue.Queue]:
        return queuestatus.changed(self._workloads, time.time())
