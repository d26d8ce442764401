"""Keeps idle GPUs from staying held: warns owners of containers, and ends what is idle still, as `plan.idle` says.

One key stands for all containers; every half a minute they are judged by what was measured of them. A warning stands
in the pod's status, where every view finds it. When it was given by this process's clock is remembered here alone: a
service that was killed between warning and end grants the whole time once more, and so does a clock that jumps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.model.container.step import TraceStep
from fairlead.plan.idle import judge, policy
from fairlead.plan.idle.judge import Measured, Step, Verdict, Warned, Window
from fairlead.plan.idle.policy import Policies, Policy
from fairlead.plan.pod import podstate
from fairlead.plan.schedule.fairshare import ledger, tree
from fairlead.plan.tenancy import baseline
from fairlead.store import retry, tracerecorder
from fairlead.store.port import Store
from fairlead.store.subresource import Placement
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import queue

_KEY: Final = "idle"
POLL_S: Final = 30.0
_LAYER: Final = "scheduler"
WARNED, BUSY, ENDED, UNKNOWN = "GPUsIdleAhead", "GPUsInUse", podstate.IDLE, "GPUsNotJudged"
"""Reasons of events."""
_MOST: Final = 300
"""Characters of a message's variable part."""


class Figures(Protocol):
    """What was measured on this machine."""

    async def measured(self, uid: str, devices: Iterable[str], window: Window) -> Measured:
        """Return what was measured of a pod and its devices. Raises: Unavailable: figures are not kept, and why."""
        ...


class IdleKeeper:
    """A controller."""

    name = "idle GPUs"

    def __init__(
        self,
        store: Store,
        placement: Placement,
        default: Policy,
        figures: Figures,
        *,
        requeue: Callable[[core.Pod], Awaitable[None]],
        owner: Callable[[str], str] = lambda _namespace: "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what it acts by.

        Args: default: of the settings.   requeue: ends a container and has one like it wait behind others; may take
              as long as its processes take to end.   owner: account of the machine whose namespace it is, or "".
              now: Unix seconds.   clock: monotonic ones.
        """
        self._store, self._placement, self._default, self._figures = store, placement, default, figures
        self._requeue, self._owner, self._now, self._clock = requeue, owner, now, clock
        self._began = clock()
        self._warned: dict[str, Warned] = {}
        """By uid of the pod, since this process began."""
        self._said: set[str] = set()
        """Uids of pods of which it was said that they cannot be judged."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow queues, whose policies count at once; the clock has everything else looked at."""
        return tuple(Watch(kind=kind, keys=_all) for kind in (queue.Queue, core.Node))

    async def reconcile(self, _key: str) -> float | None:
        """Do what is to be done now; returns when to look again."""
        policies = await self._policies()
        pods = {pod.metadata.uid: pod for pod in (await self._store.list(core.Pod)).items}
        self._warned = {uid: one for uid, one in self._warned.items() if uid in pods}
        self._said &= pods.keys()
        aliases = await self._aliases() if not policies.is_off else {}
        wake_s = POLL_S
        for pod in pods.values():
            if policies.is_off and pod.status.idle_notice is None:
                continue
            try:
                step = await self._look(pod, policies, aliases)
            except (errors.Conflict, errors.NotFound, errors.Denied, errors.Invalid) as error:
                telemetry.log.warning("idle GPUs not judged", pod=pod.metadata.name, error=error.message)
                continue
            if step.left_s is not None:
                wake_s = min(wake_s, max(1.0, step.left_s))
        return wake_s

    async def _policies(self) -> Policies:
        """Return the policies of the queues as they are; one that cannot be read has none of its own."""
        items, specs = (await self._store.list(queue.Queue)).items, list[tree.Spec]()
        for item in items:
            try:
                specs.append(tree.spec_of(item))
            except errors.Invalid:
                continue  # the queue itself says so
        given = {item.metadata.name: item.spec.idle for item in items if item.spec.idle is not None}
        return Policies(tree.Tree(specs), given, self._default)

    async def _aliases(self) -> Mapping[str, str]:
        """Return the names of tenancies by namespace."""
        found = (await self._store.list(Tenancy)).items
        return {baseline.namespace_name(one): one.metadata.name for one in found}

    async def _look(self, pod: core.Pod, policies: Policies, aliases: Mapping[str, str]) -> Step:
        about = pod.metadata
        if podstate.is_final(pod) or podstate.state_of(pod) == "stopping":
            self._warned.pop(about.uid, None)
            return Step()
        binding = policies.of(about.namespace, ledger.named_queue(pod))
        names = (aliases.get(about.namespace, ""), self._owner(about.namespace))
        is_free = binding.action == policy.OFF or policy.is_exempt(binding, about.namespace, about.name, names)
        verdict = None if is_free else await self._judged(pod, binding)
        warned = self._warned.get(about.uid)
        notice = pod.status.idle_notice
        if warned is None and notice is not None and notice.action != core.IDLE_UNKNOWN:
            if verdict is not None and verdict.is_idle and not is_free:
                # An earlier process warned of it: the whole time counts from here on.
                await self._note(pod, binding, since=meta.timestamp(notice.since) or self._now())
                warned = self._warned[about.uid]
            else:
                warned = Warned(at=self._clock())
        step = judge.plan(verdict, binding, warned, clock=self._clock())
        if step.clear:
            await self._clear(pod, step.clear)
        elif notice is not None and notice.action == core.IDLE_UNKNOWN and not step.unknown:
            await self._write(pod, None)
        if step.unknown:
            await self._say_unknown(pod, binding, step.unknown)
        if step.warn:
            await self._warn(pod, binding)
        if step.end:
            await self._end(pod, binding)
        return step

    async def _judged(self, pod: core.Pod, binding: Policy) -> Verdict | None:
        """Return the verdict; None: it does not hold devices, or not for long enough."""
        since = _held_since(pod)
        if since is None or self._now() - since < binding.after_s:
            return None
        devices = tuple(id_ for ids in podstate.granted_devices(pod).values() for id_ in ids)
        if not devices:
            return Verdict(unknown="devices of claims have no figures by which they are told") if _claims(pod) else None
        window = Window(since=self._now() - binding.after_s, until=self._now())
        try:
            return judge.judge(await self._figures.measured(pod.metadata.uid, devices, window), window, binding)
        except errors.Unavailable as error:
            # Its owner is not told of the machine's files; `fairlead doctor` says what is wrong with them.
            telemetry.log.info("figures not read", pod=pod.metadata.name, reason=error.reason, error=error.message)
            return Verdict(unknown="this machine keeps no figures that can be read now")

    # what is done

    async def _warn(self, pod: core.Pod, binding: Policy) -> None:
        await self._note(pod, binding, since=self._now() - binding.after_s)
        await self._say(pod, WARNED, _words(binding, meta.emit_time(self._now() + binding.warn_s)))
        telemetry.log.info("idle GPUs", pod=pod.metadata.name, namespace=pod.metadata.namespace, reason=WARNED)

    async def _note(self, pod: core.Pod, binding: Policy, *, since: float) -> None:
        """Write the warning, and remember when it was given."""
        now = self._now()
        acts_at = meta.emit_time(now + binding.warn_s) if binding.ends else None
        notice = core.IdleNotice(
            since=meta.emit_time(since),
            warned_at=meta.emit_time(now),
            action=binding.action,
            acts_at=acts_at,
            message=_words(binding, acts_at or ""),
        )
        await self._write(pod, notice)
        self._warned[pod.metadata.uid] = Warned(at=self._clock())

    async def _clear(self, pod: core.Pod, why: str) -> None:
        self._warned.pop(pod.metadata.uid, None)
        if pod.status.idle_notice is not None:
            await self._write(pod, None)
            words = f"the warning about its idle GPUs is taken back: {why[:_MOST]}"
            await self._say(pod, BUSY, words, is_warning=False)

    async def _write(self, pod: core.Pod, notice: core.IdleNotice | None) -> None:
        def noted(fresh: core.Pod) -> core.Pod | None:
            if fresh.metadata.uid != pod.metadata.uid or fresh.status.idle_notice == notice:
                return None
            return msgspec.structs.replace(fresh, status=msgspec.structs.replace(fresh.status, idle_notice=notice))

        about = pod.metadata
        await retry.change_status(self._store, core.Pod, about.name, noted, namespace=about.namespace)

    async def _end(self, pod: core.Pod, binding: Policy) -> None:
        """End a pod. Raises: Unavailable."""
        why = f"its GPUs were below {binding.below_percent:g} % for {_minutes(binding.after_s + binding.warn_s)}"
        message = f"{why} ({binding.source})"
        is_again = binding.action == policy.REQUEUE and not _owned(pod) and pod.spec.restart_policy != "Never"
        await self._say(pod, ENDED, f"{message}; it goes back to the queue" if is_again else message)
        if is_again:
            await self._requeue(pod)
        else:
            await self._placement.evict(pod, grace_s=None, why=message, reason=ENDED)
        self._warned.pop(pod.metadata.uid, None)
        telemetry.log.info(
            "pod ended for idle GPUs", pod=pod.metadata.name, reason=ENDED, namespace=pod.metadata.namespace
        )

    async def _say_unknown(self, pod: core.Pod, binding: Policy, why: str) -> None:
        """Say once that a pod cannot be judged; not while this process has not run for as long as is judged."""
        uid = pod.metadata.uid
        if uid in self._said or self._clock() - self._began < binding.after_s:
            return
        self._said.add(uid)
        words = f"whether its GPUs are idle is not known, so nothing is done: {why[:_MOST]}"
        now = meta.emit_time(self._now())
        notice = core.IdleNotice(since=now, warned_at=now, action=core.IDLE_UNKNOWN, message=words)
        await self._write(pod, notice)
        await self._say(pod, UNKNOWN, words, is_warning=False)

    async def _say(self, pod: core.Pod, reason: str, words: str, *, is_warning: bool = True) -> None:
        step = TraceStep(layer=_LAYER, reason=reason, message=words, at=self._now(), is_warning=is_warning)
        await tracerecorder.record(self._store, tracerecorder.reference(pod), step)


def _words(binding: Policy, acts_at: str) -> str:
    idle = f"its GPUs are below {binding.below_percent:g} % since {_minutes(binding.after_s)} ({binding.source})"
    if not binding.ends:
        return f"{idle}: use them, or end it"
    then = "ended" if binding.action == policy.STOP else "put back into the queue"
    return f"{idle}: it is {then} at {acts_at}, unless it uses them"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def _held_since(pod: core.Pod) -> float | None:
    """Return since when all containers of a pod have run; None: not all do, or it is about to end."""
    if podstate.state_of(pod) != "running":
        return None
    running = [one.state.running for one in pod.status.container_statuses if one.state.running is not None]
    begins = [meta.timestamp(one.started_at) for one in running]
    known = [one for one in begins if one is not None]
    return max(known) if known and len(known) == len(begins) else None


def _claims(pod: core.Pod) -> bool:
    return any(ids for ids in podstate.claimed_devices(pod).values())


def _owned(pod: core.Pod) -> bool:
    """Return whether a controller makes another pod in its place."""
    return any(one.controller for one in pod.metadata.owner_references)


def _all(_change: object) -> Iterable[str]:
    return (_KEY,)
