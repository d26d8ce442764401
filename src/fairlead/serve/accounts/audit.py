"""Declares the audit log: who changed what by TLS, and who was refused; without the database.

A request that changes something is written before it is carried out, and how it ended is written beside it before the
answer leaves; a request that cannot be recorded is refused. A refusal is written with its outcome in one step. Nothing
of a request's body, query or headers is kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Final, Protocol

import msgspec

from fairlead.frozen import frozen

_LONGEST: Final = 256
_SECRET: Final = re.compile(r"(fl[ks]_[0-9a-fA-F]{12})_\w+", re.ASCII)


@frozen
class Entry:
    """What was asked, and by whom."""

    request: str
    """Id of the request, which its answer has as X-Request-Id."""
    peer: str
    """Address that it came from."""
    method: str
    object: str
    """Path, as `shown` gives it."""
    account: str = ""
    """Empty: the key was not accepted."""
    key: str = ""
    """Id of the key; as it was claimed, where there is no account."""
    action: str = ""
    """Of the table of roles; empty: it came to no route."""


@frozen
class Place:
    """A namespace and the tenancy that it is of."""

    namespace: str = ""
    tenancy: str = ""
    uid: str = ""


@frozen
class Outcome:
    """How a request ended."""

    status: int
    reason: str
    place: Place
    count: int = 1
    """How many refusals it stands for; above 1 the entry is the last of them."""


@frozen
class Query:
    """What is looked for in the log."""

    since: float | None = None
    until: float | None = None
    """Unix seconds, exclusive."""
    account: str = ""
    uids: Collection[str] | None = None
    """Of the tenancies that entries must be of; None: every entry."""
    before: int | None = None
    """Id of the entry that the last page ended with."""
    limit: int = 100


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the audit log."""

    at: str
    request: Annotated[str, msgspec.Meta(description="id of the request, its answer's X-Request-Id")]
    account: Annotated[str, msgspec.Meta(description="empty: the key was not accepted")]
    key: Annotated[str, msgspec.Meta(description="id of the key; as it was claimed, where there is no account")]
    peer: Annotated[str, msgspec.Meta(description="address that it came from")]
    method: str
    action: Annotated[str, msgspec.Meta(description="of the table of roles; empty: it came to no route")]
    object: Annotated[str, msgspec.Meta(description="path, without its query")]
    namespace: str
    tenancy: str
    status: Annotated[int | None, msgspec.Meta(description="of the answer; null: how it ended was not written")]
    reason: Annotated[str, msgspec.Meta(description="token of the problem that it was answered with")]
    count: Annotated[
        int, msgspec.Meta(description="refusals that it stands for, above 1 the last of a minute's flood")
    ] = 1


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the audit log, the newest entry first."""

    items: tuple[AuditView, ...]
    next: Annotated[str, msgspec.Meta(description="cursor of the next page; empty: there is none")]


class Audit(Protocol):
    """Where the audit log is kept: entries are added, and the oldest deleted."""

    async def begin(self, entry: Entry) -> int:
        """Write what is about to be done; return the entry's id. Raises: Unavailable; ProtocolError."""
        ...

    async def end(self, id_: int, outcome: Outcome) -> None:
        """Write how it ended. Raises: as `begin`."""
        ...

    async def refuse(self, entry: Entry, outcome: Outcome) -> None:
        """Write what was not done. Raises: as `begin`."""
        ...

    async def list(self, query: Query) -> tuple[tuple[AuditView, ...], int | None]:
        """Return a page, newest first, and what the next one is `before`; None: there is none."""
        ...

    async def prune(self, before: float) -> int:
        """Delete entries older than a time, in Unix seconds, oldest first; return how many."""
        ...


def shown(text: str) -> str:
    """Return a text that a terminal and every database take: bounded, escaped, and with no key's secret."""
    public = _SECRET.sub(r"\1_…", text[: 8 * _LONGEST])
    safe = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in public)
    return safe if len(safe) <= _LONGEST else f"{safe[: _LONGEST - 1]}…"
