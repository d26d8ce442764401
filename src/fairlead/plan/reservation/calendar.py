"""Says in which windows a reservation holds its GPUs. Pure.

A window begins when the clock on the wall of the reservation's zone shows its time, and lasts as long as it says. Where
clocks are set forward over that time, it begins as much later as they are set (09:00 for an 08:00 that there is not);
where they are set back, it begins the first time that they show it, and once.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.reservation import when
from fairlead.wire.fairlead import reservation
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import meta

MOST_DAYS: Final = 366
"""How far ahead GPUs can be reserved."""
_DAY: Final = dt.timedelta(days=1)
_EVERY_S: Final = {reservation.DAILY: 86400, reservation.WEEKDAYS: 86400, reservation.WEEKLY: 7 * 86400}
_FRIDAY: Final = 4


@frozen
class Window:
    """One time for which GPUs are reserved."""

    namespace: str
    name: str
    """Of the reservation."""
    gpus: int
    start: float
    """Unix seconds, as `end`."""
    end: float
    zone: str = "UTC"

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is: namespace and name."""
        return self.namespace, self.name


def start_text(start: float) -> str:
    """Return a window's begin as a reservation's status has it."""
    return meta.emit_time(start)


def says(start: float, zone: str) -> str:
    """Return a time as people read it: `Mon 30 Nov 09:00 CET`."""
    return dt.datetime.fromtimestamp(start, when.zone(zone)).strftime("%a %d %b %H:%M %Z")


def check_length(spec: ReservationSpec) -> None:
    """Refuse a window that is still open when the next one begins. Raises: Invalid (`DurationInvalid`)."""
    every = _EVERY_S.get(spec.repeat)
    # An hour less, since the day on which clocks are set forward is that much shorter.
    if every is not None and spec.duration_seconds > every - 3600:
        message = f"for: windows of {spec.duration_seconds / 3600:g} h overlap where they repeat {spec.repeat}"
        hint = f"at most {(every - 3600) // 3600} h, or several reservations"
        raise errors.Invalid(message, reason="DurationInvalid", hint=hint)


def starts(spec: ReservationSpec, begin: float, end: float) -> Iterator[float]:
    """Yield when windows begin whose end is after `begin`, and whose begin is before `end`, the earliest first."""
    first, zone = dt.datetime.fromisoformat(spec.start), when.zone(spec.zone)
    last = dt.date.fromisoformat(spec.until) if spec.until else first.date()
    # Days long past are jumped over: a day of air, since a zone's day is not UTC's.
    near = dt.datetime.fromtimestamp(max(0.0, begin - spec.duration_seconds), dt.UTC).date() - 2 * _DAY
    skipped = max(0, (near - first.date()).days)
    step = 7 if spec.repeat == reservation.WEEKLY else 1
    day = first.date() + dt.timedelta(days=skipped // step * step if spec.repeat else 0)
    while day <= last:
        if spec.repeat != reservation.WEEKDAYS or day.weekday() <= _FRIDAY:
            at = dt.datetime.combine(day, first.time(), tzinfo=zone).timestamp()
            if at >= end:
                return
            if at + spec.duration_seconds > begin:
                yield at
        if not spec.repeat:
            return
        day += dt.timedelta(days=step)


def is_over(item: Reservation, now: float) -> bool:
    """Return whether the last window of a reservation has ended, or it cannot be read."""
    try:
        return next(starts(item.spec, now, math.inf), None) is None
    except (errors.FairleadError, ValueError, OverflowError):
        return True


def windows(item: Reservation, begin: float, end: float) -> tuple[Window, ...]:
    """Return the windows of one reservation that are open at some time of a span; those given back are left out.

    A reservation that cannot be read (it was not made through the API) has none.
    """
    about, spec, released = item.metadata, item.spec, frozenset(item.status.released)
    try:
        return tuple(
            Window(
                namespace=about.namespace,
                name=about.name,
                gpus=spec.gpus,
                start=at,
                end=at + spec.duration_seconds,
                zone=spec.zone,
            )
            for at in starts(spec, begin, min(end, begin + (MOST_DAYS + 7) * 86400))
            if start_text(at) not in released
        )
    except (errors.FairleadError, ValueError, OverflowError):
        return ()


def all_windows(items: Iterable[Reservation], begin: float, end: float) -> tuple[Window, ...]:
    """Return the windows of all reservations, by their begin."""
    found = (one for item in items for one in windows(item, begin, end))
    return tuple(sorted(found, key=lambda one: (one.start, one.end, one.key)))
