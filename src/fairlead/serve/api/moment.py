"""Reads the times of requests' parameters; without the web framework."""

from __future__ import annotations

from typing import Final

from fairlead import errors
from fairlead.wire.text import timestamp

_LATEST: Final = 1 << 35
"""Of the year 3058: what is later is a slip, and no calendar has to bear it."""


def read(name: str, text: str) -> float:
    """Return the Unix seconds of a parameter. Raises: RequestError (`PeriodInvalid`)."""
    found = timestamp.parse(text)
    if found is None or not 0 <= found < _LATEST:
        message = f'{name}: "{text}" is not a time'
        raise errors.RequestError(message, reason="PeriodInvalid", hint="RFC 3339, as 2026-11-01T00:00:00Z")
    return found
