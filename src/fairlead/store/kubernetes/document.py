"""Lists objects as documents, in whichever version of their group a server has: for kinds that are read in several.

Source: Kubernetes API reference, "API groups and versioning" (`/apis/GROUP`) and "retrieving large results in chunks".
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead import errors
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import path
from fairlead.store.kubernetes.store import PAGE
from fairlead.wire.kubernetes import api, meta
from fairlead.wire.kubernetes.meta import Wire
from fairlead.wire.text import typedjson

_MOST_PAGES = 2_000
"""A million objects: beyond what a person's command reads."""


class _Version(Wire, frozen=True):
    group_version: str = ""


class _Group(Wire, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Page(Wire, frozen=True):
    metadata: api.ListMeta = api.ListMeta()
    items: tuple[dict[str, Any], ...] = ()


async def served(client: http.Client, group: str) -> tuple[str, ...]:
    """Return the versions of a group that a server has, `GROUP/v1`; none: it does not know the group.

    Raises: Denied, Unavailable, ProtocolError.
    """
    try:
        body = await client.request(http.Request(method="GET", path=f"/apis/{group}"))
        return tuple(one.group_version for one in typedjson.decode(body, type=_Group).versions)
    except errors.NotFound:
        return ()
    except msgspec.MsgspecError as error:
        raise _unreadable(f"versions of {group}", error) from error


async def documents(
    client: http.Client, kind: type[meta.Object], version: str, *, namespace: str = ""
) -> tuple[dict[str, Any], ...]:
    """Return all objects of a kind, as a version has them; all of one moment. Args: namespace: empty: in all.

    Raises: NotFound: the version does not have the kind, or the namespace can be none; Denied, Unavailable,
            ProtocolError.
    """
    root = "/api" if version == "v1" else "/apis"
    inside = f"namespaces/{path.segment(namespace)}/" if namespace else ""
    where = f"{root}/{version}/{inside}{kind.PLURAL}"
    for limit in (PAGE, PAGE, None):  # a list that history leaves behind is begun again, at last in one piece
        try:
            return await _pages(client, where, limit)
        except errors.Gone:
            continue
    raise errors.Unavailable(f"list of {kind.KIND} was overtaken by history again and again", reason="HistoryCompacted")


async def _pages(client: http.Client, where: str, limit: int | None) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = []
    following = ""
    for _ in range(_MOST_PAGES):
        query = path.query(limit=limit, **{"continue": following})
        body = await client.request(http.Request(method="GET", path=where, query=query))
        try:
            page = typedjson.decode(body, type=_Page)
        except msgspec.MsgspecError as error:
            raise _unreadable(f"list {where}", error) from error
        found += page.items
        following = page.metadata.continue_
        if not following:
            return tuple(found)
    message = f"list {where} does not end after {_MOST_PAGES} pages"
    raise errors.ProtocolError(message, reason="ListEndless", hint="is a proxy in between?")


def _unreadable(what: str, error: msgspec.MsgspecError) -> errors.ProtocolError:
    return errors.ProtocolError(
        f"{what} cannot be read: {error}", reason="ObjectUnreadable", hint="is it an API server?"
    )
