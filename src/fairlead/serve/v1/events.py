"""Routes of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

import litestar
from litestar import openapi, params, response

from fairlead.serve.api import page as pages
from fairlead.serve.api import stream
from fairlead.serve.api.failure import documented
from fairlead.serve.closing import closing
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.eventview import EventList, EventView, event_view, matches_object
from fairlead.wire.kubernetes import core


def event_list(found: Iterable[core.Event], page: pages.Page) -> EventList:
    """Return a page of events, oldest first."""

    def key(pair: tuple[core.Event, EventView]) -> tuple[str, str, str]:
        event, shown = pair
        return shown.at or "", event.metadata.namespace, event.metadata.name

    items, following = page.cut(sorted(((one, event_view(one)) for one in found), key=key), key)
    return EventList(items=tuple(shown for _, shown in items), next=following)


@litestar.get(
    "/v1/events",
    dependencies=pages.PAGE,
    summary="List or follow events",
    responses=documented(400) | {200: openapi.ResponseSpec(EventList, generate_examples=False)},
    tags=["machine"],
)
async def list_events(
    services: Dependencies,
    page: pages.Paged,
    object_: Annotated[
        str, params.QueryParameter(name="object", description="`pod/NAME`, `node/NAME`, `NAME`; empty: all")
    ] = "",
    follow: Annotated[bool, params.QueryParameter(description="go on for ever, one JSON value a line")] = False,
) -> litestar.Response[Any]:
    """Return events, oldest first; with `follow` those to come as well, as `application/x-ndjson`."""
    listing = await services.store.list(core.Event)
    wanted = [event for event in listing.items if matches_object(event, object_)]
    if not follow:
        return litestar.Response(event_list(wanted, page))
    past = sorted(map(event_view, wanted), key=lambda item: item.at or "")
    events = _follow_events(services, object_, past, listing.resource_version)
    return response.Stream(stream.as_lines(events), media_type=stream.LINES)


async def _follow_events(
    services: Services, wanted: str, past: list[EventView], version: str
) -> AsyncIterator[EventView]:
    for item in past:
        yield item
    async with closing(services.store.watch(core.Event, since=version)) as changes:
        async for change in changes:
            if change.kind.value == "ADDED" and matches_object(change.object, wanted):
                yield event_view(change.object)


ROUTES = (list_events,)
