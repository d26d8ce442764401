"""Shows events in a person's words, or as they were written: the latest, and those that come."""

from __future__ import annotations

from typing import Final

import litestar

from fairlead.plan.pod import personwords
from fairlead.serve.console.visit import Visitor
from fairlead.serve.v1.events.view import EventList, EventView

_MOST: Final = 200


@litestar.get("/console/events", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """Show the latest events; `?raw=on`: with messages as they were written."""
    sought, kind = visit.query.get("q", "")[:200], visit.query.get("type", "")
    kind = kind if kind in {"Normal", "Warning"} else ""
    found = (await visit.api.get(EventList, "/v1/events")).items
    shown = [one for one in found if _is_wanted(one, sought, kind)]
    is_raw = visit.query.get("raw") == "on"
    return visit.page(
        "events",
        items=shown[: -_MOST - 1 : -1],
        spaces=await visit.space_names(),
        words=sought,
        kind=kind,
        is_raw=is_raw,
        most=_MOST,
    )


def _is_wanted(one: EventView, sought: str, kind: str) -> bool:
    told = f"{one.message} {personwords.message(one.message)}"
    text = f"{one.object} {one.namespace} {one.reason} {told} {one.source}".lower()
    return (not kind or one.type == kind) and all(word in text for word in sought.lower().split())


ROUTES: Final = (listing,)
