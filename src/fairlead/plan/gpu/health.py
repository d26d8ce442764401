"""Decides whether a GPU may be handed out: findings, one transition table, and a way back. Pure.

A *finding* is something an event or a reading says against a GPU. It becomes one of four signals, and the table moves
the GPU between four states: Healthy and Suspect are offered, Faulty and Recovering are not. Faults act at once. Doubts
(heat) must persist first. The way back needs the cause gone and then a quiet hold, which doubles with every relapse,
so that a flapping GPU does not flap at the kubelet. A fault that only a reset mends is latched: it ends when the GPU
was seen gone and is back, when a reset was reported, or when the driver itself asks for no recovery action.

Which XID means what is data too (`model.gpu.XIDS`), overridable one by one. Waking up to look again is
`node.inventory.health`'s part.

Source: NVML field 230 for recovery actions.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.model.gpu import (
    GPU,
    SPARED,
    UNKNOWN_XID,
    XIDS,
    Action,
    EventKind,
    GPUEvent,
    GPUHealth,
    UnreadableGPU,
    Vendor,
)


class State(enum.Enum):
    """Where a GPU stands."""

    HEALTHY = "Healthy"
    SUSPECT = "Suspect"
    """Offered still; something must pass soon or it is a fault."""
    FAULTY = "Faulty"
    RECOVERING = "Recovering"
    """The cause is gone; withheld until no more errors come."""


class Signal(enum.Enum):
    """What one observation amounts to."""

    FAULT = "fault"
    DOUBT = "doubt"
    CLEAR = "clear"
    SETTLED = "settled"
    """Clear for as long as the state asks."""


TRANSITIONS: Final[Mapping[State, Mapping[Signal, State]]] = {
    State.HEALTHY: {
        Signal.FAULT: State.FAULTY,
        Signal.DOUBT: State.SUSPECT,
        Signal.CLEAR: State.HEALTHY,
        Signal.SETTLED: State.HEALTHY,
    },
    State.SUSPECT: {
        Signal.FAULT: State.FAULTY,
        Signal.DOUBT: State.SUSPECT,
        Signal.CLEAR: State.SUSPECT,
        Signal.SETTLED: State.HEALTHY,
    },
    State.FAULTY: {
        Signal.FAULT: State.FAULTY,
        Signal.DOUBT: State.FAULTY,
        Signal.CLEAR: State.RECOVERING,
        Signal.SETTLED: State.RECOVERING,
    },
    State.RECOVERING: {
        Signal.FAULT: State.FAULTY,
        Signal.DOUBT: State.FAULTY,
        Signal.CLEAR: State.RECOVERING,
        Signal.SETTLED: State.HEALTHY,
    },
}
OFFERED: Final = frozenset({State.HEALTHY, State.SUSPECT})


RECOVERY_ACTIONS: Final[Mapping[int, tuple[str, str]]] = {
    1: ("ResetRequired", "the driver asks for a GPU reset"),
    2: ("RebootRequired", "the driver asks for a node reboot"),
    3: ("DrainRequired", "the driver asks to drain peer-to-peer work"),
    4: ("DrainAndResetRequired", "the driver asks to drain and reset the GPU"),
    5: ("FabricRecoveryRequired", "the driver asks to recover the IMEX domain"),
    6: ("BusResetRequired", "the driver asks for a reset of the GPU's bus"),
    7: ("RebootRequired", "the driver asks for a reboot of the whole system"),
}
_REBOOT: Final = "end what uses it, then reboot the machine; if it does not come back, replace the board"
MENDING: Final[Mapping[str, str]] = {
    "XID79": _REBOOT,
    "Lost": _REBOOT,
    "RebootRequired": _REBOOT,
    "Timeout": "`dmesg | grep NVRM` says what the driver waits for; a reset of the GPU or a reboot ends it",
    "Unreadable": "`dmesg | grep NVRM` has the driver's own words; a reset of the GPU or a reboot brings most back",
    "TemperatureHigh": "look at fans and airflow; `nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {index}` says how hot",
    "RowRemapPending": "when nothing uses it: `nvidia-smi --gpu-reset -i {index}`",
    "RowRemapFailed": "replace the board: its spare memory rows are used up",
}
"""What a person does about a finding, by its reason; `{index}` is the GPU's. For a reason that is not here: a reset."""
PASSING: Final = frozenset({"TemperatureHigh", "RowRemapPending"})
"""Reasons that pass by themselves or with the next reset: `fairlead doctor` never fails for them, it warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits and patience; times in seconds."""

    hot_c: int = 95
    """Of GPUs that give no limit of their own."""
    persist_s: float = 10.0
    """A doubt older than this is a fault; a suspect quiet for this long is healthy."""
    hold_s: float = 10.0
    """Quiet time before the first return; doubles with each relapse."""
    hold_limit_s: float = 600.0
    forget_s: float = 600.0
    """Healthy this long, earlier faults no longer lengthen the hold."""
    settle_s: float = 5.0
    """Time a driver gets to report its recovery action after a fault."""
    xids: Mapping[int, Action] = field(default_factory=dict)
    """Overrides of the XID table."""
    every_xid: Action | None = None
    """What every XID asks for that is not overridden; None: as the table says."""
    uncorrected: int = 0
    """Uncorrected memory errors that an AMD GPU may have counted; NVIDIA's come as events."""


DEFAULT: Final = Policy()
_XID: Final = "XID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is held of one GPU; times on the caller's monotonic clock."""

    state: State = State.HEALTHY
    reason: str = ""
    message: str = ""
    since: float = 0.0
    """When the state began."""
    found_at: float = 0.0
    """When something was last found against it."""
    doubted_since: float | None = None
    is_latched: bool = False
    was_unreadable: bool = False
    hold_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Return whether the GPU may be handed out."""
        return self.state in OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something said against a GPU."""

    reason: str
    message: str
    signal: Signal = Signal.FAULT
    escalates: bool = True
    """A doubt that becomes a fault when it persists; False: the GPU stays offered however long it lasts."""
    latches: bool = False


def judge_event(verdict: Verdict, event: GPUEvent, *, now: float, policy: Policy = DEFAULT) -> Verdict:
    """Return the verdict after one event; events that say nothing against a GPU leave it as it is."""
    if event.kind is EventKind.RECOVERED:
        freed = dataclasses.replace(verdict, is_latched=False)
        return _move(freed, Signal.CLEAR, None, now=now, policy=policy) if verdict.state is State.FAULTY else freed
    finding = find_in_event(event, policy)
    return verdict if finding is None else _move(verdict, Signal.FAULT, finding, now=now, policy=policy)


def find_in_event(event: GPUEvent, policy: Policy = DEFAULT) -> Finding | None:
    """Return what an event says against its GPU, None for what concerns the application only."""
    if event.kind is EventKind.LOST:
        return Finding(reason="Lost", message=event.message or "the GPU does not answer")
    if event.kind is EventKind.ECC_DOUBLE_BIT:
        return Finding(reason="ECCUncorrected", message="uncorrected memory error", latches=True)
    if event.kind is not EventKind.XID or event.xid is None:
        return None
    action, text = XIDS.get(event.xid, UNKNOWN_XID)
    action = policy.xids.get(event.xid, policy.every_xid or action)
    if action in SPARED:
        return None
    return Finding(reason=f"{_XID}{event.xid}", message=f"XID {event.xid}, {text}: {action.value}", latches=True)


def judge_reading(verdict: Verdict, gpu: GPU | UnreadableGPU, *, now: float, policy: Policy = DEFAULT) -> Verdict:
    """Return the verdict after one scan of the GPU."""
    finding = find_in_reading(gpu, policy)
    if finding is not None and not finding.escalates and not verdict.is_healthy:
        finding = None  # a remark keeps no GPU back
    if isinstance(gpu, GPU):
        verdict = _unlatch(verdict, gpu, now=now, policy=policy)
    else:
        verdict = dataclasses.replace(verdict, was_unreadable=True)
    if finding is None and verdict.state is State.FAULTY and verdict.is_latched:
        return verdict
    return _move(verdict, _signal(verdict, finding, now=now, policy=policy), finding, now=now, policy=policy)


def find_in_reading(gpu: GPU | UnreadableGPU, policy: Policy = DEFAULT) -> Finding | None:
    """Return the worst that one scan says against a GPU."""
    if isinstance(gpu, UnreadableGPU):
        return Finding(reason=gpu.reason, message=gpu.message)
    health = gpu.health
    if health.recovery_action:
        reason, text = RECOVERY_ACTIONS.get(
            health.recovery_action, ("RecoveryRequired", "the driver asks for recovery")
        )
        return Finding(reason=reason, message=text)
    if health.remap_failed:
        return Finding(reason="RowRemapFailed", message="memory rows could not be remapped: replace the GPU")
    if gpu.vendor is Vendor.AMD and (health.ecc_uncorrected or 0) > policy.uncorrected:
        text = f"{health.ecc_uncorrected} uncorrected memory errors since the driver was loaded: reset the GPU"
        return Finding(reason="ECCUncorrected", message=text)
    return _find_doubt(health, policy)


def _find_doubt(health: GPUHealth, policy: Policy) -> Finding | None:
    limit_c = health.limit_c or policy.hot_c
    if health.temperature_c is not None and health.temperature_c >= limit_c:
        text = f"{health.temperature_c} C, limit {limit_c} C"
        return Finding(reason="TemperatureHigh", message=text, signal=Signal.DOUBT)
    if health.remap_pending:
        text = "memory rows are remapped at the next reset"
        return Finding(reason="RowRemapPending", message=text, signal=Signal.DOUBT, escalates=False)
    return None


def is_excused(verdict: Verdict, policy: Policy) -> bool:
    """Return whether a GPU waits for a reset because of an XID for which the present rules ask no reset."""
    if not verdict.is_latched or not verdict.reason.startswith(_XID):
        return False
    code = verdict.reason.removeprefix(_XID)
    event = GPUEvent(kind=EventKind.XID, uuid=None, xid=int(code) if code.isdecimal() else None)
    return find_in_event(event, policy) is None


def recheck_s(verdict: Verdict, *, now: float, policy: Policy = DEFAULT) -> float | None:
    """Return in how many seconds another reading can change the verdict by time alone; None: never."""
    if verdict.state is State.RECOVERING:
        return max(verdict.since + verdict.hold_s - now, 0.0)
    if verdict.state is State.SUSPECT and verdict.doubted_since is not None:
        return max(verdict.doubted_since + policy.persist_s - now, 0.0)
    if verdict.state is State.FAULTY and verdict.is_latched and now < verdict.found_at + policy.settle_s:
        return verdict.found_at + policy.settle_s - now
    return None


def _unlatch(verdict: Verdict, gpu: GPU, *, now: float, policy: Policy) -> Verdict:
    """Unlatch where the GPU was gone, or `settle_s` after the finding its driver asks for no recovery action."""
    is_settled = gpu.health.recovery_action == 0 and now >= verdict.found_at + policy.settle_s
    is_latched = verdict.is_latched and not verdict.was_unreadable and not is_settled
    return dataclasses.replace(verdict, is_latched=is_latched, was_unreadable=False)


def _signal(verdict: Verdict, finding: Finding | None, *, now: float, policy: Policy) -> Signal:
    if finding is not None and finding.signal is Signal.FAULT:
        return Signal.FAULT
    if finding is not None and finding.escalates:
        has_persisted = verdict.doubted_since is not None and now >= verdict.doubted_since + policy.persist_s
        return Signal.FAULT if has_persisted else Signal.DOUBT
    if finding is not None:
        return Signal.DOUBT
    quiet_s = policy.persist_s if verdict.state is State.SUSPECT else verdict.hold_s
    since = verdict.found_at if verdict.state is State.SUSPECT else verdict.since
    return Signal.SETTLED if now >= since + quiet_s else Signal.CLEAR


def _move(verdict: Verdict, signal: Signal, finding: Finding | None, *, now: float, policy: Policy) -> Verdict:
    state = TRANSITIONS[verdict.state][signal]
    moved = verdict
    if state is not verdict.state:
        moved = dataclasses.replace(verdict, state=state, since=now, hold_s=_hold_s(verdict, state, now, policy))
    if state is State.HEALTHY:
        return dataclasses.replace(moved, reason="", message="", doubted_since=None, is_latched=False)
    if finding is None:
        return dataclasses.replace(moved, doubted_since=None)
    # The root cause of a latched fault stays the reason whatever follows from it.
    is_root = not (verdict.state is State.FAULTY and verdict.is_latched)
    doubted_since = (verdict.doubted_since or now) if finding.signal is Signal.DOUBT and finding.escalates else None
    return dataclasses.replace(
        moved,
        reason=finding.reason if is_root else verdict.reason,
        message=finding.message if is_root else verdict.message,
        found_at=now,
        doubted_since=doubted_since,
        is_latched=verdict.is_latched or finding.latches,
    )


def _hold_s(verdict: Verdict, state: State, now: float, policy: Policy) -> float:
    if state is not State.FAULTY:
        return verdict.hold_s
    is_first = verdict.hold_s == 0 or (verdict.state in OFFERED and now >= verdict.since + policy.forget_s)
    return policy.hold_s if is_first else min(verdict.hold_s * 2, policy.hold_limit_s)
