"""Reads when a reservation begins, as people write it: `tomorrow 9:00`, `mon 18:30`, `2026-12-01 9:00`, `now`. Pure."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from typing import Final

from fairlead import errors
from fairlead.wire.text import timezone

_LONGEST: Final = 64
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_LAST_YEAR: Final = 9000
"""Arithmetic on later dates ends at the year 9999."""
HINT: Final = 'for example "tomorrow 9:00", "mon 18:30", "2026-12-01 9:00", "14:00" or "now"'


def zone(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone by its IANA name. Raises: Invalid (`ZoneUnknown`)."""
    found = timezone.zone(name) if len(name) <= _LONGEST else None
    if found is None:
        message = f'zone: "{errors.readable(name[:_LONGEST])}" is not a time zone'
        raise errors.Invalid(message, reason="ZoneUnknown", hint="for example Europe/Berlin or UTC")
    return found


def parse(text: str, *, now: float, where: zoneinfo.ZoneInfo) -> dt.datetime:
    """Return the wall clock's date and time that is meant, in whole minutes, without a zone.

    Args:   now: Unix seconds; `now` begins with the minute that runs.   where: whose clock it is.
    Raises: Invalid (`TimeInvalid`).
    """
    here = dt.datetime.fromtimestamp(now, where).replace(tzinfo=None, second=0, microsecond=0)
    words = text.lower().split() if len(text) <= _LONGEST else []
    if words == ["now"]:
        return here
    try:
        is_instant = len(words) == 1 and "-" in text and "t" in text.lower()
        found = _instant(text, where) if is_instant else _words(words, here)
    except (ValueError, OverflowError) as error:
        raise _not(text) from error
    if found is None or found.year >= _LAST_YEAR:
        raise _not(text)
    return found.replace(second=0, microsecond=0)


def _not(text: str) -> errors.Invalid:
    shown = errors.readable(text[:_LONGEST])
    return errors.Invalid(f'from: "{shown}" is not a time', reason="TimeInvalid", hint=HINT)


def _instant(text: str, where: zoneinfo.ZoneInfo) -> dt.datetime:
    """Return what RFC 3339 says, on the wall clock; without an offset it is the wall clock's. Raises: ValueError."""
    found = dt.datetime.fromisoformat(text.strip())
    return found if found.tzinfo is None else found.astimezone(where).replace(tzinfo=None)


def _words(words: list[str], here: dt.datetime) -> dt.datetime | None:
    """Return a day and a time of day. Raises: ValueError: there is no such date."""
    if not words or len(words) > 2 or (found := _CLOCK.fullmatch(words[-1])) is None:
        return None
    time = dt.time(int(found[1]), int(found[2]))
    if len(words) == 1:  # the next time that a clock shows it
        today = dt.datetime.combine(here.date(), time)
        return today if today >= here else today + dt.timedelta(days=1)
    day = _day(words[0], here, time)
    return None if day is None else dt.datetime.combine(day, time)


def _day(word: str, here: dt.datetime, time: dt.time) -> dt.date | None:
    if word in {"today", "tomorrow"}:
        return here.date() + dt.timedelta(days=word == "tomorrow")
    if word in _DAYS or word in _FULL:
        number = _DAYS.index(word[:3])
        ahead = (number - here.weekday()) % 7
        is_over = ahead == 0 and time < here.time()
        return here.date() + dt.timedelta(days=7 if is_over else ahead)
    return dt.date.fromisoformat(word) if _DATE.fullmatch(word) else None


def parse_day(text: str) -> dt.date:
    """Return the day of `2026-12-31`. Raises: Invalid (`DateInvalid`)."""
    try:
        found = dt.date.fromisoformat(text if _DATE.fullmatch(text) else "")
    except ValueError as error:
        message = f'until: "{errors.readable(text[:_LONGEST])}" is not a day'
        raise errors.Invalid(message, reason="DateInvalid", hint="for example 2026-12-31") from error
    return min(found, dt.date(_LAST_YEAR, 1, 1))
