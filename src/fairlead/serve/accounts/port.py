"""Declares where accounts, their memberships and their keys are kept; without the database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from fairlead.serve.accounts import keys, kinds
from fairlead.serve.accounts.audit import Audit
from fairlead.serve.accounts.oidc.port import Logins
from fairlead.serve.accounts.roles import Membership, Principal, Role, Scope
from fairlead.serve.accounts.sessions import Sessions
from fairlead.serve.accounts.sshkeys import SSHKeys
from fairlead.serve.metering.budgets import Budgets
from fairlead.serve.webhooks.port import Webhooks

PERSON, SERVICE, KINDS = kinds.PERSON, kinds.SERVICE, kinds.KINDS


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One account's role in one tenancy."""

    account: str
    tenancy: str
    uid: Annotated[str, msgspec.Meta(description="of the tenancy: a later one of its name is another")]
    role: Role


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    """One account."""

    name: str
    kind: Annotated[str, msgspec.Meta(description="person or service")]
    is_administrator: Annotated[bool, msgspec.Meta(description="may do on this machine whatever root may by the API")]
    memberships: tuple[MemberView, ...]
    created_at: str
    keys: Annotated[int, msgspec.Meta(description="number of keys in force")]


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """One API key, without its secret."""

    id: str
    account: str
    note: str
    scopes: tuple[Scope, ...]
    created_at: str
    expires_at: Annotated[str | None, msgspec.Meta(description="null: never")]
    last_used_at: Annotated[str | None, msgspec.Meta(description="time of last use, to the minute; null: never")]
    state: Annotated[str, msgspec.Meta(description="active, expired or revoked")]


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was made: the only answer that holds its secret."""

    key: str
    view: KeyView


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpec:
    """A key to be made."""

    account: str
    scopes: Collection[Scope]
    lifetime_s: float | None
    """None: it never expires."""
    note: str = ""
    until: float | None = None
    """Unix seconds: the end of the key that makes it, which it may not outlive. None: that one has no end."""


class People(Protocol):
    """Accounts, and what they are members of."""

    async def create(self, name: str, *, kind: str, is_administrator: bool) -> AccountView:
        """Make an account without keys. Raises: Invalid: its name; Conflict (`AccountExists`)."""
        ...

    async def list(self) -> tuple[AccountView, ...]:
        """Return accounts in the order of their names."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an account with its keys and memberships. Raises: NotFound (`AccountUnknown`)."""
        ...

    async def grant(self, name: str, membership: Membership) -> MemberView:
        """Give an account a role in a tenancy, in place of the one it has there. Raises: as `delete`."""
        ...

    async def revoke(self, name: str, uid: str) -> None:
        """Take an account's role in a tenancy, by its uid. Raises: NotFound: `AccountUnknown`, `MemberUnknown`."""
        ...

    async def members(self, uid: str) -> tuple[MemberView, ...]:
        """Return who has which role in a tenancy, by account."""
        ...


class Keys(Protocol):
    """API keys."""

    async def authenticate(self, key: keys.Key) -> Principal:
        """Return who holds a key, and note that it was used.

        Raises: Unauthenticated (`KeyRefused`): unknown, expired, revoked, or its secret is another.
        """
        ...

    async def create(self, spec: KeySpec) -> NewKey:
        """Make a key. Raises: NotFound (`AccountUnknown`); Denied (`KeyOutlives`): it would outlive its maker."""
        ...

    async def list(self, account: str | None) -> tuple[KeyView, ...]:
        """Return keys in the order of their making. Args: account: whose; None: of every account."""
        ...

    async def revoke(self, id_: str, account: str | None) -> KeyView:
        """End a key at once; idempotent. Args: account: whose it must be. Raises: NotFound (`KeyUnknown`)."""
        ...

    async def rotate(
        self,
        id_: str,
        account: str | None,
        *,
        overlap_s: float,
        within: Collection[Scope],
        until: float | None = None,
    ) -> NewKey:
        """Make a key like an old one, which ends after an overlap.

        Args:    within: scopes that the caller has.   until: the caller's own end; the new key ends by then.
        Raises:  NotFound (`KeyUnknown`); Conflict (`KeyEnded`): it is expired or revoked; Denied (`ScopeMissing`).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Where accounts are kept, and what was done by them."""

    people: People
    keys: Keys
    ssh_keys: SSHKeys
    sessions: Sessions
    audit: Audit
    webhooks: Webhooks
    budgets: Budgets
    logins: Logins | None = None
    """None: no identity provider is set."""
