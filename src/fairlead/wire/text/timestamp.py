"""Reads RFC 3339 times of any precision: engines and kubelets write nanoseconds, which Python's own reader refuses.

Times are written in one form: UTC with a `Z`, to the microsecond, or to the second where no more is known.
"""

from __future__ import annotations

import datetime
import re


def unix_seconds(text: str) -> float:
    """Return the Unix time of an RFC 3339 time; 0 for what is not one."""
    return parse(text) or 0.0


def parse(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 time; None for what is not one, a time without a zone too."""
    head, _, rest = text.partition(".")
    digits = re.match(r"[0-9]*", rest)
    fraction = digits[0] if digits else ""
    zone = rest[len(fraction) :] if rest else ""
    try:
        moment = datetime.datetime.fromisoformat(head + zone)
        whole = moment.timestamp()
    except (ValueError, OverflowError):
        return None
    return None if moment.tzinfo is None else whole + (float(f"0.{fraction}") if fraction else 0.0)


def nanoseconds(text: str) -> int | None:
    """Return the nanoseconds since 1970 of an RFC 3339 time; None for what is not one."""
    head, _, rest = text.partition(".")
    digits = re.match(r"[0-9]*", rest)
    fraction = digits[0] if digits else ""
    whole = parse(head + rest[len(fraction) :])
    return None if whole is None else round(whole) * 10**9 + int(f"{fraction[:9]:<09}")


def emit(seconds: float) -> str:
    """Return Unix seconds as an RFC 3339 time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
