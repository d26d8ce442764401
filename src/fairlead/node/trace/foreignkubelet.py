"""Records the steps that a real kubelet takes with a container, as the embedded one records its own.

The API does not say to a device plugin whose container it answered for. Three sources are joined: the kubelet's
PodResources (who holds which devices), what the plugins remember of the calls, and the pods' statuses (which runtime
container was which start of which container). What a kubelet does not report, the kernel shows: `watchprocess`, beside
the agent, sees a pod's containers begin and reads back what is in force, also for those that end before any status
names them. Each step is an Event of the pod under a name made from what it is about, so an agent that starts anew, or a
second one beside it, records nothing twice. Pods themselves are never written.

Times are those of the observation where it was prompt; of what was found later, the kubelet's own, in whole seconds.
What was not seen is not recorded, and the isolation of a container that ended too soon is recorded as not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.kernel import readback
from fairlead.model.container import isolation
from fairlead.model.container.step import TraceStep
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.node.isolation import edits
from fairlead.node.trace import containerwatch, starts, steps, watchclient
from fairlead.plan.gpu import attribution as plan
from fairlead.plan.gpu.attribution import Attempt, Grant
from fairlead.plan.sandbox import machinestart
from fairlead.plan.sandbox.machinestart import MachineTimes
from fairlead.plan.supply import Supply
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, meta, quantity
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead.workqueue import WorkQueue

CALLS: Final = 512
"""How many calls of a plugin are remembered."""
PROMPT_S: Final = 5.0
"""A status about something longer ago is dated by the time in it."""
OLD_S: Final = 600.0
"""Pods that ended longer ago than this before the agent began are left alone."""
GRANT_WAIT_S: Final = 10.0
_AGAIN_S: Final = 1.0
_LOOKING_S: Final = 0.05
_TOO_SOON: Final = "the container had ended before it could be read"
_IN_MACHINE: Final = "it is in a virtual machine, whose kernel is its own"
_UNSEEN: Final = "its processes cannot be seen from here: the agent needs the host's pids (hostPID)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the CDI specs said of a pod's containers when one of them began."""

    by_container: Mapping[str, tuple[tuple[str, ...], edits.Resolved]]
    """Names and edits."""
    paths: tuple[str, ...]
    numbers: tuple[tuple[int, int], ...]
    at: float
    duration_s: float


Activation = Callable[[str], tuple[float, float] | None]
"""Returns when a device's NVLink partition was last activated, Unix time, and how long that took; None: it was not."""
FoundContainer = containerwatch.FoundContainer[Prepared]


@dataclass(slots=True)
class _Memory:
    """What is known of one pod beside its object."""

    pod: core.Pod
    is_gone: bool = False
    grants: tuple[Grant, ...] = ()
    known: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once `grants` is filled."""
    done: set[str] = field(default_factory=set)
    steps: list[TraceStep] = field(default_factory=list)
    """What this agent recorded, until the start is counted."""
    machine: MachineTimes | None = None
    """How far its virtual machine has started."""
    is_counted: bool = False
    found: dict[str, FoundContainer] = field(default_factory=dict)
    """By the runtime's id."""


class ForeignKubelet:
    """Records the steps of this node's pods that hold our devices."""

    def __init__(
        self,
        *,
        node: str,
        store: Store,
        pods: pods.Pods,
        holdings: podresources.Holdings,
        supply: latest.Latest[Supply],
        recall: Callable[[Grant], pb.ContainerAllocateResponse | None],
        cdi_folder: Path,
        watch: watchclient.Program,
    ) -> None:
        """Take the sources.

        Args:    supply: what we serve.   recall: what a plugin answers for a grant now, where its answer
                 then was not seen; None: it cannot say.   watch: how containers are watched.
        """
        self._node, self._store, self._pods, self._holdings = node, store, pods, holdings
        self._supply, self._recall, self._cdi_folder = supply, recall, cdi_folder
        self._meter: telemetry.Meter = telemetry.UNMETERED
        self.count_start: starts.CountStart = starts.count_none
        """Counts a start once its container runs; set by who has objectives."""
        self.activation: Activation | None = None
        """Set where devices have NVLink partitions."""
        self._calls: deque[plan.Call] = deque(maxlen=CALLS)
        self._memories: dict[str, _Memory] = {}
        self._began = time.time()
        self._queue = WorkQueue("trace", self._work)
        self._watcher = watchclient.WatchClient[Prepared](
            prepare=self._prepare, seen=self._seen, seen_machine=self.seen_machine, program=watch
        )
        pods.listen(self._pod_changed)

    def told(self, call: plan.Call) -> None:
        """Remember what a plugin answered; the kubelet writes it down right after."""
        self._calls.append(call)
        self._holdings.ask()

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Observe for ever."""
        self._meter = meter
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="trace: containers")
            tasks.create_task(self._watcher.run(meter), name="container watch")
            tasks.create_task(self._follow_resources(), name="resources")
            async for _ in self._holdings.latest.changes():
                for uid in self._memories:
                    self._queue.add(uid)

    # what happens

    def _pod_changed(self, pod: core.Pod, is_gone: bool) -> None:
        uid = pod.metadata.uid
        memory = self._memories.get(uid)
        if memory is None:
            is_ours = any(plan.requests(pod, self._resources())) or _has_machine(pod)
            if is_gone or not is_ours or self._is_old(pod):
                return
            memory = self._memories[uid] = _Memory(pod=pod)
            self._watcher.follow(uid, is_machine=_has_machine(pod))
        memory.pod, memory.is_gone = pod, is_gone
        self._holdings.ask()
        self._queue.add(uid)

    def _resources(self) -> tuple[str, ...]:
        return tuple(one.resource for one in self._supply.value.resources)

    async def _follow_resources(self) -> None:
        """Look at every pod again whenever what we serve has changed."""
        known: tuple[str, ...] = ()
        async for _ in self._supply.changes():
            if self._resources() != known:
                known = self._resources()
                for pod in self._pods.all():
                    self._pod_changed(pod, is_gone=False)

    def _is_old(self, pod: core.Pod) -> bool:
        """Return whether a pod had ended long before this agent began: its events may have been let go already."""
        if pod.status.phase not in core.ENDED_PHASES:
            return False
        ends = [meta.timestamp(item.ended.finished_at) for item in plan.attempts(pod) if item.ended is not None]
        return max((end for end in ends if end), default=0.0) < self._began - OLD_S

    def _seen(self, uid: str, seen: FoundContainer) -> None:
        memory = self._memories.get(uid)
        if memory is not None:
            memory.found[seen.id] = seen
            self._queue.add(uid)

    def seen_machine(self, uid: str, times: MachineTimes) -> None:
        """Take how far a pod's machine has started."""
        if (memory := self._memories.get(uid)) is not None:
            memory.machine = times
            self._queue.add(uid)

    async def _prepare(self, uid: str) -> Prepared | None:
        """Read what the CDI specs say now, which is when a runtime reads them; waits for the pod's grants."""
        memory = self._memories.get(uid)
        if memory is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRANT_WAIT_S):
                await memory.known.wait()
        try:
            with telemetry.timed("cdi resolved", pod=memory.pod.metadata.name) as timing:
                found = await asyncio.to_thread(self._resolve, memory.grants)
        except errors.FairleadError as error:
            telemetry.log.warning("cdi names not resolved", pod=memory.pod.metadata.name, error=error.message)
            return None
        edited = [one for _, one in found.values()]
        return Prepared(
            by_container=found,
            paths=tuple(dict.fromkeys(path for one in edited for path in one.paths)),
            numbers=tuple(sorted({number for one in edited for number in one.others})),
            at=time.time(),
            duration_s=timing.duration_s,
        )

    def _resolve(self, grants: tuple[Grant, ...]) -> dict[str, tuple[tuple[str, ...], edits.Resolved]]:
        answers: dict[str, pb.ContainerAllocateResponse] = {}
        for grant in grants:
            answer = grant.call.answer if grant.call is not None else self._recall(grant)
            if answer is not None:
                answers.setdefault(grant.container, pb.ContainerAllocateResponse()).MergeFrom(answer)
        named = {container: deviceplugin.cdi_names(answer) for container, answer in answers.items()}
        return {container: (names, edits.resolve(names, self._cdi_folder)) for container, names in named.items()}

    # one pod

    async def _work(self, uid: str) -> float | None:
        memory = self._memories.get(uid)
        if memory is None:
            return None
        self._take_grants(memory)
        for grant in memory.grants:
            await self._record_grant(memory, grant)
        is_looking = False
        for attempt in plan.attempts(memory.pod):
            if self._watcher.is_looking(attempt.id):
                is_looking = True  # a moment, and what it reads is there
                break
            await self._record_attempt(memory, attempt)
        if is_looking:
            return _LOOKING_S
        if not memory.is_counted and not await self._count_start(memory):
            return _AGAIN_S
        if memory.is_gone or memory.pod.status.phase in core.ENDED_PHASES:
            await self._close(uid, memory)
        return None

    def _take_grants(self, memory: _Memory) -> None:
        """Fill the pod's grants from the kubelet's list; what an ended pod was given is not forgotten with it."""
        holdings = self._holdings.latest.value or ()
        found = plan.match_grants(memory.pod, holdings, tuple(self._calls), resources=self._resources())
        known = {(grant.container, grant.resource) for grant in found}
        kept = tuple(grant for grant in memory.grants if (grant.container, grant.resource) not in known)
        # A call that was remembered once stays, also when the memory has moved on.
        calls = {(old.container, old.resource, old.ids): old for old in memory.grants if old.call is not None}
        memory.grants = kept + tuple(calls.get((one.container, one.resource, one.ids), one) for one in found)
        if memory.grants:
            memory.known.set()

    async def _close(self, uid: str, memory: _Memory) -> None:
        """Note that a pod that is over holds nothing any more, once its kubelet says so."""
        holdings, about = self._holdings.latest.value, memory.pod.metadata
        successor = any(
            (one.metadata.namespace, one.metadata.name) == (about.namespace, about.name) and one.metadata.uid != uid
            for one in self._pods.all()
        )
        held = holdings is None or any((item.namespace, item.pod) == (about.namespace, about.name) for item in holdings)
        if held and not successor:
            self._holdings.ask(after_s=_AGAIN_S)
            return
        if memory.grants:
            await self._record(memory, "DevicesFreed", steps.freed(at=time.time()))
        self._watcher.forget(uid)
        if memory.is_gone:
            self._memories.pop(uid, None)

    async def _record(self, memory: _Memory, key: str, step: TraceStep) -> None:
        """Keep one step, once. Raises: Unavailable: the store does not answer."""
        if key in memory.done:
            return
        about = tracerecorder.reference(memory.pod)
        if not await tracerecorder.record(self._store, about, step, host=self._node, once=key):
            message = f"step {step.reason} of pod {about.name} is not kept yet"
            raise errors.Unavailable(message, reason="StepNotKept")
        memory.done.add(key)
        if not memory.is_counted:
            memory.steps.append(step)

    async def _count_start(self, memory: _Memory) -> bool:
        """Count the pod's start once its container runs; returns False where what is missing of it may come yet."""
        started = next((one.at for one in memory.steps if one.reason == "ContainerStarted"), None)
        if started is None:
            return True
        if _has_machine(memory.pod):
            is_over = memory.pod.status.phase in core.ENDED_PHASES or time.time() - started > GRANT_WAIT_S
            if (memory.machine is None or memory.machine.agent_at is None) and not is_over:
                return False
            if memory.machine is not None:
                await self._record(memory, machinestart.REASON, steps.machine_started(memory.machine, at=started))
        await self._record_activation(memory)
        memory.is_counted = await self.count_start(memory.pod, memory.steps, self._meter)
        return memory.is_counted

    async def _record_activation(self, memory: _Memory) -> None:
        created = meta.timestamp(memory.pod.metadata.creation_timestamp) or 0.0
        for device in (device for grant in memory.grants for device in grant.ids):
            found = self.activation(device) if self.activation is not None else None
            if found is not None and found[0] >= created:
                step = steps.partition_activated(device, at=found[0], duration_s=found[1])
                await self._record(memory, f"PartitionActivated/{device}", step)

    async def _record_grant(self, memory: _Memory, grant: Grant) -> None:
        key, call = f"{grant.container}/{grant.resource}", grant.call
        preference = call.preference if call is not None else None
        begun = meta.timestamp(memory.pod.status.start_time) or time.time()
        chosen = steps.chosen(
            grant.container,
            grant.resource,
            grant.ids,
            asked=grant.asked,
            available=preference.available if preference is not None else None,
            preferred=preference.preferred if preference is not None else (),
            at=preference.at if preference else call.at - call.duration_s if call else begun,
            duration_s=preference.duration_s if preference is not None else None,
        )
        await self._record(memory, f"DevicesChosen/{key}", chosen)
        if call is None:
            return  # answered before this agent began: the answer is not known here
        names = deviceplugin.cdi_names(call.answer)
        allocated = steps.allocated(
            grant.container, grant.resource, call.answer, names, at=call.at, duration_s=call.duration_s
        )
        await self._record(memory, f"DevicesAllocated/{key}", allocated)

    # one start of one container

    async def _record_attempt(self, memory: _Memory, attempt: Attempt) -> None:
        if f"ContainerEnded/{attempt.key}" in memory.done:
            return
        seen = memory.found.get(attempt.id)
        prepared = seen.prepared if seen is not None else None
        if prepared is None and f"ContainerStarted/{attempt.key}" not in memory.done:
            prepared = await self._prepare(memory.pod.metadata.uid) if memory.grants else None
        now = time.time()
        noticed = _noticed(attempt.started_at, now)
        created_at = seen.began_at if seen is not None else noticed
        names, resolved = (prepared.by_container if prepared else {}).get(attempt.container, ((), edits.Resolved()))
        if names and prepared is not None:
            step = steps.resolved(
                attempt.container, names, resolved, at=min(prepared.at, created_at), duration_s=prepared.duration_s
            )
            await self._record(memory, f"EditsResolved/{attempt.key}", step)
        await self._record(memory, f"ContainerCreated/{attempt.key}", _created(memory.pod, attempt, seen, created_at))
        if resolved.device_nodes:
            await self._record_isolation(memory, attempt, seen, resolved, noticed)
        if attempt.started_at:
            started_at = max(noticed, seen.read_at if seen is not None else 0.0)
            more = {"attempt": attempt.number, "started_at": attempt.started_at}
            step = steps.started(attempt.container, attempt.id[:12], at=started_at, duration_s=None, more=more)
            await self._record(memory, f"ContainerStarted/{attempt.key}", step)
        if attempt.ended is not None:
            await self._record_end(memory, attempt, attempt.ended)
            memory.found.pop(attempt.id, None)

    async def _record_isolation(
        self, memory: _Memory, attempt: Attempt, seen: FoundContainer | None, resolved: edits.Resolved, noticed: float
    ) -> None:
        key = f"IsolationRead/{attempt.key}"
        if key in memory.done:
            return
        name = attempt.container
        if _has_machine(memory.pod):
            step = steps.isolation_unread(name, _IN_MACHINE, at=noticed)
        elif seen is not None and seen.found is not None:
            found = _narrowed(seen.found, resolved)
            step = steps.isolation_read(
                name, seen.pid, found, granted=resolved.paths, at=seen.read_at, duration_s=seen.read_s
            )
        elif seen is not None and seen.unread:
            step = steps.isolation_unread(name, seen.unread, at=seen.read_at)
        elif attempt.ended is not None:
            step = steps.isolation_unread(name, _TOO_SOON, at=noticed)
        elif await self._is_kept(memory, key):
            memory.done.add(key)
            return
        else:
            step = await self._read_now(name, seen.pid if seen is not None else None, attempt.id, resolved)
        await self._record(memory, key, step)

    async def _is_kept(self, memory: _Memory, key: str) -> bool:
        """Return whether an earlier agent recorded a step, before the work of reading is done again."""
        about = tracerecorder.reference(memory.pod)
        try:
            await self._store.get(core.Event, tracerecorder.event_name(about, key), about.namespace)
        except errors.NotFound:
            return False
        return True

    async def _read_now(self, name: str, pid: int | None, container_id: str, resolved: edits.Resolved) -> TraceStep:
        """Read a container back that runs and was not seen to begin."""
        read = await self._watcher.read(container_id, pid, paths=resolved.paths, numbers=resolved.others)
        if read.pid is None:
            return steps.isolation_unread(name, _UNSEEN, at=time.time())
        if read.found is None:
            return steps.isolation_unread(name, _TOO_SOON, at=time.time())
        return steps.isolation_read(
            name, read.pid, read.found, granted=resolved.paths, at=time.time(), duration_s=read.duration_s
        )

    async def _record_end(self, memory: _Memory, attempt: Attempt, ended: core.ContainerStateTerminated) -> None:
        step = steps.ended(
            attempt.container,
            ended.exit_code,
            oom_killed=ended.reason == "OOMKilled",
            ran_s=plan.ran_s(ended),
            at=_noticed(meta.timestamp(ended.finished_at), time.time()),
        )
        await self._record(memory, f"ContainerEnded/{attempt.key}", step)


def _has_machine(pod: core.Pod) -> bool:
    return isolation.of_class(pod.spec.runtime_class_name) == isolation.VM


def _noticed(told: float | None, now: float) -> float:
    """Return when something happened: now, where a kubelet reports it promptly, in whole seconds as it does."""
    return told if told and now - told > PROMPT_S else now


def _narrowed(found: readback.Isolation, resolved: edits.Resolved) -> readback.Isolation:
    """Return what was read of a container without what was tried for its neighbours in the pod."""
    tried = {*resolved.paths, *(f"{major}:{minor}" for major, minor in resolved.others)}
    return dataclasses.replace(found, opens={where: said for where, said in found.opens.items() if where in tried})


def _created(pod: core.Pod, attempt: Attempt, seen: FoundContainer | None, at: float) -> TraceStep:
    item = next(
        (one for one in (*pod.spec.containers, *pod.spec.init_containers) if one.name == attempt.container), None
    )
    limits = item.resources.limits if item is not None else {}
    held = "" if seen is None or seen.is_late else f", its process made at pid {seen.pid}"
    return TraceStep(
        layer="engine",
        reason="ContainerCreated",
        message=f"{attempt.id[:12]} created{held}",
        at=at,
        facts={
            "container": attempt.container,
            "attempt": attempt.number,
            "name": attempt.id,
            "pid": seen.pid if seen is not None else None,
            "image": item.image if item is not None else attempt.image,
            "cpu_limit": float(quantity.parse_quantity(limits["cpu"])) if "cpu" in limits else None,
            "memory_limit_bytes": quantity.parse_whole(limits["memory"]) if "memory" in limits else None,
        },
    )
