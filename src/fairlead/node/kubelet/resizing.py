"""Carries out changes of running pods' CPU and memory: decided in `plan.pod.running.resize`, written to the cgroups.

What the status says a container has is the record: after a kill of ours anywhere, the next look goes on from there. A
limit of memory below what is in use is not written, for the kernel would refuse it or kill; it is tried again. Limits
that somebody wrote over (systemd does, when it reads its units again) are written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.kernel import cgrouplimits
from fairlead.kernel.cgrouplimits import Limits
from fairlead.plan.pod.life import podsync
from fairlead.plan.pod.running import resize
from fairlead.wire.kubernetes import core, meta, names

AGAIN_S: Final = 5.0
_LOOK_S: Final = 10.0
"""How often the limits of resized containers are read."""
_CPU_ROUNDED: Final = 0.011
"""By how many CPUs what is written may differ from what is asked: systemd rounds to 10 ms of a second."""
_MEMORY_ROUNDED: Final = 1 << 16
"""By how many bytes: the kernel counts pages."""


class Cgroup(Protocol):
    """One container's limits (`cgrouplimits.Folders`)."""

    def limits(self) -> Limits:
        """Return those in force."""
        ...

    def used_bytes(self) -> int:
        """Return the memory in use."""
        ...

    def write(self, wanted: Limits) -> None:
        """Write those that are given."""
        ...


class Find(Protocol):
    """Finds a container's cgroup."""

    def __call__(self, pid: int, container: str, /) -> Cgroup:
        """Return it. Raises: NotFound: it is gone."""
        ...


class Record(Protocol):
    """Keeps one step of a pod's trace (`runtime.Runtime.record`)."""

    def __call__(
        self,
        pod: core.Pod,
        layer: str,
        reason: str,
        message: str,
        /,
        *,
        facts: Mapping[str, object],
        is_warning: bool = False,
    ) -> Awaitable[None]:
        """Keep it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is to be done with a pod whose size may change."""

    pod: core.Pod
    """With the amounts that count."""
    decision: resize.Decision
    progress: resize.Progress
    kills: tuple[podsync.Kill, ...] = ()
    again_s: float | None = None

    def told(self, pod: core.Pod, status: core.PodStatus) -> core.PodStatus:
        """Return a status that says so. Args: pod: as it is stored."""
        if pod.status.phase in core.ENDED_PHASES:
            return status
        return resize.told(pod, status, self.decision, self.progress, at=meta.now())


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is remembered of one pod beside its status. Losing it costs a look at the cgroups and a repeated step."""

    is_accepted: bool = False
    """Its spec counts, although its status says something else."""
    is_deferred: bool = False
    """It is looked at again when another pod changes."""
    said: tuple[str, str] = ("", "")
    """Reason and words of the last step, each kept once."""
    watched: dict[str, tuple[ContainerState, Limits]] = field(default_factory=dict)
    """By engine name: containers whose limits were written, and what was."""
    seen: set[str] = field(default_factory=set)
    """Engine names of running containers that were looked at."""


class Resizing:
    """The sizes of one node's pods."""

    def __init__(self, allocatable: Mapping[str, str], record: Record, find: Find = cgrouplimits.of_container) -> None:
        """Take what the node has, live, what keeps a trace, and what finds cgroups."""
        self._allocatable, self._record, self._find = allocatable, record, find
        self._pods: dict[str, _Known] = {}
        """By uid."""

    @property
    def deferred(self) -> set[str]:
        """Return the uids of pods that are looked at again when another one changes."""
        return {uid for uid, known in self._pods.items() if known.is_deferred}

    def forget(self, uid: str) -> None:
        """Keep nothing of a pod that is gone."""
        self._pods.pop(uid, None)

    def _counted(self, pod: core.Pod) -> core.Pod:
        """Return another pod with the amounts that count."""
        known = self._pods.get(pod.metadata.uid)
        return pod if known is not None and known.is_accepted else resize.with_amounts(pod, resize.held(pod))

    async def carry_out(
        self, pod: core.Pod, states: Iterable[ContainerState], others: Iterable[core.Pod], *, grace_s: float
    ) -> Outcome:
        """Bring a pod's containers to the amounts that it asks for, as far as the node has them."""
        known = self._pods.setdefault(pod.metadata.uid, _Known())
        is_ending = (
            pod.metadata.deletion_timestamp is not None
            or pod.status.stop_request is not None
            or pod.status.phase in core.ENDED_PHASES
        )
        known.is_deferred = False
        kept = resize.held(pod)
        running = {
            one.labels.get(names.CONTAINER_NAME, ""): one for one in states if one.phase is ContainerPhase.RUNNING
        }
        if is_ending or not kept:
            known.is_accepted = False
            if not is_ending:
                await self._look_once(known, pod, running)
            as_it_is = resize.with_amounts(pod, kept)  # one that ends keeps what it has
            return Outcome(pod=as_it_is, decision=resize.Decision(pod=as_it_is), progress=resize.Progress(has={}))
        around = [self._counted(one) for one in others if one.metadata.uid != pod.metadata.uid]
        decision = resize.decide(pod, around, self._allocatable)
        if decision.reason:
            known.is_accepted, known.is_deferred = False, decision.reason == resize.DEFERRED
            await self._say(known, pod, f"Resize{decision.reason}", decision.message, is_warning=True)
            has = {name: resize.resizable(found) for name, found in kept.items()}
            return Outcome(pod=decision.pod, decision=decision, progress=resize.Progress(has=has))
        known.is_accepted = True
        return await self._actuate(known, pod, kept, running, decision, grace_s=grace_s)

    async def _actuate(
        self,
        known: _Known,
        pod: core.Pod,
        kept: resize.Amounts,
        running: Mapping[str, ContainerState],
        decision: resize.Decision,
        *,
        grace_s: float,
    ) -> Outcome:
        has = {name: resize.resizable(found) for name, found in kept.items()}
        kills, error, done = list[podsync.Kill](), "", list[str]()
        # Less first: what one container gives up, another may get.
        each = sorted(
            (item for item in resize.items(pod.spec) if item.name in kept and item.name in running),
            key=lambda item: _is_more(resize.resizable(item.resources), has[item.name]),
        )
        for item in each:
            state, before, wanted = running[item.name], has[item.name], resize.resizable(item.resources)
            if resize.restarts(item, before):
                why = "it is restarted to get another size (resizePolicy RestartContainer)"
                kills.append(podsync.Kill(engine_name=state.name, grace_s=grace_s, container=item.name, why=why))
                continue
            if error and _is_more(wanted, before):
                break  # the sum is not to grow while somebody keeps what he is to give up
            try:
                await asyncio.to_thread(self._write, state, _limits(wanted))
            except errors.FairleadError as failed:
                error = f"{item.name}: {failed.message}"
                continue
            known.watched[state.name] = (state, _limits(wanted))
            done.append(f"{item.name}: {_words(before, wanted)}")
            del has[item.name]
        if error:
            await self._say(known, pod, "ResizeError", error, is_warning=True)
        elif done:
            await self._say(known, pod, "ResizeCompleted", "; ".join(done), is_warning=False)
        progress = resize.Progress(has=has, is_under_way=bool(error or kills), error=error)
        return Outcome(
            pod=pod, decision=decision, progress=progress, kills=tuple(kills), again_s=AGAIN_S if error else None
        )

    def _write(self, state: ContainerState, wanted: Limits) -> None:
        """Write a container's limits. Raises: NotFound, Unavailable; Conflict (`MemoryInUse`)."""
        folders = self._find(state.pid or 0, state.id)
        now, used = folders.limits(), folders.used_bytes()
        memory = wanted.memory_bytes
        if memory is not None and (now.memory_bytes is None or memory < now.memory_bytes) and memory < used:
            message = f"attempting to set memory limit ({_size(memory)}) below current usage ({_size(used)})"
            raise errors.Conflict(message, reason="MemoryInUse", hint="it is tried again")
        folders.write(wanted)

    async def _look_once(self, known: _Known, pod: core.Pod, running: Mapping[str, ContainerState]) -> None:
        """Hold a container that is seen for the first time to what its pod says: it may have been resized before."""
        for item in resize.items(pod.spec):
            state = running.get(item.name)
            if state is None or state.name in known.seen:
                continue
            known.seen.add(state.name)
            wanted = _limits(resize.resizable(item.resources))
            if wanted != Limits() and await self._hold(state, wanted):
                known.watched[state.name] = (state, wanted)

    async def _hold(self, state: ContainerState, wanted: Limits) -> bool:
        """Write a container's limits where others are in force; returns whether it did."""
        with contextlib.suppress(errors.FairleadError):  # it has ended, or the kernel says more at the next resize
            now = await asyncio.to_thread(lambda: self._find(state.pid or 0, state.id).limits())
            if _is_in_force(now, wanted):
                return False
            await asyncio.to_thread(self._write, state, wanted)
            telemetry.log.warning("limits of a container were others, and are written again", container=state.name)
            return True
        return False

    async def run(self) -> None:
        """Hold resized containers to their limits until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.hold_all()

    async def hold_all(self) -> None:
        """Write limits again that somebody wrote over.

        A resize beside it may be written over once: the next look has its limits.
        """
        for known in tuple(self._pods.values()):
            for state, wanted in tuple(known.watched.values()):
                await self._hold(state, wanted)

    async def _say(self, known: _Known, pod: core.Pod, reason: str, message: str, *, is_warning: bool) -> None:
        if known.said == (reason, message):
            return
        known.said = (reason, message)
        await self._record(pod, "kubelet", reason, message, facts={}, is_warning=is_warning)


def _limits(found: core.ResourceRequirements) -> Limits:
    return Limits(cpu=resize.cpu_limit(found), memory_bytes=resize.memory_limit(found))


def _is_in_force(now: Limits, wanted: Limits) -> bool:
    cpu = wanted.cpu is None or (now.cpu is not None and abs(now.cpu - wanted.cpu) <= _CPU_ROUNDED)
    if wanted.memory_bytes is None or (now.memory_bytes is None and wanted.memory_bytes >= cgrouplimits.NO_LIMIT):
        return cpu
    return cpu and now.memory_bytes is not None and abs(now.memory_bytes - wanted.memory_bytes) <= _MEMORY_ROUNDED


def _is_more(wanted: core.ResourceRequirements, before: core.ResourceRequirements) -> bool:
    new, old = _limits(wanted), _limits(before)
    more_cpu = new.cpu is not None and new.cpu > (old.cpu or 0.0)
    return more_cpu or (new.memory_bytes is not None and new.memory_bytes > (old.memory_bytes or 0))


def _words(before: core.ResourceRequirements, wanted: core.ResourceRequirements) -> str:
    """Return what changed: `cpu limit 1 -> 2, memory limit 1Gi -> 2Gi`."""
    pairs = (("limit", before.limits, wanted.limits), ("request", before.requests, wanted.requests))
    return ", ".join(
        f"{name} {part} {old.get(name, 'none')} -> {new[name]}"
        for part, old, new in pairs
        for name in resize.RESIZED
        if name in new and old.get(name) != new[name]
    )


def _size(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count >= 10 << 20 else f"{-(-count // 1024)} KiB"
