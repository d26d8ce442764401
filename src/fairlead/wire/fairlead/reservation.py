"""Declares `Reservation`: GPUs that one namespace has at a time that is to come, once or again and again.

Who owns it writes `spec`; the controller of reservations alone writes `status`. Its namespace is whose it is. Times are
those of a clock on the wall in `spec.zone`, so that nine o'clock stays nine o'clock where clocks are set forward.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.gpudevice import API_VERSION as _GROUP
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire

ONCE: Final = ""
DAILY: Final = "daily"
WEEKDAYS: Final = "weekdays"
WEEKLY: Final = "weekly"
REPEATS: Final = (ONCE, DAILY, WEEKDAYS, WEEKLY)


class ReservationSpec(Wire, frozen=True):
    """How many GPUs, and when."""

    gpus: int
    """Whole GPUs."""
    start: str
    """Of its first window: date and time on the wall, `2026-12-01T09:00`."""
    zone: str
    """Time zone of that clock, by its IANA name."""
    duration_seconds: int
    """Length of each window: time that passes, whatever clocks on walls do meanwhile."""
    repeat: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(REPEATS)})] = ONCE
    """Empty: once. daily, weekdays (Monday to Friday) or weekly, at the same time on the wall."""
    until: str = ""
    """Last day on which a window begins, `2026-12-31`; empty: it does not repeat."""


class ReservationStatus(Wire, frozen=True):
    """What became of its latest windows."""

    used: tuple[str, ...] = ()
    """Begins of windows, RFC 3339, in which a container of its namespace had or wanted GPUs."""
    released: tuple[str, ...] = ()
    """Begins of windows whose GPUs were given back, since nobody used them."""


class Reservation(Wire, frozen=True, kw_only=True):
    """One reservation."""

    API_VERSION: ClassVar[str] = _GROUP
    KIND: ClassVar[str] = "Reservation"
    PLURAL: ClassVar[str] = "reservations"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()
