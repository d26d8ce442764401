"""Judges a reservation that is asked for: by what there is, by what others reserved, by what a tenant may. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.reservation import calendar, profile, when
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.reservation.profile import Holder
from fairlead.settings import ReserveSettings
from fairlead.wire.fairlead import reservation
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec

LONGEST_S: Final = 31 * 86400
"""Of one window."""
SHORTEST_S: Final = 60
MOST_ALL: Final = 1000
"""Reservations of all namespaces together."""
MOST_WINDOWS: Final = 20_000
"""Windows of all of them, so that looking through them stays quick."""
_HOUR: Final = 3600.0
_NAMED: Final = 5


@frozen
class Ground:
    """What a reservation is judged by."""

    capacity: int
    """GPUs of the machine."""
    others: tuple[Reservation, ...]
    """All reservations there are."""
    holders: tuple[Holder, ...]
    """Containers that have GPUs now."""
    now: float
    """Unix seconds."""


def bounded(spec: ReservationSpec, settings: ReserveSettings, now: float, *, is_tenant: bool) -> ReservationSpec:
    """Return a reservation that ends: one that repeats does so as long as who asks may reserve ahead.

    Raises: Invalid: a field of it; Denied (`ReservedTooFar`): it goes on for longer.
    """
    check_fields(spec)
    first = dt.datetime.fromisoformat(spec.start)
    days = min(settings.ahead_days, calendar.MOST_DAYS) if is_tenant else calendar.MOST_DAYS
    end = dt.datetime.fromtimestamp(now, when.zone(spec.zone)).date() + dt.timedelta(days=days)
    last = when.parse_day(spec.until) if spec.until else (end if spec.repeat else first.date())
    if not spec.repeat and spec.until:
        message = "until: it says how long a reservation repeats, and this one does not"
        raise errors.Invalid(message, reason="UntilInvalid", hint="add --repeat daily, weekdays or weekly")
    if max(last, first.date()) > end:
        message = f"{max(last, first.date())} is further ahead than {days} days, the most that is reserved"
        hint = f"end by {end}" + (", or ask root (setting reserve.ahead_days)" if is_tenant else "")
        raise errors.Denied(message, reason="ReservedTooFar", hint=hint)
    if last < first.date():
        message = f"until: {last} is before the first window, {first.date()}"
        raise errors.Invalid(message, reason="UntilInvalid", hint=f"for example {first.date()}")
    until = last.isoformat() if spec.repeat else ""
    return msgspec.structs.replace(spec, until=until)


def check_fields(spec: ReservationSpec) -> None:
    """Refuse what no reservation says. Raises: Invalid."""
    if spec.gpus < 1:
        raise errors.Invalid(f"gpus: {spec.gpus} is not 1 or more", reason="GPUsInvalid", hint="for example -g 4")
    if spec.repeat not in reservation.REPEATS:
        shown = errors.readable(spec.repeat[:40])
        message = f'repeat: "{shown}" is not daily, weekdays or weekly'
        raise errors.Invalid(message, reason="RepeatInvalid", hint="leave it out for a reservation of one time")
    if not SHORTEST_S <= spec.duration_seconds <= LONGEST_S:
        message = f"for: {spec.duration_seconds} s is not between a minute and {LONGEST_S // 86400} days"
        raise errors.Invalid(message, reason="DurationInvalid", hint="for example --for 3h")
    calendar.check_length(spec)


def check(asked: Reservation, ground: Ground, settings: ReserveSettings, *, is_tenant: bool) -> tuple[Window, ...]:
    """Refuse a reservation that cannot be kept, or that a tenant may not make; returns its windows.

    Raises: Invalid (`ReservationOver`); Insufficient (`ReservationConflict`): with whom and when; Denied: a limit.
    """
    now, far = ground.now, ground.now + (calendar.MOST_DAYS + 32) * 86400
    mine = calendar.windows(asked, now, far)
    if not mine:
        message = "the reservation is over before it begins: none of its windows is ahead"
        raise errors.Invalid(message, reason="ReservationOver", hint=when.HINT)
    if asked.spec.gpus > ground.capacity:
        message = f"{asked.spec.gpus} GPUs are asked for, and this machine has {ground.capacity}"
        raise errors.Insufficient(message, reason="ReservationConflict", hint="reserve fewer")
    if len(ground.others) >= MOST_ALL:
        message = f"{MOST_ALL} reservations are kept, the most at a time"
        raise errors.Denied(message, reason="TooManyReservations", hint="delete some: `fairlead reserve list`")
    if is_tenant:
        _check_share(asked, mine, ground, settings)
    if len(mine) + len(calendar.all_windows(ground.others, now, far)) > MOST_WINDOWS:
        message = f"{MOST_WINDOWS} windows are ahead, of all reservations, the most at a time"
        raise errors.Denied(message, reason="TooManyReservations", hint="repeat less long (--until), or delete some")
    there = calendar.all_windows(ground.others, mine[0].start, mine[-1].end)
    found = profile.overbooked(profile.build((*there, *mine)), ground.capacity, mine)
    if found is not None:
        raise _conflict(asked, found, ground.capacity)
    if is_tenant:
        _check_lead(asked, mine, there, ground, settings)
    return mine


def _conflict(asked: Reservation, found: profile.Segment, capacity: int) -> errors.Insufficient:
    about = asked.metadata
    theirs = [one for one in found.windows if one.key != (about.namespace, about.name)]
    count = sum(one.gpus for one in theirs)
    at, end = calendar.says(found.start, asked.spec.zone), calendar.says(found.end, asked.spec.zone)
    message = f"{asked.spec.gpus} GPUs are asked for, and {count} of {capacity} are reserved from {at} to {end}"
    hint = "reserve fewer, or at another time: `fairlead reserve list` shows what is taken"
    whose = tuple(f"{one.namespace}/{one.name}" for one in theirs)
    return errors.Insufficient(message, reason="ReservationConflict", hint=hint, reservations=whose)


def with_whom(error: errors.Insufficient, may_see: Callable[[str], bool]) -> errors.Insufficient:
    """Return a conflict that names the reservations in the way, as far as who asks may know them."""
    every = error.context.get("reservations")
    if not isinstance(every, tuple):
        return error
    whose = [one for one in every if may_see(one.partition("/")[0])]
    hidden = len(every) - len(whose)
    others = f" and {hidden} of others" if hidden else ""
    named = f", for {', '.join(whose[:_NAMED])}{others}" if whose else ""
    return errors.Insufficient(f"{error.message}{named}", reason=error.reason, hint=error.hint)


def gpu_hours(windows: Collection[Window], now: float) -> float:
    """Return the GPU-hours of windows that are still to come, or to end."""
    return sum(one.gpus * max(0.0, one.end - max(one.start, now)) for one in windows) / _HOUR


def _check_share(asked: Reservation, mine: Collection[Window], ground: Ground, settings: ReserveSettings) -> None:
    """Refuse a tenant more than is theirs. Raises: Denied."""
    own = [one for one in ground.others if one.metadata.namespace == asked.metadata.namespace]
    if len(own) >= settings.most:
        message = f"{len(own)} reservations are yours, the most at a time"
        raise errors.Denied(message, reason="TooManyReservations", hint="delete one: `fairlead reserve delete NAME`")
    far = ground.now + (calendar.MOST_DAYS + 32) * 86400
    had = gpu_hours(calendar.all_windows(own, ground.now, far), ground.now)
    more = gpu_hours(mine, ground.now)
    if had + more > settings.gpu_hours:
        message = f"{more:g} GPU-hours are asked for, {had:g} are reserved, and {settings.gpu_hours:g} are the most"
        hint = "reserve less, repeat less often (--until), or ask root (setting reserve.gpu_hours)"
        raise errors.Denied(message, reason="ReservationQuota", hint=hint)
    last = max(one.end for one in mine)
    if last > ground.now + (settings.ahead_days + 1) * 86400:
        message = f"it ends {calendar.says(last, asked.spec.zone)}, further ahead than {settings.ahead_days} days"
        raise errors.Denied(message, reason="ReservedTooFar", hint="end sooner, or ask root (reserve.ahead_days)")


def _check_lead(
    asked: Reservation, mine: Collection[Window], there: Collection[Window], ground: Ground, settings: ReserveSettings
) -> None:
    """Refuse a tenant what would have others' containers end soon. Raises: Insufficient (`ReservationTooSoon`)."""
    soon = ground.now + settings.lead_h * _HOUR
    near = [one for one in mine if one.start < soon]
    for one in near:
        begin = max(one.start, ground.now)
        used = profile.used_at(ground.holders, begin)
        open_now = (each for each in (*there, *near) if each.start <= begin < each.end)
        reserved = profile.build(open_now).segments
        held = reserved[0].reserved() if reserved else {}
        lacking = profile.occupied(held, used) - ground.capacity
        if lacking > 0:
            message = f"{lacking} of the {asked.spec.gpus} GPUs are held by containers that go on"
            later = calendar.says(math.ceil(soon / 60) * 60, asked.spec.zone)
            hint = f"begin at {later} or later, or reserve {max(0, asked.spec.gpus - lacking)} now"
            raise errors.Insufficient(message, reason="ReservationTooSoon", hint=hint)
