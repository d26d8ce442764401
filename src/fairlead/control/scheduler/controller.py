"""Binds waiting pods: decisions come from `plan.schedule`, and every refusal is kept with its reasons.

One key stands for the whole queue, so decisions are made one after another from one cache (`control.scheduler.cache`).
A binding is written with the pod's version: a writer that changed the pod meanwhile wins and the pod is looked at
again. What was bound counts as taken at once, before the watch echoes it. A binding whose answer was lost may have
happened: nothing more is decided until the store has said whether it did.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.scheduler import cache
from fairlead.model.step import TraceStep
from fairlead.plan.schedule import reference
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.port import Change, Store
from fairlead.wire.kubernetes import core, meta

UNTOLD_S: Final = 5.0
"""After which steps are told again that the store did not take."""
RETRY_S: Final = 30.0
"""After which a pod is tried again whose binding was refused."""
_QUEUE: Final = "pending-pods"
_RACED = (errors.Conflict, errors.NotFound)
_REFUSED = (errors.Invalid, errors.Denied)


class Scheduler:
    """Binds pods that carry our scheduler name."""

    name = "scheduler"

    def __init__(
        self, store: Store, settings: ControlSettings, *, meter: telemetry.Meter = telemetry.UNMETERED
    ) -> None:
        """Take the store and the name we answer to."""
        self._store = store
        self._meter = meter
        self._books = cache.Cache(lambda pod: pod.spec.scheduler_name == settings.scheduler_name)
        self._doubtful: dict[str, core.Pod] = {}
        """Pods by uid whose binding was sent and not answered."""
        self._untold: deque[tuple[core.ObjectReference, TraceStep, str]] = deque()
        """Steps that the store has not taken yet, each with a name of its own."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._books.forget_pods),
            Watch(kind=core.Node, keys=self._node_changed, reset=self._books.forget_nodes),
        )

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        self._books.note_pod(change)
        return (_QUEUE,)

    def _node_changed(self, change: Change[core.Node]) -> Iterable[str]:
        self._books.note_node(change)
        return (_QUEUE,)

    async def reconcile(self, _key: str) -> float | None:
        """Try every waiting pod once, higher priority first, then oldest first."""
        await self._resolve_doubts()
        await self._tell()
        again = []
        for pod in self._books.waiting():
            if not self._books.is_waiting(pod.metadata.uid):
                continue  # bound, ended or deleted since this round began
            telemetry.crash_point("scheduler.before-bind")
            try:
                await self._schedule(pod)
            except _RACED as error:
                self._meter.add(telemetry.DECISIONS, "lost")
                telemetry.log.debug("pod changed while it was placed", pod=pod.metadata.name, reason=error.reason)
            except _REFUSED as error:
                # Its own matter: the pods behind it must not wait for it.
                self._meter.add(telemetry.DECISIONS, "failed")
                await self._complain(pod, error)
                again.append(RETRY_S)
        self._meter.set(telemetry.PENDING, len(self._books.waiting()))
        return min([*again, *([UNTOLD_S] if self._untold else [])], default=None)

    async def _resolve_doubts(self) -> None:
        for uid, pod in tuple(self._doubtful.items()):
            found = None
            with contextlib.suppress(errors.NotFound):
                found = await self._store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            self._books.correct(uid, found)
            del self._doubtful[uid]

    async def _schedule(self, pod: core.Pod) -> None:
        with telemetry.timed("pod placed", pod=pod.metadata.name) as timing:
            decision = reference.place(reference.pod_info(pod), self._books.views())
        self._meter.observe(telemetry.DECISION, timing.duration_s)
        about = f"{pod.metadata.namespace}/{pod.metadata.name}"
        step = TraceStep(
            layer="scheduler",
            reason="Scheduled" if decision.node else "FailedScheduling",
            message=f"Successfully assigned {about} to {decision.node}" if decision.node else decision.message,
            at=time.time(),
            duration_s=timing.duration_s,
            facts={"policy": "packed", "nodes": [_fact(verdict) for verdict in decision.verdicts]},
            is_warning=decision.node is None,
        )
        if decision.node is None:
            self._meter.add(telemetry.DECISIONS, "refused")
            await self._refuse(pod, step, "Unschedulable")
        else:
            await self._bind(pod, decision.node, step)

    async def _bind(self, pod: core.Pod, node: str, step: TraceStep) -> None:
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        try:
            bound = await self._store.update(msgspec.structs.replace(pod, spec=spec))
        except errors.Unavailable:
            self._books.assume(pod, node)
            self._doubtful[pod.metadata.uid] = pod
            raise
        self._books.note_written(bound)
        self._meter.add(telemetry.DECISIONS, "bound")
        telemetry.crash_point("scheduler.after-bind")
        telemetry.log.info("pod bound", pod=pod.metadata.name, node=node)
        await self._note(pod, step)

    async def _complain(self, pod: core.Pod, error: errors.FairleadError) -> None:
        """Say on the pod why it cannot be placed although it may fit; a pod that takes no word is logged alone."""
        telemetry.log.warning("pod cannot be placed", pod=pod.metadata.name, reason=error.reason, error=error.message)
        step = TraceStep(
            layer="scheduler", reason="FailedScheduling", message=error.message, at=time.time(), is_warning=True
        )
        with contextlib.suppress(*_RACED, *_REFUSED):
            await self._refuse(pod, step, "SchedulerError")

    async def _refuse(self, pod: core.Pod, step: TraceStep, reason: str) -> None:
        """Keep the reason on the pod; the same reason is not written twice."""
        old = meta.find_condition(pod.status.conditions, "PodScheduled")
        if old is not None and (old.reason, old.message) == (reason, step.message):
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
        self._books.note_written(await self._store.update_status(msgspec.structs.replace(pod, status=status)))
        telemetry.log.info("pod waits", pod=pod.metadata.name, reason="FailedScheduling", error=step.message)
        await self._note(pod, step)

    async def _note(self, pod: core.Pod, step: TraceStep) -> None:
        """Have a step recorded: now, or behind those that the store did not take."""
        self._untold.append((tracerecorder.reference(pod), step, uuid.uuid4().hex))
        if len(self._untold) == 1:
            await self._tell()

    async def _tell(self) -> None:
        """Record what is to be told, in order, until the store does not answer."""
        while self._untold:
            about, step, name = self._untold[0]
            if not await tracerecorder.record(self._store, about, step, once=name):
                return
            self._untold.popleft()


def _fact(verdict: reference.NodeResult) -> dict[str, object]:
    return {"name": verdict.node, "fits": verdict.fits, "score": verdict.score, "why": list(verdict.why_not)}
