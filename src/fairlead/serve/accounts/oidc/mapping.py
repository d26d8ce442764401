"""Decides which account and which roles the claims of an identity provider stand for: one table, a setting. Pure.

A row is `CLAIM:VALUE=TARGET`: whose claim has the value, as itself or in a list, is the target. Targets are an account
(`user:NAME`), the machine's administrators (`administrator`) and a role in a tenancy (`developer@red`). A claim `email`
counts only where the provider says that it verified the address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts.roles import Role
from fairlead.wire.kubernetes import names

_ROW: Final = re.compile(r"(?P<claim>[^:=,\s]{1,64}):(?P<value>[^,]{1,256})=(?P<target>[^=,\s]{1,128})")
_ADMINISTRATOR: Final = "administrator"


@frozen
class Row:
    """One row of the table: exactly one of its targets is set."""

    claim: str
    value: str
    user: str = ""
    is_administrator: bool = False
    role: Role | None = None
    tenancy: str = ""


@frozen
class Mapped:
    """What the table says of a person."""

    account: str
    """Empty: it names none."""
    is_named: bool
    """Whether a row names the account; otherwise it is what the person's claim says."""
    is_administrator: bool | None
    """None: the table says nothing of administrators."""
    roles: Mapping[str, Role | None]
    """By name of each tenancy of the table; None: the person has no role there."""


def read(text: str) -> tuple[Row, ...]:
    """Read the setting `oidc.map`. Raises: Invalid (`OIDCMapInvalid`): with the row that is wrong."""
    return tuple(_row(part) for part in filter(None, (one.strip() for one in text.split(","))))


def _row(text: str) -> Row:
    found = _ROW.fullmatch(text)
    if found is None:
        raise _invalid(text)
    claim, value, target = found["claim"], found["value"], found["target"]
    kind, _, user = target.partition(":")
    role, _, tenancy = target.partition("@")
    if target == _ADMINISTRATOR:
        return Row(claim=claim, value=value, is_administrator=True)
    if kind == "user" and names.is_dns_label(user):
        return Row(claim=claim, value=value, user=user)
    if role in set(Role) and names.is_dns_label(tenancy):
        return Row(claim=claim, value=value, role=Role(role), tenancy=tenancy)
    raise _invalid(text)


def _invalid(text: str) -> errors.Invalid:
    message = f'oidc.map: "{errors.readable(text)}" is not CLAIM:VALUE=TARGET'
    hint = "a target is user:NAME, administrator or ROLE@TENANCY, as `groups:ml=developer@red`"
    return errors.Invalid(message, reason="OIDCMapInvalid", hint=hint)


def decide(claims: Mapping[str, Any], rows: Iterable[Row], *, account_claim: str) -> Mapped:
    """Return what a person's claims stand for. Args: account_claim: what names an account that no row names."""
    every = tuple(rows)
    true = [one for one in every if one.value in _values(claims, one.claim)]
    named = next((one.user for one in true if one.user), "")
    order = tuple(Role)
    roles: dict[str, Role | None] = {one.tenancy: None for one in every if one.role is not None}
    for one in true:
        if one.role is not None:
            before = roles[one.tenancy]
            roles[one.tenancy] = one.role if before is None else max(before, one.role, key=order.index)
    own = next(iter(_values(claims, account_claim)), "").lower()
    return Mapped(
        account=named or (own if names.is_dns_label(own) else ""),
        is_named=bool(named),
        is_administrator=any(one.is_administrator for one in true)
        if any(one.is_administrator for one in every)
        else None,
        roles=roles,
    )


def _values(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    if claim == "email" and claims.get("email_verified") is not True:
        return ()
    found = claims.get(claim)
    items = found if isinstance(found, list) else [found]
    return tuple(one for one in items if isinstance(one, str))
