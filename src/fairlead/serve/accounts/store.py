"""Keeps accounts, memberships and keys in the service's database: the port's only implementation.

Every method that changes accounts is one transaction. Revoking a key holds from the next request on: `authenticate`
caches rows only until the next commit to the database (`database.unchanged`). The time of last use is written once a
minute at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.accounts import keys as apikeys
from fairlead.serve.accounts import port
from fairlead.serve.accounts.roles import Membership, Principal, Role, Scope, parse_scopes
from fairlead.serve.database import engine, schema
from fairlead.serve.database.unchanged import Unchanged
from fairlead.wire.kubernetes import names
from fairlead.wire.text import timestamp

_ACCOUNT, _MEMBER, _KEY = schema.ACCOUNT.c, schema.MEMBERSHIP.c, schema.API_KEY.c
_LONGEST: Final = 63
_LONGEST_NOTE: Final = 200
_MOST_KEYS: Final = 100
"""Of one account, in force; as many expired and revoked ones are kept for listings."""
_USED_S: Final = 60.0
_BOGUS: Final = "0" * 64

ROLE: Final = (_MEMBER.tenancy, _MEMBER.tenancy_uid, _MEMBER.role)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was read of a key or a session."""

    row: Mapping[str, Any]
    memberships: tuple[Membership, ...]
    used_at: float
    """Unix seconds; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPeople:
    """See `port.People`."""

    database: sqla.AsyncEngine
    now: Clock

    async def create(self, name: str, *, kind: str, is_administrator: bool) -> port.AccountView:
        """See `port.People.create`."""
        _check_account(name, kind)
        row = {"name": name, "kind": kind, "is_administrator": is_administrator, "created_at": self.now()}
        try:
            async with engine.transaction(self.database) as connection:
                await connection.execute(sa.insert(schema.ACCOUNT).values(row))
        except exc.IntegrityError as error:
            hint = "`fairlead user list` lists them; choose another name"
            raise errors.Conflict(f'account "{name}" is there already', reason="AccountExists", hint=hint) from error
        return _account_view(row, (), 0)

    async def list(self) -> tuple[port.AccountView, ...]:
        """See `port.People.list`."""
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(sa.select(schema.ACCOUNT).order_by(_ACCOUNT.name))).mappings().all()
            members = (await connection.execute(sa.select(schema.MEMBERSHIP).order_by(_MEMBER.tenancy))).mappings()
            by_account: dict[str, list[port.MemberView]] = {}
            for row in members:
                by_account.setdefault(row["account"], []).append(_member_view(row))
            in_force = sa.select(_KEY.account, sa.func.count()).where(_in_force(self.now())).group_by(_KEY.account)
            counts = {str(name): int(number) for name, number in await connection.execute(in_force)}
        return tuple(
            _account_view(row, tuple(by_account.get(row["name"], ())), counts.get(row["name"], 0)) for row in rows
        )

    async def delete(self, name: str) -> None:
        """See `port.People.delete`."""
        async with engine.transaction(self.database) as connection:
            await find_account(connection, name)
            await connection.execute(sa.delete(schema.API_KEY).where(_KEY.account == name))
            await connection.execute(sa.delete(schema.SSH_KEY).where(schema.SSH_KEY.c.account == name))
            await connection.execute(sa.delete(schema.MEMBERSHIP).where(_MEMBER.account == name))
            # A later account of the name is another person: it inherits no notices, and tells nobody else's address.
            theirs = sa.select(schema.WEBHOOK.c.id).where(schema.WEBHOOK.c.person == name)
            events = schema.WEBHOOK_EVENT
            await connection.execute(sa.delete(events).where(events.c.webhook.in_(theirs)))
            await connection.execute(sa.delete(schema.WEBHOOK).where(schema.WEBHOOK.c.person == name))
            await connection.execute(sa.delete(schema.ACCOUNT).where(_ACCOUNT.name == name))

    async def grant(self, name: str, membership: Membership) -> port.MemberView:
        """See `port.People.grant`."""
        row = {
            "account": name,
            "tenancy_uid": membership.uid,
            "tenancy": membership.tenancy,
            "role": membership.role.value,
        }
        async with engine.transaction(self.database) as connection:
            await find_account(connection, name)
            await connection.execute(_of_member(sa.delete(schema.MEMBERSHIP), name, membership.uid))
            await connection.execute(sa.insert(schema.MEMBERSHIP).values(row))
        return port.MemberView(account=name, tenancy=membership.tenancy, uid=membership.uid, role=membership.role)

    async def revoke(self, name: str, uid: str) -> None:
        """See `port.People.revoke`."""
        async with engine.transaction(self.database) as connection:
            await find_account(connection, name)
            gone = await connection.execute(_of_member(sa.delete(schema.MEMBERSHIP), name, uid))
        if not gone.rowcount:
            message, hint = f'"{name}" has no role there', "`fairlead user list` shows who has which"
            raise errors.NotFound(message, reason="MemberUnknown", hint=hint)

    async def members(self, uid: str) -> tuple[port.MemberView, ...]:
        """See `port.People.members`."""
        wanted = sa.select(schema.MEMBERSHIP).where(_MEMBER.tenancy_uid == uid).order_by(_MEMBER.account)
        async with engine.transaction(self.database) as connection:
            return tuple(_member_view(row) for row in (await connection.execute(wanted)).mappings())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKeys:
    """See `port.Keys`."""

    database: sqla.AsyncEngine
    now: Clock
    known: Unchanged[Known]

    async def authenticate(self, key: apikeys.Key) -> Principal:
        """See `port.Keys.authenticate`; a digest is compared for an unknown id too, so that timing does not tell."""
        now = self.now()
        known = self.known.find(key.id)
        if known is None or now - known.used_at >= _USED_S:
            known = await self._read(key, now)
        else:
            _judge(key, known.row, now)
        return Principal(
            account=known.row["account"],
            is_administrator=known.row["is_administrator"],
            memberships=known.memberships,
            key=key.id,
            scopes=_scopes(known.row),
            ends_at=known.row["expires_at"],
        )

    async def _read(self, key: apikeys.Key, now: float) -> Known:
        """Return a key's row from the database, and note its use. Raises: Unauthenticated: as `authenticate`."""
        read_at = self.known.mark()
        holder = schema.API_KEY.join(schema.ACCOUNT, _KEY.account == _ACCOUNT.name)
        wanted = (
            sa.select(schema.API_KEY, _ACCOUNT.is_administrator, *ROLE)
            .select_from(holder.outerjoin(schema.MEMBERSHIP, _MEMBER.account == _ACCOUNT.name))
            .where(_KEY.id == key.id)
        )
        async with engine.reading(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        row = _judge(key, rows[0] if rows else None, now)
        known = Known(row=row, memberships=memberships(rows), used_at=row["last_used_at"] or 0.0)
        if now - known.used_at < _USED_S:
            self.known.keep(key.id, known, read_at=read_at)
            return known
        async with engine.transaction(self.database) as connection:
            await connection.execute(sa.update(schema.API_KEY).where(_KEY.id == key.id).values(last_used_at=now))
        return known

    async def create(self, spec: port.KeySpec) -> port.NewKey:
        """See `port.Keys.create`."""
        _check_end(spec, self.now())
        async with engine.transaction(self.database) as connection:
            await find_account(connection, spec.account)
            return await self._insert(connection, spec)

    async def _insert(self, connection: sqla.AsyncConnection, spec: port.KeySpec, replaced: str = "") -> port.NewKey:
        """Write a new key. Args: replaced: id of the one that it is made for; empty: none."""
        if len(spec.note) > _LONGEST_NOTE or not spec.note.isprintable():
            message = f"a key's note has at most {_LONGEST_NOTE} printable characters"
            raise errors.Invalid(message, reason="NoteInvalid")
        now, key = self.now(), apikeys.make()
        await _make_room(connection, spec.account, now, replaced)
        row = {
            "id": key.id,
            "account": spec.account,
            "digest": key.digest,
            "note": spec.note,
            "scopes": " ".join(sorted(spec.scopes)),
            "created_at": now,
            "expires_at": _end(spec, now),
            "revoked_at": None,
            "last_used_at": None,
        }
        await connection.execute(sa.insert(schema.API_KEY).values(row))
        return port.NewKey(key=key.text, view=_key_view(row, now))

    async def list(self, account: str | None) -> tuple[port.KeyView, ...]:
        """See `port.Keys.list`."""
        wanted = sa.select(schema.API_KEY).order_by(_KEY.created_at, _KEY.id)
        wanted = wanted if account is None else wanted.where(_KEY.account == account)
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        return tuple(_key_view(row, self.now()) for row in rows)

    async def revoke(self, id_: str, account: str | None) -> port.KeyView:
        """See `port.Keys.revoke`."""
        async with engine.transaction(self.database) as connection:
            row = await _find_key(connection, id_, account)
            now = row["revoked_at"] or self.now()
            await connection.execute(sa.update(schema.API_KEY).where(_KEY.id == id_).values(revoked_at=now))
        return _key_view({**row, "revoked_at": now}, now)

    async def rotate(
        self,
        id_: str,
        account: str | None,
        *,
        overlap_s: float,
        within: Collection[Scope],
        until: float | None = None,
    ) -> port.NewKey:
        """See `port.Keys.rotate`; the new one lives as long as the old one was given, from now on, or to `until`."""
        now = self.now()
        async with engine.transaction(self.database) as connection:
            row = await _find_key(connection, id_, account)
            if (state := _state(row, now)) != "active":
                hint = "`fairlead key create` makes another one"
                raise errors.Conflict(f'key "{id_}" is {state}', reason="KeyEnded", hint=hint)
            lifetime_s = None if row["expires_at"] is None else row["expires_at"] - row["created_at"]
            scopes = parse_scopes(row["scopes"].split(), within=within)
            spec = port.KeySpec(
                account=row["account"], scopes=scopes, lifetime_s=lifetime_s, note=row["note"], until=until
            )
            made = await self._insert(connection, spec, replaced=id_)
            ends = min(now + overlap_s, row["expires_at"] or now + overlap_s)
            await connection.execute(sa.update(schema.API_KEY).where(_KEY.id == id_).values(expires_at=ends))
        return made


def _end(spec: port.KeySpec, now: float) -> float | None:
    """Return when a new key ends; None: never."""
    ends = [one for one in (spec.until, None if spec.lifetime_s is None else now + spec.lifetime_s) if one is not None]
    return min(ends) if ends else None


def _check_end(spec: port.KeySpec, now: float) -> None:
    """Refuse a key that would outlive the one that makes it. Raises: Denied (`KeyOutlives`)."""
    if spec.until is None or (spec.lifetime_s is not None and now + spec.lifetime_s <= spec.until):
        return
    wanted = "without an end" if spec.lifetime_s is None else f"of {spec.lifetime_s:.0f} s"
    left_s = max(0, int(spec.until - now))
    message = f"a key {wanted} would outlive the one that makes it, which ends at {timestamp.emit(spec.until)}"
    hint = f"ask for {left_s} s at most (`--expires {left_s}s`), or make it with a key that has no end"
    raise errors.Denied(message, reason="KeyOutlives", hint=hint)


def _check_account(name: str, kind: str) -> None:
    if not names.is_dns_label(name) or len(name) > _LONGEST:
        shown = name.replace("\0", "\\0")
        message = f'account "{shown}" is not a name: {names.DNS_RULE}'
        raise errors.Invalid(message, reason="AccountInvalid", hint="for example ann, or ci-builds")
    if kind not in port.KINDS:
        message = f'"{kind}" is not a kind of account'
        raise errors.Invalid(message, reason="AccountInvalid", hint=f"one of {', '.join(port.KINDS)}")


async def find_account(connection: sqla.AsyncConnection, name: str) -> None:
    """Check that an account exists. Raises: NotFound (`AccountUnknown`)."""
    wanted = sa.select(_ACCOUNT.name).where(_ACCOUNT.name == name)
    # PostgreSQL takes no NUL in a text: what cannot be a name is not asked for.
    if not names.is_dns_label(name) or (await connection.execute(wanted)).first() is None:
        shown = name.replace("\0", "\\0")
        hint = "`fairlead user list` lists them; `fairlead user create` makes one"
        raise errors.NotFound(f'there is no account "{shown}"', reason="AccountUnknown", hint=hint)


def memberships(rows: Sequence[Any]) -> tuple[Membership, ...]:
    """Return roles from the rows of a query joined with memberships (`ROLE`); without any, the row has NULLs."""
    found = (one for one in rows if one["tenancy_uid"] is not None)
    return tuple(Membership(tenancy=one["tenancy"], uid=one["tenancy_uid"], role=Role(one["role"])) for one in found)


async def _find_key(connection: sqla.AsyncConnection, id_: str, account: str | None) -> dict[str, Any]:
    wanted = sa.select(schema.API_KEY).where(_KEY.id == id_)
    row = (await connection.execute(wanted)).mappings().first() if apikeys.is_id(id_) else None
    if row is None or account not in {None, row["account"]}:
        shown = id_.replace("\0", "\\0")
        hint = "`fairlead key list` lists them, by the twelve letters after flk_"
        raise errors.NotFound(f'there is no key "{shown}"', reason="KeyUnknown", hint=hint)
    return dict(row)


async def _make_room(connection: sqla.AsyncConnection, account: str, now: float, replaced: str) -> None:
    """Forget an account's oldest keys that are not in force. Raises: Conflict (`KeysTooMany`)."""
    mine, in_force = _KEY.account == account, _in_force(now)
    count = sa.select(sa.func.count()).select_from(schema.API_KEY).where(mine, in_force, _KEY.id != replaced)
    if (await connection.execute(count)).scalar_one() >= _MOST_KEYS:
        message = f'"{account}" has {_MOST_KEYS} keys in force, which is the most an account may have'
        hint = "`fairlead key list` lists them, `fairlead key revoke` makes room"
        raise errors.Conflict(message, reason="KeysTooMany", hint=hint)
    old = sa.select(_KEY.id).where(mine, sa.not_(in_force)).order_by(_KEY.created_at.desc()).offset(_MOST_KEYS)
    forgotten = [str(one) for one in (await connection.execute(old)).scalars()]
    await connection.execute(sa.delete(schema.API_KEY).where(_KEY.id.in_(forgotten)))


def _of_member(statement: sa.Delete, name: str, uid: str) -> sa.Delete:
    return statement.where(_MEMBER.account == name, _MEMBER.tenancy_uid == uid)


def _in_force(now: float) -> sa.ColumnElement[bool]:
    return sa.and_(_KEY.revoked_at.is_(None), sa.or_(_KEY.expires_at.is_(None), _KEY.expires_at > now))


def _state(row: Any, now: float) -> str:
    if row["revoked_at"] is not None:
        return "revoked"
    return "expired" if row["expires_at"] is not None and row["expires_at"] <= now else "active"


def _judge(key: apikeys.Key, row: Any, now: float) -> Any:
    """Return the row of a key if it is in force and the key is the row's. Raises: Unauthenticated (`KeyRefused`)."""
    is_right = apikeys.matches(key, row["digest"] if row else _BOGUS)
    if row is None or not is_right or _state(row, now) != "active":
        raise _refused(key.id, row if is_right else None, now)
    return row


def _refused(id_: str, row: Any, now: float) -> errors.Unauthenticated:
    """Return the refusal of a key: its state to a caller who presents the whole key, no detail to others."""
    why = f"is {_state(row, now)}" if row is not None else "is not accepted"
    hint = "ask for a new one: `fairlead key create`, then `fairlead login`"
    return errors.Unauthenticated(f'key "{id_}" {why}', reason="KeyRefused", hint=hint)


def _scopes(row: Any) -> frozenset[Scope]:
    return frozenset(map(Scope, row["scopes"].split()))


def _member_view(row: Any) -> port.MemberView:
    return port.MemberView(
        account=row["account"], tenancy=row["tenancy"], uid=row["tenancy_uid"], role=Role(row["role"])
    )


def _account_view(row: Any, memberships: Sequence[port.MemberView], count: int) -> port.AccountView:
    return port.AccountView(
        name=row["name"],
        kind=row["kind"],
        is_administrator=row["is_administrator"],
        memberships=tuple(memberships),
        created_at=timestamp.emit(row["created_at"]),
        keys=count,
    )


def _key_view(row: Any, now: float) -> port.KeyView:
    def at(name: str) -> str | None:
        return None if row[name] is None else timestamp.emit(row[name])

    return port.KeyView(
        id=row["id"],
        account=row["account"],
        note=row["note"],
        scopes=tuple(sorted(_scopes(row))),
        created_at=timestamp.emit(row["created_at"]),
        expires_at=at("expires_at"),
        last_used_at=at("last_used_at"),
        state=_state(row, now),
    )
