"""Checks reservations: windows that the machine has too few GPUs for by now, and windows that nobody used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.cli.core.client import Client
from fairlead.cli.doctor.finding import Finding
from fairlead.serve.v1.reservations.view import ReservationList, ReservationView, WindowView

_SHOWN: Final = 3
_OVER: Final = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the service says."""

    items: tuple[ReservationView, ...] = ()
    capacity: int = 0
    """GPUs that can be reserved now."""
    no_show_min: float = 0
    """Setting `reserve.no_show_min`, as this program reads it."""


def collect(client: Client, *, no_show_min: float, timeout_s: float) -> Facts:
    """Ask the service; nothing where it keeps no reservations."""
    try:
        found = client.call("GET", "/v1/reservations", ReservationList, timeout_s=timeout_s)
    except errors.FairleadError:
        return Facts()
    return Facts(items=found.items, capacity=found.capacity, no_show_min=no_show_min)


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where nothing is reserved."""
    living = [one for one in seen.items if one.state != _OVER]
    if not living:
        return
    short = _worst(living)
    if short is not None and short[1] > seen.capacity:
        window, wanted, names = short
        what = f"from {window.start} on {wanted} GPUs are reserved, and {seen.capacity} can be given: {_some(names)}"
        why = "GPUs went away, or are kept back, after they were reserved: the last to come gets none"
        fix = "`fairlead gpus` shows which are kept back and why; or `fairlead reserve delete NAME`, and tell its owner"
        yield Finding(check="reservation", level="fail", what=what, why=why, fix=fix)
    if unused := [f"{one.namespace}/{one.name} ({len(one.released)})" for one in living if one.released]:
        what = f"windows were given back because nobody used them: {_some(unused)}"
        yield Finding(check="reservation", level="warn", what=what, why=_UNUSED, fix="`fairlead reserve show NAME`")
    if not seen.no_show_min:
        what = "reserve.no_show_min is 0: a window that nobody uses keeps its GPUs idle until its end"
        yield Finding(check="reservation", level="warn", what=what, why=_UNUSED, fix="set it to some minutes: 30")
    if short is not None and short[1] <= seen.capacity:
        what = f"{len(living)} kept, at most {short[1]} of {seen.capacity} GPUs at a time"
        yield Finding(check="reservation", level="ok", what=what)


def _worst(living: Sequence[ReservationView]) -> tuple[WindowView, int, list[str]] | None:
    """Return the window at whose begin the most GPUs are reserved, how many, and by whom; None: no window is left."""
    # Times are of one form, in UTC, so they compare as text. The most are reserved where some window begins.
    windows = [(window, one) for one in living for window in one.windows if window.start not in one.released]
    found = None
    for window, _ in windows:
        there = [one for other, one in windows if other.start <= window.start < other.end]
        total = sum(one.gpus for one in there)
        if found is None or total > found[1]:
            found = (window, total, sorted({f"{one.namespace}/{one.name}" for one in there}))
    return found


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


_UNUSED: Final = "others waited for GPUs that nobody used"
