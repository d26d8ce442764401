"""Decides what the kubelet does next for one pod, from what is wanted and what is seen. Pure.

In: the pod as stored, every container the engine has of it (ended ones too), and what is known to be in the way. Out:
the acts to carry out now, the status to report, and when to look again. All state is in the pod and in the engine, so
a kubelet that was killed anywhere continues where it was. Behaviour follows the real kubelet: init containers one after
another, restart policies, crash back-off 0, 10, 20 … 300 s (none after ten good minutes), a container that vanished
counts as ended with 137. The same pod, containers and time give the same plan, and a reported status is not changed by
reporting it: else every report would be the reason for the next.

Sidecars are init containers that go on: the next container starts once a sidecar has started, and they are stopped
after all others, the last one first. Ephemeral containers are started once and hold nothing up: a pod whose containers
have ended ends them.
Source: kubernetes pkg/kubelet/kuberuntime (computePodActions, kuberuntime_termination_order.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import msgspec

from fairlead import backoff
from fairlead.plan.pod.life import health, restart
from fairlead.plan.pod.life.health import Health
from fairlead.wire.kubernetes import core, meta

_GOOD_RUN_S: Final = 600.0
_LONGEST_BACKOFF_S: Final = 300.0
_CREATING: Final = "ContainerCreating"
_NOTHING: Final = core.ContainerStateUnion()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One container as the engine has it."""

    container: str
    """Its name in the pod."""
    attempt: int
    engine_name: str
    container_id: str
    """As the pod's status says it, with the engine's scheme."""
    phase: str
    """`created`, `running`, `exited`."""
    exit_code: int = 0
    oom_killed: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    is_before_boot: bool = False
    """It was started before the machine was."""
    message: str = ""
    """Its last word, once it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a container could not be started at the last try."""

    reason: str
    message: str
    is_final: bool
    """Trying again cannot help: the pod fails."""
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Create and start the next attempt of a container."""

    container: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Start a container that was created but never let go."""

    container: str
    engine_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Stop a living container."""

    engine_name: str
    grace_s: float
    container: str = ""
    """Its name in the pod, whose preStop hook comes first."""
    why: str = ""
    """What a probe found; empty: the pod ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Forget a container that ended, or that was created and never started."""

    engine_name: str


_LATE: Final = Blocked(
    reason="DeadlineExceeded",
    message="Pod was active on the node longer than the specified deadline",
    is_final=True,
)
"""What ends a pod that ran for longer than its activeDeadlineSeconds, in the kubelet's words."""

Act = Start | Resume | Kill | Remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step."""

    acts: tuple[Act, ...] = ()
    status: core.PodStatus
    wake_at: float | None = None
    """Unix seconds at which time alone changes the plan."""
    is_over: bool = False
    """Nothing of the pod runs or will run: its devices can be freed."""
    forget: bool = False
    """The object itself is to be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """One container of the pod with its newest attempt, from the engine or, where that forgot, from the status."""

    item: core.Container
    attempt: int = -1
    """-1: never started."""
    seen: Seen | None = None
    ended: core.ContainerStateTerminated | None = None
    """How the newest attempt ended; None while it lives or before it ran."""
    last: core.ContainerStateUnion = _NOTHING
    """How the attempt before it ended."""
    strays: tuple[Seen, ...] = ()
    """Living containers of older attempts: they must go before anything new comes."""

    health: Health = health.WELL
    """Of the attempt that runs."""

    @property
    def is_alive(self) -> bool:
        return self.seen is not None and self.seen.phase != "exited"

    @property
    def is_running(self) -> bool:
        return self.seen is not None and self.seen.phase == "running"

    @property
    def is_sidecar(self) -> bool:
        return self.item.restart_policy == "Always"

    @property
    def is_ephemeral(self) -> bool:
        return isinstance(self.item, core.EphemeralContainer)

    @property
    def is_past(self) -> bool:
        """Whether the containers after this init container may start."""
        if self.is_sidecar:
            return self.is_running and self.health.is_started
        return not self.is_alive and self.exit_code == 0

    @property
    def exit_code(self) -> int | None:
        return self.ended.exit_code if self.ended is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One look at one pod: everything a decision may depend on."""

    pod: core.Pod
    inits: tuple[_Known, ...]
    mains: tuple[_Known, ...]
    ephemerals: tuple[_Known, ...]
    seen: tuple[Seen, ...]
    now: float
    backoff_s: float
    blocked: Mapping[str, Blocked]

    @property
    def alive(self) -> tuple[Seen, ...]:
        return tuple(one for one in self.seen if one.phase != "exited")

    @property
    def phase(self) -> str:
        return self.pod.status.phase or "Pending"


def sync(
    pod: core.Pod,
    seen: tuple[Seen, ...],
    *,
    now: float,
    backoff_s: float,
    blocked: Mapping[str, Blocked],
    healths: Mapping[str, Health] = MappingProxyType({}),
) -> Plan:
    """Return the next step for one pod.

    Args:    seen: all engine containers with the pod's uid.   now: Unix seconds.   backoff_s: second restart's wait.
             blocked: by container name.   healths: by container id, of containers that are probed.
    """
    init_statuses, statuses = pod.status.init_container_statuses, pod.status.container_statuses
    joined = pod.status.ephemeral_container_statuses

    def know(item: core.Container, reported: tuple[core.ContainerStatus, ...]) -> _Known:
        known = _know(item, seen, reported, now)
        if known.seen is None or not known.is_running:
            return known
        return replace(known, health=health.of(item, known.seen.container_id, healths, pod.status))

    look = _Look(
        pod=pod,
        inits=tuple(know(item, init_statuses) for item in pod.spec.init_containers),
        mains=tuple(know(item, statuses) for item in pod.spec.containers),
        ephemerals=tuple(know(item, joined) for item in pod.spec.ephemeral_containers),
        seen=seen,
        now=now,
        backoff_s=backoff_s,
        blocked=blocked,
    )
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in core.ENDED_PHASES:
        return _wind_down(look)
    if pod.status.stop_request is not None:
        return _stop(look)
    final = next((block for block in blocked.values() if block.is_final), None)
    if final is not None:
        return _fail(look, final)
    deadline = _deadline(pod)
    if deadline is None:
        return _advance(look)
    if now >= deadline:
        return _fail(look, _LATE)
    plan = _advance(look)
    return plan if plan.is_over else replace(plan, wake_at=min(plan.wake_at or deadline, deadline))


def _deadline(pod: core.Pod) -> float | None:
    """Return when the pod's time is up, counted from its node's first look at it; None: it has no limit."""
    limit_s, started = pod.spec.active_deadline_seconds, meta.timestamp(pod.status.start_time)
    return None if limit_s is None or started is None else started + limit_s


def fail(pod: core.Pod, reason: str, message: str) -> core.PodStatus:
    """Return the status of a pod refused at admission."""
    return msgspec.structs.replace(pod.status, phase="Failed", reason=reason, message=message)


# what is known of one container


def _know(
    item: core.Container, seen: tuple[Seen, ...], statuses: tuple[core.ContainerStatus, ...], now: float
) -> _Known:
    status = next((one for one in statuses if one.name == item.name), None)
    mine = sorted((one for one in seen if one.container == item.name), key=lambda one: one.attempt)
    if not mine:
        return _remembered(item, status, now)
    newest, older = mine[-1], mine[:-1]
    ended = _ended(newest, status, now) if newest.phase == "exited" else None
    return _Known(
        item=item,
        attempt=newest.attempt,
        seen=newest,
        ended=ended,
        last=_last(newest.attempt, older, status, now),
        strays=tuple(one for one in older if one.phase != "exited"),
    )


def _remembered(item: core.Container, status: core.ContainerStatus | None, now: float) -> _Known:
    """Know a container that the engine has no trace of by what was last reported."""
    if status is None:
        return _Known(item=item)
    ended = _reported_end(status, now)
    if _is_creating(status) or ended is None:
        # The attempt was made but never let go: it does not count.
        attempt = status.restart_count - 1 if status.restart_count else -1
        before = status.last_state.terminated or (_vanished(None, now) if attempt >= 0 else None)
        return _Known(item=item, attempt=attempt, ended=before)
    is_waiting = status.state.waiting is not None
    last = _NOTHING if is_waiting else status.last_state
    return _Known(item=item, attempt=status.restart_count, ended=ended, last=last)


def _is_creating(status: core.ContainerStatus) -> bool:
    return status.state.waiting is not None and status.state.waiting.reason == _CREATING


def _reported_end(status: core.ContainerStatus, now: float) -> core.ContainerStateTerminated | None:
    """Return how the reported attempt ended; while it waits for the next one that is its last state."""
    if status.state.running is not None:
        return _vanished(status.state.running.started_at, now)
    return status.state.terminated or (status.last_state.terminated if status.state.waiting else None)


def _last(attempt: int, older: list[Seen], status: core.ContainerStatus | None, now: float) -> core.ContainerStateUnion:
    gone = [one for one in older if one.phase == "exited"]
    if gone:
        return core.ContainerStateUnion(terminated=_ended(gone[-1], None, now))
    if status is None:
        return _NOTHING
    if status.restart_count == attempt:
        is_own = status.state.waiting is not None and not _is_creating(status)
        return _NOTHING if is_own else status.last_state
    return core.ContainerStateUnion(terminated=_reported_end(status, now) if not _is_creating(status) else None)


_KILLED: Final = 137
_UNKNOWN: Final = "ContainerStatusUnknown"
_UNSEEN: Final = "its end was not seen: its engine lost it, as by a restart of the machine"
_RESTARTED: Final = "the machine was restarted while it ran"


def _ended(seen: Seen, status: core.ContainerStatus | None, now: float) -> core.ContainerStateTerminated:
    reason = "OOMKilled" if seen.oom_killed else "Completed" if seen.exit_code == 0 else "Error"
    finished, message = _text(seen.finished_at), seen.message
    if finished is None:
        if seen.exit_code == _KILLED and not seen.oom_killed:
            reason, message = ("MachineRestarted", _RESTARTED) if seen.is_before_boot else (_UNKNOWN, _UNSEEN)
        # An engine that does not say when: the time we first reported stands, else every look would move it.
        is_ours = status is not None and status.restart_count == seen.attempt and not _is_creating(status)
        old = _reported_end(status, now) if status is not None and is_ours else None
        finished = old.finished_at if old is not None else _text(now)
    return core.ContainerStateTerminated(
        exit_code=seen.exit_code,
        reason=reason,
        message=message,
        started_at=_text(seen.started_at),
        finished_at=finished,
        container_id=seen.container_id,
    )


def _vanished(started_at: str | None, now: float) -> core.ContainerStateTerminated:
    return core.ContainerStateTerminated(
        exit_code=_KILLED,
        reason=_UNKNOWN,
        message="The container could not be located when the pod was looked at; it was removed behind our back",
        started_at=started_at,
        finished_at=_text(now),
    )


# the four situations


def _wind_down(look: _Look) -> Plan:
    """The pod is being deleted, or has ended: nothing of it may live."""
    status, has_ended = look.pod.status, look.pod.status.phase in core.ENDED_PHASES
    is_deleted = look.pod.metadata.deletion_timestamp is not None
    if look.alive:
        return Plan(acts=_next_kills(look), status=status if has_ended else _status(look, look.phase))
    removals = tuple(Remove(engine_name=one.engine_name) for one in _joined_first(look)) if is_deleted else ()
    return Plan(acts=removals, status=status if has_ended else _status(look, "Failed"), is_over=True, forget=is_deleted)


def _stop(look: _Look) -> Plan:
    if look.alive:
        return Plan(acts=_next_kills(look), status=_status(look, look.phase))
    good = bool(look.mains) and all(known.exit_code == 0 for known in look.mains)
    asked = look.pod.status.stop_request
    if asked is not None and asked.reason:  # stopped by the service, to make room or for a limit: not a success
        return Plan(status=_status(look, "Failed", reason=asked.reason, message=asked.message), is_over=True)
    phase = "Succeeded" if good else "Failed"
    return Plan(status=_status(look, phase, reason="Stopped", message="stopped on request"), is_over=True)


def _fail(look: _Look, block: Blocked) -> Plan:
    if look.alive:
        return Plan(acts=_next_kills(look), status=_status(look, look.phase))
    return Plan(status=_status(look, "Failed", reason=block.reason, message=block.message), is_over=True)


def _advance(look: _Look) -> Plan:
    if _has_run_its_course(look):
        return _finish(look)
    if (failed := _failed_init(look)) is not None:
        return _give_up(look, failed)
    stage = _stage(look)
    acts: list[Act] = []
    wakes: list[float] = []
    waiting: dict[str, Blocked] = {}
    for known in (*_sidecars_before(look, stage), *((stage,) if stage is not None else look.mains)):
        act, due = _next(look, known, is_init=stage is not None)
        block = look.blocked.get(known.item.name)
        if act is not None and block is not None and block.retry_at > look.now:
            waiting[known.item.name] = block
            wakes.append(block.retry_at)
        elif act is not None and due > look.now:
            waiting[known.item.name] = _crash_loop(look, known)
            wakes.append(due)
        elif act is not None:
            acts.append(act)
    acts = [*_strays(look), *_unhealthy(look), *acts, *_outdated(look)]
    phase, reason, message = _phase(look, stage, busy=bool(acts) or bool(waiting))
    for known in look.ephemerals:  # after the phase, which they have no part in
        act, _ = _next(look, known, is_init=False)
        block = look.blocked.get(known.item.name)
        if act is not None and block is not None and block.retry_at > look.now:
            waiting[known.item.name] = block
            wakes.append(block.retry_at)
        elif act is not None:
            acts.append(act)
    status = _status(look, phase, reason=reason, message=message, waiting=waiting)
    return Plan(acts=tuple(acts), status=status, wake_at=min(wakes, default=None), is_over=phase in core.ENDED_PHASES)


def _has_run_its_course(look: _Look) -> bool:
    """Return whether a pod's containers have ended for good, and only sidecars and ephemeral ones are left of it."""
    others = [known for known in look.inits if known.is_sidecar] + [one for one in look.ephemerals if one.is_alive]
    if not others or any(known.attempt < 0 or known.ended is None for known in look.mains):
        return False
    spec = look.pod.spec
    return not any(restart.restarts(spec, known.item, known.exit_code or 0, is_init=False) for known in look.mains)


def _failed_init(look: _Look) -> _Known | None:
    """Return the init container that failed for good."""
    ended = (known for known in look.inits if not known.is_sidecar and known.exit_code)
    spec = look.pod.spec
    return next((one for one in ended if not restart.restarts(spec, one.item, one.exit_code or 0, is_init=True)), None)


def _give_up(look: _Look, failed: _Known) -> Plan:
    """End a pod whose init container failed; the sidecars before that one are stopped first."""
    if look.alive:
        return Plan(acts=_next_kills(look), status=_status(look, look.phase))
    phase, reason, message = _phase(look, failed, busy=False)
    return Plan(status=_status(look, phase, reason=reason, message=message), is_over=True)


def _finish(look: _Look) -> Plan:
    """Stop the sidecars of a pod whose containers have ended; its phase stays until they have ended too."""
    phase, reason, message = _phase(look, None, busy=False)
    if look.alive:
        return Plan(acts=_next_kills(look), status=_status(look, look.phase))
    return Plan(status=_status(look, phase, reason=reason, message=message), is_over=True)


def _stage(look: _Look) -> _Known | None:
    """Return the init container whose turn it is; None: the pod's containers may run.

    Once one of those has been started, a sidecar that ends holds nothing up any more.
    """
    has_begun = any(known.attempt >= 0 for known in look.mains)
    return next((known for known in look.inits if not known.is_past and not (has_begun and known.is_sidecar)), None)


def _sidecars_before(look: _Look, stage: _Known | None) -> tuple[_Known, ...]:
    """Return the sidecars that are to run beside an init container, or beside the pod's containers (None)."""
    before = look.inits if stage is None else look.inits[: look.inits.index(stage)]
    return tuple(known for known in before if known.is_sidecar)


def _unhealthy(look: _Look) -> tuple[Act, ...]:
    """Stop the containers that their probes, or a failed hook, give up."""
    return tuple(
        Kill(
            engine_name=known.seen.engine_name,
            grace_s=grace_s(look.pod) if known.health.grace_s is None else float(known.health.grace_s),
            container=known.item.name,
            why=known.health.failure,
        )
        for known in (*look.inits, *look.mains)
        if known.seen is not None and known.health.failure
    )


def _next_kills(look: _Look) -> tuple[Act, ...]:
    """Stop all that lives; sidecars only after everything else, the last one first."""
    sidecars = [known.item.name for known in look.inits if known.is_sidecar]
    others = tuple(one for one in look.alive if one.container not in sidecars)
    if others:
        return _kills(look.pod, others)
    last = max((sidecars.index(one.container) for one in look.alive), default=-1)
    found = _kills(look.pod, tuple(one for one in look.alive if sidecars.index(one.container) == last))
    left_s = _left_s(look)
    return tuple(replace(act, grace_s=min(act.grace_s, left_s)) if isinstance(act, Kill) else act for act in found)


_LEAST_GRACE_S: Final = 2.0


def _left_s(look: _Look) -> float:
    """Return what is left of a pod's grace, which its containers and sidecars share."""
    stop, marked = look.pod.status.stop_request, look.pod.metadata.deletion_timestamp
    asked_at = meta.timestamp(stop.requested_at) if stop is not None else None
    due = meta.timestamp(marked) if asked_at is None else asked_at + grace_s(look.pod)
    return grace_s(look.pod) if due is None else max(_LEAST_GRACE_S, due - look.now)


def _next(look: _Look, known: _Known, *, is_init: bool) -> tuple[Act | None, float]:
    """Return what to do with one container and when; None: leave it."""
    if known.strays:
        return None, look.now
    if known.attempt < 0:
        return Start(container=known.item.name, attempt=0), look.now
    if known.seen is not None and known.seen.phase == "created":
        return Resume(container=known.item.name, engine_name=known.seen.engine_name), look.now
    if known.ended is None or known.is_ephemeral:
        return None, look.now
    goes_on = restart.restarts(look.pod.spec, known.item, known.ended.exit_code, is_init=is_init)
    if not known.is_sidecar and not goes_on:
        return None, look.now
    ended = meta.timestamp(known.ended.finished_at) or look.now
    return Start(container=known.item.name, attempt=known.attempt + 1), ended + _backoff(look, known)


def _backoff(look: _Look, known: _Known) -> float:
    """Return how long after its end a container waits: 0 s, then `backoff_s` doubling."""
    started = meta.timestamp(known.ended.started_at) if known.ended else None
    ended = meta.timestamp(known.ended.finished_at) if known.ended else None
    is_good = started is not None and ended is not None and ended - started >= _GOOD_RUN_S
    if known.attempt == 0 or is_good:
        return 0.0
    return backoff.doubled(known.attempt - 1, first_s=look.backoff_s, last_s=_LONGEST_BACKOFF_S)


def _crash_loop(look: _Look, known: _Known) -> Blocked:
    # The whole back-off, not what is left of it: a message that counts down is a new status every second.
    text = f"back-off {_backoff(look, known):g}s restarting failed container={known.item.name}"
    return Blocked(reason="CrashLoopBackOff", message=f"{text} pod={look.pod.metadata.name}", is_final=False)


def _strays(look: _Look) -> tuple[Act, ...]:
    known = (*look.inits, *look.mains)
    return _kills(look.pod, tuple(one for item in known for one in item.strays))


def _outdated(look: _Look) -> list[Act]:
    """Ended attempts before the last two of each container: kept for logs no longer.

    An ephemeral container may be in the namespaces of such an attempt, which no engine removes before it.
    """
    newest: dict[str, int] = {}
    for one in look.seen:
        newest[one.container] = max(newest.get(one.container, 0), one.attempt)
    old = [one for one in look.seen if one.phase == "exited" and one.attempt < newest[one.container] - 1]
    joined = [known.seen for known in look.ephemerals if known.seen is not None]
    if old and any(one.phase != "exited" for one in joined):
        return []
    return [Remove(engine_name=one.engine_name) for one in (*(joined if old else ()), *old)]


def _joined_first(look: _Look) -> list[Seen]:
    """Return all that the engine has of a pod; ephemeral containers come before those whose namespaces they are in."""
    joined = {known.item.name for known in look.ephemerals}
    return sorted(look.seen, key=lambda one: one.container not in joined)


def grace_s(pod: core.Pod) -> float:
    """Return the seconds between SIGTERM and SIGKILL: the shortest of a stop's and a deletion's, else the pod's own."""
    stop = pod.status.stop_request
    asked = (pod.metadata.deletion_grace_period_seconds, stop.grace_period_seconds if stop else None)
    return float(min((one for one in asked if one is not None), default=pod.spec.termination_grace_period_seconds))


def _kills(pod: core.Pod, alive: tuple[Seen, ...]) -> tuple[Act, ...]:
    # An engine's stop of what was created and never started succeeds and changes nothing: only removal ends it.
    return tuple(
        Remove(engine_name=one.engine_name)
        if one.phase == "created"
        else Kill(engine_name=one.engine_name, grace_s=grace_s(pod), container=one.container)
        for one in alive
    )


def _phase(look: _Look, stage: _Known | None, *, busy: bool) -> tuple[str, str, str]:
    """Return phase, reason and message."""
    if stage is not None:
        if stage.exit_code is not None and not busy:
            text = f'init container "{stage.item.name}" exited with {stage.exit_code}'
            return "Failed", "InitContainerFailed", text
        return look.phase, "", ""
    failed = next((known for known in look.mains if known.exit_code != 0), None)
    if not busy and all(known.exit_code is not None for known in look.mains):
        if failed is None or failed.ended is None:
            return "Succeeded", "", ""
        reason = "" if failed.ended.reason == "Error" else failed.ended.reason
        why = f": {failed.ended.message}" if failed.ended.message else ""
        return "Failed", reason, f'container "{failed.item.name}" exited with {failed.exit_code}{why}'
    started = any(known.attempt >= 0 and (known.seen is None or known.seen.phase != "created") for known in look.mains)
    return ("Running" if started else look.phase), "", ""


# status


def _status(
    look: _Look, phase: str, *, reason: str = "", message: str = "", waiting: Mapping[str, Blocked] | None = None
) -> core.PodStatus:
    held = waiting or {}
    statuses = tuple(_container_status(known, held, is_init=False) for known in look.mains)
    inits = tuple(_container_status(known, held, is_init=True) for known in look.inits)
    return core.PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=_conditions(look, (*statuses, *_sidecars(look, inits)), phase),
        container_statuses=statuses,
        init_container_statuses=inits,
        ephemeral_container_statuses=tuple(_container_status(known, held, is_init=False) for known in look.ephemerals),
        start_time=look.pod.status.start_time or _text(look.now),
        pod_ip=look.pod.status.pod_ip,
        pod_ips=look.pod.status.pod_ips,
        stop_request=look.pod.status.stop_request,
        idle_notice=look.pod.status.idle_notice,
        resource_claim_statuses=look.pod.status.resource_claim_statuses,
        extended_resource_claim_status=look.pod.status.extended_resource_claim_status,
    )


def _container_status(known: _Known, waiting: Mapping[str, Blocked], *, is_init: bool) -> core.ContainerStatus:
    state, last = _states(known, waiting)
    running = state.running is not None
    done = is_init and state.terminated is not None and state.terminated.exit_code == 0 and not known.is_sidecar
    return core.ContainerStatus(
        name=known.item.name,
        image=known.item.image,
        state=state,
        last_state=last,
        ready=(running and known.health.is_started and known.health.is_ready and not known.is_ephemeral) or done,
        started=running and known.health.is_started,
        restart_count=max(0, known.attempt),
        container_id=known.seen.container_id if known.seen else known.ended.container_id if known.ended else "",
    )


def _states(known: _Known, waiting: Mapping[str, Blocked]) -> tuple[core.ContainerStateUnion, core.ContainerStateUnion]:
    """Return state and last state."""
    block = waiting.get(known.item.name)
    if block is not None:
        shown = core.ContainerStateWaiting(reason=block.reason, message=block.message)
        last = core.ContainerStateUnion(terminated=known.ended) if known.ended is not None else known.last
        return core.ContainerStateUnion(waiting=shown), last
    if known.ended is not None:
        return core.ContainerStateUnion(terminated=known.ended), known.last
    if known.seen is not None and known.seen.phase != "created":
        running = core.ContainerStateRunning(started_at=_text(known.seen.started_at))
        return core.ContainerStateUnion(running=running), known.last
    return core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason=_CREATING)), known.last


def _sidecars(look: _Look, inits: tuple[core.ContainerStatus, ...]) -> tuple[core.ContainerStatus, ...]:
    return tuple(status for status, known in zip(inits, look.inits, strict=True) if known.is_sidecar)


def _conditions(look: _Look, statuses: tuple[core.ContainerStatus, ...], phase: str) -> tuple[meta.Condition, ...]:
    ready = phase == "Running" and all(status.ready for status in statuses)
    wanted = {
        "PodScheduled": True,
        "Initialized": _stage(look) is None,
        "ContainersReady": ready,
    }
    conditions, since = look.pod.status.conditions, _text(look.now)
    for name, value in wanted.items():
        status = "True" if value else "False"
        conditions = meta.with_condition(
            conditions, meta.Condition(type=name, status=status, last_transition_time=since)
        )
    said = restart.ready_condition(look.pod.spec, conditions, is_ready=ready, at=since)
    return meta.with_condition(conditions, said)


def _text(unix_s: float | None) -> str | None:
    return None if unix_s is None else meta.emit_time(unix_s)
