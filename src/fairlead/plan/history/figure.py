"""Names the figures that are kept of GPUs, MIG devices and containers, and sums them up. Pure.

A figure that is not known is a gap (None) and never 0. What is summed up keeps the mean, weighed by the samples behind
it, and the largest value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.sample import Sample
from fairlead.plan.history.tier import FINEST_S, Window

Value = float | None
GPU, MIG, CONTAINER = "gpu", "mig", "container"
"""What figures are of; the text is stored."""


@frozen
class Figure:
    """One figure."""

    name: str
    unit: str
    text: str
    """For a person: `GPU load`."""


HELD: Final = "held"
_LOAD = Figure(name="load", unit="%", text="GPU load")
_MEMORY = Figure(name="memory", unit="bytes", text="GPU memory")
FIGURES: Final[Mapping[str, tuple[Figure, ...]]] = {
    GPU: (
        _LOAD,
        _MEMORY,
        Figure(name="power", unit="W", text="Power"),
        Figure(name="temperature", unit="C", text="Temperature"),
        Figure(name="clock", unit="MHz", text="SM clock"),
        Figure(name=HELD, unit="%", text="Held"),
    ),
    MIG: (_LOAD, _MEMORY, Figure(name=HELD, unit="%", text="Held")),
    CONTAINER: (
        Figure(name="cpu", unit="%", text="CPU"),
        Figure(name="memory", unit="bytes", text="Memory"),
        Figure(name="received", unit="bytes/s", text="Network in"),
        Figure(name="sent", unit="bytes/s", text="Network out"),
        Figure(name="read", unit="bytes/s", text="Disk read"),
        Figure(name="written", unit="bytes/s", text="Disk written"),
    ),
}
"""By what they are of, in the order in which they are stored: a new one goes to the end."""


def of_sample(sample: Sample, *, is_held: bool) -> tuple[Value, ...]:
    """Return the figures of a GPU or MIG device, in the order of `FIGURES`."""
    held = 100.0 if is_held else 0.0
    if sample.mig is not None:
        active = sample.activity.graphics_active
        load = sample.utilization_percent if active is None else 100 * active
        return (load, sample.memory_used_bytes, held)
    power = sample.power_mw
    return (
        sample.utilization_percent,
        sample.memory_used_bytes,
        None if power is None else power / 1000,
        sample.temperature_c,
        sample.sm_clock_mhz,
        held,
    )


@frozen
class Counters:
    """What a container has used since its start; None: not counted here."""

    cpu_ns: int | None = None
    memory_bytes: int | None = None
    """Now."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


def of_use(before: Counters | None, now: Counters, seconds: float) -> tuple[Value, ...]:
    """Return the figures of a container between two readings; a counter that went back is a gap.

    Args: before: None: this is the first one.   seconds: between the two, of a clock that does not jump.
    """

    def rate(name: str) -> Value:
        one = None if before is None else getattr(before, name)
        two = getattr(now, name)
        if one is None or two is None or seconds <= 0 or two < one:
            return None
        return float((two - one) / seconds)

    cpu = rate("cpu_ns")
    return (
        None if cpu is None else cpu / 1e7,
        now.memory_bytes,
        *(rate(name) for name in ("received_bytes", "sent_bytes", "read_bytes", "written_bytes")),
    )


def added(several: Iterable[Sequence[Value]]) -> tuple[Value, ...]:
    """Return the sum of the figures of several containers of a group; what one does not know is a gap."""
    return tuple(
        None if None in column else sum(one for one in column if one is not None)
        for column in zip(*several, strict=True)
    )


@frozen
class Row:
    """What is kept of one series in one bucket."""

    at: int
    weight: int
    """Samples behind it."""
    means: tuple[Value, ...]
    peaks: tuple[Value, ...]
    step_s: int = FINEST_S
    """Length of the bucket."""


def merged(at: int, rows: Sequence[Row]) -> Row:
    """Return one row in place of several of one series."""
    means, peaks = [], []
    for place in range(max((len(row.means) for row in rows), default=0)):
        known = [(row.means[place], row.weight) for row in rows if place < len(row.means)]
        found = [(mean, weight) for mean, weight in known if mean is not None]
        total = sum(weight for _, weight in found)
        means.append(sum(mean * weight for mean, weight in found) / total if total else None)
        highs = [row.peaks[place] for row in rows if place < len(row.peaks)]
        peaks.append(max((one for one in highs if one is not None), default=None))
    return Row(at=at, weight=sum(row.weight for row in rows), means=tuple(means), peaks=tuple(peaks))


@frozen
class Interval:
    """An interval in which a container held a device, in Unix seconds."""

    since: int
    until: int


def within(row: Row, intervals: Sequence[Interval]) -> bool:
    """Return whether a row's bucket lies in one of the intervals as a whole, so that it says nothing of others."""
    return any(one.since <= row.at and row.at + row.step_s <= one.until for one in intervals)


def joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return intervals in order, those that touch or overlap as one."""
    made: list[Interval] = []
    for one in sorted(intervals, key=lambda one: one.since):
        if made and one.since <= made[-1].until:
            made[-1] = Interval(since=made[-1].since, until=max(made[-1].until, one.until))
        else:
            made.append(one)
    return tuple(made)


@frozen
class Points:
    """One figure over a window; None is a gap."""

    means: tuple[Value, ...]
    peaks: tuple[Value, ...]


def spread(rows: Iterable[Row], window: Window, count: int) -> tuple[Points, ...]:
    """Return rows as the points of a window, one value for each of `count` figures."""
    buckets: dict[int, list[Row]] = {}
    for row in rows:
        if 0 <= (place := (row.at - window.begin) // window.step_s) < window.count:
            buckets.setdefault(place, []).append(row)
    sums = {place: merged(0, found) for place, found in buckets.items()}

    def column(place: int) -> Points:
        means: list[Value] = [None] * window.count
        peaks: list[Value] = [None] * window.count
        for number, one in sums.items():
            if place < len(one.means):
                means[number], peaks[number] = one.means[place], one.peaks[place]
        return Points(means=tuple(means), peaks=tuple(peaks))

    return tuple(map(column, range(count)))


def average(rows: Iterable[Row], place: int) -> Value:
    """Return the mean of one figure over rows; None: it is not known in any."""
    found = [(row.means[place], row.weight) for row in rows if place < len(row.means)]
    known = [(mean, weight) for mean, weight in found if mean is not None]
    total = sum(weight for _, weight in known)
    return sum(mean * weight for mean, weight in known) / total if total else None
