"""Reads, writes and takes apart timestamps and durations.

Zones are UTC and fixed offsets alone: the names of regions need a database that this room does not read.
Source: Go time (RFC 3339, ParseDuration); cel-go common/types/timestamp.go and duration.go.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Final

from fairlead.plan.cel.functions import operator
from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.value import Duration, Failed, Timestamp, Value

_MOMENT: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,40}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_ZONE: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)
_SPAN: Final = re.compile(r"(\d{0,30})(?:\.(\d{0,30}))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SECOND: Final = 10**9
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse_moment(text: str) -> Timestamp:
    """Return the timestamp that a text is. Raises: Failed."""
    shape = _MOMENT.fullmatch(text)
    if shape is None:
        raise Failed(f"invalid timestamp {shown(text)}")
    try:
        parts = [int(shape[at]) for at in range(1, 7)]
        day = datetime.datetime(*parts[:3], *parts[3:], tzinfo=datetime.UTC)  # type: ignore[misc,arg-type]  # six parts
    except ValueError as error:
        raise Failed(f"invalid timestamp {shown(text)}") from error
    seconds = (day - _EPOCH) // datetime.timedelta(seconds=1)
    fraction = int((shape[7] or "").ljust(9, "0")[:9])
    if shape[8]:
        hours, minutes = int(shape[9]), int(shape[10])
        if hours > 23 or minutes > 59:
            raise Failed(f"invalid timestamp {shown(text)}")
        offset = hours * 3600 + minutes * 60
        seconds += -offset if shape[8] == "+" else offset
    return operator.moment(seconds * _SECOND + fraction)


def parse_span(text: str) -> Duration:
    """Return the duration that a text is: `1h30m`, `-1.5s`. Raises: Failed."""
    bare = text[1:] if text[:1] in {"+", "-"} else text
    if bare == "0":
        return Duration(0)
    total, at = 0, 0
    while at < len(bare):
        shape = _SPAN.match(bare, at)
        if shape is None or not (shape[1] or shape[2]):
            raise Failed(f"invalid duration {shown(text)}")
        unit = _UNITS[shape[3]]
        fraction = shape[2] or ""
        total += int(shape[1] or 0) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        at = shape.end()
    if not at or total > 2**63:
        raise Failed(f"invalid duration {shown(text)}")
    return operator.span(-total if text[0] == "-" else total)


def emit_moment(value: Timestamp) -> str:
    """Return a timestamp's text."""
    seconds, nanos = divmod(value.nanos, _SECOND)
    day = _EPOCH + datetime.timedelta(seconds=seconds)
    fraction = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"{day.year:04}-{day:%m-%dT%H:%M:%S}{fraction}Z"


def emit_span(value: Duration) -> str:
    """Return a duration's text, in seconds."""
    seconds, nanos = divmod(abs(value.nanos), _SECOND)
    fraction = f".{nanos:09}".rstrip("0") if nanos else ""
    return f"{'-' if value.nanos < 0 else ''}{seconds}{fraction}s"


def _local(value: Timestamp, zone: str) -> datetime.datetime:
    shape = _ZONE.fullmatch(zone)
    if shape is not None:
        offset = (int(shape[2]) * 60 + int(shape[3])) * (-1 if shape[1] == "-" else 1)
    elif zone in {"", "UTC"}:
        offset = 0
    else:
        raise Failed(f"unknown time zone {shown(zone)} (a selector knows UTC and offsets such as -08:00)")
    try:
        return _EPOCH + datetime.timedelta(seconds=value.nanos // _SECOND, minutes=offset)
    except OverflowError as error:
        raise Failed("timestamp overflow") from error


_PARTS: Final[dict[str, Callable[[datetime.datetime], int]]] = {
    "year": lambda day: day.year,
    "month": lambda day: day.month - 1,
    "day_of_year": lambda day: day.timetuple().tm_yday - 1,
    "day_of_month": lambda day: day.day - 1,
    "day_of_month_1_based": lambda day: day.day,
    "day_of_week": lambda day: day.isoweekday() % 7,
    "hours": lambda day: day.hour,
    "minutes": lambda day: day.minute,
    "seconds": lambda day: day.second,
}


def _part(name: str) -> Callable[..., Value]:
    read = _PARTS[name]
    return lambda value, zone="UTC": read(_local(value, zone))


def _milliseconds(value: Timestamp, zone: str = "UTC") -> int:
    _local(value, zone)
    return value.nanos % _SECOND // 10**6


def _cut(value: int, unit: int) -> int:
    return value // unit if value >= 0 else -(-value // unit)


TABLE: Final[dict[str, Callable[..., Value]]] = {
    **{f"timestamp_to_{name}{ending}": _part(name) for name in _PARTS for ending in ("", "_with_tz")},
    **{f"timestamp_to_milliseconds{ending}": _milliseconds for ending in ("", "_with_tz")},
    "duration_to_hours": lambda value: _cut(value.nanos, 3600 * _SECOND),
    "duration_to_minutes": lambda value: _cut(value.nanos, 60 * _SECOND),
    "duration_to_seconds": lambda value: _cut(value.nanos, _SECOND),
    "duration_to_milliseconds": lambda value: _cut(value.nanos, 10**6),
}
