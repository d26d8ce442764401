"""Gives states the tone in which pages show them; a word goes with each, so that no colour speaks alone. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

GOOD, BUSY, WARN, BAD, IDLE = "good", "busy", "warn", "bad", "idle"
_HUES: Final = 8

_TONES: Final = {
    "running": GOOD,
    "succeeded": IDLE,
    "failed": BAD,
    "prepared": GOOD,
    "preparing": WARN,
    "crashed": BAD,
    "stopped": IDLE,
    "stopping": WARN,
    "pending": WARN,
    "creating": BUSY,
    "gone": IDLE,
    "removing": WARN,
    "allocated": GOOD,
    "waiting": WARN,
    "active": GOOD,
    "delivered": GOOD,
    "given up": BAD,
    "Healthy": GOOD,
    "Unhealthy": BAD,
    "Lost": BAD,
    "Unknown": WARN,
    "Free": IDLE,
    "Held": BUSY,
    "Releasing": WARN,
    "Dirty": WARN,
    "Scrubbing": WARN,
    "Verifying": WARN,
    "Quarantined": BAD,
    "ready": GOOD,
    "notready": BAD,
    "unknown": WARN,
    "Ready": GOOD,
    "Pending": WARN,
    "Suspended": WARN,
    "Terminating": WARN,
    "True": GOOD,
    "False": BAD,
}


def of(state: str) -> str:
    """Return the tone of a state."""
    return _TONES.get(state, IDLE)


def of_status(status: int | None) -> str:
    """Return the tone of an answer's HTTP status."""
    return WARN if status is None else GOOD if status < 400 else BAD


def hue(name: str) -> int:
    """Return the number of the colour that a name has on every page."""
    return hashlib.sha256(name.encode("utf-8", "replace")).digest()[0] % _HUES
