"""Judges a container that is to run in a reservation's windows (`run --reservation NAME`). Pure.

Such a container starts while a window of that reservation is open, and never where those that hold its GPUs already
would hold more than it has. Once it runs, it is as any other of its namespace: it may go on after the window, and is
ended for the next one's reservation.
"""

from __future__ import annotations

import math
from typing import Final

from fairlead import errors
from fairlead.plan.reservation import calendar
from fairlead.plan.reservation.calendar import Window
from fairlead.wire.fairlead.reservation import Reservation
from fairlead.wire.kubernetes import core

_LIST: Final = "`fairlead reserve list` shows what is reserved, and for which namespace"


def named(pod: core.Pod) -> str:
    """Return the reservation in whose windows a pod is to start; empty: it names none."""
    return pod.spec.machine.reservation if pod.spec.machine is not None else ""


def next_window(item: Reservation, now: float) -> Window | None:
    """Return the window that is open, or the next one; None: none is ahead. Args: now: Unix seconds."""
    found = calendar.windows(item, now, now + calendar.MOST_DAYS * 86400)
    return min(found, key=lambda one: one.start, default=None)


def check(name: str, namespace: str, gpus: int, item: Reservation | None, now: float) -> None:
    """Refuse a container that no window of its reservation will ever let start.

    Args:   gpus: whole GPUs that it asks for.   item: the namespace's reservation of that name; None: it has none.
            now: Unix seconds.
    Raises: Invalid (`ReservationNotFound`, `ReservationOver`, `ReservationUnused`); Insufficient
            (`ReservationTooSmall`).
    """
    if item is None:
        message = f'namespace "{namespace}" has no reservation "{errors.readable(name[:63])}"'
        hint = f"{_LIST}; a container runs in one of its own namespace (-n)"
        raise errors.Invalid(message, reason="ReservationNotFound", hint=hint)
    if not gpus:
        message = f'a reservation has whole GPUs, and none is asked for in reservation "{name}"'
        raise errors.Invalid(message, reason="ReservationUnused", hint=f"-g 1 to -g {item.spec.gpus}")
    if gpus > item.spec.gpus:
        message = f'{gpus} GPUs are asked for, and reservation "{name}" has {item.spec.gpus}'
        hint = f"-g {item.spec.gpus}, or reserve more: `fairlead reserve -g {gpus} --from TIME --for TIME`"
        raise errors.Insufficient(message, reason="ReservationTooSmall", hint=hint)
    if next_window(item, now) is None:
        raise errors.Invalid(over(item), reason="ReservationOver", hint="reserve another time, or leave it out")


def over(item: Reservation) -> str:
    """Return that no window of a reservation is ahead: its last one ended, or was given back."""
    last = max(calendar.starts(item.spec, 0.0, math.inf), default=None) if not item.spec.repeat else None
    when = f" (it was {calendar.says(last, item.spec.zone)})" if last is not None else ""
    back = ", its last window was given back" if item.status.released else ""
    return f'reservation "{item.metadata.name}" is over{back}{when}'


def waits(name: str, item: Reservation | None, now: float) -> str:
    """Return why a pod waits for its reservation whatever nodes there are; empty: a window is open.

    Args: item: None: it is there no more.   now: Unix seconds.
    """
    if item is None:
        return f'its reservation "{name}" was deleted: remove it, and run it again without --reservation'
    window = next_window(item, now)
    if window is None:
        return f"{over(item)}: remove it, and run it again without --reservation"
    if window.start > now:
        return f'its reservation "{name}" begins {calendar.says(window.start, window.zone)}, and it waits for that'
    return ""


def full(name: str, has: int, held: int, gpus: int) -> str:
    """Return why a container does not start beside those that hold a reservation's GPUs; empty: it may.

    Args: has: GPUs of the reservation.   held: those that its containers hold.   gpus: asked for.
    """
    if held + gpus <= has:
        return ""
    return f'reservation "{name}" has {has} GPUs and containers in it hold {held} of them'
