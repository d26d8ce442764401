"""Draws how long each layer took to bring a container up, from the steps of its trace. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from fairlead.frozen import frozen
from fairlead.serve.console.draw import words
from fairlead.serve.v1.containers.traceview import TraceView

WIDTH: Final = 1000
"""Of the drawing; a page scales it."""
_LEAST: Final = 4
_MARKS: Final = 4


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
    ends = [one.offset_s or 0.0 for one in steps]
    if not steps:
        return None
    total = max(*ends, 0.001)
    bars, reached = [], 0.0
    for one, end in zip(steps, ends, strict=True):
        took = one.step.duration_s if one.step is not None else None
        begin = max(0.0, end - took) if took is not None else min(reached, end)
        lead = f", waited {words.span(begin - reached)} before" if begin - reached > 0.05 else ""
        bars.append(
            Bar(
                label=one.title or (one.step.reason if one.step else ""),
                layer=one.layer,
                text=words.span(end - begin),
                title=f"{words.span(begin)} to {words.span(end)} after the request{lead}",
                x=round(WIDTH * begin / total, 1),
                width=round(max(_LEAST, WIDTH * (end - begin) / total), 1),
                is_warning=bool(one.step and one.step.is_warning),
            )
        )
        reached = max(reached, end)
    return Waterfall(bars=tuple(map(_kept, bars)), marks=tuple(_marks(total)), total=words.span(total))


def _kept(bar: Bar) -> Bar:
    """Return a bar that does not leave the drawing."""
    over = bar.x + bar.width - WIDTH
    return bar if over <= 0 else dataclasses.replace(bar, x=bar.x - over)


def _marks(total: float) -> Iterable[Mark]:
    for number in range(_MARKS + 1):
        yield Mark(x=WIDTH * number / _MARKS, text=words.span(total * number / _MARKS) if number else "0")
