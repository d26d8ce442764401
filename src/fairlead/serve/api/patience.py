"""Bounds how long a request waits for a state: by its own timeout, and until its client hangs up.

The server does not cancel a request whose client has hung up, so that no change is cut off in its middle. The wait that
follows the change would go on as well, for up to an hour each, and clients could pile up any number of them.
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
    """Return an application in which `wait` ends when the client hangs up."""

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
            refused = error  # raised below, so that no ExceptionGroup wraps it
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
