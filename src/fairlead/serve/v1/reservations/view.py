"""Describes reservations of GPUs; without the web framework."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from fairlead.plan.reservation import calendar, profile, rule, when
from fairlead.plan.reservation.calendar import Window
from fairlead.wire.fairlead import listing
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import meta

SHOWN: Final = 10
"""Windows that are listed of one reservation."""
MOST_TAKEN: Final = 1000
"""Times that are listed of others' reservations."""
ACTIVE, UPCOMING, RELEASED, OVER = "active", "upcoming", "released", "over"


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs that are wanted at a time."""

    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    start: Annotated[
        str, msgspec.Meta(max_length=64, description='when it begins: "tomorrow 9:00", "2026-12-01 9:00", RFC 3339')
    ] = msgspec.field(name="from")
    duration_seconds: Annotated[int, msgspec.Meta(ge=1, le=366 * 86400, description="length of each window")]
    name: Annotated[str, msgspec.Meta(max_length=63, description="empty: one is made up")] = ""
    namespace: Annotated[str, msgspec.Meta(max_length=253, description="whose it is; empty: the caller's own")] = ""
    zone: Annotated[str, msgspec.Meta(max_length=64, description="as Europe/Berlin; empty: the service's")] = ""
    repeat: Annotated[str, msgspec.Meta(max_length=16, description="daily, weekdays or weekly; empty: once")] = ""
    until: Annotated[
        str, msgspec.Meta(max_length=10, description="last day of one that repeats; empty: as far as may be reserved")
    ] = ""


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """One time of a reservation."""

    start: str
    end: str


class TakenView(msgspec.Struct, frozen=True, kw_only=True):
    """A time at which others have reserved GPUs."""

    start: str
    end: str
    gpus: int


class ReservationView(msgspec.Struct, frozen=True, kw_only=True):
    """One reservation."""

    name: str
    namespace: str
    gpus: int
    state: Annotated[str, msgspec.Meta(description="active, upcoming, released (nobody used this window) or over")]
    start: Annotated[str, msgspec.Meta(description="of the window that is open, or next; empty: it is over")]
    end: str
    first: Annotated[str, msgspec.Meta(description="first begin, on the clock of its zone")]
    zone: str
    duration_seconds: int
    repeat: str
    until: str
    gpu_hours: Annotated[float, msgspec.Meta(description="in windows that are not over")]
    windows: Annotated[tuple[WindowView, ...], msgspec.Meta(description="the next ten")]
    released: Annotated[tuple[str, ...], msgspec.Meta(description="begins of windows that were given back unused")]


class ReservationList(msgspec.Struct, frozen=True, kw_only=True):
    """Reservations, and when others have GPUs."""

    items: tuple[ReservationView, ...]
    taken: Annotated[tuple[TakenView, ...], msgspec.Meta(description="by others, the first thousand times")] = ()
    capacity: Annotated[int, msgspec.Meta(description="GPUs that can be reserved")] = 0
    next: listing.Next = ""


def read(data: ReservationRequest, *, zone: str, now: float) -> Reservation:
    """Return what is asked for, its times as stored. Raises: Invalid."""
    where = when.zone(data.zone or zone)
    start = when.parse(data.start, now=now, where=where)
    spec = ReservationSpec(
        gpus=data.gpus,
        start=start.isoformat(timespec="minutes"),
        zone=where.key,
        duration_seconds=data.duration_seconds,
        repeat=data.repeat,
        until=data.until,
    )
    name = data.name or f"reservation-{secrets.token_hex(3)}"
    return Reservation(metadata=meta.ObjectMeta(name=name), spec=spec)


def view(item: Reservation, now: float) -> ReservationView:
    """Return a reservation as the API shows it."""
    spec = item.spec
    ahead = calendar.windows(item, now, now + (calendar.MOST_DAYS + 32) * 86400)
    first = ahead[0] if ahead else None
    if first is None:
        state = OVER if calendar.is_over(item, now) else RELEASED
    elif first.start <= now:
        state = ACTIVE
    else:
        begun = any(start <= now < start + spec.duration_seconds for start in calendar.starts(spec, now, now + 1))
        state = RELEASED if begun else UPCOMING
    return ReservationView(
        name=item.metadata.name,
        namespace=item.metadata.namespace,
        gpus=spec.gpus,
        state=state,
        start=meta.emit_time(first.start) if first else "",
        end=meta.emit_time(first.end) if first else "",
        first=spec.start,
        zone=spec.zone,
        duration_seconds=spec.duration_seconds,
        repeat=spec.repeat,
        until=spec.until,
        gpu_hours=round(rule.gpu_hours(ahead, now), 2),
        windows=tuple(map(_window, ahead[:SHOWN])),
        released=item.status.released,
    )


def _window(one: Window) -> WindowView:
    return WindowView(start=meta.emit_time(one.start), end=meta.emit_time(one.end))


def taken(windows: Iterable[Window]) -> tuple[TakenView, ...]:
    """Return when others have how many GPUs, and nothing else of them."""
    found = (
        TakenView(
            start=meta.emit_time(one.start),
            end=meta.emit_time(one.end),
            gpus=sum(each.gpus for each in one.windows),
        )
        for one in profile.build(windows).segments[:MOST_TAKEN]
    )
    return tuple(found)
