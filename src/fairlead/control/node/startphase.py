"""Measures the start of each container by phases, and says which one broke its objective.

A pod that has started is looked at once, and again until its first output is known. Everything is read from what other
layers recorded, so that a restart of this process loses nothing: a step that is recorded once marks what was counted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.plan.pod import podstate
from fairlead.plan.sandbox import startphase
from fairlead.store import tracerecorder
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import core

_FIRST_S, _LAST_S = 0.5, 30.0
FirstOutput = Callable[[core.Pod], Awaitable[float | None]]


class StartPhases:
    """Observes starts."""

    name = "startphase"

    def __init__(self, store: Store, first_output: FirstOutput, *, objectives: str, meter: telemetry.Meter) -> None:
        """Take what is needed.

        Args:   first_output: says when a pod's process wrote first, Unix seconds; None: it has not.
                objectives: as `startphase.parse_objectives` has them. Raises: as that.
        """
        self._store, self._first_output, self._meter = store, first_output, meter
        self._objectives = startphase.parse_objectives(objectives)
        self._pods: dict[str, core.Pod] = {}
        self._counted: set[str] = set()
        self._begun = time.time()

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods."""
        return (Watch(kind=core.Pod, keys=self._changed, reset=self._pods.clear),)

    def _changed(self, change: Change[core.Pod]) -> Iterable[str]:
        pod, uid = change.object, change.object.metadata.uid
        if change.renamed_to:
            return ()
        if change.kind is ChangeKind.DELETED:
            self._pods.pop(uid, None)
            self._counted.discard(uid)
            return ()
        is_new = uid not in self._pods or not _has_started(self._pods[uid])
        self._pods[uid] = pod
        return (uid,) if _has_started(pod) and is_new else ()

    async def reconcile(self, key: str) -> float | None:
        """Count one pod's start, and look for its first output."""
        pod = self._pods.get(key)
        if pod is None:
            return None
        steps = await tracerecorder.list_steps(self._store, tracerecorder.reference(pod))
        found = startphase.phases(steps)
        if not startphase.is_whole(found):
            return None
        if key not in self._counted:
            self._counted.add(key)
            await self._count(pod, found)
        if found[-1].name == startphase.OUTPUT:
            return None
        return await self._look_for_output(pod, found[-1].end)

    async def _count(self, pod: core.Pod, found: tuple[startphase.Phase, ...]) -> None:
        if found[-1].end < self._begun:
            return  # an earlier process counted it
        size = startphase.size(pod)
        startphase.observe(found, size, self._meter)
        if (slow := startphase.judge(found, self._objectives, size, at=time.time())) is not None:
            await tracerecorder.record(self._store, tracerecorder.reference(pod), slow, once=startphase.SLOW)

    async def _look_for_output(self, pod: core.Pod, started: float) -> float | None:
        try:
            at = await self._first_output(pod)
        except errors.FairleadError as error:
            telemetry.log.info("first output not read", pod=pod.metadata.name, reason=error.reason)
            return None if podstate.is_final(pod) else _LAST_S
        ran_s = max(0.0, time.time() - started)
        if at is None:
            is_over = podstate.is_final(pod) or ran_s > startphase.LATEST_OUTPUT_S
            return None if is_over else min(_LAST_S, max(_FIRST_S, ran_s / 4))
        step = startphase.first_output(pod, started=started, at=at)
        if (
            await tracerecorder.record(self._store, tracerecorder.reference(pod), step, once=startphase.FIRST_OUTPUT)
            and started >= self._begun
        ):
            took_s, size = max(0.0, at - started), startphase.size(pod)
            self._meter.observe(telemetry.START_PHASE, took_s, startphase.OUTPUT, str(size))
        return None


def _has_started(pod: core.Pod) -> bool:
    parts = (one.state for one in pod.status.container_statuses)
    return any(one.running is not None or one.terminated is not None for one in parts)
