"""Follows objects: the list first, then every change, and the list again when the stream cannot go on.

The reader gets a mark where each list ends, so it knows what is gone; a watch alone never says that. A store that
refuses is asked again with growing, jittered waits, and the log says so once for each reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.store import port
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)

_FIRST_WAIT_S: Final = 0.2
_LAST_WAIT_S: Final = 30.0
_CALM_S: Final = 30.0
"""A round that lasted this long resets the back-off."""
_DOUBT_S: Final = 5.0
"""How long a denial may be temporary: an API server that starts denies what it allows a moment later."""


async def follow(
    store: port.Store,
    kind: type[T],
    selector: port.Selector,
    *,
    listed: Callable[[tuple[T, ...]], None],
    changed: Callable[[port.Change[T]], None],
    is_optional: bool = False,
    chance: Callable[[], float] = random.random,
) -> None:
    """Report all matching objects, then every change to them, until cancelled.

    Args:    listed: gets each fresh list; what is not in it is not there.   changed: gets every change after it.
             is_optional: a kind that is not served, or is denied for `_DOUBT_S` and could never be read, is an empty
             list; one whose right was taken away stays as it was.   chance: jitters waits, 0 to 1.
    """
    clock = asyncio.get_running_loop()
    waits, complaint = Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S, chance=chance), ""
    was_read, started = False, clock.time()
    while True:
        begun = clock.time()
        try:
            listing = await store.list(kind, selector)
            listed(listing.items)
            was_read = True
            async for change in store.watch(kind, selector, since=listing.resource_version):
                changed(change)
        except errors.FairleadError as error:
            if clock.time() - begun >= _CALM_S:
                waits.reset()
                complaint = ""
            is_served = not isinstance(error, errors.NotFound)
            # Objects that were read once stay: a quota, say, is not lifted because the right to read it is lost.
            is_denied = isinstance(error, errors.Denied) and not was_read and clock.time() - started >= _DOUBT_S
            if is_optional and (not is_served or is_denied):
                listed(())
            if is_served or not is_optional:
                complaint = _complain(kind, error, complaint)
            elif not complaint:
                complaint = error.reason
                telemetry.log.info("objects not served, none are there", role=kind.KIND, reason=error.reason)
        await asyncio.sleep(waits.next())


def _complain(kind: type[Object], error: errors.FairleadError, before: str) -> str:
    """Log a reason unless it was the last one logged; returns it."""
    if error.reason != before:
        telemetry.log.warning(
            "objects not readable, will ask again", role=kind.KIND, reason=error.reason, error=errors.sentence(error)
        )
    return error.reason
