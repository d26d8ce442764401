"""Decides who may do what: one table of actions and roles. Pure.

Every route of the API names one action (`serve.v1.permissions`). An account has one role in each tenancy that it is a
member of, and the row of the action says which roles may; the machine's administrators may do everything. A key may do
less than its account: what its scopes say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts import keys


class Role(StrEnum):
    """What an account is in a tenancy; each may do what those before it may."""

    VIEWER = "viewer"
    DEVELOPER = "developer"
    ADMIN = "admin"
    OWNER = "owner"


class Scope(StrEnum):
    """What a key is good for; each is separate from the others."""

    READ = "read"
    RUN = "run"
    MANAGE = "manage"


class Action(StrEnum):
    """What a route does."""

    SERVICE_READ = "service.read"
    TENANCY_READ = "tenancy.read"
    CONTAINER_READ = "container.read"
    CONTAINER_RUN = "container.run"
    CONTAINER_ENTER = "container.enter"
    VOLUME_READ = "volume.read"
    VOLUME_WRITE = "volume.write"
    SECRET_READ = "secret.read"  # noqa: S105 an action's name
    SECRET_WRITE = "secret.write"  # noqa: S105
    MEMBER_READ = "member.read"
    MEMBER_WRITE = "member.write"
    KEY_OWN = "key.own"
    MACHINE_READ = "machine.read"
    MACHINE_WRITE = "machine.write"
    ACCOUNT_WRITE = "account.write"
    AUDIT_READ = "audit.read"
    SESSION_OWN = "session.own"
    WEBHOOK_READ = "webhook.read"
    WEBHOOK_WRITE = "webhook.write"
    NOTICE_OWN = "notice.own"
    SESSION_OPEN = "session.open"


@frozen
class Rule:
    """One row of the table."""

    words: str
    """After "may not", for messages."""
    scope: Scope | None
    """None: every key."""
    roles: frozenset[Role]
    """Who may; administrators always may."""
    needs_membership: bool = True
    """False: every account may, whatever it is a member of."""
    needs_account: bool = True
    """False: also who has not logged in yet."""


def _from(role: Role | None) -> frozenset[Role]:
    order = tuple(Role)
    return frozenset(order[order.index(role) :] if role else ())


TABLE: Final[Mapping[Action, Rule]] = {
    Action.SERVICE_READ: Rule(
        words="see the machine's state", scope=Scope.READ, roles=_from(Role.VIEWER), needs_membership=False
    ),
    Action.TENANCY_READ: Rule(words="see the tenancy", scope=Scope.READ, roles=_from(Role.VIEWER)),
    Action.CONTAINER_READ: Rule(words="see containers", scope=Scope.READ, roles=_from(Role.VIEWER)),
    Action.CONTAINER_RUN: Rule(words="run and end containers", scope=Scope.RUN, roles=_from(Role.DEVELOPER)),
    Action.CONTAINER_ENTER: Rule(words="enter containers", scope=Scope.RUN, roles=_from(Role.DEVELOPER)),
    Action.VOLUME_READ: Rule(words="see volumes", scope=Scope.READ, roles=_from(Role.VIEWER)),
    Action.VOLUME_WRITE: Rule(words="make and remove volumes", scope=Scope.RUN, roles=_from(Role.DEVELOPER)),
    Action.SECRET_READ: Rule(words="see names of secrets", scope=Scope.READ, roles=_from(Role.VIEWER)),
    Action.SECRET_WRITE: Rule(words="change secrets", scope=Scope.RUN, roles=_from(Role.DEVELOPER)),
    Action.MEMBER_READ: Rule(words="see members", scope=Scope.READ, roles=_from(Role.VIEWER)),
    Action.MEMBER_WRITE: Rule(words="change members", scope=Scope.MANAGE, roles=_from(Role.ADMIN)),
    Action.KEY_OWN: Rule(words="keep keys", scope=Scope.MANAGE, roles=_from(Role.VIEWER), needs_membership=False),
    Action.MACHINE_READ: Rule(words="see what belongs to the whole machine", scope=Scope.READ, roles=_from(None)),
    Action.MACHINE_WRITE: Rule(
        words="change what the whole machine shares: images, devices, queues, quotas, tenancies",
        scope=Scope.MANAGE,
        roles=_from(None),
    ),
    Action.ACCOUNT_WRITE: Rule(words="change accounts", scope=Scope.MANAGE, roles=_from(None)),
    Action.AUDIT_READ: Rule(words="read the audit log", scope=Scope.READ, roles=_from(Role.ADMIN)),
    Action.WEBHOOK_READ: Rule(words="see webhooks", scope=Scope.MANAGE, roles=_from(Role.ADMIN)),
    Action.WEBHOOK_WRITE: Rule(words="change webhooks", scope=Scope.MANAGE, roles=_from(Role.ADMIN)),
    Action.NOTICE_OWN: Rule(words="keep notices", scope=Scope.MANAGE, roles=_from(Role.VIEWER), needs_membership=False),
    Action.SESSION_OWN: Rule(words="keep a session", scope=None, roles=_from(Role.VIEWER), needs_membership=False),
    Action.SESSION_OPEN: Rule(
        words="log in", scope=None, roles=_from(Role.VIEWER), needs_membership=False, needs_account=False
    ),
}


@frozen
class Membership:
    """An account's role in one tenancy, known by its uid: a later one of the same name is another."""

    tenancy: str
    uid: str
    role: Role


FRESH_S: Final = 300.0
"""How long a login by an identity provider counts as one for the action at hand."""


@frozen
class Browser:
    """The session that a request came with, in place of a key."""

    id: str
    page_digest: str
    """SHA-256 of what its pages show with each change."""
    address: str
    """Network of the browser that began it."""
    began_at: float
    expires_at: str
    is_confirmed: bool = False
    """A key of the account came with the request as well."""


@frozen
class Principal:
    """Who sends a request, as the key or the session that came with it says."""

    account: str
    """Empty: it came without either, which is enough for few routes."""
    is_administrator: bool
    memberships: tuple[Membership, ...]
    key: str
    """Id of the key, also of the one that a session stands for; empty: there is none."""
    scopes: frozenset[Scope]
    session: Browser | None = None
    ends_at: float | None = None
    """Unix seconds; after it the key, or the session, is worth nothing. None: it has no end."""

    def check_minting(self, now: float) -> None:
        """Refuse to make what outlives a session, by the session alone.

        The cookie may have been taken; who has the key, or has just come from the identity provider, is the account.
        Raises: Denied (`ConfirmationRequired`).
        """
        one = self.session
        if one is None or one.is_confirmed or (not self.key and now - one.began_at <= FRESH_S):
            return
        message = "a browser's session alone makes no keys and no accounts"
        again = "log in by the identity provider again, and do it within five minutes"
        hint = "send a key of yours as X-Confirm-Key" if self.key else f"{again}, or send a key of yours"
        raise errors.Denied(message, reason="ConfirmationRequired", hint=hint)

    def may(self, action: Action, role: Role | None = None) -> bool:
        """Return whether the account may do it, in a tenancy where it has this role (None: outside of any)."""
        rule = TABLE[action]
        if rule.needs_account and not self.account:
            return False
        if rule.scope is not None and rule.scope not in self.scopes:
            return False
        return self.is_administrator or not rule.needs_membership or role in rule.roles

    def check(self, action: Action) -> None:
        """Refuse what this key, or this account in no tenancy at all, may not do.

        Raises: Denied: `ScopeMissing`, `RoleForbids`; Unauthenticated (`KeyRequired`): not logged in.
        """
        rule = TABLE[action]
        if rule.needs_account and not self.account:
            raise keys.required()
        if rule.scope is not None and rule.scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            message = f'key "{self.key}" has not the scope {rule.scope}, which {action} needs (it has {has})'
            raise errors.Denied(message, reason="ScopeMissing", hint="use another key of yours")
        if not any(self.may(action, role) for role in (None, *(one.role for one in self.memberships))):
            raise refusal(self.account, action)


ANONYMOUS: Final = Principal(account="", is_administrator=False, memberships=(), key="", scopes=frozenset())
"""Who has not logged in."""


def refusal(account: str, action: Action) -> errors.Denied:
    """Return the error that says who may."""
    roles = [role.value for role in Role if role in TABLE[action].roles]
    who = f"a role from {roles[0]} on in the tenancy may" if roles else "the machine's administrators may"
    message = f'"{account}" may not do this: {TABLE[action].words} ({action})'
    return errors.Denied(message, reason="RoleForbids", hint=f"{who}; ask them")


def check_grant(principal: Principal, uid: str, *roles: Role) -> None:
    """Refuse to give or take a role that is not below the giver's own, unless the giver is an owner.

    Raises: Denied (`RoleForbids`).
    """
    if principal.is_administrator:
        return
    order = tuple(Role)
    own = next((one.role for one in principal.memberships if one.uid == uid), None)
    for role in roles:
        if own is not Role.OWNER and (own is None or order.index(role) >= order.index(own)):
            message = f'"{principal.account}" may not give or take the role {role} there'
            raise errors.Denied(message, reason="RoleForbids", hint="an owner of the tenancy may; ask one")


def parse_role(text: str) -> Role:
    """Return a role by its name. Raises: Invalid (`RoleInvalid`)."""
    try:
        return Role(text)
    except ValueError as error:
        offered = ", ".join(Role)
        raise errors.Invalid(f'"{text}" is not a role', reason="RoleInvalid", hint=f"one of {offered}") from error


def parse_scopes(words: Iterable[str], *, within: Collection[Scope] = tuple(Scope)) -> frozenset[Scope]:
    """Return the scopes of a new key; no words: all that its maker has.

    Raises: Invalid (`ScopeInvalid`); Denied (`ScopeMissing`): its maker has fewer.
    """
    try:
        wanted = frozenset(map(Scope, words)) or frozenset(within)
    except ValueError as error:
        hint = f"any of {', '.join(Scope)}"
        raise errors.Invalid(f"{error} of keys", reason="ScopeInvalid", hint=hint) from error
    if beyond := wanted - frozenset(within):
        message = f"the key that asks has not the scope {', '.join(sorted(beyond))}, and gives none that it has not"
        raise errors.Denied(message, reason="ScopeMissing", hint="use another key of yours")
    return wanted
