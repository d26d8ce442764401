"""Lays out a week of reservations as days and hours of a zone's clock, and the same as lines of text. Pure.

A row is an hour as the clock on the wall shows it. Where clocks are set forward over it, that day has no such hour, and
its cell lasts no time; where they are set back, the hour comes twice and its one cell lasts two hours. So each moment
of the week is in exactly one cell, whatever a zone does.
"""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import zoneinfo
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.plan.reservation import calendar
from fairlead.serve.console.draw import tone
from fairlead.serve.v1.reservations.view import ReservationView, TakenView
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec, ReservationStatus
from fairlead.wire.kubernetes import meta

_DAYS: Final = 7
_HOURS: Final = 24
_FARTHEST: Final = dt.timedelta(days=400)
"""How far from now a week may be shown."""
_MOST_LINES: Final = 40
"""Lines of one day's list."""


@frozen
class Span:
    """One time for which GPUs are reserved."""

    start: float
    """Unix seconds, as `end`."""
    end: float
    gpus: int
    name: str
    """Of the reservation; empty: another team's."""
    namespace: str


@frozen
class Cell:
    """One hour of one day."""

    start: float
    when: str
    """As people say it: `Mon 30 Nov 09:00`."""
    asked: str
    """The same, as the form takes it."""
    note: str
    """Of an hour that is not one; empty: it is."""
    used: int
    """GPUs that are reserved at once, at most."""
    names: tuple[str, ...]
    """Of reservations that the caller sees."""
    first: str
    """Text of the cell: names of what begins here, or goes on from the day before."""
    hue: int
    kind: str
    """`void`, `past`, `free`, `own` or `others`."""


@frozen
class Day:
    """One day, and what is reserved on it as lines of text."""

    title: str
    is_today: bool
    lines: tuple[str, ...]
    more: int


@frozen
class Week:
    """A week of a zone's clock."""

    title: str
    monday: dt.date
    days: tuple[Day, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """By hour of the clock: its label and a cell a day."""

    @property
    def before(self) -> str:
        """The Monday of the week before."""
        return (self.monday - dt.timedelta(days=_DAYS)).isoformat()

    @property
    def after(self) -> str:
        """The Monday of the week after."""
        return (self.monday + dt.timedelta(days=_DAYS)).isoformat()


def monday_of(text: str, now: float, zone: zoneinfo.ZoneInfo) -> dt.date:
    """Return the Monday of the week that a date is in; of the week of now where it is none, or too far away."""
    today = dt.datetime.fromtimestamp(now, zone).date()
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = today
    day = day if abs(day - today) <= _FARTHEST else today
    return day - dt.timedelta(days=day.weekday())


def spans(items: Iterable[ReservationView], taken: Iterable[TakenView], begin: float, end: float) -> tuple[Span, ...]:
    """Return the times of reservations in a span: the caller's with their names, others' without."""
    found = [
        Span(start=one.start, end=one.end, gpus=one.gpus, name=one.name, namespace=one.namespace)
        for item in items
        for one in calendar.windows(_reservation(item), begin, end)
    ]
    for each in taken:
        start, until = meta.timestamp(each.start), meta.timestamp(each.end)
        if start is not None and until is not None and start < end and until > begin:
            found.append(Span(start=start, end=until, gpus=each.gpus, name="", namespace=""))
    return tuple(sorted(found, key=lambda one: (one.start, one.end, one.namespace, one.name)))


def week(
    items: Iterable[ReservationView],
    taken: Iterable[TakenView],
    *,
    monday: dt.date,
    zone: zoneinfo.ZoneInfo,
    now: float,
) -> Week:
    """Return a week. Args: now: Unix seconds."""
    dates = [monday + dt.timedelta(days=number) for number in range(_DAYS)]
    edges = [_edges(date, zone) for date in dates]
    found = spans(items, taken, edges[0][0], edges[-1][-1])
    columns = [tuple(_cells(date, each, found, now)) for date, each in zip(dates, edges, strict=True)]
    today = dt.datetime.fromtimestamp(now, zone).date()
    days = []
    for date, each in zip(dates, edges, strict=True):
        lines = [_line(one, zone, each) for one in found if one.start < each[-1] and one.end > each[0]]
        day = Day(
            title=date.strftime("%a %d %b"),
            is_today=date == today,
            lines=tuple(lines[:_MOST_LINES]),
            more=max(0, len(lines) - _MOST_LINES),
        )
        days.append(day)
    rows = tuple((f"{hour:02}:00", tuple(column[hour] for column in columns)) for hour in range(_HOURS))
    title = f"{dates[0].strftime('%d %b')} to {dates[-1].strftime('%d %b %Y')}"
    return Week(title=title, monday=monday, days=tuple(days), rows=rows)


def _reservation(one: ReservationView) -> Reservation:
    spec = ReservationSpec(
        gpus=one.gpus,
        start=one.first,
        zone=one.zone,
        duration_seconds=one.duration_seconds,
        repeat=one.repeat,
        until=one.until,
    )
    about = meta.ObjectMeta(name=one.name, namespace=one.namespace)
    return Reservation(metadata=about, spec=spec, status=ReservationStatus(released=one.released))


def _edges(date: dt.date, zone: zoneinfo.ZoneInfo) -> tuple[float, ...]:
    """Return when each hour of a day begins, and when the day ends, in Unix seconds.

    A time that there is not is read with the offset before the change, so it may come out after times that follow it.
    """
    midnight = dt.datetime.combine(date, dt.time())
    wall = [midnight + dt.timedelta(hours=hour) for hour in range(_HOURS + 1)]
    read = [one.replace(tzinfo=zone).timestamp() for one in wall]
    return tuple(itertools.accumulate(reversed(read), min))[::-1]


def _cells(date: dt.date, edges: Sequence[float], found: Sequence[Span], now: float) -> Iterator[Cell]:
    begins = [one.start for one in found]
    seen: set[tuple[str, str, float]] = set()
    for hour, (start, end) in enumerate(itertools.pairwise(edges)):
        here = [one for one in found[: bisect.bisect_left(begins, end)] if one.end > start] if end > start else []
        own = [one for one in here if one.name]
        fresh = [one for one in here if (one.namespace, one.name, one.start) not in seen]
        seen |= {(one.namespace, one.name, one.start) for one in here}
        first = ", ".join(f"{one.name or 'others'} {one.gpus}" for one in fresh)
        yield Cell(
            start=start,
            when=f"{date.strftime('%a %d %b')} {hour:02}:00",
            asked=f"{date.isoformat()} {hour:02}:00",
            note=_note(end - start),
            used=_peak(here, start),
            names=tuple(dict.fromkeys(one.name for one in own)),
            first=first,
            hue=tone.hue(f"{own[0].namespace}/{own[0].name}") if own else 0,
            kind=_kind(end - start, here=here, is_past=end <= now),
        )


def _note(length_s: float) -> str:
    if length_s == 3600:
        return ""
    return f"lasts {length_s / 3600:g} h: clocks are changed" if length_s else "no such hour: clocks are set forward"


def _kind(length_s: float, *, here: Sequence[Span], is_past: bool) -> str:
    if length_s <= 0:
        return "void"
    if here:
        return "own" if any(one.name for one in here) else "others"
    return "past" if is_past else "free"


def _peak(here: Sequence[Span], start: float) -> int:
    """Return the most GPUs that are reserved at once: the sum where it changes."""
    moments = {max(start, one.start) for one in here}
    return max((sum(one.gpus for one in here if one.start <= at < one.end) for at in moments), default=0)


def _line(one: Span, zone: zoneinfo.ZoneInfo, edges: Sequence[float]) -> str:
    """Return what a day's list says of a time: `09:00 to 12:00: night, 4 GPUs`."""
    start = _clock(max(one.start, edges[0]), zone)
    end = "24:00" if one.end >= edges[-1] else _clock(one.end, zone)
    return f"{start} to {end}: {one.name or 'another team'}, {one.gpus} GPU{'' if one.gpus == 1 else 's'}"


def _clock(at: float, zone: zoneinfo.ZoneInfo) -> str:
    return dt.datetime.fromtimestamp(at, zone).strftime("%H:%M")
