"""Serves the routes of events."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, Final

import litestar
from litestar import openapi, params, response

from fairlead import errors
from fairlead.serve.api import eventstream, stream
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.closing import closing
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.events.view import EventList, EventView, event_view, matches_object, selector_of
from fairlead.store.port import ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core

_DIGITS: Final = 19
_AGAIN_S: Final = 0.5


def event_list(found: Iterable[core.Event], page: pages.Page) -> EventList:
    """Return a page of events, oldest first."""

    def key(pair: tuple[core.Event, EventView]) -> tuple[str, str, str]:
        event, shown = pair
        return shown.at or "", event.metadata.namespace, event.metadata.name

    items, following = page.cut(sorted(((one, event_view(one)) for one in found), key=key), key)
    return EventList(items=tuple(shown for _, shown in items), next=following)


FOLLOWED: Final = {200: openapi.ResponseSpec(EventList, generate_examples=False)} | eventstream.STREAM


def answer(
    store: Store, selector: Selector, is_wanted: Callable[[core.Event], bool], last: str, *, tail: int | None = None
) -> litestar.Response[Any]:
    """Answer with events as they come, behind the one that was read last; its id is the version of the store.

    Args:   tail: of the past, only the last ones.
    Raises: RequestError (`LastEventIDInvalid`).
    """
    if last not in {"", eventstream.END} and not (last.isascii() and last.isdecimal() and len(last) <= _DIGITS):
        message = f'Last-Event-ID "{errors.readable(last[:80])}" is no id of these events'
        raise errors.RequestError(message, reason="LastEventIDInvalid", hint="leave it out to read from the beginning")
    return eventstream.answer(last, lambda: _messages(store, selector, is_wanted, last, tail=tail))


async def _messages(
    store: Store, selector: Selector, is_wanted: Callable[[core.Event], bool], last: str, *, tail: int | None = None
) -> AsyncIterator[eventstream.Message]:
    since = last
    while True:
        if not since:
            listing = await store.list(core.Event, selector)
            since = listing.resource_version
            found = sorted((one for one in listing.items if is_wanted(one)), key=lambda one: event_view(one).at or "")
            for one in found if tail is None else found[len(found) - min(tail, len(found)) :]:
                yield eventstream.Message(data=event_view(one))
            yield eventstream.Message(event="current", id=since, data={"events": len(found)})
        try:
            async with closing(store.watch(core.Event, selector, since=since)) as changes:
                async for change in changes:
                    since = change.object.metadata.resource_version
                    if change.kind is not ChangeKind.DELETED and is_wanted(change.object):
                        yield eventstream.Message(data=event_view(change.object), id=since)
        except errors.Gone:
            yield eventstream.Message(event="reset", data={"message": "the history is no longer kept: all of it again"})
            since = ""
        else:
            await asyncio.sleep(_AGAIN_S)  # a watch that ended is gone on with behind the last change


@litestar.get(
    "/v1/events",
    dependencies=pages.PAGE | eventstream.FOLLOWS,
    summary="List or follow events",
    responses=documented(400) | FOLLOWED,
    tags=["machine"],
)
async def list_events(
    services: Dependencies,
    follows: eventstream.Follows,
    page: pages.Paged,
    object_: Annotated[
        str, params.QueryParameter(name="object", description="`pod/NAME`, `node/NAME`, `NAME`; empty: all")
    ] = "",
    follow: Annotated[bool, params.QueryParameter(description="go on for ever, one JSON value a line")] = False,
    tail: Annotated[
        int | None, params.QueryParameter(ge=0, description="where it is followed: of the past only the last ones")
    ] = None,
) -> litestar.Response[Any]:
    """Return events, oldest first; with `follow` those to come as well, as `application/x-ndjson`.

    With `Accept: text/event-stream` they are followed as events of that form: the past without ids, `current`, and
    each that happens from then on; `reset` where it begins from the beginning again.
    """
    if follows.is_wanted:
        is_wanted = functools.partial(matches_object, wanted=object_)
        return answer(services.store, selector_of(object_), is_wanted, follows.last, tail=tail)
    listing = await services.store.list(core.Event, selector_of(object_))
    wanted = [event for event in listing.items if matches_object(event, object_)]
    if not follow:
        return litestar.Response(event_list(wanted, page))
    past = sorted(map(event_view, wanted), key=lambda item: item.at or "")
    past = past if tail is None else past[len(past) - min(tail, len(past)) :]
    events = _follow_events(services, object_, past, listing.resource_version)
    return response.Stream(stream.as_lines(events), media_type=stream.LINES)


async def _follow_events(
    services: Services, wanted: str, past: list[EventView], version: str
) -> AsyncIterator[EventView]:
    for item in past:
        yield item
    async with closing(services.store.watch(core.Event, selector_of(wanted), since=version)) as changes:
        async for change in changes:
            if change.kind.value == "ADDED" and matches_object(change.object, wanted):
                yield event_view(change.object)


ROUTES = (list_events,)
