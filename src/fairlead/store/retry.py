"""Changes one part of an object and leaves what others write: read, change, write, again on a conflict.

The store refuses a version that is no longer the newest, so a writer that read the object and put it back at the
version it read never undoes what another client wrote in between. Here the round is repeated until it was undisturbed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from fairlead import errors
from fairlead.store.port import AdmittingStore, Reader, Store
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)

ROUNDS: Final = 10


async def change_status(
    store: Store, kind: type[T], name: str, change: Callable[[T], T | None], *, namespace: str = ""
) -> T:
    """Write the status of the object that `change` makes of the newest one; only its status counts.

    Args:    change: gets the object as it is, returns it with another status, or None to leave it; may be called
             again, with a newer object.
    Returns: the object as stored.
    Raises:  NotFound; Conflict: it was changed by others in every round; whatever the store or `change` raises.
    """
    return await _repeat(store, kind, name, namespace, change, store.update_status)


async def change(store: Store, kind: type[T], name: str, change: Callable[[T], T | None], *, namespace: str = "") -> T:
    """Write metadata and spec of the object that `change` makes of the newest one. As `change_status` otherwise."""
    return await _repeat(store, kind, name, namespace, change, store.update)


async def change_checked(
    store: AdmittingStore,
    kind: type[T],
    name: str,
    change: Callable[[T], T | None],
    check: Callable[[Reader, T], None],
    *,
    namespace: str = "",
) -> T:
    """As `change`, unless `check` raises in the step that stores what `change` made; see `Admitter.update_checked`."""

    async def write(changed: T) -> T:
        return await store.update_checked(changed, lambda seen: check(seen, changed))

    return await _repeat(store, kind, name, namespace, change, write)


async def _repeat(
    store: Store,
    kind: type[T],
    name: str,
    namespace: str,
    change: Callable[[T], T | None],
    write: Callable[[T], Awaitable[T]],
) -> T:
    for left in reversed(range(ROUNDS)):
        found = await store.get(kind, name, namespace)
        changed = change(found)
        if changed is None or changed == found:
            return found
        try:
            return await write(changed)
        except errors.Conflict as error:
            if error.reason != "StaleVersion" or not left:
                raise
    raise AssertionError("the last round returns or raises")
