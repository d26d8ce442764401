"""Checks a GPU between two tenants by its newest reading: what takes no time. Pure.

Each check is one small function over a reading, and a row of `CHECKS`. It passes, asks to wait until the GPU is well
again, or fails; what fails goes into quarantine and waits for a person. What takes time is `verification`'s; where that
resets the GPU, what a reset mends is not waited for.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import GPU
from fairlead.plan.gpu import health


class Verdict(enum.Enum):
    """What a check says."""

    GOOD = "good"
    WAIT = "wait"
    """Nothing is proved against it; it must be well before it is verified."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's word on a GPU."""

    verdict: Verdict
    check: str = ""
    """Which check; empty where several were asked."""
    reason: str = ""
    message: str = ""
    observed: str = ""
    expected: str = ""


RESETS: Final = frozenset({1, 4})
"""Recovery actions that the driver asks for and a reset between two tenants carries out: reset, drain and reset."""
PASSED: Final = Finding(verdict=Verdict.GOOD)
Check = Callable[[GPU | None], Finding]
"""Judges the newest reading; None: the GPU does not answer."""


def is_readable(gpu: GPU | None) -> Finding:
    """Wait for a GPU that does not answer: nothing can be said of it."""
    if gpu is not None:
        return PASSED
    return Finding(verdict=Verdict.WAIT, reason="Unreadable", message="it does not answer, so it cannot be verified")


def has_whole_memory(gpu: GPU | None) -> Finding:
    """Fail a GPU whose memory rows could not be remapped; wait where they are remapped at the next reset."""
    if gpu is not None and gpu.health.remap_failed:
        message = "memory rows could not be remapped: replace the GPU"
        return Finding(verdict=Verdict.FAIL, reason="RowRemapFailed", message=message)
    if gpu is not None and gpu.health.remap_pending:
        message = "memory rows are remapped at the next reset: reset the GPU"
        return Finding(verdict=Verdict.WAIT, reason="RowRemapPending", message=message)
    return PASSED


def needs_no_recovery(gpu: GPU | None) -> Finding:
    """Wait while the driver asks for a reset, a reboot or a drain."""
    action = gpu.health.recovery_action if gpu is not None else None
    if action:
        return Finding(verdict=Verdict.WAIT, reason="RecoveryRequired", message=asked_for(action))
    return PASSED


def asked_for(action: int) -> str:
    """Return what the driver asks for by a recovery action, as a person reads it."""
    _, text = health.RECOVERY_ACTIONS.get(action, ("", "the driver asks for recovery"))
    return f"{text} (recovery action {action})"


CHECKS: Final[Mapping[str, Check]] = {
    "readable": is_readable,
    "memory": has_whole_memory,
    "recovery": needs_no_recovery,
}
"""Every check there is, in the order in which they are made."""


def judge(gpu: GPU | None, *, is_reset: bool = False) -> Finding:
    """Return the worst that the checks say: a failure before a wait, the earlier check first.

    Args: is_reset: whether the GPU is reset before it is verified; it is judged as that will leave it.
    """
    found = [check(_after_reset(gpu) if gpu is not None and is_reset else gpu) for check in CHECKS.values()]
    by_weight = (Verdict.FAIL, Verdict.WAIT)
    return next((one for weight in by_weight for one in found if one.verdict is weight), PASSED)


def judge_passthrough(gpu: PassthroughGPU) -> Finding:
    """Wait for a GPU that is passed through and cannot be handed out; its reset tells the rest."""
    if not gpu.problem:
        return PASSED
    return Finding(verdict=Verdict.WAIT, reason="PassthroughUnusable", message=gpu.problem)


def _after_reset(gpu: GPU) -> GPU:
    action = None if gpu.health.recovery_action in RESETS else gpu.health.recovery_action
    return dataclasses.replace(gpu, health=dataclasses.replace(gpu.health, remap_pending=False, recovery_action=action))
