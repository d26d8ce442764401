"""Draws how long each layer took to bring a container up, from the steps of its trace. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.plan.sandbox import machinestart
from fairlead.serve.console.draw import words
from fairlead.serve.v1.containers.traceview import EntryView, TraceView
from fairlead.wire.text import timestamp

WIDTH: Final = 1000
"""Of the drawing; a page scales it."""
_LEAST: Final = 4
_MARKS: Final = 4
_LONG_WAIT: Final = 3
"""A wait for a place that is so many times longer than the rest has a row of its own and no part of the axis."""


@frozen
class Bar:
    """One phase."""

    label: str
    layer: str
    text: str
    title: str
    x: float
    width: float
    is_warning: bool


@frozen
class Mark:
    """One line of the time axis."""

    x: float
    text: str


@frozen
class Waterfall:
    """All phases, and the axis."""

    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    total: str
    wait: str = ""
    """How long it waited for a place before the axis begins; empty: the axis begins with the request."""


def waterfall(trace: TraceView) -> Waterfall | None:
    """Return the drawing; None: nothing of the container itself is recorded yet.

    A phase ends when its step was recorded, and begins where the one before it ended, or later if it says how long it
    took. The process itself is left out: it may run for weeks.
    """
    steps = [
        one
        for one in trace.entries
        if one.step is not None and one.offset_s is not None and one.offset_s >= 0 and one.stage != "ended"
    ]
    if not steps:
        return None
    ends = [one.offset_s or 0.0 for one in steps]
    origin = _wait(steps)
    total = max(*ends, origin + 0.001) - origin
    bars, reached = [], origin
    for one, end in zip(steps, ends, strict=True):
        if end < origin:
            continue
        if one.stage == "machine" and (parts := _machine(one, origin, reached, end, total)):
            bars += parts
            reached = max(reached, end)
            continue
        took = one.step.duration_s if one.step is not None else None
        begin = max(origin, end - took) if took is not None else max(origin, min(reached, end))
        lead = f", waited {words.span(begin - reached)} before" if begin - reached > 0.05 else ""
        label = one.title or (one.step.reason if one.step else "")
        bars.append(
            Bar(
                label=label,
                layer=one.layer,
                text=words.span(end - begin),
                title=f"{words.span(begin)} to {words.span(end)} after the request{lead}",
                x=round(WIDTH * (begin - origin) / total, 1),
                width=round(max(_LEAST, WIDTH * (end - begin) / total), 1),
                is_warning=bool(one.step and one.step.is_warning),
            )
        )
        reached = max(reached, end)
    return Waterfall(
        bars=tuple(map(_kept, bars)),
        marks=tuple(_marks(total)),
        total=words.span(max(ends)),
        wait=words.span(origin) if origin else "",
    )


def _machine(one: EntryView, origin: float, reached: float, end: float, total: float) -> list[Bar]:
    """Return a bar for each part of a virtual machine's boot; none: no part of it was seen."""
    times = machinestart.of_facts(one.step.facts) if one.step is not None else None
    at = timestamp.parse(one.step.at) if one.step is not None else None
    if times is None or at is None or one.offset_s is None:
        return []
    request = at - one.offset_s
    begin = max(origin, min(reached, end))
    return [
        Bar(
            label=f"machine: {name}",
            layer=one.layer,
            text=words.span(until - start),
            title=f"{words.span(start - request)} to {words.span(until - request)} after the request",
            x=round(WIDTH * (start - request - origin) / total, 1),
            width=round(max(_LEAST, WIDTH * (until - start) / total), 1),
            is_warning=False,
        )
        for name, start, until in machinestart.parts(times, begin + request, end + request)
        if name != machinestart.CONTAINER
    ]


def _wait(steps: Sequence[EntryView]) -> float:
    """Return how long a container waited for a place, where that would flatten all the rest; else 0."""
    placed = next((one.offset_s or 0.0 for one in steps if one.stage == "scheduled"), 0.0)
    rest = max(one.offset_s or 0.0 for one in steps) - placed
    return placed if placed > _LONG_WAIT * max(rest, 0.2) else 0.0


def _kept(bar: Bar) -> Bar:
    """Return a bar that does not leave the drawing."""
    over = bar.x + bar.width - WIDTH
    return bar if over <= 0 else dataclasses.replace(bar, x=bar.x - over)


def _marks(total: float) -> Iterable[Mark]:
    for number in range(_MARKS + 1):
        yield Mark(x=WIDTH * number / _MARKS, text=words.span(total * number / _MARKS) if number else "0")
