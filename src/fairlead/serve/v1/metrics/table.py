"""Writes figures over time as a table of comma-separated values; without the web framework."""

from __future__ import annotations

import csv
import io

from fairlead.serve.history.view import MetricsView, SeriesView
from fairlead.wire.text import timestamp


def title(one: SeriesView) -> str:
    """Return the name of a column: `cpu (%)`, `load (%) GPU-…`."""
    return f"{one.metric} ({one.unit})" + (f" {one.device}" if one.device else "")


def as_csv(found: MetricsView) -> str:
    """Return one line a step: its time, then the mean of each figure, empty where it is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *map(title, found.series)])
    for place, at in enumerate(found.times):
        writer.writerow(
            [timestamp.emit(at), *("" if one.means[place] is None else one.means[place] for one in found.series)]
        )
    return text.getvalue()
