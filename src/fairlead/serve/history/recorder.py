"""Samples GPUs and containers every ten seconds, and has the figures kept.

It opens no GPU: counters come from the machine's sampler, holders from the pods' status, and
what a container uses from the kernel's files of the process that the engine named when the container appeared. Rates
are made with a clock that does not jump. A tick that fails is a gap; the reason is logged once and shown until it is
over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from fairlead import errors, telemetry
from fairlead.engine.access import Usage
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.frozen import frozen
from fairlead.model import replica
from fairlead.model.device import gpus_by_device
from fairlead.model.gpu import Inventory
from fairlead.model.sample import Sample
from fairlead.plan.history import figure, tier
from fairlead.plan.history.figure import Counters, Value
from fairlead.plan.pod import podstate
from fairlead.serve.history.file import Held, HistoryFile
from fairlead.silicon.port import Sampler
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core, names

T = TypeVar("T")

_WITHIN_S: Final = 2.0
"""How long a sample waits for a GPU."""
_FORGET_S: Final = 600.0
_STEADY_S: Final = 600.0
"""How long a clock must go on evenly before anything is deleted by it."""
_JUMP_S: Final = 30.0
_ASK_S: Final = 60.0
"""How often the engine is asked for a container that it did not name."""


class Engine(Protocol):
    """What is asked of the container engine."""

    async def list_containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        """See `engine.port.Engine`."""
        ...

    def read_counters(self, state: ContainerState) -> Usage | None:
        """See `engine.access.Access`."""
        ...


@frozen
class Machine:
    """What is sampled."""

    store: Store
    node: str
    engine: Engine
    scan: Callable[[], Inventory]
    """Returns the latest scan."""
    sampler: Sampler


@dataclasses.dataclass(slots=True)
class _Known:
    """Engine containers that run, by pod, and their last reading."""

    states: dict[str, tuple[ContainerState, ...]] = dataclasses.field(default_factory=dict)
    readings: dict[str, tuple[float, Counters]] = dataclasses.field(default_factory=dict)
    """By the engine's id: monotonic seconds, and the counters then."""
    ids: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """What the pod's status called its containers when the engine was asked."""
    asked_at: float = -_ASK_S


class Recorder:
    """Samples, writes and forgets."""

    def __init__(
        self,
        machine: Machine,
        file: HistoryFile,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Take what is sampled and where it is kept. Args: now: Unix seconds.   clock: monotonic ones."""
        self._machine, self.file = machine, file
        self._now, self._clock, self._sleep = now, clock, sleep
        self._known = _Known()
        self._open: dict[tuple[str, str], Held] = {}
        """Who holds what now, by pod and device."""
        self._last_at = file.newest_at
        self._steady_since = self._forgot_at = clock()
        self._drift: float | None = None
        self.problem: str = ""
        """Why nothing was kept at the last tick; empty: it was."""
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._summed_at = -1

    @property
    def held(self) -> tuple[Held, ...]:
        """Who holds what now."""
        return tuple(self._open.values())

    async def run(self) -> None:
        """Sample until cancelled."""
        try:
            while True:
                await self.tick()
                await self._sleep(tier.FINEST_S - self._now() % tier.FINEST_S)
        finally:
            self._writer.shutdown()
            self.file.close()

    async def tick(self) -> None:
        """Sample once; what fails is logged once, and is a gap."""
        try:
            await self._sample()
        except errors.FairleadError as error:
            said = errors.sentence(error)
            if said != self.problem:
                telemetry.log.warning("history not kept", reason=error.reason, error=said)
            self.problem = said
        else:
            self.problem = ""

    async def _sample(self) -> None:
        at = tier.floor(self._now(), tier.FINEST_S)
        if at == self._last_at:
            return
        jumped = self._watch_clock()
        found, pods = await asyncio.gather(
            self._machine.sampler.sample(within_s=_WITHIN_S),
            self._machine.store.list(core.Pod, Selector(fields={"spec.nodeName": self._machine.node})),
        )
        living = [pod for pod in pods.items if not podstate.is_final(pod)]
        ended = self._hold(at, living, jumped=jumped)
        rows = {**self._devices(found), **await self._containers(living)}
        self._last_at = at
        await self._written(lambda: self._keep(at, rows, ended))

    def _watch_clock(self) -> bool:
        """Return whether the wall clock jumped since the last tick."""
        drift = self._now() - self._clock()
        jumped = self._drift is not None and abs(drift - self._drift) > _JUMP_S
        self._drift = drift
        if jumped:
            self._steady_since = self._clock()
        return jumped

    def _keep(self, at: int, rows: Mapping[tuple[str, str], Sequence[Value]], ended: Sequence[Held]) -> None:
        """Write a bucket, with who held what, and sum up and forget where it is time; blocks."""
        self.file.write(at, rows)
        self.file.write_held((*ended, *self.held))
        if at // 60 != self._summed_at:
            self._summed_at = at // 60
            self.file.sum_up(at)
        now = self._clock()
        if now - self._forgot_at >= _FORGET_S and now - self._steady_since >= _STEADY_S:
            self._forgot_at = now
            self.file.forget(self._now())

    async def _written(self, act: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self.file.guarded, act)

    # who holds what

    def _hold(self, at: int, pods: Sequence[core.Pod], *, jumped: bool) -> tuple[Held, ...]:
        """Note who holds what, and return the holders that ended; none is extended over a gap or a jump."""
        gpus = gpus_by_device(self._machine.scan().gpus)
        before, self._open = self._open, {}
        for pod in pods:
            about = pod.metadata
            for device in (id_ for ids in podstate.granted_devices(pod).values() for id_ in ids):
                if (gpu := gpus.get(replica.origin(device))) is None:
                    continue
                was = before.get((about.uid, device))
                goes_on = was is not None and not jumped and 0 <= at - was.until <= tier.FINEST_S
                since = was.since if was is not None and goes_on else at
                self._open[about.uid, device] = Held(
                    gpu=gpu,
                    device=device,
                    uid=about.uid,
                    namespace=about.namespace,
                    name=about.name,
                    since=since,
                    until=at + tier.FINEST_S,
                )
        now = {(key, one.since) for key, one in self._open.items()}
        return tuple(one for key, one in before.items() if (key, one.since) not in now)

    def _devices(self, samples: Sequence[Sample]) -> dict[tuple[str, str], tuple[Value, ...]]:
        boards = {one.gpu for one in self._open.values()}
        parts = {replica.origin(one.device) for one in self._open.values()}
        found: dict[tuple[str, str], tuple[Value, ...]] = {}
        for one in samples:
            if one.mig is not None:
                found[figure.MIG, one.mig] = figure.of_sample(one, is_held=one.mig in parts)
            else:
                found[figure.GPU, one.gpu] = figure.of_sample(one, is_held=one.gpu in boards)
        return found

    # containers

    async def _containers(self, pods: Sequence[core.Pod]) -> dict[tuple[str, str], tuple[Value, ...]]:
        running = {pod.metadata.uid: _ids(pod) for pod in pods if _ids(pod)}
        known = self._known
        is_news = any(known.ids.get(uid) != ids for uid, ids in running.items())
        is_unnamed = not all(known.states.get(uid) for uid in running)
        if is_news or (is_unnamed and self._clock() - known.asked_at >= _ASK_S):
            await self._ask(running)
        for uid in known.ids.keys() - running.keys():
            known.ids.pop(uid)
            known.states.pop(uid, None)
        return await asyncio.to_thread(self._read)

    async def _ask(self, running: Mapping[str, tuple[str, ...]]) -> None:
        """Ask the engine once for the processes of all containers."""
        known = self._known
        known.asked_at = self._clock()
        found: dict[str, list[ContainerState]] = {}
        for one in await self._machine.engine.list_containers({names.POD_UID: ""}):
            if one.phase is ContainerPhase.RUNNING:
                found.setdefault(one.labels.get(names.POD_UID, ""), []).append(one)
        known.states = {uid: tuple(found.get(uid, ())) for uid in running}
        known.ids = dict(running)

    def _read(self) -> dict[tuple[str, str], tuple[Value, ...]]:
        """Return the figures of each pod; one none of whose containers can be read is left out. Blocks."""
        known, made = self._known, dict[tuple[str, str], tuple[Value, ...]]()
        readings: dict[str, tuple[float, Counters]] = {}
        for uid, states in known.states.items():
            several = []
            for state in states:
                if (used := self._machine.engine.read_counters(state)) is None:
                    continue
                at, now = self._clock(), _counters(used)
                readings[state.id] = (at, now)
                before_at, before = known.readings.get(state.id, (at, None))
                several.append(figure.of_use(before, now, at - before_at))
            if several:
                made[figure.CONTAINER, uid] = figure.added(several)
        known.readings = readings
        return made


def _ids(pod: core.Pod) -> tuple[str, ...]:
    """Return what the status calls the containers of a pod that run."""
    return tuple(
        one.container_id
        for one in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        if one.container_id and one.state.running is not None
    )


def _counters(used: Usage) -> Counters:
    return Counters(**{name: getattr(used, name) for name in _COUNTED})


_COUNTED: Final = tuple(one.name for one in dataclasses.fields(Counters))
