"""Divides lists into pages: each goes on behind the last item of the one before, whatever came and went meanwhile.

A cursor is the key of an item, which orders the list and belongs to no other item; it means the same to every process
of the service. Without `limit` and `after` a list is whole.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from litestar import di, params

from fairlead import errors
from fairlead.frozen import frozen

T = TypeVar("T")
Key = tuple[str | int, ...]
"""The same types in the same places for all items of a list."""

_LONGEST: Final = 4096


@frozen
class Page:
    """Which part of a list is asked for."""

    limit: int | None = None
    after: str = ""

    def cut(self, items: Iterable[T], key: Callable[[T], Key]) -> tuple[tuple[T, ...], str]:
        """Return the items of the page, in the order of their keys, and the cursor of the next one; empty: none.

        Raises: RequestError (`CursorInvalid`).
        """
        if self.limit is None and not self.after:
            return tuple(items), ""
        found = sorted(items, key=key)
        if self.after:
            behind = _read(self.after)
            try:
                found = [item for item in found if key(item) > behind]
            except TypeError as error:
                raise _invalid() from error
        part = tuple(found[: self.limit])
        return part, _written(key(part[-1])) if len(part) < len(found) else ""


def asked(
    limit: Annotated[
        int | None, params.QueryParameter(ge=1, le=1000, description="items of a page; empty: all of them")
    ] = None,
    after: Annotated[str, params.QueryParameter(description="`next` of the page before")] = "",
) -> Page:
    """Return the page that a request asks for."""
    return Page(limit=limit, after=after)


Paged = di.NamedDependency[params.SkipValidation[Page]]
"""Type of the handler parameter `page`; the route declares it by `dependencies=PAGE`."""
PAGE: Final = {"page": di.Provide(asked, sync_to_thread=False)}


def _written(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def _read(cursor: str) -> Key:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if len(cursor) > _LONGEST:
            raise _invalid()
        return msgspec.json.decode(text, type=Key)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise _invalid() from error


def _invalid() -> errors.RequestError:
    message = "the cursor is not one of a page of this list"
    return errors.RequestError(message, reason="CursorInvalid", hint="send `next` of the page before as it was")
