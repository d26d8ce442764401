"""Says whether a container's GPUs are idle, by what was measured, and what follows from it. Pure.

What was not measured is not idle: a time with gaps, or a device without figures, leads to no warning and to no end.
A GPU counts by its largest sample, so one busy sample of ten seconds breaks the time; CPUs and input and output count
by their means, since a program that waits uses a little of both.
Source: dstack, `utilization_policy` (every sample of the window is below), which ends a run without a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.plan.history.figure import CONTAINER, FIGURES, Row, Value
from fairlead.plan.history.tier import FINEST_S
from fairlead.plan.idle.policy import OFF, Policy

_LEAST_COVERED: Final = 0.9
"""Share of the time that must have been measured."""
_STALE_S: Final = 90.0
"""Age of the newest sample after which nothing is known of now; coarse figures end with finer ones, see `file`."""
_NAMES: Final = tuple(one.name for one in FIGURES[CONTAINER])
_CPU: Final = _NAMES.index("cpu")
_IO: Final = tuple(_NAMES.index(name) for name in ("received", "sent", "read", "written"))


@frozen
class Window:
    """The time that is judged, in Unix seconds."""

    since: float
    until: float


@frozen
class Measured:
    """What was measured of a container and its devices, as rows of `plan.history.figure`."""

    devices: Mapping[str, Sequence[Row]]
    """By device, its load in the first place; empty: nothing was."""
    container: Sequence[Row] = ()


@frozen
class Verdict:
    """Whether GPUs are idle: one of the three texts is set where they are not."""

    busy: str = ""
    unknown: str = ""
    """Why it is not known, for a person."""

    @property
    def is_idle(self) -> bool:
        """Whether they are."""
        return not self.busy and not self.unknown


def judge(measured: Measured, window: Window, policy: Policy) -> Verdict:
    """Return whether every device was idle for the whole window."""
    if not measured.devices:
        return Verdict(unknown="its GPUs are not known")
    unknown = ""
    for device, rows in sorted(measured.devices.items()):
        found = _within(rows, window)
        peaks = [row.peaks[0] if row.peaks else None for row in found]
        if (peak := max((one for one in peaks if one is not None), default=0.0)) >= policy.below_percent:
            return Verdict(busy=f"{device}: {peak:.0f} %")
        if not _is_covered(found, peaks, window):
            unknown = unknown or f"no figures of the load of {device} for all of that time"
    return _works(_within(measured.container, window), window, policy, unknown)


def _works(rows: Sequence[Row], window: Window, policy: Policy, unknown: str) -> Verdict:
    """Return the verdict on GPUs that are idle as far as is known, by what the container does besides."""
    for least, places, word in (
        (policy.cpu_percent, (_CPU,), "of a CPU"),
        (policy.io_bytes_s, _IO, "of input and output"),
    ):
        if not least:
            continue
        values = [_sum(row.means, places) for row in rows]
        if not _is_covered(rows, values, window):
            unknown = unknown or f"no figures {word} of it for all of that time"
            continue
        known = [(value, row.weight) for value, row in zip(values, rows, strict=True) if value is not None]
        mean = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
        if mean >= least:
            return Verdict(busy=f"it uses {mean:.0f} {'%' if places == (_CPU,) else 'bytes/s'} {word}")
    return Verdict(unknown=unknown)


def _within(rows: Iterable[Row], window: Window) -> list[Row]:
    """Return the rows whose bucket begins in the window: what was measured before may be another holder's."""
    return [row for row in rows if window.since <= row.at < window.until]


def _sum(means: Sequence[Value], places: Sequence[int]) -> Value:
    """Return a sum; None: a part of it is not known, so that what is known could be too little."""
    found = [means[place] if place < len(means) else None for place in places]
    return None if None in found else sum(one for one in found if one is not None)


def _is_covered(rows: Sequence[Row], values: Sequence[Value], window: Window) -> bool:
    known = [row for row, value in zip(rows, values, strict=True) if value is not None]
    if not known:
        return False
    measured_s = sum(min(row.step_s, row.weight * FINEST_S) for row in known)
    step_s = max(row.step_s for row in known)
    newest = max(row.at + row.step_s for row in known)
    is_whole = measured_s + 2 * step_s >= _LEAST_COVERED * (window.until - window.since)
    return is_whole and newest >= window.until - _STALE_S


@frozen
class Warned:
    """A container whose owner was warned."""

    at: float
    """Monotonic seconds of this process: a clock that jumps, or a restart, shortens no warning."""


@frozen
class Step:
    """What is to be done with one container."""

    warn: bool = False
    clear: str = ""
    """Why its warning no longer holds; empty: it does, or there is none."""
    end: bool = False
    unknown: str = ""
    left_s: float | None = None
    """Until it is ended; None: it is not."""


def plan(verdict: Verdict | None, policy: Policy, warned: Warned | None, *, clock: float) -> Step:
    """Return what is to be done.

    Args: verdict: None: it has not held GPUs for long enough, or is exempt.   clock: monotonic seconds.
    """
    if verdict is None or policy.action == OFF:
        return Step(clear="no policy ends it as it is now" if warned else "")
    if verdict.unknown:
        # A warning that cannot be confirmed is taken back: its time begins again once there are figures.
        return Step(unknown=verdict.unknown, clear=verdict.unknown if warned else "")
    if not verdict.is_idle:
        return Step(clear=verdict.busy if warned else "")
    if warned is None:
        return Step(warn=True, left_s=policy.warn_s if policy.ends else None)
    if not policy.ends:
        return Step()
    left_s = warned.at + policy.warn_s - clock
    return Step(end=left_s <= 0, left_s=max(0.0, left_s))
