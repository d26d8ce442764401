"""Marks pods whose worker met an unexpected error, and says when each is tried again.

A bug that one pod brings out stays that pod's own: its status and an event say so, and every other pod goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import backoff
from fairlead.wire.kubernetes import core

REASON: Final = "InternalError"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class _Fault:
    text: str
    count: int
    """How often in a row."""


class Faults:
    """What is wrong with whom now."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[str, _Fault] = {}

    def add(self, uid: str, error: Exception) -> tuple[str, bool, float]:
        """Take in an error; return its text, whether it is news of this pod, and seconds until the next try."""
        text = f"{type(error).__name__}: {error}"
        before = self._known.get(uid, _Fault("", 0))
        self._known[uid] = _Fault(text, before.count + 1)
        wait_s = backoff.doubled(before.count, first_s=_FIRST_WAIT_S, last_s=_LONGEST_WAIT_S)
        return text, text != before.text, wait_s

    def end(self, uid: str) -> bool:
        """Forget a pod's fault; return whether it had one."""
        return self._known.pop(uid, None) is not None

    def marked(self, uid: str, status: core.PodStatus) -> core.PodStatus:
        """Return the status with the pod's fault, if it has one and the status gives no other reason."""
        found = self._known.get(uid)
        if found is None or status.reason not in {"", REASON}:
            return status
        return msgspec.structs.replace(status, reason=REASON, message=message(found.text))


def message(text: str) -> str:
    """Return the message for a person."""
    return f"the kubelet met an error that is not the pod's own and tries again: {text}"
