"""Lays out figures over time: a chart of lines with its gaps, marks and table of sums, and a small one. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.serve.console.draw import words
from fairlead.serve.console.draw.charts import Line
from fairlead.serve.history.view import MetricsView, SeriesView

WIDTH, HEIGHT = 400, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 8, 12, 24
_MOST_LINES: Final = 8
"""Colours there are."""
_MOST_MARKS: Final = 24
_APART: Final = 4
"""Marks nearer than this in the picture are one."""
_MOST_WORDS: Final = 8
SPARK_WIDTH, SPARK_HEIGHT = 120, 24
_STEPS: Final = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_HOUR_LABELS_S: Final = 2 * 86400
"""Periods up to this length are labelled by hours."""


@frozen
class Mark:
    """A moment at which something happened."""

    at: float
    """Unix seconds."""
    text: str


@frozen
class MarkLine:
    """A mark as it is drawn."""

    x: float
    text: str


@frozen
class Curve:
    """One series."""

    title: str
    group: int
    """Number of its colour."""
    paths: tuple[str, ...]
    """Points of polylines; each gap begins another one."""
    dots: tuple[tuple[float, float], ...]
    """Values between two gaps."""
    low: str
    mean: str
    high: str


@frozen
class Figure:
    """One chart."""

    id: str
    title: str
    curves: tuple[Curve, ...]
    lines: tuple[Line, ...]
    labels: tuple[Line, ...]
    marks: tuple[MarkLine, ...]
    summary: str
    more: int
    """Series that are not drawn."""


_GROUPS: Final = (
    ("gpu-load", "GPU load", ("load",), True),
    ("gpu-memory", "GPU memory", ("memory",), True),
    ("power", "Power", ("power",), True),
    ("temperature", "Temperature", ("temperature",), True),
    ("clock", "SM clock", ("clock",), True),
    ("cpu", "CPU", ("cpu",), False),
    ("memory", "Memory", ("memory",), False),
    ("network", "Network", ("received", "sent"), False),
    ("disk", "Disk", ("read", "written"), False),
)
"""Charts: id, title, figures, and whether they are of devices."""


def say(value: float | None, unit: str) -> str:
    """Return a figure with its unit."""
    if value is None:
        return words.NOTHING
    if not value:
        return "0"
    if unit in {"bytes", "bytes/s"}:
        return words.bytes_(value) + ("/s" if unit == "bytes/s" else "")
    return f"{value:,.0f} {'°C' if unit == 'C' else unit}"


def figures(found: MetricsView, marks: Sequence[Mark] = ()) -> tuple[Figure, ...]:
    """Return a chart of each figure that is known at any time."""
    made = []
    for id_, title, metrics, is_device in _GROUPS:
        shown = [
            one
            for one in found.series
            if one.metric in metrics and bool(one.device) is is_device and any(v is not None for v in one.means)
        ]
        if shown:
            made.append(_figure(id_, title, shown, found, marks))
    return tuple(made)


def _figure(id_: str, title: str, shown: Sequence[SeriesView], found: MetricsView, marks: Sequence[Mark]) -> Figure:
    begin, end = found.times[0], found.times[-1] + found.step_s
    unit = shown[0].unit
    largest = max(value for one in shown for value in one.means if value is not None)
    top = 100.0 if unit == "%" and largest <= 100 else _round_up(largest, unit)
    curves = tuple(_curve(place, one, found, begin, end, top) for place, one in enumerate(shown[:_MOST_LINES]))
    inner = HEIGHT - _TOP - _BOTTOM
    lines = tuple(
        Line(at=round(HEIGHT - _BOTTOM - inner * part / 2, 1), text=say(top * part / 2, unit) if part else "0")
        for part in range(3)
    )
    sums = "; ".join(f"{one.title or title}: mean {one.mean}, peak {one.high}" for one in curves)
    return Figure(
        id=id_,
        title=title,
        curves=curves,
        lines=lines,
        labels=_labels(begin, end),
        marks=_marks(marks, begin, end),
        summary=f"{title} from {words.moment(found.since)} to {words.moment(found.until)} UTC. {sums}.",
        more=max(0, len(shown) - _MOST_LINES),
    )


def _marks(marks: Sequence[Mark], begin: float, end: float) -> tuple[MarkLine, ...]:
    """Return the newest marks within a period; those that lie side by side are one line."""
    found: dict[int, list[Mark]] = {}
    for mark in marks:
        if begin <= mark.at <= end:
            found.setdefault(int(_x(mark.at, begin, end) // _APART), []).append(mark)
    newest = sorted(found.values(), key=lambda several: several[0].at)[-_MOST_MARKS:]
    return tuple(
        MarkLine(
            x=_x(several[0].at, begin, end),
            text=f"{_clock(several[0].at)} {', '.join(dict.fromkeys(one.text for one in several[:_MOST_WORDS]))}",
        )
        for several in newest
    )


def _curve(place: int, one: SeriesView, found: MetricsView, begin: float, end: float, top: float) -> Curve:
    inner = HEIGHT - _TOP - _BOTTOM
    paths, dots, run = list[str](), list[tuple[float, float]](), list[tuple[float, float]]()

    def finish() -> None:
        if len(run) == 1:
            dots.append(run[0])
        elif run:
            paths.append(" ".join(f"{x:g},{y:g}" for x, y in run))
        run.clear()

    for at, value in zip(found.times, one.means, strict=True):
        if value is None:
            finish()
        else:
            y = HEIGHT - _BOTTOM - inner * min(max(value / top, 0), 1)
            run.append((_x(at + found.step_s / 2, begin, end), round(y, 1)))
    finish()
    known = [value for value in one.means if value is not None]
    peaks = [value for value in one.peaks if value is not None]
    return Curve(
        title=name(one),
        group=place,
        paths=tuple(paths),
        dots=tuple(dots),
        low=say(min(known), one.unit),
        mean=say(sum(known) / len(known), one.unit),
        high=say(max(peaks, default=max(known)), one.unit),
    )


def name(one: SeriesView) -> str:
    """Return what a legend calls a series: its device, or the direction; empty: the chart's title says it."""
    if not one.device:
        return {"received": "in", "sent": "out", "read": "read", "written": "written"}.get(one.metric, "")
    text = f"GPU {one.index}" if one.index is not None and one.device.startswith("GPU-") else words.short(one.device)
    return f"{text} (shared)" if one.is_shared else text


def _x(at: float, begin: float, end: float) -> float:
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (at - begin) / (end - begin), 1)


def _labels(begin: int, end: int) -> tuple[Line, ...]:
    """Return the times below a chart, about five of them, at full hours or days."""
    step = next((one for one in _STEPS if (end - begin) / one <= 4), _STEPS[-1])
    first = -(-begin // step) * step
    is_short = end - begin <= _HOUR_LABELS_S
    return tuple(
        Line(at=_x(at, begin, end), text=_clock(at) if is_short else _day(at))
        for at in range(first, end + 1, step)
        if _LEFT + 20 <= _x(at, begin, end) <= WIDTH - 22
    )[:8]


def _clock(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M")


def _day(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%-d %b")


def _round_up(value: float, unit: str) -> float:
    """Return the next of 1, 2, 4, 5, 8 and 10 times a power of ten, of 1,024 for bytes."""
    if value <= 0:
        return 1024.0 if unit.startswith("bytes") else 1.0
    scale = 1024.0 ** math.floor(math.log(value, 1024)) if unit.startswith("bytes") and value >= 1 else 1.0
    power = scale * 10.0 ** math.floor(math.log10(value / scale))
    return next((step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9)), 10 * power)


@frozen
class Spark:
    """A small chart without an axis."""

    paths: tuple[str, ...]
    text: str


def spark(loads: Sequence[float | None]) -> Spark | None:
    """Return the load of an hour as a small chart; None: nothing is known."""
    known = [one for one in loads if one is not None]
    if not known:
        return None
    paths, run = list[str](), list[str]()
    for place, value in enumerate((*loads, None)):
        if value is None:
            if run:
                paths.append(" ".join(run if len(run) > 1 else (*run, *run)))
            run = []
        else:
            x = SPARK_WIDTH * place / max(1, len(loads) - 1)
            y = SPARK_HEIGHT - 1.5 - (SPARK_HEIGHT - 3) * min(max(value, 0), 100) / 100
            run.append(f"{x:.1f},{y:.1f}")
    text = f"load in the last hour: mean {sum(known) / len(known):.0f} %, peak {max(known):.0f} %"
    return Spark(paths=tuple(paths), text=text)
