"""Reads times as cron writes them, and says when they are due. Pure.

Source: crontab(5); github.com/robfig/cron, which kube-controller-manager reads schedules with: five fields, names of
months and days, `*/n`, `a-b/n`, and a day counts where either day field says so, unless one of them is `*`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead import errors

_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = 200
_DAYS_AHEAD: Final = 366 * 8
"""A 29th of February may be eight years away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Minutes, hours and days at which something is due."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    is_either_day: bool
    """Both day fields are given: one of them is enough."""

    def _is_day(self, day: dt.date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.is_either_day else by_date and by_weekday

    def after(self, moment: dt.datetime) -> dt.datetime | None:
        """Return the first time after a moment, in its zone; None: there is none within eight years.

        Where clocks are set back, the times of the repeated hour come twice.
        """
        day, since = moment.date(), moment.timestamp()
        for _ in range(_DAYS_AHEAD):
            if self._is_day(day):
                for hour in sorted(self.hours):
                    if day == moment.date() and hour < moment.hour:
                        continue
                    every = (
                        dt.datetime.combine(day, dt.time(hour, minute, fold=fold), tzinfo=moment.tzinfo)
                        for minute in self.minutes
                        for fold in (0, 1)  # the same instant, but in a repeated hour
                    )
                    found = min((one for one in every if one.timestamp() > since), key=_instant, default=None)
                    if found is not None:
                        return found
            day += dt.timedelta(days=1)
        return None


def _instant(moment: dt.datetime) -> tuple[float, int]:
    """Return Unix seconds, then which of two names of that instant comes first."""
    return moment.timestamp(), moment.fold


def parse(text: str) -> Schedule:
    """Return a schedule. Raises: Invalid: it is none."""
    shown = errors.readable(text[:80])
    words = _WORDS.get(text.strip(), text).split() if len(text) <= _LONGEST else []
    if len(words) != len(_FIELDS):
        message = f'"{shown}" is not a schedule: five fields of cron (minute hour day month weekday), or @daily'
        raise errors.Invalid(message, reason="ScheduleInvalid", hint='for example "0 3 * * *", each night at three')
    try:
        sets = [
            frozenset(_numbers(word, low, high, name)) for word, (name, low, high) in zip(words, _FIELDS, strict=True)
        ]
    except ValueError as error:
        raise errors.Invalid(f'"{shown}" is not a schedule: {error}', reason="ScheduleInvalid") from error
    return Schedule(
        minutes=sets[0],
        hours=sets[1],
        days=sets[2],
        months=sets[3],
        weekdays=frozenset(day % 7 for day in sets[4]),
        is_either_day=not words[2].startswith(("*", "?")) and not words[4].startswith(("*", "?")),
    )


def _numbers(word: str, low: int, high: int, name: str) -> Iterator[int]:
    for part in word.split(","):
        span, slash, step = part.partition("/")
        every = int(step) if slash and step.isdecimal() else 1
        if (slash and not step.isdecimal()) or every < 1:
            message = f"{name} {part!r} has no step"
            raise ValueError(message)
        if span in {"*", "?"}:
            yield from range(low, high + 1, every)
            continue
        first, dash, last = span.partition("-")
        begin = _number(first, name)
        end = _number(last, name) if dash else (high if slash else begin)
        if not low <= begin <= end <= high:
            message = f"{name} {part!r} is not between {low} and {high}"
            raise ValueError(message)
        yield from range(begin, end + 1, every)


def _number(text: str, name: str) -> int:
    low = text.lower()
    if name == "month" and low in _MONTHS:
        return _MONTHS.index(low) + 1
    if name == "weekday" and low in _DAYS:
        return _DAYS.index(low)
    if not (text.isascii() and text.isdecimal()):
        message = f"{name} {text!r} is not a number"
        raise ValueError(message)
    return int(text)
