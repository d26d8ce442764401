"""Describes what is asked of accounts and keys; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.serve.accounts.port import AccountView, KeyView, MemberView
from fairlead.serve.accounts.roles import Scope
from fairlead.wire.fairlead import listing

DAY_S = 86400.0


class UserRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account to make."""

    name: Annotated[str, msgspec.Meta(description="a DNS label")]
    kind: Annotated[str, msgspec.Meta(description="person or service")] = "person"
    is_administrator: bool = False


class RoleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role to give."""

    role: Annotated[str, msgspec.Meta(description="viewer, developer, admin or owner")]


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make."""

    account: Annotated[str, msgspec.Meta(description="whose; empty: the caller's own")] = ""
    scopes: Annotated[
        tuple[str, ...], msgspec.Meta(description="any of read, run, manage; none: all that the caller's key has")
    ] = ()
    lifetime_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3660 * DAY_S)] | None,
        msgspec.Meta(description="seconds until it expires; null: never"),
    ] = 90 * DAY_S
    note: Annotated[str, msgspec.Meta(description="what it is for, for people")] = ""


class RotateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long an old key and its successor are in force together."""

    overlap_s: Annotated[float, msgspec.Meta(ge=0, le=30 * DAY_S)] = DAY_S


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the key of a request."""

    account: Annotated[str, msgspec.Meta(description="empty: root, by the unix socket")]
    is_administrator: bool
    key: str
    scopes: tuple[Scope, ...]
    memberships: tuple[MemberView, ...]


class AccountList(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts."""

    items: tuple[AccountView, ...]
    next: listing.Next = ""


class MemberList(msgspec.Struct, frozen=True, kw_only=True):
    """Members of a tenancy."""

    items: tuple[MemberView, ...]
    next: listing.Next = ""


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys."""

    items: tuple[KeyView, ...]
    next: listing.Next = ""
