"""Reads lengths of time as Go prints them, `1m21.284s`: kubelets and engines write them into messages.

Source: Go's `time.Duration.String`.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|ms|s|m|h)")
SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Of each unit."""
_LONGEST: Final = 40


def parse(text: str) -> float | None:
    """Return seconds; None for what is not a length of time, a negative one too."""
    parts = _PART.findall(text) if len(text) <= _LONGEST else []
    if "".join(number + unit for number, unit in parts) != text or not parts:
        return None
    return sum(float(number) * SECONDS[unit] for number, unit in parts)
