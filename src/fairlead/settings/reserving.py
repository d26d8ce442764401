"""Declares the settings of reservations: what tenants may reserve, and what becomes of who is in the way."""

from __future__ import annotations

from fairlead.frozen import frozen
from fairlead.settings.row import row


@frozen
class ReserveSettings:
    """Reservations of GPUs on one machine."""

    gpu_hours: float = row(
        500,
        text="GPU-hours that a tenant may have reserved at a time, in windows that are not over; 0: none",
    )
    ahead_days: int = row(30, unit="days", text="how far ahead a tenant may reserve, and how long one may repeat")
    most: int = row(50, text="reservations that a tenant may have at a time")
    lead_h: float = row(
        8,
        unit="h",
        text="a tenant's reservation that begins sooner gets only GPUs that nobody has to leave for it; "
        "administrators' have no such limit",
    )
    overrun: str = row(
        "stop",
        text="containers that hold GPUs when somebody's reservation of them begins: stop ends them, after an event "
        "beforehand; wait lets them end by themselves",
        choices=("stop", "wait"),
    )
    warn_min: float = row(15, unit="min", text="how long before its end a container's owner is warned, by an event")
    no_show_min: float = row(
        30, unit="min", text="a window whose GPUs nobody wants for so long from its begin is given back; 0: never"
    )
    open_ended_h: float = row(
        168,
        unit="h",
        text="how long a container without --timeout is taken to run: it is kept off GPUs that are reserved within "
        "that time; 0, or reserve.overrun=wait: for ever",
    )
    zone: str = row("", text="time zone of reservations that name none, as Europe/Berlin; empty: the machine's own")
