"""Sends server-sent events: with ids to go on from, heartbeats, and an end that says why.

A follower asks with `Accept: text/event-stream`, and after a break with `Last-Event-ID`. Between its reader and what it
follows stands a short queue. For a follower that reads nothing for `STALL_S` the source is closed; its last event says
so, and after `HANG_UP_S` more the connection is cut. So a follower that stops costs a connection for two minutes, and
delays no one. The event `end` has the id `end`: a browser that comes again with it is answered 204, which has it stop.
Source: HTML, 9.2 "Server-sent events" (event stream format, processing model).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, cast

import litestar
import msgspec
from litestar import di, openapi, params, response, types

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.serve import peer
from fairlead.serve.closing import closing
from fairlead.wire.fairlead import problem

MEDIA_TYPE: Final = "text/event-stream"
LAST_ID: Final = "Last-Event-ID"
END: Final = "end"
"""Event and id of the last one."""
HEARTBEAT_S: Final = 15.0
STALL_S: Final = 30.0
HANG_UP_S: Final = 90.0
_QUEUED: Final = 64
_HEARTBEAT: Final = b": heartbeat\n\n"

STREAM: Final = {
    204: openapi.ResponseSpec(None, generate_examples=False, description=f"{LAST_ID} is that of the end"),
}
"""Responses of a route that can be followed, beside its 200."""


@frozen
class Message:
    """One event."""

    data: Any
    """Sent as JSON, in one line."""
    event: str = ""
    """Its kind; empty: `message`, as browsers have it."""
    id: str = ""
    """For `Last-Event-ID`: following goes on behind this event; empty: behind the one before."""

    def encode(self) -> bytes:
        """Return its lines."""
        head = "".join(f"{name}: {value}\n" for name, value in (("event", self.event), ("id", self.id)) if value)
        return head.encode() + b"data: " + msgspec.json.encode(self.data) + b"\n\n"


def end(reason: str, **more: Any) -> Message:
    """Return the last event. Args: reason: stable token."""
    return Message(event=END, id=END, data={"reason": reason, **more})


@frozen
class Asked:
    """Whether a request asks for events rather than for one answer, and behind which one."""

    is_wanted: bool
    last: str


def asked(
    request: litestar.Request[Any, Any, Any],
    last: Annotated[
        str, params.HeaderParameter(name=LAST_ID, description=f"with {MEDIA_TYPE}: id of the last event that was read")
    ] = "",
) -> Asked:
    """Return how a request asks for events."""
    accepted = (one.partition(";")[0].strip() for one in request.headers.get("accept", "").split(","))
    return Asked(is_wanted=MEDIA_TYPE in accepted, last=last)


Follows = di.NamedDependency[params.SkipValidation[Asked]]
"""Type of the handler parameter `follows`; the route declares it by `dependencies=FOLLOWS`."""
FOLLOWS: Final = {"follows": di.Provide(asked, sync_to_thread=False)}


def answer(last: str, messages: Callable[[], AsyncIterator[Message]]) -> litestar.Response[Any]:
    """Answer with events. Args: last: `Last-Event-ID`.   messages: begins to follow."""
    if last == END:
        return litestar.Response(None, status_code=204)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return _EventStream(cast("Any", messages()), media_type=MEDIA_TYPE, headers=headers)


class _EventStream(response.Stream):
    """A stream of events, as routes return it."""

    def to_asgi_response(self, app: Any, request: Any, **more: Any) -> Any:
        """Return what sends it."""
        return _Followed(super().to_asgi_response(app, request, **more), self.iterator)


class _Followed:
    """Sends a head, and events as they come."""

    def __init__(self, head: Any, messages: Any) -> None:
        self._head, self._messages = head, messages

    async def __call__(self, scope: Any, receive: types.Receive, send: types.Send) -> None:
        """Send until either side ends it."""
        await self._head.start_response(send=send)
        queue = asyncio.Queue[Message | None](_QUEUED)
        async with asyncio.TaskGroup() as tasks:
            filling = tasks.create_task(_fill(queue, self._messages))
            draining = tasks.create_task(_drain(queue, send, (scope.get("state") or {}).get(peer.HANG_UP)))
            leaving = tasks.create_task(_gone(receive))
            await asyncio.wait((draining, leaving), return_when=asyncio.FIRST_COMPLETED)
            for part in (filling, draining, leaving):
                part.cancel()


async def _gone(receive: types.Receive) -> None:
    """Return once the follower has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _fill(queue: asyncio.Queue[Message | None], messages: AsyncIterator[Message]) -> None:
    """Read what is followed, until its end or until the follower takes nothing in."""
    last: Message | None = None
    try:
        async with closing(messages) as found:
            async for last in found:
                async with asyncio.timeout(STALL_S):
                    await queue.put(last)
        if last is None or last.event != END:
            await queue.put(end("Ended"))
    except TimeoutError:
        while not queue.empty():
            queue.get_nowait()
        telemetry.log.warning("follower ended", reason="FollowerTooSlow", duration_s=STALL_S)
        await queue.put(end("FollowerTooSlow", message=f"nothing was read for {STALL_S:.0f} s: ask again"))
    except errors.FairleadError as error:
        await queue.put(Message(event="problem", data=problem.problem_of(error)))
        await queue.put(end(error.reason))
    await queue.put(None)


async def _drain(queue: asyncio.Queue[Message | None], send: types.Send, hang_up: Any) -> None:
    """Send what is there, and heartbeats where nothing is."""
    is_over = False
    while not is_over:
        piece = _HEARTBEAT
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                found = await queue.get()
            is_over, piece = found is None, b"" if found is None else found.encode()
        try:
            async with asyncio.timeout(STALL_S + HANG_UP_S):
                await send({"type": "http.response.body", "body": piece, "more_body": not is_over})
        except TimeoutError:
            if hang_up is not None:
                hang_up()
            return


def describe(operation: dict[str, Any]) -> None:
    """Add to the document that a route which takes `Last-Event-ID` can be followed."""
    if any(one["name"] == LAST_ID for one in operation.get("parameters", ())):
        answers = operation["responses"]["200"]
        answers["content"][MEDIA_TYPE] = {"schema": {"type": "string", "description": "events, while it is followed"}}
