"""Writes events as iCalendar, which calendar programs subscribe to.

Source: RFC 5545, sections 3.1, 3.3.11 and 3.6.1.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Final

from fairlead.frozen import frozen

_OCTETS: Final = 75


@frozen
class Event:
    """One event."""

    uid: str
    """The same each time that it is written, and no other event's."""
    start: float
    """Unix seconds, as `end`."""
    end: float
    summary: str
    description: str = ""


def emit(name: str, events: Iterable[Event], *, now: float) -> bytes:
    """Return a calendar. Args: name: shown by programs.   now: Unix seconds, when it was written."""
    lines = [line for text in _lines(name, events, _time(now)) for line in _folded(text)]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _lines(name: str, events: Iterable[Event], now: str) -> Iterator[str]:
    yield from ("BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//fairlead//reservations//EN", "CALSCALE:GREGORIAN")
    yield f"X-WR-CALNAME:{_text(name)}"
    for one in events:
        yield from ("BEGIN:VEVENT", f"UID:{_text(one.uid)}", f"DTSTAMP:{now}")
        yield from (f"DTSTART:{_time(one.start)}", f"DTEND:{_time(one.end)}", f"SUMMARY:{_text(one.summary)}")
        if one.description:
            yield f"DESCRIPTION:{_text(one.description)}"
        yield from ("TRANSP:OPAQUE", "END:VEVENT")
    yield "END:VCALENDAR"


def _time(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(text: str) -> str:
    """Return a text in which nothing ends a line or a value."""
    kept = "".join(one if one.isprintable() or one == "\n" else " " for one in text)
    return kept.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


def _folded(text: str) -> Iterator[str]:
    """Yield a line in pieces of at most 75 octets, no character cut in two; each but the first begins with a space."""
    piece, size = "", 0
    for one in text:
        more = len(one.encode())
        if size + more > _OCTETS:
            yield piece
            piece, size = " ", 1
        piece, size = piece + one, size + more
    yield piece
