"""Puts back pods that the scheduler overlooked, and says so: they fit and were not tried, or their queue lost them.

The scheduler's loop asks it when nothing is to be looked at. Decisions come from `plan.schedule.queue.overlooked`; a
round never takes more than `overlooked.SHARE` of the time, and ends where other work comes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from fairlead import telemetry
from fairlead.control.scheduler import holdback
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.queue import overlooked
from fairlead.plan.schedule.queue.queue import Group, Key, SchedulingQueue, State
from fairlead.plan.schedule.rankings import Rankings
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core

Found = tuple[core.Pod, str]
"""A pod that was put back, and what is said of it."""


class Watchdog:
    """Knows when to ask, and about whom."""

    def __init__(
        self,
        cache: Cache,
        workloads: Workloads,
        queue: SchedulingQueue,
        meter: telemetry.Meter,
        clock: Callable[[], float],
    ) -> None:
        """Take what is known of pods; `clock` gives monotonic seconds."""
        self._meter = meter
        self._cache, self._workloads, self._queue, self._clock = cache, workloads, queue, clock
        self._due_at = clock() + overlooked.EVERY_S
        self._asked: dict[Key, float] = {}
        self._tried: dict[str, tuple[core.Pod, float]] = {}
        """By uid: pods of groups that were put back, and how long they had not been tried; a count proves nothing."""

    @property
    def due_s(self) -> float | None:
        """Seconds until it asks again, None where no pod waits."""
        return max(0.0, self._due_at - self._clock()) if len(self._queue) or self._tried else None

    async def run(
        self, judge: Callable[[PodInfo], Awaitable[object]], rankings: Rankings, is_wanted: Callable[[], bool]
    ) -> AsyncIterator[Found]:
        """Put back what was overlooked, and yield it.

        Args: judge: brings a need's ranking up to date.   is_wanted: whether there is other work: the rest has time.
        """
        begun_at = self._clock()
        for pod, words in (*self._lost(), *self._placed()):
            yield self._said("lost" if words.startswith("it is") else "fits", pod, words)
        groups = overlooked.suspects(self._queue.resting(), begun_at, self._asked)
        self._asked = {group.key: self._asked.get(group.key, 0.0) for group in self._queue.resting()}
        for group in groups:
            await judge(group.need)
            if (found := self._ask(group, rankings)) is not None:
                yield self._said("fits", *found)
            if is_wanted():
                break
        now = self._clock()
        self._due_at = now + max(overlooked.EVERY_S, (now - begun_at) / overlooked.SHARE)

    def _said(self, kind: str, pod: core.Pod, words: str) -> Found:
        self._meter.add(telemetry.OVERLOOKED, kind)
        telemetry.log.warning("pod overlooked", pod=pod.metadata.name, reason="Overlooked", error=words)
        return pod, words

    def _lost(self) -> Iterator[Found]:
        """Put back and yield the pods that the queue has in no place that it takes them from."""
        for uid, why in self._queue.problems().items():
            pod = self._cache.waiting(uid)
            self._queue.drop(uid)
            if pod is not None:
                self._queue.put(pod)
                yield pod, f"it {why}: a fault of the scheduler, which tries it now"

    def _placed(self) -> Iterator[Found]:
        """Yield the pods of groups that were put back and went in."""
        tried, self._tried = self._tried, {}
        for uid, (pod, untried_s) in tried.items():
            if uid not in self._queue and self._cache.is_placed(uid):
                yield pod, overlooked.words("", untried_s)

    def _ask(self, group: Group, rankings: Rankings) -> Found | None:
        """Put a group back that fits; returns its first pod, None where it does not fit, or only trying tells.

        Args: rankings: nothing may be left to judge for the group's need.
        """
        now = self._clock()
        self._asked[group.key] = now
        pod = next((one for one in group.members.values() if self._is_free(one, group)), None)
        node = rankings.of(group.need).summary().node
        if pod is None or node is None or group.refusal is None:
            return None
        uid, untried_s = pod.metadata.uid, now - group.rested_at
        gang = self._workloads.gang(uid)
        if gang is None:
            self._queue.lift(group)
            return pod, overlooked.words(node, untried_s)
        needs, views = [self._cache.need(one) for one in gang.chosen()], self._cache.views
        fitting = {
            need.key(): [node for node in views.values() if reference.first_refusal(need, node) is None]
            for need in {need.key(): need for need in needs}.values()
        }
        if overlooked.may_fit(needs, fitting):
            self._queue.retry(uid)
            self._tried[uid] = pod, untried_s
        return None

    def _is_free(self, pod: core.Pod, group: Group) -> bool:
        """Return whether a pod of a group waits for nodes alone."""
        uid = pod.metadata.uid
        if self._queue.state(uid) is not State.REFUSED or self._workloads.refusal(uid)[0]:
            return False
        return holdback.own(self._cache, pod) is None and self._cache.need(pod).key() == group.need.key()
