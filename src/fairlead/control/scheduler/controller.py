"""Binds waiting pods: decisions come from `plan.schedule`, and every refusal is kept with its reasons.

One key stands for the whole queue, so decisions are made one after another from one cache. What is decided is assumed
at once, and bound and told beside the next decision, by no more than `AT_ONCE` tasks. Equal needs are judged once: a
refusal holds for every pod that asks for the same, until a node changes for the better
(`plan.schedule.hint`), and takes it indeed. Between judgements the event loop gets its turn.

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
from collections.abc import Coroutine, Iterable
from typing import Any, Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.scheduler import cache
from fairlead.model.step import TraceStep
from fairlead.plan.schedule import hint, reference, rules
from fairlead.plan.schedule.summary import Summary
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.port import Change, Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core, meta

UNTOLD_S: Final = 5.0
"""After which steps are told again that the store did not take."""
RETRY_S: Final = 30.0
"""After which a pod is tried again whose binding was refused."""
REST_S: Final = 300.0
"""After which refusals are judged anew though no change seemed to help: their words may have aged; kube-scheduler's."""
AGED_S: Final = 10.0
"""After which a refusal is judged anew where nodes came, went or changed since: its words tell of others."""
AT_ONCE: Final = 16
"""Bindings and refusals being written."""
STALLED_S: Final = 120.0
"""Neither a judgement nor a request takes so long: a round that turns no more by then hangs."""
SLICE: Final = 1000
"""Nodes judged between two turns of the event loop, or one pod's."""
_LOOK: Final = 10
"""What looking at a pod costs beside judging nodes, in judgements."""
_MOST_UNTOLD: Final = 2000
"""Steps kept for a store that does not take them; the oldest go first."""
_QUEUE: Final = "pending-pods"
_RACED: Final = (errors.Conflict, errors.NotFound)
_REFUSED: Final = (errors.Invalid, errors.Denied)


class Scheduler:
    """Binds pods that carry our scheduler name."""

    name = "scheduler"

    def __init__(
        self,
        store: Store,
        placement: Placement,
        settings: ControlSettings,
        *,
        meter: telemetry.Meter = telemetry.UNMETERED,
    ) -> None:
        """Take the store, what binds pods in it, and the name we answer to."""
        self._store = store
        self._placement = placement
        self._meter = meter
        self._cache = cache.Cache(lambda pod: pod.spec.scheduler_name == settings.scheduler_name)
        self._refused: dict[tuple[object, ...], tuple[reference.PodInfo, Summary]] = {}
        """By need: why it fits nowhere, as long as no change may help it."""
        self._aged_at: float | None = None
        """Since when the words of refusals tell of nodes that are others now; None: they do not."""
        self._doubtful: dict[str, core.Pod] = {}
        """Pods by uid whose binding was sent and not answered."""
        self._untold: deque[tuple[core.ObjectReference, TraceStep, str]] = deque(maxlen=_MOST_UNTOLD)
        """Steps that the store has not taken yet, each with a name of its own."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._broken: errors.FairleadError | None = None
        """Why this round ends before its time: the store does not answer."""
        self._again_s: float | None = None
        """When the next round is due, though nothing may have changed."""
        self._begun_at = time.monotonic()
        """Since when refusals are kept."""
        self._judged = 0
        """Nodes judged since the event loop had its turn."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._cache.forget_pods),
            Watch(kind=core.Node, keys=self._node_changed, reset=self._cache.forget_nodes),
        )

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        self._cache.note_pod(change)
        return (_QUEUE,)

    def _node_changed(self, change: Change[core.Node]) -> Iterable[str]:
        self._cache.note_node(change)
        return (_QUEUE,)

    async def reconcile(self, _key: str) -> float | None:
        """Look at every waiting pod once, higher priority first, then oldest first."""
        await self._resolve_doubts()
        await self._tell()
        self._begin()
        async with asyncio.TaskGroup() as tasks:
            for pod in self._cache.waiting():
                if self._broken is not None:
                    break
                if self._cache.is_waiting(pod):  # not bound, ended, deleted or changed since this round began
                    await self._look(pod, tasks)
                    await self._worked(_LOOK)
        self._meter.set(telemetry.PENDING, len(self._cache.waiting()))
        if self._broken is not None:
            raise self._broken
        rest_s = REST_S if self._aged_at is None else AGED_S
        times = (self._again_s, UNTOLD_S if self._untold else None, rest_s if self._refused else None)
        return min((one for one in times if one is not None), default=None)

    def _begin(self) -> None:
        self._broken = self._again_s = None
        now = time.monotonic()
        has_aged = self._aged_at is not None and now - self._aged_at >= AGED_S
        if has_aged or now - self._begun_at > REST_S:
            self._refused.clear()
            self._begun_at, self._aged_at = now, None

    async def _resolve_doubts(self) -> None:
        for uid, pod in tuple(self._doubtful.items()):
            found = None
            with contextlib.suppress(errors.NotFound):
                found = await self._store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            self._cache.correct(uid, found)
            del self._doubtful[uid]

    async def _worked(self, count: int) -> None:
        """Count judgements, and give the event loop its turn after a slice of them; then the round is alive."""
        self._judged += count
        if self._judged >= SLICE:
            self._judged = 0
            self._alive()
            await asyncio.sleep(0)

    def _alive(self) -> None:
        # The work queue says so when the round begins, and takes it back when it ends.
        self._meter.heartbeat(f"{self.name} of {_QUEUE}", STALLED_S)

    async def _look(self, pod: core.Pod, tasks: asyncio.TaskGroup) -> None:
        if reason := rules.refusal(pod.spec):
            await self._beside(tasks, self._refuse(pod, "UnknownRule", reason))
            return
        try:
            need = reference.pod_info(pod)
        except errors.Invalid as error:
            self._meter.add(telemetry.DECISIONS, "failed")
            await self._beside(tasks, self._refuse(pod, "SchedulerError", error.message))
            return
        with telemetry.timed("pod placed", pod=pod.metadata.name) as timing:
            found = await self._judge(need)
        self._meter.observe(telemetry.DECISION, timing.duration_s)
        if not self._cache.is_waiting(pod):
            return
        if found.node is None:
            self._meter.add(telemetry.DECISIONS, "refused")
            await self._beside(tasks, self._refuse(pod, "Unschedulable", found.message, found, timing.duration_s))
            return
        message = f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {found.node}"
        self._cache.assume(pod, found.node)
        step = _step("Scheduled", message, found, timing.duration_s)
        await self._beside(tasks, self._bind(pod, found.node, step))

    async def _judge(self, need: reference.PodInfo) -> Summary:
        """Return where the need fits; nothing has changed by then."""
        while True:
            await self._take_changes()
            if (known := self._refused.get(need.key())) is not None:
                return known[1]
            await self._worked(len(self._cache.views))
            if self._cache.is_current:
                found = reference.place(need, self._cache.views.values())
                if found.node is None:
                    self._refused[need.key()] = (need, found)
                return found

    async def _take_changes(self) -> None:
        """Forget the refusals that a changed node may turn: what a filter once said of other nodes proves nothing."""
        for before, after in self._cache.changes().values():
            if self._aged_at is None and self._refused and hint.is_other(before, after):
                self._aged_at = time.monotonic()
            for key, (need, _) in tuple(self._refused.items()) if hint.improved(before, after) else ():
                if after is not None and reference.first_refusal(need, after) is None:
                    self._refused.pop(key, None)
                await self._worked(1)

    async def _beside(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
        await self._slots.acquire()
        self._alive()
        tasks.create_task(work).add_done_callback(lambda _: self._slots.release())

    async def _bind(self, pod: core.Pod, node: str, step: TraceStep) -> None:
        uid, name = pod.metadata.uid, pod.metadata.name
        telemetry.crash_point("scheduler.before-bind")
        try:
            await self._placement.bind(pod, node)
        except _RACED as error:
            self._meter.add(telemetry.DECISIONS, "lost")
            self._cache.forget(uid)
            telemetry.log.debug("pod changed while it was placed", pod=name, reason=error.reason)
        except _REFUSED as error:
            # Its own matter: the pods behind it must not wait for it.
            self._meter.add(telemetry.DECISIONS, "failed")
            self._cache.forget(uid)
            self._again_s = RETRY_S
            telemetry.log.warning("pod cannot be placed", pod=name, reason=error.reason, error=error.message)
            await self._refuse(pod, "SchedulerError", error.message)
        except errors.FairleadError as error:
            self._doubtful[uid] = pod
            self._broken = error
        else:
            self._cache.confirm(uid)
            self._meter.add(telemetry.DECISIONS, "bound")
            telemetry.crash_point("scheduler.after-bind")
            telemetry.log.info("pod bound", pod=name, node=node)
            await self._note(pod, step)

    async def _refuse(
        self, pod: core.Pod, reason: str, message: str, found: Summary | None = None, duration_s: float | None = None
    ) -> None:
        """Keep the reason on the pod; the same reason is not written twice. A pod that takes no word is logged."""
        old = meta.find_condition(pod.status.conditions, "PodScheduled")
        if old is not None and (old.reason, old.message) == (reason, message):
            return
        condition = meta.Condition(
            type="PodScheduled", status="False", reason=reason, message=message, last_transition_time=meta.now()
        )
        conditions = meta.with_condition(pod.status.conditions, condition)
        status = msgspec.structs.replace(pod.status, phase="Pending", conditions=conditions)
        try:
            written = await self._store.update_status(msgspec.structs.replace(pod, status=status))
        except _RACED:
            return  # the watch brings the pod as it is now
        except _REFUSED as error:
            telemetry.log.warning("pod takes no word", pod=pod.metadata.name, reason=error.reason, error=error.message)
        except errors.FairleadError as error:
            self._broken = error
        else:
            self._cache.note_written(written)
            telemetry.log.info("pod waits", pod=pod.metadata.name, reason=reason, error=message)
            await self._note(pod, _step("FailedScheduling", message, found, duration_s))

    async def _note(self, pod: core.Pod, step: TraceStep) -> None:
        """Have a step recorded: now, or behind those that the store did not take."""
        about, once = tracerecorder.reference(pod), uuid.uuid4().hex
        if self._untold or not await tracerecorder.record(self._store, about, step, once=once):
            self._untold.append((about, step, once))

    async def _tell(self) -> None:
        """Record what is to be told, in order, until the store does not answer."""
        while self._untold:
            about, step, once = self._untold[0]
            if not await tracerecorder.record(self._store, about, step, once=once):
                return
            self._untold.popleft()


def _step(reason: str, message: str, found: Summary | None, duration_s: float | None) -> TraceStep:
    return TraceStep(
        layer="scheduler",
        reason=reason,
        message=message,
        at=time.time(),
        duration_s=duration_s,
        facts={"policy": "packed", **found.facts} if found is not None else {},
        is_warning=reason != "Scheduled",
    )
