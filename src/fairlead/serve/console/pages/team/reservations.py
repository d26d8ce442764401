"""Shows reservations of GPUs by week and as a list, and when others have some, with a form that makes one.

The address says which week is shown and in whose zone: a script puts the browser's there, and without it, it is UTC.
"""

from __future__ import annotations

import time
import urllib.parse
import zoneinfo
from collections.abc import Mapping
from typing import Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.plan.reservation import calendar, when
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import tone, weekgrid
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.reservations.view import ReservationList
from fairlead.wire.kubernetes import meta

_HERE: Final = "/console/reservations"
_TEXTS: Final = ("name", "namespace", "from", "zone", "repeat", "until")
_REPEATS: Final[Mapping[str, str]] = {
    "": "once",
    "daily": "each day",
    "weekdays": "Monday to Friday",
    "weekly": "each week",
}
_HOURS: Final = 6
"""Digits of a number of hours that are read."""


@litestar.get(_HERE, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List reservations."""
    return await _page(visit)


@litestar.post(_HERE, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Reserve GPUs."""
    fields = visits.form(body)
    wanted: dict[str, object] = {name: fields.get(name, "").strip() for name in _TEXTS}
    wanted |= {"gpus": _number(fields.get("gpus", "")), "duration_seconds": _number(fields.get("hours", ""), 3600)}
    answer = await visits.tried(visit.api.ask("POST", "/v1/reservations", body=wanted, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
    return response.Redirect(_shown(visit), status_code=303)


@litestar.post(f"{_HERE}/delete", include_in_schema=False)
async def delete(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Give reserved GPUs back."""
    fields = visits.form(body)
    path, asked = f"/v1/reservations/{client.part(fields.get('name', ''))}", {"namespace": fields.get("namespace", "")}
    await visit.api.ask("DELETE", path, asked, csrf=fields.get("csrf", ""))
    return response.Redirect(_HERE, status_code=303)


ROUTES: Final = (listing, make, delete)


def _number(text: str, unit: int = 1) -> int:
    """Return a number as it is sent; 0, which the service refuses, where the text is none."""
    shown = text.strip()
    whole, _, part = shown.partition(".")
    is_number = len(shown) <= _HOURS and shown.isascii() and whole.isdecimal() and (part.isdecimal() or not part)
    return round(float(shown) * unit) if is_number else 0


def _zone(visit: Visit) -> zoneinfo.ZoneInfo:
    """Return the zone that the address names; UTC: none, or one that there is not."""
    try:
        return when.zone(visit.query.get("zone", "") or "UTC")
    except errors.Invalid:
        return when.zone("UTC")


def _shown(visit: Visit) -> str:
    """Return the address of the week that the form was sent from."""
    asked = {name: visit.query[name][:64] for name in ("week", "zone") if visit.query.get(name)}
    return f"{_HERE}?{urllib.parse.urlencode(asked)}" if asked else _HERE


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    found, absent = ReservationList(items=()), ""
    try:
        found = await visit.api.get(ReservationList, "/v1/reservations")
    except errors.Unauthenticated:
        raise
    except (errors.RequestError, errors.Denied, errors.Conflict, errors.Unavailable) as problem:
        absent = problem.message
    zone, now = _zone(visit), time.time()
    monday = weekgrid.monday_of(visit.query.get("week", ""), now, zone)
    begin = {"from": visit.query.get("from", "")[:64], "zone": zone.key if visit.query.get("zone") else ""}
    return visit.page(
        "reservations",
        week=None if absent else weekgrid.week(found.items, found.taken, monday=monday, zone=zone, now=now),
        zone=zone.key,
        here=_HERE,
        sent_to=_shown(visit),
        names=await visit.space_names(),
        items=found.items,
        taken=found.taken[:_MOST_TAKEN],
        capacity=found.capacity,
        absent=absent,
        error=error,
        fields=begin if fields is None else fields,
        problems=_at_field(error),
        repeats=_REPEATS,
        spaces=await visit.spaces(),
        may_write=visit.may(Action.CONTAINER_RUN) and not absent,
        says=_says,
        tone=tone,
    )


_MOST_TAKEN: Final = 50
_FIELDS: Final[Mapping[str, str]] = {
    "TimeInvalid": "from",
    "ZoneUnknown": "zone",
    "DurationInvalid": "hours",
    "RepeatInvalid": "repeat",
    "UntilInvalid": "until",
    "DateInvalid": "until",
    "GPUsInvalid": "gpus",
    "ReservationTooSoon": "from",
    "ReservationOver": "from",
    "ReservedTooFar": "from",
}
"""By reason of a refusal: the field that it is about."""


def _at_field(error: errors.FairleadError | None) -> dict[str, str]:
    if error is None or error.reason not in _FIELDS:
        return {}
    return {_FIELDS[error.reason]: "; ".join(filter(None, (error.message, error.hint)))}


def _says(text: str, zone: str = "UTC") -> str:
    at = meta.timestamp(text or None)
    return "-" if at is None else calendar.says(at, zone)
