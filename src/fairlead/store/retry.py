"""Changing one part of an object's status without touching the parts that others write: read, change, write, again.

`update_status` refuses a version that is no longer the newest, so a writer that read the object and put it back at the
version it read never undoes what somebody else wrote in between. Here the round is repeated until it was undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from fairlead import errors
from fairlead.store.port import Store
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)

_ROUNDS: Final = 10


async def change_status(
    store: Store, kind: type[T], name: str, change: Callable[[T], T | None], *, namespace: str = ""
) -> T:
    """Write the object that `change` makes of the newest one; only its status counts.

    Args:    change: gets the object as it is, returns it with another status, or None to leave it; may be called
             again, with a newer object.
    Returns: the object as stored.
    Raises:  NotFound; Conflict: it was changed by others in every round; whatever the store raises.
    """
    for left in reversed(range(_ROUNDS)):
        found = await store.get(kind, name, namespace)
        changed = change(found)
        if changed is None or changed == found:
            return found
        try:
            return await store.update_status(changed)
        except errors.Conflict as error:
            if error.reason != "StaleVersion" or not left:
                raise
    raise AssertionError("the last round returns or raises")
