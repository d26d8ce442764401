"""Keeps which person of an identity provider is which account: the only implementation of its port.

A person is known by issuer and subject, which a provider never gives to another one; names and addresses change hands.
So an account is linked at the first login and stays that person's.
Source: OpenID Connect Core 1.0 section 5.7.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.accounts.kinds import PERSON
from fairlead.serve.accounts.oidc.mapping import Mapped
from fairlead.serve.accounts.oidc.port import Person
from fairlead.serve.database import engine, schema

_IDENTITY, _ACCOUNT, _MEMBER = schema.IDENTITY.c, schema.ACCOUNT.c, schema.MEMBERSHIP.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIdentities:
    """See `port.Identities`."""

    database: sqla.AsyncEngine
    now: Callable[[], float] = time.time

    async def settle(self, person: Person, mapped: Mapped, uids: Mapping[str, str], *, may_create: bool) -> str:
        """See `port.Identities.settle`; one transaction."""
        async with engine.transaction(self.database) as connection:
            account = await self._linked(connection, person)
            if not account or (mapped.is_named and account != mapped.account):
                account = await self._link(connection, person, mapped, may_create=may_create)
            if mapped.is_administrator is not None:
                change = sa.update(schema.ACCOUNT).where(_ACCOUNT.name == account)
                await connection.execute(change.values(is_administrator=mapped.is_administrator))
            for tenancy, role in mapped.roles.items():
                if (uid := uids.get(tenancy)) is None:
                    continue
                own = sa.delete(schema.MEMBERSHIP).where(_MEMBER.account == account, _MEMBER.tenancy_uid == uid)
                await connection.execute(own)
                if role is not None:
                    row = {"account": account, "tenancy_uid": uid, "tenancy": tenancy, "role": role.value}
                    await connection.execute(sa.insert(schema.MEMBERSHIP).values(row))
        return account

    async def _linked(self, connection: sqla.AsyncConnection, person: Person) -> str:
        wanted = sa.select(_IDENTITY.account).where(
            _IDENTITY.issuer == person.issuer, _IDENTITY.subject == person.subject
        )
        return (await connection.execute(wanted)).scalar_one_or_none() or ""

    async def _link(self, connection: sqla.AsyncConnection, person: Person, mapped: Mapped, *, may_create: bool) -> str:
        name = mapped.account
        wanted = sa.select(schema.ACCOUNT).where(_ACCOUNT.name == name)
        found = (await connection.execute(wanted)).mappings().first() if name else None
        if found is None and not (name and may_create):
            raise _unknown(name)
        if found is None:
            row = {"name": name, "kind": PERSON, "is_administrator": False, "created_at": self.now()}
            await connection.execute(sa.insert(schema.ACCOUNT).values(row))
        elif not mapped.is_named:
            await self._check_free(connection, found["is_administrator"] or found["kind"] != PERSON, name)
        own = sa.delete(schema.IDENTITY).where(_IDENTITY.issuer == person.issuer, _IDENTITY.subject == person.subject)
        await connection.execute(own)
        link = {"issuer": person.issuer, "subject": person.subject, "account": name, "linked_at": self.now()}
        await connection.execute(sa.insert(schema.IDENTITY).values(link))
        return name

    async def _check_free(self, connection: sqla.AsyncConnection, is_protected: bool, name: str) -> None:
        """Refuse to give an account to a person because of a claim that they may have chosen themselves."""
        hint = "an administrator of the machine names the person in oidc.map: `email:ADDRESS=user:NAME`"
        if is_protected:
            message = f'account "{name}" is an administrator or a service, and no claim alone leads to it'
            raise errors.Denied(message, reason="AccountProtected", hint=hint)
        wanted = sa.select(sa.func.count()).select_from(schema.IDENTITY).where(_IDENTITY.account == name)
        if (await connection.execute(wanted)).scalar_one():
            message = f'account "{name}" is another person of the identity provider'
            raise errors.Denied(message, reason="IdentityTaken", hint=hint)


def _unknown(name: str) -> errors.Denied:
    message = f'there is no account "{name}" here for you' if name else "no account here is yours"
    hint = "an administrator makes one: `fairlead user create NAME`, or names you in oidc.map"
    return errors.Denied(message, reason="IdentityUnknown", hint=hint)
