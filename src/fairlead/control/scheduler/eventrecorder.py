"""Writes what the scheduler decided: why pods wait, as a condition and an event, and each decision as a step.

Separate tasks write, so that no binding waits for it. Bindings go on while the store takes no events; the newest steps
that it did not take are kept and written later.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.summary import Summary
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta

WRITERS: Final = 4
"""Conditions and events being written."""
_MOST_UNRECORDED: Final = 2000
"""Steps kept for a store that does not take them; the oldest go first."""

_Refusal = tuple[core.Pod, str, TraceStep]
"""What is to be said on a pod that waits: the condition's reason, and the step with its words."""


class EventRecorder:
    """Writes refusals and steps, several at a time."""

    def __init__(self, store: Store, cache: Cache, queue: SchedulingQueue, alive: Callable[[], None]) -> None:
        """Take where it is written, what is known of pods, and what is called after each write."""
        self._store, self._cache, self._queue, self._alive = store, cache, queue, alive
        self._refusals: dict[str, _Refusal] = {}
        """By uid: what is to be said on pods."""
        self._writing: dict[str, _Refusal] = {}
        """By uid: what is being said; the next word on that pod waits for it, since both write the same condition."""
        self._unrecorded: deque[tuple[core.ObjectReference, TraceStep, str]] = deque()
        """Steps that the store has not taken yet, each with a name of its own."""
        self._writers = 0
        self._is_refused = False
        """Whether the store takes no events; bindings go on."""

    def begin(self) -> None:
        """Try events again that the store did not take."""
        self._is_refused = False

    @property
    def is_behind(self) -> bool:
        """Whether steps are left that the store did not take."""
        return bool(self._unrecorded)

    @property
    def has_work(self) -> bool:
        """Whether one more task would help."""
        is_due = self._next() is not None or bool(self._unrecorded and not self._is_refused)
        return self._writers < WRITERS and is_due

    def _next(self) -> str | None:
        """Return the uid of a pod that something is to be said on, and nothing is being said; None: there is none."""
        return next((uid for uid in self._refusals if uid not in self._writing), None)

    def refuse(self, pod: core.Pod, reason: str, step: TraceStep) -> bool:
        """Queue a refusal for the pod's condition, unless the condition has it already. Returns whether it is new."""
        uid = pod.metadata.uid
        if self._said(pod) == (reason, step.message):
            self._refusals.pop(uid, None)
            return False
        self._refusals[uid] = (pod, reason, step)
        return True

    def _said(self, pod: core.Pod) -> tuple[str, str] | None:
        """Return reason and message of a pod's condition, as they are once what is being written is there."""
        if (now := self._writing.get(pod.metadata.uid)) is not None:
            return now[1], now[2].message
        old = meta.find_condition(pod.status.conditions, "PodScheduled")
        return None if old is None else (old.reason, old.message)

    def withdraw(self, uid: str) -> None:
        """Drop the queued refusal of a pod that waits no more."""
        self._refusals.pop(uid, None)

    def note(self, pod: core.Pod, step: TraceStep) -> None:
        """Have a step recorded, behind those that the store did not take."""
        self._unrecorded.append((tracerecorder.reference(pod), step, uuid.uuid4().hex))
        if len(self._unrecorded) > _MOST_UNRECORDED:
            about, _, _ = self._unrecorded.popleft()
            telemetry.log.warning("step not recorded", reason="TooManyUntold", pod=about.name)

    async def run(self, is_broken: Callable[[], bool], fail: Callable[[errors.FairleadError], None]) -> None:
        """Write until nothing is left, or the store is away; `fail` gets the error."""
        self._writers += 1
        try:
            while not is_broken():
                if self._unrecorded and not self._is_refused:
                    await self._record(self._unrecorded.popleft())
                elif (uid := self._next()) is not None:
                    self._writing[uid] = self._refusals.pop(uid)
                    try:
                        await self._say(self._writing[uid], fail)
                    finally:
                        del self._writing[uid]
                else:
                    return
                self._alive()
        finally:
            self._writers -= 1

    async def _record(self, unrecorded: tuple[core.ObjectReference, TraceStep, str]) -> None:
        about, step, name = unrecorded
        if not await tracerecorder.record(self._store, about, step, once=name):
            self._unrecorded.appendleft(unrecorded)
            self._is_refused = True

    async def _say(self, refusal: _Refusal, fail: Callable[[errors.FairleadError], None]) -> None:
        """Write why a pod waits into its condition, and queue the step; a write that is refused is only logged."""
        pod, reason, step = refusal
        if pod.metadata.uid not in self._queue:
            return
        # What was written on it since it was judged is in the cache alone; that changed its status, and no decision.
        pod = self._cache.waiting(pod.metadata.uid) or pod
        condition = meta.Condition(
            type="PodScheduled",
            status="False",
            reason=reason,
            message=step.message,
            last_transition_time=meta.now(),
        )
        held = self._cache.held.get(pod.metadata.uid)
        status = msgspec.structs.replace(
            pod.status,
            phase="Pending",
            conditions=meta.with_condition(pod.status.conditions, condition),
            nominated_node_name="" if held is None else held.node,
        )
        try:
            written = await self._store.update_status(msgspec.structs.replace(pod, status=status))
        except (errors.Conflict, errors.NotFound):
            return  # the watch brings the pod as it is now, and it is looked at again
        except (errors.Invalid, errors.Denied) as error:
            telemetry.log.warning("pod takes no word", pod=pod.metadata.name, reason=error.reason, error=error.message)
        except errors.FairleadError as error:
            self._refusals.setdefault(pod.metadata.uid, refusal)
            fail(error)
        else:
            self._cache.note_written(written)
            telemetry.log.info("pod waits", pod=pod.metadata.name, reason=reason, error=step.message)
            self.note(pod, step)


def step(policy: str, reason: str, message: str, found: Summary | None, *, duration_s: float | None) -> TraceStep:
    """Return what is recorded of a decision; `policy` is the one in force."""
    return TraceStep(
        layer="scheduler",
        reason=reason,
        message=message,
        at=time.time(),
        duration_s=duration_s,
        facts={} if found is None else {"policy": policy, **found.facts},
        is_warning=reason != "Scheduled",
    )


def assigned(pod: core.Pod, found: Summary) -> str:
    """Return what is said of a pod that is bound, in kube-scheduler's words."""
    return f"Successfully assigned {pod.metadata.namespace}/{pod.metadata.name} to {found.node}{found.aside}"
