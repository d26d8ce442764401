"""A scheduler over a store in memory whose clock stands still until a test moves it: hours pass in milliseconds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from fairlead import telemetry
from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.schedule import reference
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core
from tests.unit.control.scheduler.plane import Evicting, Plane

_BEGIN: Final = 1_800_000_000.0
ROUNDS: Final = 40
"""Rounds after which a cluster that nobody changes has settled."""


class Counts:
    """Keeps what the watchdog counted, by kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def add(self, metric: telemetry.Metric, *labels: str) -> None:
        if metric is telemetry.OVERLOOKED:
            self.kinds.append(labels[0])

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


class Simulated(Plane):
    """The store, what may be done to it, and a scheduler that sees it after each step."""

    def __init__(self, *, meter: telemetry.Meter = telemetry.UNMETERED, **settings: Any) -> None:
        self.now, self._settings, self._meter = _BEGIN, settings, meter
        super().__init__(store=MemoryStore(now=lambda: dt.datetime.fromtimestamp(self.now, dt.UTC)), **settings)
        self.placement = Evicting(self.store)
        self.looks = 0
        self.restart()

    def restart(self) -> None:
        """Have another process lead: it knows what the store has, and nothing else."""

        def clock() -> float:
            return self.now

        control = ControlSettings(**self._settings)
        self.scheduler = Scheduler(self.store, self.placement, control, meter=self._meter, clock=clock, date=clock)
        self._seen: dict[type[Any], dict[str, Any]] = {}

    async def feed(self) -> bool:
        """Tell the scheduler what changed; returns whether anything did."""
        is_any = False
        for watch in self.scheduler.watches():
            seen = self._seen.setdefault(watch.kind, {})
            there = {item.metadata.uid: item for item in (await self.store.list(watch.kind)).items}
            changes = [Change(kind=ChangeKind.DELETED, object=seen.pop(uid)) for uid in [*seen] if uid not in there]
            for uid, item in there.items():
                if uid not in seen or seen[uid].metadata.resource_version != item.metadata.resource_version:
                    kind = ChangeKind.MODIFIED if uid in seen else ChangeKind.ADDED
                    changes.append(Change(kind=kind, object=item))
                    seen[uid] = item
            for change in changes:
                tuple(watch.keys(change))
            is_any = is_any or bool(changes)
        return is_any

    async def settle(self) -> float | None:
        """Let the scheduler do what there is to do now; returns the seconds until it wants to do more."""
        for _ in range(ROUNDS):
            await self.feed()
            due_s = await self.scheduler.reconcile("")
            if not await self.feed() and (due_s is None or due_s > 0):
                return due_s
        raise AssertionError(f"the scheduler did not settle in {ROUNDS} rounds")

    async def run(self, seconds: float, every: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let time pass. Args: every: is done after each step of time."""
        end = self.now + seconds
        while True:
            due_s = await self.settle()
            if every is not None:
                await every()
            if self.now >= end:
                return
            self.now = min(end, self.now + max(0.001, seconds if due_s is None else due_s))

    async def start(self, name: str, namespace: str = "default") -> None:
        """Have a pod run since now, as its kubelet says."""
        pod = await self.store.get(core.Pod, name, namespace)
        since = dt.datetime.fromtimestamp(self.now, dt.UTC).isoformat()
        status = msgspec.structs.replace(pod.status, phase="Running", start_time=since)
        await self.store.update_status(msgspec.structs.replace(pod, status=status))

    async def beside_room(self) -> list[str]:
        """Return the pods that wait although a node takes them, room that is held for others counting as taken."""
        cache, found = self.scheduler._cache, list[str]()
        for pod in (await self.store.list(core.Pod)).items:
            if pod.spec.node_name or pod.metadata.deletion_timestamp or pod.spec.scheduling_gates:
                continue
            need = cache.need(pod)
            if any(reference.first_refusal(need, node) is None for node in cache.views.values()):
                found.append(pod.metadata.name)
        return found
