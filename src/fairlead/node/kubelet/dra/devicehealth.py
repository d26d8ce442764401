"""Remembers what drivers say of the health of their devices, until it is stale.

Two instances of a driver may report side by side during an update: each report is its instance's, and the newest one
of a device counts. A report counts from when it came, not from when it says that it was made: clocks differ.
Source: Kubernetes pkg/kubelet/cm/dra/healthinfo.go (behaviour).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fairlead.wire.kubelet import drahealth
from fairlead.wire.kubelet.drahealth import Health

MOST_DEVICES: Final = 8192
"""Devices of one instance that are remembered."""
LONGEST_NAME: Final = 512
LOOK_S: Final = 5.0
"""Between two looks for reports that are stale."""
_LONGEST_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class _Report:
    health: Health
    message: str
    came_at: float
    counts_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a device is."""

    health: Health = Health.UNKNOWN
    message: str = ""


class DeviceHealth:
    """Reports of all drivers of one node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take what tells the time, in seconds."""
        self._clock = clock
        self._reports: dict[tuple[str, str], dict[tuple[str, str], _Report]] = {}
        """By driver and endpoint: by pool and device."""

    def take(self, source: tuple[str, str], devices: Iterable[drahealth.DeviceHealth]) -> tuple[bool, int]:
        """Take in a report of an instance; what it leaves out stays as it was said.

        Args:    source: driver and endpoint.
        Returns: whether it says anything new, and of how many devices it was not taken in: they are too many.
        """
        known, now, is_news, left_out = self._reports.setdefault(source, {}), self._clock(), False, 0
        for one in devices:
            key = (one.pool, one.device)
            if max(map(len, key)) > LONGEST_NAME or (key not in known and len(known) >= MOST_DEVICES):
                left_out += 1
                continue
            counts_s = min(one.timeout_s, _LONGEST_S) if one.timeout_s > 0 else drahealth.STALE_S
            old, message = known.get(key), _shortened(one.message)
            is_news = is_news or old is None or (old.health, old.message) != (one.health, message)
            known[key] = _Report(one.health, message, now, now + counts_s)
        return is_news, left_out

    def drop(self, source: tuple[str, str]) -> None:
        """Forget an instance whose stream has ended."""
        self._reports.pop(source, None)

    def find(self, driver: str, pool: str, device: str) -> State:
        """Return how a device is now."""
        now = self._clock()
        found = [
            known[pool, device]
            for (owner, _), known in self._reports.items()
            if owner == driver and (pool, device) in known and known[pool, device].counts_until > now
        ]
        if not found:
            return State()
        newest = max(found, key=lambda one: one.came_at)
        return State(health=newest.health, message=newest.message)

    def has_expired(self) -> bool:
        """Return whether reports have become stale since the last look; they are forgotten."""
        now, has_any = self._clock(), False
        for known in self._reports.values():
            stale = [key for key, one in known.items() if one.counts_until <= now]
            has_any = has_any or bool(stale)
            for key in stale:
                del known[key]
        return has_any


def _shortened(message: str) -> str:
    """Return a message of at most `MOST_MESSAGE` bytes, without control characters."""
    shown = "".join(one if one.isprintable() else " " for one in message[: drahealth.MOST_MESSAGE])
    data = shown.encode("utf-8", "replace")
    if len(data) <= drahealth.MOST_MESSAGE:
        return data.decode()
    return data[: drahealth.MOST_MESSAGE - 3].decode("utf-8", "ignore") + "..."
