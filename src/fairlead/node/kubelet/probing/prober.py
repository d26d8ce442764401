"""Watches running containers by their hooks and probes, one task a container, and keeps what is known of each.

A task first runs the postStart hook, then the startup probe until it succeeds, then readiness and liveness beside each
other. It only observes: `plan.pod.life.podsync` decides what comes of it, and looks again whenever something changed.
Source: kubernetes pkg/kubelet/prober (worker.go); container-lifecycle hooks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerPhase, ContainerState, Engine
from fairlead.node.kubelet.probing import check
from fairlead.plan.pod.life import health
from fairlead.wire.kubernetes import core, names
from fairlead.wire.kubernetes.pod.probe import Probe

_STARTUP, _READINESS, _LIVENESS = "Startup", "Readiness", "Liveness"
_SPREAD_S: Final = 1.0
"""Probes of one kubelet that all start at once, after its own start, are spread over so long at most."""

Find = Callable[[core.Pod, core.Container, ContainerState], Awaitable[check.Target]]
Report = Callable[[core.Pod, str, str], Awaitable[None]]
"""Keeps a step of a pod's trace: its reason and its message."""


@dataclass(slots=True)
class _Watched:
    pod: core.Pod
    task: asyncio.Task[None]
    health: health.Health


class Prober:
    """Runs hooks and probes of this node's containers."""

    def __init__(
        self,
        engine: Engine,
        *,
        changed: Callable[[str], None],
        report: Report,
        target: Find,
        spread: Callable[[], float] = random.random,
    ) -> None:
        """Take the engine, and what to call with a pod's uid when something of it changed.

        Args: target: says how a container is reached.   spread: returns a number from 0 to 1.
        """
        self._spread = spread
        self._engine, self._changed, self._report, self._target = engine, changed, report, target
        self._watched: dict[str, _Watched] = {}
        """By container id."""
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()

    def healths(self, uid: str) -> Mapping[str, health.Health]:
        """Return what is known of a pod's containers, by container id."""
        return {key: one.health for key, one in self._watched.items() if one.pod.metadata.uid == uid}

    def follow(self, pod: core.Pod, states: Iterable[ContainerState]) -> None:
        """Begin with what runs now and is to be watched, end with what does not run; idempotent."""
        uid = pod.metadata.uid
        items = {item.name: item for item in (*pod.spec.init_containers, *pod.spec.containers)}
        is_ending = pod.metadata.deletion_timestamp is not None or pod.status.stop_request is not None
        running: set[str] = set()
        for state in states:
            item = items.get(state.labels.get(names.CONTAINER_NAME, ""))
            if item is None or state.phase is not ContainerPhase.RUNNING or not health.is_watched(item) or is_ending:
                continue
            running.add(state.container_id)
            if state.container_id not in self._watched:
                self._begin(pod, item, state)
        for key in [key for key, one in self._watched.items() if one.pod.metadata.uid == uid and key not in running]:
            self._watched.pop(key).task.cancel()

    def forget(self, uid: str) -> None:
        """End with all of a pod."""
        for key in [key for key, one in self._watched.items() if one.pod.metadata.uid == uid]:
            self._watched.pop(key).task.cancel()

    def _begin(self, pod: core.Pod, item: core.Container, state: ContainerState) -> None:
        if self._group is None:
            return
        every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
        reported = next((one for one in every if one.name == item.name), None)
        first = health.at_first(item, reported, state.container_id)
        task = self._group.create_task(self._guard(pod, item, state, first), name=f"probes of {state.name}")
        self._watched[state.container_id] = _Watched(pod, task, first)

    async def _guard(self, pod: core.Pod, item: core.Container, state: ContainerState, first: health.Health) -> None:
        """Keep a bug in one container's watch from ending the kubelet."""
        try:
            await self._watch(pod, item, state, first)
        except errors.FairleadError as error:
            telemetry.log.warning("probes ended", pod=pod.metadata.uid, reason=error.reason, error=error.message)
        except Exception as error:  # noqa: BLE001  (the edge of one container's task)
            telemetry.log.error("probes failed, this is a bug", pod=pod.metadata.uid, exc_info=error)

    async def _watch(self, pod: core.Pod, item: core.Container, state: ContainerState, first: health.Health) -> None:
        target = await self._target(pod, item, state)
        key = state.container_id
        if not first.is_started:
            hook = item.lifecycle.post_start if item.lifecycle is not None else None
            if hook is not None:
                done = await check.hook(self._engine, target, hook, None)
                if not done.is_good:
                    text = f"container {item.name}: its postStart hook failed: {done.text}"
                    await self._report(pod, "FailedPostStartHook", text)
                    self._put(key, is_started=False, failure=text)
                    return
            if item.startup_probe is not None and not await self._start(pod, target, item.startup_probe, key):
                return
            self._put(key, is_started=True, is_ready=item.readiness_probe is None)
        async with asyncio.TaskGroup() as both:
            if item.readiness_probe is not None:
                both.create_task(self._repeat(pod, target, item.readiness_probe, key, _READINESS, state.started_at))
            if item.liveness_probe is not None:
                both.create_task(self._repeat(pod, target, item.liveness_probe, key, _LIVENESS, state.started_at))

    async def _start(self, pod: core.Pod, target: check.Target, probe: Probe, key: str) -> bool:
        """Probe until it has started. Returns: False: it is given up."""
        given = health.limits(probe)
        count = health.Count(is_good=False)
        await asyncio.sleep(given.delay_s)
        while True:
            result = await check.probe(self._engine, target, probe, given.timeout_s)
            if result.is_good:
                return True
            failures = count.run + 1
            count = count.after(False, given)
            text = f"{_STARTUP} probe failed: {result.text}"
            if failures == 1 or failures >= given.failures:
                await self._report(pod, "Unhealthy", f"container {target.item.name}: {text}")
            if failures >= given.failures:
                self._put(key, failure=text, grace_s=probe.termination_grace_period_seconds)
                return False
            await asyncio.sleep(given.period_s)

    async def _repeat(
        self, pod: core.Pod, target: check.Target, probe: Probe, key: str, kind: str, started_at: float | None
    ) -> None:
        """Probe for as long as the container runs, or until a liveness probe gives it up."""
        given = health.limits(probe)
        is_live = kind == _LIVENESS
        known = self._watched.get(key)
        count = health.Count(is_good=True if is_live else known is not None and known.health.is_ready)
        ran_s = 0.0 if started_at is None else time.time() - started_at
        was_there = ran_s > given.delay_s + _SPREAD_S
        await asyncio.sleep(self._spread() * _SPREAD_S if was_there else max(0.0, given.delay_s - ran_s))
        while True:
            result = await check.probe(self._engine, target, probe, given.timeout_s)
            before, count = count, count.after(result.is_good, given)
            text = f"{kind} probe failed: {result.text}"
            if not result.is_good and (count.run == 1 or before.is_good is not count.is_good):
                await self._report(pod, "Unhealthy", f"container {target.item.name}: {text}")
            if is_live and not count.is_good:
                self._put(key, failure=text, grace_s=probe.termination_grace_period_seconds)
                return
            if not is_live and before.is_good is not count.is_good:
                self._put(key, is_ready=count.is_good)
            await asyncio.sleep(given.period_s)

    def _put(self, key: str, **changes: object) -> None:
        """Keep what changed, and have the pod looked at."""
        known = self._watched.get(key)
        if known is None:
            return
        known.health = dataclasses.replace(known.health, **changes)  # type: ignore[arg-type]  # fields of Health alone
        self._changed(known.pod.metadata.uid)
