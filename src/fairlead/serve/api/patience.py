"""Bounds how long a request waits for something to come about: by its own time, and by its client's presence.

The server carries a request on though its client has hung up, so that a change is never cut off in its middle. A wait
stands behind the change, and would go on without its client: an hour each, and any number of them.
Source: ASGI specification, "Disconnect - receive event".
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator
from typing import Any, Final

from litestar import types

from fairlead import errors

_RECEIVE: Final = contextvars.ContextVar[types.Receive | None]("receive", default=None)
"""Of the request that is under way."""


def attending(inner: types.ASGIApp) -> types.ASGIApp:
    """Return an application whose waits hear that their client has hung up."""

    async def called(scope: Any, receive: types.Receive, send: types.Send) -> None:
        before = _RECEIVE.set(receive if scope["type"] == "http" else None)
        try:
            await inner(scope, receive, send)
        finally:
            _RECEIVE.reset(before)

    return called


@contextlib.asynccontextmanager
async def wait(seconds: float | None) -> AsyncIterator[None]:
    """Bound the block. The request's body has been read, or has none.

    Raises: TimeoutError: the time is over, or the client has hung up.
    """
    refused: errors.FairleadError | None = None
    async with asyncio.timeout(seconds) as limit, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(_hear(_RECEIVE.get(), limit))
        try:
            yield
        except errors.FairleadError as error:
            refused = error  # not as a group's
        finally:
            listening.cancel()
    if refused is not None:
        raise refused


async def _hear(receive: types.Receive | None, limit: asyncio.Timeout) -> None:
    """End a wait once its client has hung up."""
    if receive is not None:
        while (await receive())["type"] != "http.disconnect":
            pass
        limit.reschedule(asyncio.get_running_loop().time())
