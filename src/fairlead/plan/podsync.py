"""What the kubelet should do next for one pod: a pure function from what is wanted and what is seen.

In: the pod as stored, every container the engine has of it (ended ones too), and what is known to be in the way. Out:
the acts to carry out now, the status to report, and when to look again. All state is in the pod and in the engine, so
a kubelet that was killed anywhere continues where it was. Behaviour follows the real kubelet: init containers one after
another, restart policies, crash back-off 0, 10, 20 … 300 s (reset after ten good minutes), a container that vanished
counts as ended with 137.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.wire.kubernetes import core, meta

STOP_ANNOTATION: Final = "fairlead.dev/stop"
_GOOD_RUN_S: Final = 600.0
_LONGEST_BACKOFF_S: Final = 300.0
ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One container as the engine has it."""

    container: str
    """Its name in the pod."""
    attempt: int
    engine_name: str
    phase: str
    """`created`, `running`, `exited`."""
    exit_code: int = 0
    oom_killed: bool = False
    started_at: float | None = None
    finished_at: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Forget an ended container."""

    engine_name: str


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
    status: core.ContainerStatus | None = None

    @property
    def is_alive(self) -> bool:
        return self.seen is not None and self.seen.phase != "exited"


def sync(
    pod: core.Pod, seen: tuple[Seen, ...], *, now: float, backoff_s: float, blocked: Mapping[str, Blocked]
) -> Plan:
    """Return the next step for one pod.

    Args:    seen: all engine containers with the pod's uid.   now: Unix seconds.   backoff_s: second restart's wait.
             blocked: by container name.
    """
    inits = tuple(_know(item, seen, pod.status.init_container_statuses) for item in pod.spec.init_containers)
    mains = tuple(_know(item, seen, pod.status.container_statuses) for item in pod.spec.containers)
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in ENDED:
        return _wind_down(pod, inits, mains, seen)
    if STOP_ANNOTATION in pod.metadata.annotations:
        return _stop(pod, inits, mains, seen)
    final = next((block for block in blocked.values() if block.is_final), None)
    if final is not None:
        return _fail(pod, inits, mains, seen, final)
    return _advance(pod, inits, mains, seen, now=now, backoff_s=backoff_s, blocked=blocked)


def fail(pod: core.Pod, reason: str, message: str) -> core.PodStatus:
    """Return the status of a pod refused at admission."""
    return core.PodStatus(
        phase="Failed",
        reason=reason,
        message=message,
        conditions=pod.status.conditions,
        container_statuses=pod.status.container_statuses,
        start_time=pod.status.start_time,
    )


def _know(item: core.Container, seen: tuple[Seen, ...], statuses: tuple[core.ContainerStatus, ...]) -> _Known:
    mine = [one for one in seen if one.container == item.name]
    newest = max(mine, key=lambda one: one.attempt, default=None)
    status = next((one for one in statuses if one.name == item.name), None)
    if newest is not None:
        return _Known(item=item, attempt=newest.attempt, seen=newest, status=status)
    if status is None or (status.state.running is None and status.state.terminated is None):
        return _Known(item=item, attempt=status.restart_count - 1 if status and status.restart_count else -1)
    return _Known(item=item, attempt=status.restart_count, status=status)


# the four situations


def _wind_down(pod: core.Pod, inits: tuple[_Known, ...], mains: tuple[_Known, ...], seen: tuple[Seen, ...]) -> Plan:
    """The pod is being deleted, or has ended: nothing of it may live."""
    is_deleted = pod.metadata.deletion_timestamp is not None
    alive = tuple(one for one in seen if one.phase != "exited")
    if alive:
        return Plan(acts=_kills(pod, alive), status=_status(pod, inits, mains, pod.status.phase or "Pending"))
    removals: tuple[Act, ...] = tuple(Remove(engine_name=one.engine_name) for one in seen) if is_deleted else ()
    phase = pod.status.phase if pod.status.phase in ENDED else "Failed"
    status = pod.status if pod.status.phase in ENDED else _status(pod, inits, mains, phase)
    return Plan(acts=removals, status=status, is_over=True, forget=is_deleted)


def _stop(pod: core.Pod, inits: tuple[_Known, ...], mains: tuple[_Known, ...], seen: tuple[Seen, ...]) -> Plan:
    alive = tuple(one for one in seen if one.phase != "exited")
    if alive:
        return Plan(acts=_kills(pod, alive), status=_status(pod, inits, mains, "Running"))
    good = bool(mains) and all(_exit_code(known) == 0 for known in mains)
    status = _status(
        pod, inits, mains, "Succeeded" if good else "Failed", reason="Stopped", message="stopped on request"
    )
    return Plan(status=status, is_over=True)


def _fail(
    pod: core.Pod, inits: tuple[_Known, ...], mains: tuple[_Known, ...], seen: tuple[Seen, ...], block: Blocked
) -> Plan:
    alive = tuple(one for one in seen if one.phase != "exited")
    if alive:
        return Plan(acts=_kills(pod, alive), status=_status(pod, inits, mains, "Pending"))
    status = _status(pod, inits, mains, "Failed", reason=block.reason, message=block.message)
    return Plan(status=status, is_over=True)


def _advance(
    pod: core.Pod,
    inits: tuple[_Known, ...],
    mains: tuple[_Known, ...],
    seen: tuple[Seen, ...],
    *,
    now: float,
    backoff_s: float,
    blocked: Mapping[str, Blocked],
) -> Plan:
    stage = _first_unfinished(inits)
    group = (stage,) if stage is not None else mains
    is_init = stage is not None
    acts: list[Act] = []
    wakes: list[float] = []
    waiting: dict[str, Blocked] = {}
    for known in group:
        act, due = _next(pod, known, is_init=is_init, now=now, backoff_s=backoff_s)
        block = blocked.get(known.item.name)
        if act is not None and block is not None and block.retry_at > now:
            waiting[known.item.name] = block
            wakes.append(block.retry_at)
        elif act is not None and due > now:
            waiting[known.item.name] = _crash_loop(pod, known, due - now)
            wakes.append(due)
        elif act is not None:
            acts.append(act)
    acts += _outdated(seen)
    phase, reason, message = _phase(inits, mains, is_init=is_init, busy=bool(acts) or bool(waiting))
    status = _status(pod, inits, mains, phase, reason=reason, message=message, waiting=waiting)
    return Plan(acts=tuple(acts), status=status, wake_at=min(wakes, default=None), is_over=phase in ENDED)


def _first_unfinished(inits: tuple[_Known, ...]) -> _Known | None:
    return next((known for known in inits if known.is_alive or _exit_code(known) != 0), None)


def _next(pod: core.Pod, known: _Known, *, is_init: bool, now: float, backoff_s: float) -> tuple[Act | None, float]:
    """Return what to do with one container and when; None: leave it."""
    if known.attempt < 0:
        return Start(container=known.item.name, attempt=0), now
    if known.seen is not None and known.seen.phase == "created":
        return Resume(container=known.item.name, engine_name=known.seen.engine_name), now
    if known.is_alive or not _restarts(pod, known, is_init=is_init):
        return None, now
    ended = _finished_at(known) or now
    return Start(container=known.item.name, attempt=known.attempt + 1), ended + _backoff(known, backoff_s)


def _restarts(pod: core.Pod, known: _Known, *, is_init: bool) -> bool:
    policy = pod.spec.restart_policy
    if is_init:
        return policy != "Never" and _exit_code(known) != 0
    return policy == "Always" or (policy == "OnFailure" and _exit_code(known) != 0)


def _backoff(known: _Known, backoff_s: float) -> float:
    started, ended = _started_at(known), _finished_at(known)
    is_good = started is not None and ended is not None and ended - started >= _GOOD_RUN_S
    if known.attempt == 0 or is_good:
        return 0.0
    return min(_LONGEST_BACKOFF_S, backoff_s * 2.0 ** min(known.attempt - 1, 16))


def _crash_loop(pod: core.Pod, known: _Known, left_s: float) -> Blocked:
    message = f"back-off {left_s:.0f}s restarting failed container={known.item.name} pod={pod.metadata.name}"
    return Blocked(reason="CrashLoopBackOff", message=message, is_final=False)


def _outdated(seen: tuple[Seen, ...]) -> list[Act]:
    """Ended attempts before the last two of each container: kept for logs no longer."""
    newest: dict[str, int] = {}
    for one in seen:
        newest[one.container] = max(newest.get(one.container, 0), one.attempt)
    return [
        Remove(engine_name=one.engine_name)
        for one in seen
        if one.phase == "exited" and one.attempt < newest[one.container] - 1
    ]


def _kills(pod: core.Pod, alive: tuple[Seen, ...]) -> tuple[Act, ...]:
    grace = pod.metadata.deletion_grace_period_seconds
    grace_s = float(pod.spec.termination_grace_period_seconds if grace is None else grace)
    text = pod.metadata.annotations.get(STOP_ANNOTATION + "-grace", "")
    if text.replace(".", "", 1).isdigit():
        grace_s = float(text)
    return tuple(Kill(engine_name=one.engine_name, grace_s=grace_s) for one in alive)


# readings


def _exit_code(known: _Known) -> int | None:
    """Return the exit code of an ended container, None while it lives or before it ran."""
    if known.seen is not None:
        return known.seen.exit_code if known.seen.phase == "exited" else None
    if known.status is None:
        return None
    terminated = known.status.state.terminated
    return terminated.exit_code if terminated is not None else 137


def _finished_at(known: _Known) -> float | None:
    if known.seen is not None:
        return known.seen.finished_at
    terminated = known.status.state.terminated if known.status else None
    return meta.timestamp(terminated.finished_at) if terminated else None


def _started_at(known: _Known) -> float | None:
    if known.seen is not None:
        return known.seen.started_at
    return None


def _phase(
    inits: tuple[_Known, ...], mains: tuple[_Known, ...], *, is_init: bool, busy: bool
) -> tuple[str, str, str]:
    if is_init:
        stage = _first_unfinished(inits)
        code = _exit_code(stage) if stage else None
        if code is not None and not busy:
            name = stage.item.name if stage else ""
            return "Failed", "InitContainerFailed", f'init container "{name}" exited with {code}'
        return "Pending", "", ""
    codes = [_exit_code(known) for known in mains]
    if not busy and all(code is not None for code in codes):
        if all(code == 0 for code in codes):
            return "Succeeded", "", ""
        return "Failed", *_why_failed(mains)
    started = any(known.attempt >= 0 and (known.seen is None or known.seen.phase != "created") for known in mains)
    return ("Running" if started else "Pending"), "", ""


def _why_failed(mains: tuple[_Known, ...]) -> tuple[str, str]:
    known = next(one for one in mains if _exit_code(one) != 0)
    reason = _terminated(known).reason
    return ("" if reason == "Error" else reason), f'container "{known.item.name}" exited with {_exit_code(known)}'


# status


def _status(
    pod: core.Pod,
    inits: tuple[_Known, ...],
    mains: tuple[_Known, ...],
    phase: str,
    *,
    reason: str = "",
    message: str = "",
    waiting: Mapping[str, Blocked] | None = None,
) -> core.PodStatus:
    held = waiting or {}
    statuses = tuple(_container_status(known, held, is_init=False) for known in mains)
    init_statuses = tuple(_container_status(known, held, is_init=True) for known in inits)
    return core.PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=_conditions(pod, inits, statuses, phase),
        container_statuses=statuses,
        init_container_statuses=init_statuses,
        start_time=pod.status.start_time or meta.now(),
        pod_ip=pod.status.pod_ip,
    )


def _container_status(known: _Known, waiting: Mapping[str, Blocked], *, is_init: bool) -> core.ContainerStatus:
    state, last = _states(known, waiting)
    running = state.running is not None
    done = is_init and state.terminated is not None and state.terminated.exit_code == 0
    return core.ContainerStatus(
        name=known.item.name,
        image=known.item.image,
        state=state,
        last_state=last,
        ready=running or done,
        started=running,
        restart_count=max(0, known.attempt),
        container_id=f"podman://{known.seen.engine_name}" if known.seen else "",
    )


def _states(known: _Known, waiting: Mapping[str, Blocked]) -> tuple[core.ContainerStateUnion, core.ContainerStateUnion]:
    nothing = core.ContainerStateUnion()
    ended = core.ContainerStateUnion(terminated=_terminated(known)) if _exit_code(known) is not None else nothing
    block = waiting.get(known.item.name)
    if block is not None:
        shown = core.ContainerStateWaiting(reason=block.reason, message=block.message)
        return core.ContainerStateUnion(waiting=shown), ended
    if known.attempt < 0 or (known.seen is not None and known.seen.phase == "created"):
        return core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="ContainerCreating")), nothing
    if known.is_alive and known.seen is not None:
        last = known.status.last_state if known.status else nothing
        running = core.ContainerStateRunning(started_at=_text(known.seen.started_at))
        return core.ContainerStateUnion(running=running), last
    return ended, (known.status.last_state if known.status else nothing)


def _terminated(known: _Known) -> core.ContainerStateTerminated:
    if known.seen is None:
        old = known.status.state.terminated if known.status else None
        if old is not None:
            return old
        text = "The container could not be located when the pod was looked at; it was removed behind our back"
        return core.ContainerStateTerminated(exit_code=137, reason="ContainerStatusUnknown", message=text)
    seen = known.seen
    reason = "OOMKilled" if seen.oom_killed else "Completed" if seen.exit_code == 0 else "Error"
    return core.ContainerStateTerminated(
        exit_code=seen.exit_code, reason=reason, started_at=_text(seen.started_at), finished_at=_text(seen.finished_at)
    )


def _conditions(
    pod: core.Pod, inits: tuple[_Known, ...], statuses: tuple[core.ContainerStatus, ...], phase: str
) -> tuple[meta.Condition, ...]:
    ready = phase == "Running" and all(status.ready for status in statuses)
    wanted = {
        "PodScheduled": True,
        "Initialized": _first_unfinished(inits) is None,
        "ContainersReady": ready,
        "Ready": ready,
    }
    old = {item.type: item for item in pod.status.conditions}
    return tuple(_condition(name, value, old.get(name)) for name, value in wanted.items())


def _condition(name: str, value: bool, old: meta.Condition | None) -> meta.Condition:
    status = "True" if value else "False"
    since = old.last_transition_time if old is not None and old.status == status else meta.now()
    return meta.Condition(type=name, status=status, last_transition_time=since)


def _text(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
