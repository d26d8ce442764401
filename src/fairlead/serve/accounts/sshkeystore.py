"""Keeps the public keys of accounts in the service's database: the only implementation of `sshkeys.SSHKeys`.

A key is one account's: who shows it is that account, whatever name the SSH client gives. Removing one holds from the
next request on, also of a connection that is open. The time of last use is written once a minute at most.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.accounts import sshkeys, store
from fairlead.serve.accounts.roles import Principal, Scope
from fairlead.serve.database import engine, schema
from fairlead.wire.text import timestamp

_ACCOUNT, _MEMBER, _KEY = schema.ACCOUNT.c, schema.MEMBERSHIP.c, schema.SSH_KEY.c
_MOST_KEYS: Final = 50
"""Of one account."""
_USED_S: Final = 60.0
_LIST: Final = "`fairlead ssh-key list` lists them"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSSHKeys:
    """See `sshkeys.SSHKeys`."""

    database: sqla.AsyncEngine
    now: Callable[[], float]

    async def authenticate(self, fingerprint: str) -> Principal:
        """See `sshkeys.SSHKeys.authenticate`."""
        now = self.now()
        holder = schema.SSH_KEY.join(schema.ACCOUNT, _KEY.account == _ACCOUNT.name)
        wanted = (
            sa.select(schema.SSH_KEY, _ACCOUNT.is_administrator, *store.ROLE)
            .select_from(holder.outerjoin(schema.MEMBERSHIP, _MEMBER.account == _ACCOUNT.name))
            .where(_KEY.fingerprint == fingerprint, _in_force(now))
        )
        async with engine.reading(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        if not rows:
            message = "this SSH key is not accepted"
            raise errors.Unauthenticated(message, reason="SSHKeyRefused", hint="add it: `fairlead ssh-key add FILE`")
        row = rows[0]
        if now - (row["last_used_at"] or 0.0) >= _USED_S:
            used = sa.update(schema.SSH_KEY).where(_KEY.id == row["id"]).values(last_used_at=now)
            async with engine.transaction(self.database) as connection:
                await connection.execute(used)
        return Principal(
            account=row["account"],
            is_administrator=row["is_administrator"],
            memberships=store.memberships(rows),
            key=row["id"],
            scopes=frozenset({Scope.READ, Scope.RUN}),
            ends_at=row["expires_at"],
        )

    async def is_known(self, fingerprint: str) -> bool:
        """See `sshkeys.SSHKeys.is_known`."""
        wanted = sa.select(_KEY.id).where(_KEY.fingerprint == fingerprint, _in_force(self.now()))
        async with engine.reading(self.database) as connection:
            return (await connection.execute(wanted)).first() is not None

    async def add(
        self, account: str, key: sshkeys.PublicKey, *, note: str, expires_at: float | None
    ) -> sshkeys.SSHKeyView:
        """See `sshkeys.SSHKeys.add`."""
        row = {
            "id": secrets.token_hex(6),
            "account": account,
            "fingerprint": key.fingerprint,
            "public_key": key.line,
            "note": sshkeys.check_note(note),
            "created_at": self.now(),
            "expires_at": expires_at,
            "last_used_at": None,
        }
        try:
            async with engine.transaction(self.database) as connection:
                await store.find_account(connection, account)
                over = sa.and_(_KEY.fingerprint == key.fingerprint, sa.not_(_in_force(self.now())))
                await connection.execute(sa.delete(schema.SSH_KEY).where(over))
                count = sa.select(sa.func.count()).select_from(schema.SSH_KEY).where(_KEY.account == account)
                if (await connection.execute(count)).scalar_one() >= _MOST_KEYS:
                    message = f'"{account}" has {_MOST_KEYS} SSH keys, which is the most an account may have'
                    raise errors.Conflict(message, reason="SSHKeysTooMany", hint="`fairlead ssh-key remove` makes room")
                await connection.execute(sa.insert(schema.SSH_KEY).values(row))
        except exc.IntegrityError as error:
            message = f"the key {key.fingerprint} is an account's already"
            hint = f"{_LIST}; where it is another account's, the machine's administrators can remove it there"
            raise errors.Conflict(message, reason="SSHKeyTaken", hint=hint) from error
        return _view(row)

    async def list(self, account: str | None) -> tuple[sshkeys.SSHKeyView, ...]:
        """See `sshkeys.SSHKeys.list`."""
        wanted = sa.select(schema.SSH_KEY).order_by(_KEY.created_at, _KEY.id)
        if account is not None:
            wanted = wanted.where(_KEY.account == account)
        async with engine.reading(self.database) as connection:
            return tuple(_view(row) for row in (await connection.execute(wanted)).mappings())

    async def remove(self, id_: str, account: str | None) -> sshkeys.SSHKeyView:
        """See `sshkeys.SSHKeys.remove`."""
        async with engine.transaction(self.database) as connection:
            wanted = sa.select(schema.SSH_KEY).where(_KEY.id == id_)
            # PostgreSQL takes no NUL in a text: what cannot be an id is not asked for.
            row = None if "\0" in id_ else (await connection.execute(wanted)).mappings().first()
            if row is None or account not in {None, row["account"]}:
                message = f'there is no SSH key "{errors.readable(id_)}"'
                raise errors.NotFound(message, reason="SSHKeyUnknown", hint=_LIST)
            found = _view(row)
            await connection.execute(sa.delete(schema.SSH_KEY).where(_KEY.id == id_))
        return found


def _in_force(now: float) -> sa.ColumnElement[bool]:
    return sa.or_(_KEY.expires_at.is_(None), _KEY.expires_at > now)


def _view(row: Any) -> sshkeys.SSHKeyView:
    def at(name: str) -> str | None:
        return None if row[name] is None else timestamp.emit(row[name])

    return sshkeys.SSHKeyView(
        id=row["id"],
        account=row["account"],
        kind=row["public_key"].partition(" ")[0],
        fingerprint=row["fingerprint"],
        public_key=row["public_key"],
        note=row["note"],
        created_at=timestamp.emit(row["created_at"]),
        expires_at=at("expires_at"),
        last_used_at=at("last_used_at"),
    )
