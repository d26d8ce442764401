"""Turns reservations into events of a calendar; of others' nothing is said but how many GPUs are taken."""

from __future__ import annotations

from typing import Final

from fairlead.plan.reservation import calendar, profile
from fairlead.serve.backend.port import ReservationListing
from fairlead.wire.text.calendarfeed import Event

MOST: Final = 1000
"""Events of one feed; calendar programs ask again."""


def events(found: ReservationListing, now: float) -> tuple[Event, ...]:
    """Return the windows that are open or ahead, by their begin."""
    mine = calendar.all_windows(found.items, now, now + calendar.MOST_DAYS * 86400)
    own = [
        Event(
            uid=f"{int(one.start)}.{one.name}.{one.namespace}@fairlead",
            start=one.start,
            end=one.end,
            summary=f"{_gpus(one.gpus)}: {one.name}",
            description=f"reserved for {one.namespace}",
        )
        for one in mine[:MOST]
    ]
    others = [
        Event(
            uid=f"{int(one.start)}.taken@fairlead",
            start=one.start,
            end=one.end,
            summary=f"{_gpus(sum(each.gpus for each in one.windows))} taken",
        )
        for one in profile.build(found.others).segments[:MOST]
    ]
    return tuple(sorted((*own, *others), key=lambda one: (one.start, one.uid))[:MOST])


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
