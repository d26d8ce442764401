"""Lays out charts: bars by day, stacked, with round numbers on their axis. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.serve.console.draw import words

WIDTH, HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 6, 10, 26
_GROUPS: Final = 8
"""Colours there are; what is smaller than the first seven counts together."""
_LABELS: Final = 10
REST: Final = "everything else"


@frozen
class Piece:
    """One bar's part of one group."""

    x: float
    y: float
    width: float
    height: float
    group: int
    title: str


@frozen
class Line:
    """One line of the axis, or one word below it."""

    at: float
    text: str


@frozen
class Chart:
    """The whole drawing."""

    pieces: tuple[Piece, ...]
    lines: tuple[Line, ...]
    labels: tuple[Line, ...]
    groups: tuple[str, ...]
    summary: str


def by_day(values: Mapping[tuple[str, str], float], days: Sequence[str], unit: str) -> Chart | None:
    """Return a chart of the values of these days, by day and group; None: there is nothing in it."""
    values = {key: value for key, value in values.items() if key[0] in days}
    sums: dict[str, float] = {}
    for (_, group), value in values.items():
        sums[group] = sums.get(group, 0) + value
    if not any(sums.values()):
        return None
    order = sorted(sums, key=lambda group: (-sums[group], group))
    named = order if len(order) <= _GROUPS else order[: _GROUPS - 1]
    groups = (*named, *(() if len(named) == len(order) else (REST,)))
    stacks = {day: [0.0] * len(groups) for day in days}
    for (day, group), value in values.items():
        stacks[day][groups.index(group if group in named else REST)] += value
    top = _round_up(max(map(sum, stacks.values())))
    inner, step = HEIGHT - _TOP - _BOTTOM, (WIDTH - _LEFT - _RIGHT) / len(days)
    pieces, labels = [], []
    every = max(1, math.ceil(len(days) / _LABELS))
    for number, day in enumerate(days):
        x, y = _LEFT + number * step + step * 0.12, float(HEIGHT - _BOTTOM)
        for place, value in enumerate(stacks[day]):
            height = inner * value / top
            y -= height
            if value:
                title = f"{day}, {groups[place]}: {words.number(value)} {unit}"
                pieces.append(
                    Piece(
                        x=round(x, 1),
                        y=round(y, 1),
                        width=round(step * 0.76, 1),
                        height=round(max(height, 1), 1),
                        group=place,
                        title=title,
                    )
                )
        if number % every == 0:
            labels.append(Line(at=round(x + step * 0.38, 1), text=_day(day)))
    lines = tuple(
        Line(at=round(HEIGHT - _BOTTOM - inner * part / 4, 1), text=words.number(top * part / 4)) for part in range(5)
    )
    whole = f"{words.number(sum(sums.values()))} {unit} in {len(days)} days; most of it {order[0] or 'not named'}"
    return Chart(pieces=tuple(pieces), lines=lines, labels=tuple(labels), groups=groups, summary=whole)


def days(since: float, until: float, most: int = 400) -> tuple[str, ...]:
    """Return the days of a period, UTC. Args: since, until: Unix seconds."""
    first = dt.datetime.fromtimestamp(since, dt.UTC).date()
    last = dt.datetime.fromtimestamp(max(since, until - 1e-6), dt.UTC).date()
    return tuple(
        (first + dt.timedelta(days=number)).isoformat() for number in range(min((last - first).days + 1, most))
    )


def _day(text: str) -> str:
    return dt.date.fromisoformat(text).strftime("%-d %b")


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 5, 8 and 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))
