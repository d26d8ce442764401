"""Keeps browsers' sessions in the service's database: the only implementation of their port.

A session's row is read with its account and the key it stands for, again after each commit to the database
(`database.unchanged`): revoking a key or deleting an account ends its sessions. When it was last used is
written once a minute at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.accounts import keys, roles, sessions, store
from fairlead.serve.accounts.roles import Principal, Scope
from fairlead.serve.accounts.sessions import Lifetime, Opened, SessionView
from fairlead.serve.database import engine, schema
from fairlead.serve.database.unchanged import Unchanged
from fairlead.wire.text import timestamp

_SESSION, _ACCOUNT, _KEY = schema.SESSION.c, schema.ACCOUNT.c, schema.API_KEY.c
_USED_S: Final = 60.0
_BOGUS: Final = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSessions:
    """See `sessions.Sessions`."""

    database: sqla.AsyncEngine
    lifetime: Lifetime
    known: Unchanged[store.Known]
    now: Callable[[], float] = time.time

    async def open(self, account: str, *, key: str | None, address: str) -> Opened:
        """See `sessions.Sessions.open`."""
        token, page, now = sessions.make(), sessions.page_token(), self.now()
        row = {
            "id": token.id,
            "account": account,
            "key": key,
            "digest": token.digest,
            "created_at": now,
            "used_at": now,
            "expires_at": now + self.lifetime.whole_s,
            "page_digest": sessions.digest(page),
            "address": address,
        }
        async with engine.transaction(self.database) as connection:
            await store.find_account(connection, account)
            await connection.execute(sa.insert(schema.SESSION).values(row))
        view = SessionView(account=account, expires_at=timestamp.emit(now + self.lifetime.whole_s), csrf_token=page)
        return Opened(text=sessions.text_of(token), view=view)

    async def authenticate(self, token: keys.Key) -> Principal:
        """See `sessions.Sessions.authenticate`; a digest is compared for an unknown id too, as for keys."""
        now = self.now()
        known = self.known.find(token.id)
        if known is None or now - known.used_at >= _USED_S:
            known = await self._read(token, now)
        else:
            self._judge(token, known.row, now)
        row = known.row
        return Principal(
            account=row["account"],
            is_administrator=row["is_administrator"],
            memberships=known.memberships,
            key=row["key"] or "",
            scopes=frozenset(Scope) if row["key"] is None else frozenset(map(Scope, row["scopes"].split())),
            session=roles.Browser(
                id=token.id,
                page_digest=row["page_digest"],
                address=row["address"],
                began_at=row["created_at"],
                expires_at=timestamp.emit(row["expires_at"]),
            ),
            ends_at=min(row["expires_at"], row["expires_at"] if row["key_ends"] is None else row["key_ends"]),
        )

    async def _read(self, token: keys.Key, now: float) -> store.Known:
        """Return a session's row from the database, and note its use. Raises: Unauthenticated: as `authenticate`."""
        read_at = self.known.mark()
        holder = schema.SESSION.join(schema.ACCOUNT, _SESSION.account == _ACCOUNT.name)
        holder = holder.outerjoin(schema.API_KEY, _SESSION.key == _KEY.id)
        wanted = (
            sa.select(schema.SESSION, _ACCOUNT.is_administrator, _KEY.scopes, _KEY.revoked_at, *store.ROLE)
            .add_columns(_KEY.expires_at.label("key_ends"))
            .select_from(holder.outerjoin(schema.MEMBERSHIP, schema.MEMBERSHIP.c.account == _ACCOUNT.name))
            .where(_SESSION.id == token.id)
        )
        async with engine.reading(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        row = self._judge(token, rows[0] if rows else None, now)
        known = store.Known(row=row, memberships=store.memberships(rows), used_at=row["used_at"])
        if now - known.used_at < _USED_S:
            self.known.keep(token.id, known, read_at=read_at)
            return known
        async with engine.transaction(self.database) as connection:
            await connection.execute(sa.update(schema.SESSION).where(_SESSION.id == token.id).values(used_at=now))
        return known

    def _judge(self, token: keys.Key, row: Any, now: float) -> Any:
        """Return the row of a session if it goes on and the token is its. Raises: Unauthenticated (`SessionEnded`)."""
        is_right = keys.matches(token, row["digest"] if row else _BOGUS)
        if row is None or not is_right or self._is_over(row, now):
            hint = "log in again; a program sends an API key in place of a cookie"
            raise errors.Unauthenticated("the browser's session is over", reason="SessionEnded", hint=hint)
        return row

    def _is_over(self, row: Any, now: float) -> bool:
        idle_s = self.lifetime.idle_s or self.lifetime.whole_s
        has_key_ended = row["revoked_at"] is not None or (row["key_ends"] is not None and row["key_ends"] <= now)
        # The row's time of use may be a minute old.
        return row["expires_at"] <= now or row["used_at"] + idle_s + _USED_S <= now or has_key_ended

    async def close(self, id_: str) -> None:
        """See `sessions.Sessions.close`."""
        async with engine.transaction(self.database) as connection:
            await connection.execute(sa.delete(schema.SESSION).where(_SESSION.id == id_))

    async def prune(self) -> int:
        """See `sessions.Sessions.prune`."""
        now = self.now()
        idle_s = self.lifetime.idle_s or self.lifetime.whole_s
        is_over = sa.or_(_SESSION.expires_at <= now, _SESSION.used_at <= now - idle_s - _USED_S)
        async with engine.transaction(self.database) as connection:
            return (await connection.execute(sa.delete(schema.SESSION).where(is_over))).rowcount
