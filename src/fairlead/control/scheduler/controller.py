"""Binds waiting pods: decisions come from `plan.schedule`, and every refusal is kept with its reasons.

One key stands for the whole queue, so decisions are made one after another from one cache. What is decided is assumed
at once and bound beside the next decision, by so many tasks as `BINDERS` says; steps are written by other tasks,
which never hold a binding up. Equal needs are judged once, pods that nothing helps are left alone (`queue`), only nodes
that changed are judged again (`ranking`), and between slices of judgements the event loop gets its turn.

A binding carries the pod's uid and version: a writer that changed the pod meanwhile wins, the assumption is forgotten
and the pod looked at again. A binding whose answer was lost may have happened: nothing more is decided until the store
has said whether it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.model.step import TraceStep
from fairlead.plan.schedule import rules
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.queue import Group, SchedulingQueue
from fairlead.plan.schedule.ranking import SLICE
from fairlead.plan.schedule.rankings import PlainRankings, Rankings
from fairlead.plan.schedule.summary import Summary
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core, meta

UNTOLD_S: Final = 5.0
"""After this, steps that the store did not take are written again."""
RETRY_S: Final = 30.0
"""After which a pod is tried again whose binding was refused; twice as long each time, up to ten minutes."""
BINDERS: Final = 16
"""Bindings in flight."""
TELLERS: Final = 4
"""Conditions and events being written."""
STALLED_S: Final = 120.0
"""Neither a slice of judgements nor a request takes so long: a round that turns no more by then hangs."""
_MOST_UNTOLD: Final = 2000
"""Steps kept for a store that does not take them; the oldest go first."""
_LOOK: Final = 10
"""What looking at a pod costs beside judging nodes, in judgements."""
_QUEUE: Final = "pending-pods"
_RACED: Final = (errors.Conflict, errors.NotFound)
_REFUSED: Final = (errors.Invalid, errors.Denied)


_Refusal = tuple[core.Pod, str, TraceStep]
"""What is to be said on a pod that waits: the condition's reason, and the step with its words."""


class Scheduler:
    """Binds pods that carry our scheduler name."""

    name = "scheduler"

    def __init__(
        self,
        store: Store,
        placement: Placement,
        settings: ControlSettings,
        *,
        rankings: Rankings | None = None,
        meter: telemetry.Meter = telemetry.UNMETERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the store, what binds pods in it, and the name we answer to; `clock` gives monotonic seconds.

        Args: rankings: what judges nodes; None: node by node.
        """
        self._store = store
        self._placement = placement
        self._meter = meter
        self._queue = SchedulingQueue(clock)
        self._cache = Cache(self._queue, lambda pod: pod.spec.scheduler_name == settings.scheduler_name, clock)
        self._rankings = PlainRankings(settings.policy) if rankings is None else rankings
        self._doubtful: dict[str, core.Pod] = {}
        """Pods by uid whose binding was sent and not answered."""
        self._refusals: dict[str, _Refusal] = {}
        """By uid: what is to be said on pods."""
        self._untold: deque[tuple[core.ObjectReference, TraceStep, str]] = deque()
        """Steps that the store has not taken yet, each with a name of its own."""
        self._news = asyncio.Event()
        """Set when a watch or a task of ours said something."""
        self._busy = self._tellers = 0
        """Tasks of this round, and those of them that write steps."""
        self._slots = asyncio.Semaphore(BINDERS)
        self._broken: errors.FairleadError | None = None
        """Why this round ends before its time: the store does not answer."""
        self._is_deaf = False
        """Whether the store takes no events; bindings go on."""
        self._judged = 0
        """Judgements since the event loop had its turn."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._cache.forget_pods),
            Watch(kind=core.Node, keys=self._node_changed, reset=self._cache.forget_nodes),
        )

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        self._cache.note_pod(change.object, is_gone=change.kind is ChangeKind.DELETED)
        self._news.set()
        return (_QUEUE,)

    def _node_changed(self, change: Change[core.Node]) -> Iterable[str]:
        self._cache.note_node(change.object, is_gone=change.kind is ChangeKind.DELETED)
        self._news.set()
        return (_QUEUE,)

    async def reconcile(self, _key: str) -> float | None:
        """Look at pods until none is left and everything is bound and written, or the store is away."""
        await self._resolve_doubts()
        self._broken, self._is_deaf = None, False
        async with asyncio.TaskGroup() as tasks:
            while self._broken is None:
                self._news.clear()
                await self._decide(tasks)
                if not self._busy:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._queue.next_due_s()):
                        await self._news.wait()
        if self._broken is not None:
            raise self._broken
        times = [self._queue.next_due_s(), UNTOLD_S if self._untold else None]
        return min((one for one in times if one is not None), default=None)

    async def _resolve_doubts(self) -> None:
        for uid, pod in tuple(self._doubtful.items()):
            found = None
            with contextlib.suppress(errors.NotFound):
                found = await self._store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            self._cache.correct(uid, found)
            del self._doubtful[uid]

    # decisions

    async def _decide(self, tasks: asyncio.TaskGroup) -> None:
        """Look at every pod that is to be looked at, one after another."""
        self._cache.expire()
        self._tell(tasks)
        while self._broken is None:
            await self._take_changes()
            self._queue.release()
            pod = self._queue.pop()
            self._meter.set(telemetry.PENDING, len(self._queue))
            if pod is None:
                return
            await self._look(pod, tasks)
            self._tell(tasks)
            await self._worked(_LOOK)

    async def _take_changes(self) -> None:
        """Have changed nodes judged again, and pods that they may take."""
        if changes := self._cache.changes():
            self._rankings.take(self._cache.views, changes)
            for count in self._queue.wake(changes):
                await self._worked(count)

    async def _worked(self, count: int) -> None:
        """Count judgements, and give the event loop its turn after a slice of them."""
        self._judged += count
        if self._judged >= SLICE:
            self._judged = 0
            self._alive()
            await asyncio.sleep(0)

    def _alive(self) -> None:
        """Say that the round turns; the work queue says when it begins and ends."""
        self._meter.heartbeat(f"{self.name} of {_QUEUE}", STALLED_S)

    async def _look(self, pod: core.Pod, tasks: asyncio.TaskGroup) -> None:
        if reason := rules.refusal(pod.spec):
            self._refuse(pod, "UnknownRule", reason)
            return
        try:
            group = self._queue.group(pod, self._cache.need(pod))
        except errors.Invalid as error:
            self._meter.add(telemetry.DECISIONS, "failed")
            self._refuse(pod, "SchedulerError", error.message)
            return
        if group.refusal is not None:
            if not group.is_woken:  # else it is judged again in a moment
                self._refuse(pod, "Unschedulable", group.refusal.message, group.refusal)
            return
        with telemetry.timed("pod placed", pod=pod.metadata.name) as timing:
            found, blockers = await self._judge(group)
        self._meter.observe(telemetry.DECISION, timing.duration_s)
        if found.node is None:
            self._queue.rest(group, found, blockers)
        if group.members.get(pod.metadata.uid) is not pod:
            return  # bound, changed or deleted while it was judged
        if self._cache.concerned(group.need).key() != group.need.key():
            self._queue.put(pod)  # a pod came meanwhile whose rules are about this one
            return
        if found.node is None:
            self._refuse(pod, "Unschedulable", found.message, found, duration_s=timing.duration_s)
        else:
            group.refusals = 0
            step = self._step("Scheduled", _assigned(pod, found.node), found, duration_s=timing.duration_s)
            await self._bind_beside(pod, found.node, step, tasks)

    async def _judge(self, group: Group) -> tuple[Summary, frozenset[str]]:
        """Return where the need fits, and which filters refused; nothing has changed by then."""
        ranking = self._rankings.of(group.need)
        while True:
            for count in ranking.refresh(self._cache.views):
                await self._worked(count)
            if self._cache.is_current:
                found = ranking.summary()
                return found, frozenset() if found.fitting else ranking.blockers
            await self._take_changes()

    # bindings

    async def _bind_beside(self, pod: core.Pod, node: str, step: TraceStep, tasks: asyncio.TaskGroup) -> None:
        self._cache.assume(pod, node)
        self._refusals.pop(pod.metadata.uid, None)
        await self._slots.acquire()
        if self._broken is not None:
            self._cache.forget(pod.metadata.uid)
            self._slots.release()
            return
        self._start(tasks, self._bind(pod, node, step), f"binds {pod.metadata.name}")

    async def _bind(self, pod: core.Pod, node: str, step: TraceStep) -> None:
        uid = pod.metadata.uid
        telemetry.crash_point("scheduler.before-bind")
        try:
            await self._placement.bind(pod, node)
        except _RACED as error:
            self._meter.add(telemetry.DECISIONS, "lost")
            self._cache.forget(uid)
            self._queue.delay(pod)
            telemetry.log.debug("pod changed while it was placed", pod=pod.metadata.name, reason=error.reason)
        except _REFUSED as error:
            # Its own matter: the pods behind it must not wait for it.
            self._meter.add(telemetry.DECISIONS, "failed")
            self._cache.forget(uid)
            self._queue.delay(pod, first_s=RETRY_S, last_s=20 * RETRY_S)
            self._refuse(pod, "SchedulerError", error.message)
            name = pod.metadata.name
            telemetry.log.warning("pod cannot be placed", pod=name, reason=error.reason, error=error.message)
        except errors.FairleadError as error:
            self._doubtful[uid] = pod
            self._broken = error
        else:
            self._cache.confirm(uid)
            self._queue.settle(uid)
            self._meter.add(telemetry.DECISIONS, "bound")
            telemetry.crash_point("scheduler.after-bind")
            telemetry.log.info("pod bound", pod=pod.metadata.name, node=node)
            self._note(pod, step)
        finally:
            self._slots.release()

    def _start(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None], name: str) -> None:
        self._busy += 1
        tasks.create_task(work, name=name).add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._busy -= 1
        self._alive()
        self._news.set()

    # words

    def _refuse(
        self, pod: core.Pod, reason: str, message: str, found: Summary | None = None, *, duration_s: float | None = None
    ) -> None:
        """Have the reason said on the pod; the same reason is not written twice."""
        old = meta.find_condition(pod.status.conditions, "PodScheduled")
        if old is not None and (old.reason, old.message) == (reason, message):
            self._refusals.pop(pod.metadata.uid, None)
            return
        step = self._step("FailedScheduling", message, found, duration_s=duration_s)
        self._refusals[pod.metadata.uid] = (pod, reason, step)
        if found is not None:
            self._meter.add(telemetry.DECISIONS, "refused")

    def _note(self, pod: core.Pod, step: TraceStep) -> None:
        """Have a step recorded, behind those that the store did not take."""
        self._untold.append((tracerecorder.reference(pod), step, uuid.uuid4().hex))
        if len(self._untold) > _MOST_UNTOLD:
            about, _, _ = self._untold.popleft()
            telemetry.log.warning("step not recorded", reason="TooManyUntold", pod=about.name)

    def _tell(self, tasks: asyncio.TaskGroup) -> None:
        """Start a task that writes the waiting steps."""
        if self._tellers < TELLERS and (self._refusals or (self._untold and not self._is_deaf)):
            self._tellers += 1
            self._start(tasks, self._tell_all(), "tells")

    async def _tell_all(self) -> None:
        try:
            while self._broken is None:
                if self._untold and not self._is_deaf:
                    await self._record(self._untold.popleft())
                elif self._refusals:
                    await self._say(self._refusals.pop(next(iter(self._refusals))))
                else:
                    return
                self._alive()
        finally:
            self._tellers -= 1

    async def _record(self, untold: tuple[core.ObjectReference, TraceStep, str]) -> None:
        about, step, name = untold
        if not await tracerecorder.record(self._store, about, step, once=name):
            self._untold.appendleft(untold)
            self._is_deaf = True

    async def _say(self, refusal: _Refusal) -> None:
        """Write why a pod waits, and have it recorded; a pod that takes no word is logged alone."""
        pod, reason, step = refusal
        if pod.metadata.uid not in self._queue:
            return
        condition = meta.Condition(
            type="PodScheduled",
            status="False",
            reason=reason,
            message=step.message,
            last_transition_time=meta.now(),
        )
        conditions = meta.with_condition(pod.status.conditions, condition)
        status = msgspec.structs.replace(pod.status, phase="Pending", conditions=conditions)
        try:
            written = await self._store.update_status(msgspec.structs.replace(pod, status=status))
        except _RACED:
            return  # the watch brings the pod as it is now, and it is looked at again
        except _REFUSED as error:
            telemetry.log.warning("pod takes no word", pod=pod.metadata.name, reason=error.reason, error=error.message)
        except errors.FairleadError as error:
            self._refusals.setdefault(pod.metadata.uid, refusal)
            self._broken = error
        else:
            self._cache.note_written(written)
            telemetry.log.info("pod waits", pod=pod.metadata.name, reason=reason, error=step.message)
            self._note(pod, step)

    def _step(self, reason: str, message: str, found: Summary | None, *, duration_s: float | None) -> TraceStep:
        return TraceStep(
            layer="scheduler",
            reason=reason,
            message=message,
            at=time.time(),
            duration_s=duration_s,
            facts={} if found is None else {"policy": self._rankings.policy, **found.facts},
            is_warning=reason != "Scheduled",
        )


def _assigned(pod: core.Pod, node: str) -> str:
    return f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {node}"
