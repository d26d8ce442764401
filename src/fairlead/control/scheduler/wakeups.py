"""Tells rankings and the queue of nodes that changed, and has the pods looked at that this may help."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from fairlead.control.scheduler.preemption import Preemptor
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.queue import hint
from fairlead.plan.schedule.queue.queue import Changes, SchedulingQueue
from fairlead.plan.schedule.rankings import Rankings
from fairlead.plan.schedule.reference import NodeInfo
from fairlead.plan.schedule.workloads import Workloads


class Wakeups:
    """Keeps the changes that the queue has not got yet."""

    def __init__(
        self, cache: Cache, workloads: Workloads, queue: SchedulingQueue, preemptor: Preemptor, rankings: Rankings
    ) -> None:
        """Take where changes are seen, and the queue that gets them."""
        self._cache, self._workloads, self._queue, self._preemptor = cache, workloads, queue, preemptor
        self._rankings = rankings
        self._untold: dict[str, NodeInfo | None] = {}
        """By name: nodes that changed since the queue last got changes, as they were then."""

    def absorb(self) -> None:
        """Judge by nodes as they are now; the queue hears of what changed once the look is over."""
        if changes := self._cache.changes():
            self._rankings.take(self._cache.views, changes)
            for name, (before, _) in changes.items():
                self._untold.setdefault(name, before)

    async def take(self) -> AsyncIterator[int]:
        """Wake the pods that may fit on changed nodes; yields, now and then, how many it compared.

        What was held, lent or assumed for a moment and taken back since the last time is no change.
        """
        self.absorb()
        views, untold, self._untold = self._cache.views, self._untold, {}
        seen = {name: (before, views.get(name)) for name, before in untold.items()}
        changes = {name: one for name, one in seen.items() if one[0] != one[1]}
        left = self._cache.news.take_left()
        if changes or left:
            for count in self._queue.wake(changes):
                yield count
            self._recall(changes, left)
        self._unpark()

    def _recall(self, changes: Changes, left: Iterable[str]) -> None:
        """Have pods judged again that room is held for on a node that got better, or is another: it may be free now.

        Args: left: nodes that pods left; such a node is no better where the room was held in the same moment.
        """
        better = {name for name, one in changes.items() if hint.improved(*one) or hint.is_other(*one)} | set(left)
        for uid, held in tuple(self._cache.held.items()):
            if held.node in better:
                self._queue.retry(uid)
        if any(hint.is_other(*one) for one in changes.values()):
            self._preemptor.note_nodes()

    def _unpark(self) -> None:
        """Take pods off parking that no group or queue holds back any more; of equal ones, the first."""
        if self._cache.news.take_freed():
            self._workloads.set_nodes(self._cache.everywhere())
            for key, uid in self._queue.parked():
                if not self._workloads.refusal(uid)[0]:
                    self._queue.unpark(key, uid)
