"""Serves the routes of reservations: GPUs that a namespace has at a time to come, and the calendar of them."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Final

import litestar
from litestar import params, response, status_codes

from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import port
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.reservations import feed, view
from fairlead.serve.v1.reservations.view import ReservationList, ReservationRequest, ReservationView
from fairlead.wire.text import calendarfeed

Name = Annotated[str, params.PathParameter(description="name of the reservation")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the reservation")]
Where = Annotated[str | None, params.QueryParameter(description="empty: all namespaces")]


@litestar.post(
    "/v1/reservations",
    summary="Reserve GPUs",
    responses=documented(400, 403, 404, 409, 422),
    tags=["reservation"],
)
async def create_reservation(services: Dependencies, data: params.JSONBody[ReservationRequest]) -> ReservationView:
    """Reserve GPUs for a time to come, once or again and again; refused where others have them then."""
    kept, now = port.require(services.backend.reservations), time.time()
    place = services.backend.places.new(data.namespace or "default")
    made = await kept.create(view.read(data, zone=kept.zone, now=now), place, sees=lambda _namespace: True)
    return view.view(made, now)


@litestar.get(
    "/v1/reservations",
    dependencies=pages.PAGE,
    summary="List reservations",
    responses=documented(404),
    tags=["reservation"],
)
async def list_reservations(services: Dependencies, page: pages.Paged, namespace: Where = None) -> ReservationList:
    """Return reservations by namespace and name; of others' only that GPUs are taken, and when."""
    found = await _listed(services, namespace)
    items, following = page.cut(found.items, lambda one: (one.metadata.namespace, one.metadata.name))
    now = time.time()
    return await asyncio.to_thread(
        lambda: ReservationList(
            items=tuple(view.view(one, now) for one in items),
            taken=view.taken(found.others),
            capacity=found.capacity,
            next=following,
        )
    )


@litestar.get(
    "/v1/reservations/{name:str}", summary="Show a reservation", responses=documented(404), tags=["reservation"]
)
async def show_reservation(services: Dependencies, name: Name, namespace: Namespace = "default") -> ReservationView:
    """Return one reservation, with its next windows."""
    kept = port.require(services.backend.reservations)
    return view.view(await kept.find(name, namespace), time.time())


@litestar.delete(
    "/v1/reservations/{name:str}",
    summary="Delete a reservation",
    responses=documented(403, 404),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["reservation"],
)
async def delete_reservation(services: Dependencies, name: Name, namespace: Namespace = "default") -> None:
    """Give its GPUs back, now and in all windows to come; containers that run go on."""
    await port.require(services.backend.reservations).remove(name, namespace)


@litestar.get(
    "/v1/reservations.ics",
    summary="Export reservations as a calendar",
    responses=documented(404),
    media_type="text/calendar",
    tags=["reservation"],
)
async def export_reservations(services: Dependencies, namespace: Where = None) -> response.Response[bytes]:
    """Return the windows that are open or ahead as iCalendar, the first thousand; others' without a name."""
    found, now = await _listed(services, namespace), time.time()
    events = await asyncio.to_thread(feed.events, found, now)
    return response.Response(
        calendarfeed.emit("GPU reservations", events, now=now), media_type="text/calendar; charset=utf-8"
    )


async def _listed(services: Services, namespace: str | None) -> port.ReservationListing:
    return await port.require(services.backend.reservations).list_all(namespace)


ROUTES: Final = (
    create_reservation,
    list_reservations,
    show_reservation,
    delete_reservation,
    export_reservations,
)
