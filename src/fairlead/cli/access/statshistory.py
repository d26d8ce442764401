"""`fairlead stats --since`: what containers and GPUs did over time, as a table, a picture of text, JSON or CSV."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client import calls
from fairlead.frozen import frozen
from fairlead.serve.history.view import MetricsView, SeriesView
from fairlead.serve.v1.metrics import table

_WIDTH: Final = 80
_LEAST: Final = 40
"""Columns of a picture on a terminal that is narrower."""
_ROWS: Final = 4
"""Lines of one picture."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@frozen
class Asked:
    """A period as it was typed."""

    since: str
    until: str = ""
    step: int | None = None


@frozen
class _Line:
    """One figure of one container or GPU."""

    of: str
    series: SeriesView

    @property
    def known(self) -> tuple[float, ...]:
        """The means that are known."""
        return tuple(one for one in self.series.means if one is not None)


def read(client: Client, names: Sequence[str], namespace: str, gpu: str, asked: Asked) -> list[MetricsView]:
    """Return figures of the containers named, or of a GPU; without either of all containers that run."""
    params = {"since": asked.since, "until": asked.until or None, "step": asked.step}
    if gpu:
        return [client.call("GET", f"{calls.item_path('/v1/gpus', gpu)}/metrics", MetricsView, params=params)]
    asked_for = [(name, namespace) for name in names]
    asked_for = asked_for or [(one.name, one.namespace) for one in client.list_containers() if one.state == "running"]
    return [
        client.call("GET", f"{api.container_path(name)}/metrics", MetricsView, params={**params, "namespace": where})
        for name, where in asked_for
    ]


def show(found: Sequence[MetricsView], *, form: str, plots: bool) -> None:
    """Print figures. Raises: Invalid (`OutputInvalid`)."""
    if form == "csv":
        if len(found) != 1:
            message = f"-o csv: a table is of one container or GPU, and these are {len(found)}"
            raise errors.Invalid(message, reason="OutputInvalid", hint="name one, or use -o json")
        plaintext.echo(table.as_csv(found[0]), nl=False)
        return
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    lines = [_Line(of=one.of, series=series) for one in found for series in one.series]
    if plots:
        for one in found:
            _draw(one)
    else:
        shown = [line for line in lines if line.known] if form == "table" else lines
        output.show_listing(shown, _COLUMNS, form=form, name=lambda line: line.of)
        for one in found:
            if not any(line.of == one.of and line.known for line in lines):
                plaintext.echo(f"{one.of}: nothing is known of it in this period", err=True)
    for note in dict.fromkeys(note for one in found for note in one.notes):
        plaintext.echo(f"note: {note}", err=True)


def say(value: float | None, unit: str) -> str:
    """Return a figure with its unit: `81%`, `40.2GiB`, `350 W`."""
    if value is None:
        return ""
    if unit == "bytes":
        return output.size(value)
    if unit == "bytes/s":
        return f"{output.size(value)}/s"
    return f"{value:.0f}%" if unit == "%" else f"{value:.0f} {unit}"


def _where(one: SeriesView) -> str:
    if not one.device:
        return ""
    short = one.device if len(one.device) <= 12 else f"{one.device[:11]}…"
    named = f"GPU {one.index}" if one.index is not None and one.device.startswith("GPU") else short
    return f"{named} (shared)" if one.is_shared else named


def _last(one: SeriesView) -> float | None:
    return next((value for value in reversed(one.means) if value is not None), None)


def _mean(known: Sequence[float]) -> float | None:
    return sum(known) / len(known) if known else None


_COLUMNS: Final = (
    Column[_Line]("NAME", lambda line: line.of),
    Column[_Line]("FIGURE", lambda line: line.series.title),
    Column[_Line]("DEVICE", lambda line: _where(line.series)),
    Column[_Line]("MIN", lambda line: say(min(line.known, default=None), line.series.unit), rank=1),
    Column[_Line]("MEAN", lambda line: say(_mean(line.known), line.series.unit)),
    Column[_Line](
        "PEAK",
        lambda line: say(max((one for one in line.series.peaks if one is not None), default=None), line.series.unit),
    ),
    Column[_Line]("LAST", lambda line: say(_last(line.series), line.series.unit), rank=2),
)


def _draw(found: MetricsView) -> None:
    """Print a picture of each figure that is known, with what is not known left blank."""
    columns = max(_LEAST, min(output.terminal_columns() or _WIDTH, 200))
    edge = 9
    for series in found.series:
        if all(one is None for one in series.means):
            continue
        peaks = [one for one in series.peaks if one is not None]
        top = 100.0 if series.unit == "%" and max(peaks) <= 100 else max(*peaks, 1e-9)
        known = [one for one in series.means if one is not None]
        where = _where(series)
        head = f"{found.of}  {series.title}{f', {where}' if where else ''}"
        plaintext.echo(f"{head}: mean {say(_mean(known), series.unit)}, peak {say(max(peaks), series.unit)}")
        highest = say(top, series.unit)
        edge = max(edge, len(highest))
        pictured = bars(series.means, columns - edge - 1, top)
        for label, line in zip((highest, "", "", "0"), pictured, strict=True):
            plaintext.echo(f"{label:>{edge}} {line}".rstrip())
    begin, end = (
        dt.datetime.fromisoformat(one).astimezone().strftime("%m-%d %H:%M") for one in (found.since, found.until)
    )
    plaintext.echo(f"{'':>{edge}} {begin}{end:>{columns - edge - 1 - len(begin)}}")


def bars(values: Sequence[float | None], width: int, top: float) -> list[str]:
    """Return the lines of a picture, the highest first: one column a part of the period; a gap is blank."""
    columns = [_column(values, place, width) for place in range(width)]
    steps = _ROWS * (len(_BLOCKS) - 1)
    heights = [None if one is None else max(1, round(min(one, top) / top * steps)) for one in columns]
    lines = []
    for row in reversed(range(_ROWS)):
        filled = (0 if one is None else max(0, min(8, one - row * 8)) for one in heights)
        lines.append("".join(_BLOCKS[one] for one in filled))
    return lines


def _column(values: Sequence[float | None], place: int, width: int) -> float | None:
    begin = place * len(values) // width
    end = max(begin + 1, (place + 1) * len(values) // width)
    return _mean([one for one in values[begin:end] if one is not None])
