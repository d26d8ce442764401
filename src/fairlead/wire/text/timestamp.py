"""Reads RFC 3339 times of any precision: engines and kubelets write nanoseconds, which Python's own reader refuses."""

from __future__ import annotations

import datetime
import re


def unix_seconds(text: str) -> float:
    """Return the Unix time of an RFC 3339 time; 0 for what is not one."""
    head, _, rest = text.partition(".")
    digits = re.match(r"[0-9]*", rest)
    fraction = digits[0] if digits else ""
    zone = rest[len(fraction) :] if rest else ""
    try:
        whole = datetime.datetime.fromisoformat(head + zone).timestamp()
    except ValueError:
        return 0.0
    return whole + (float(f"0.{fraction}") if fraction else 0.0)
