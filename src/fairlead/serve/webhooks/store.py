"""Keeps webhooks and their outbox in the service's database: the only implementation of both ports.

What happened and what was last seen of an object are written in one transaction, before anything is sent; an attempt's
end is written after its answer. So a process that is killed anywhere sends an event again rather than never, with the
same id. Secrets are kept as they are, since signing needs them; the database is readable to the service alone.
"""

from __future__ import annotations

import hmac
import math
import re
import secrets
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.database import engine, schema
from fairlead.serve.limits.bucket import Buckets, Rate
from fairlead.serve.webhooks import address, mail, port, signing
from fairlead.wire.text import timestamp

_HOOK, _EVENT, _SEEN = schema.WEBHOOK.c, schema.WEBHOOK_EVENT.c, schema.WEBHOOK_SEEN.c
_ACCOUNT, _MEMBER = schema.ACCOUNT.c, schema.MEMBERSHIP.c
WAITS_S: Final = (5.0, 60.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0)
"""Wait after each failed attempt; after the ninth, some 27.6 hours later, an event is given up."""
_MOST_HOOKS, _MOST_PENDING, _MOST_SHOWN, _AT_ONCE = 10, 1000, 20, 256
_ROOM: Final = re.compile(r"/_matrix/client/v3/rooms/[^/]+/send/m\.room\.message")
TESTS: Final = Rate(per_s=0.1, burst=10)
"""Of the webhooks of one tenancy together: each is a request to whatever address its members named."""
CODES: Final = Rate(per_s=1 / 600, burst=5)
"""Of messages that ask to confirm an address, which may be a third person's."""
_KEPT_S: Final = 7 * 86400.0
_HOUR_S: Final = 3600.0
_NO_MAIL: Final = mail.Server()
_TRIES: Final = 5
"""Wrong codes after which a notice is removed."""
_TOKEN: Final = 1024
_RATED: Final = "not sent: "
"""How the error of an event begins that was never tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhooks:
    """See `port.Webhooks` and `port.Outbox`."""

    database: sqla.AsyncEngine
    allowed: tuple[address.Network, ...] = ()
    now: Callable[[], float] = time.time
    mail: mail.Server = _NO_MAIL
    tests: Buckets = field(default_factory=lambda: Buckets(TESTS, now=time.monotonic))
    """By uid of the tenancy, or by account."""
    codes: Buckets = field(default_factory=lambda: Buckets(CODES, now=time.monotonic))
    """By account."""
    dropped: list[tuple[str, str]] = field(default_factory=list)
    """See `port.Outbox.take_dropped`."""

    async def create(self, spec: port.Spec) -> port.NewWebhook:
        """See `port.Webhooks.create`."""
        url = self._checked(spec)
        is_doubted = spec.format == port.EMAIL and not spec.is_trusted
        if is_doubted and (wait_s := math.ceil(self.codes.take(spec.account).wait_s)) > 0:
            # Beside `mail.per_hour`: what is removed and made again would not be counted there.
            message = f"codes are sent {CODES.burst} times at once, and then one in ten minutes"
            hint = f"ask again in {wait_s} s"
            raise errors.Throttled(message, reason="NoticesTooMany", hint=hint, retry_after_s=wait_s)
        secret = signing.make_secret()
        row = {
            "id": f"whk_{secrets.token_hex(6)}",
            "account": spec.account,
            "tenancy_uid": spec.uid,
            "tenancy": spec.tenancy,
            "url": url,
            "events": " ".join(port.read_events(spec.events)),
            "secret": secret,
            "created_at": self.now(),
            "format": spec.format,
            "person": spec.person,
            "reach": spec.reach if spec.person else "",
            "token": spec.token,
            "code": f"{secrets.randbelow(10**8):08}" if is_doubted else "",
            "tries": 0,
        }
        owned = _HOOK.person == spec.person
        owned = owned if spec.person else sa.and_(owned, _HOOK.tenancy_uid == spec.uid)
        count = sa.select(sa.func.count()).select_from(schema.WEBHOOK).where(owned)
        async with engine.transaction(self.database) as connection:
            if (await connection.execute(count)).scalar_one() >= _MOST_HOOKS:
                who, what = spec.person or spec.tenancy or "the machine", "notices" if spec.person else "webhooks"
                message = f'"{who}" has {_MOST_HOOKS} {what}, which is the most there may be'
                hint = f"`fairlead {'notify remove' if spec.person else 'webhook delete'}` makes room"
                raise errors.Conflict(message, reason="WebhooksTooMany", hint=hint)
            await connection.execute(sa.insert(schema.WEBHOOK).values(row))
            if row["code"]:
                event = port.Event(type=port.CONFIRM, uid="", data={"webhook": row["id"], "code": row["code"]})
                await self._enqueue(connection, row, event)
        return port.NewWebhook(secret=secret, webhook=_view(row, 0))

    def _checked(self, spec: port.Spec) -> str:
        """Return the address of a webhook to be made. Raises: as `create`."""
        if spec.format not in port.FORMATS:
            message = f'format: "{errors.readable(spec.format[:40])}" is none'
            raise errors.Invalid(message, reason="WebhookFormatUnknown", hint=f"one of {', '.join(port.FORMATS)}")
        if (spec.format == port.MATRIX) != bool(spec.token) or len(spec.token) > _TOKEN or not _is_token(spec.token):
            message = "token: a Matrix room needs the access token of an account, and nothing else takes one"
            hint = "one line of ASCII: `fairlead notify add --room ROOM --token-file FILE`, or `token` in the API"
            raise errors.Invalid(message, reason="WebhookTokenInvalid", hint=hint)
        if spec.format == port.EMAIL:
            to = spec.url.removeprefix(mail.SCHEME)
            return mail.SCHEME + mail.check_recipient(to, self.mail, is_trusted=spec.is_trusted)
        address.check_url(spec.url, self.allowed)
        if spec.format == port.MATRIX and not _ROOM.fullmatch(urllib.parse.urlsplit(spec.url).path):
            message = "url: not the address of a Matrix room's messages"
            hint = "https://HOST/_matrix/client/v3/rooms/ROOM/send/m.room.message, or `notify add --room`"
            raise errors.Invalid(message, reason="WebhookURLInvalid", hint=hint)
        return spec.url

    async def list(self, whose: port.Whose) -> tuple[port.WebhookView, ...]:
        """See `port.Webhooks.list`."""
        wanted = sa.select(schema.WEBHOOK).where(*_of(whose)).order_by(_HOOK.created_at, _HOOK.id)
        waiting = sa.select(_EVENT.webhook, sa.func.count()).where(_EVENT.next_at.is_not(None)).group_by(_EVENT.webhook)
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
            counts = {str(name): int(number) for name, number in await connection.execute(waiting)}
        return tuple(_view(row, counts.get(row["id"], 0)) for row in rows)

    async def show(self, id_: str, whose: port.Whose) -> port.WebhookDetail:
        """See `port.Webhooks.show`."""
        mine = sa.select(schema.WEBHOOK_EVENT).where(_EVENT.webhook == id_)
        pending = sa.select(sa.func.count()).where(_EVENT.webhook == id_, _EVENT.next_at.is_not(None))
        async with engine.transaction(self.database) as connection:
            row = await _find(connection, id_, whose)
            last = await connection.execute(mine.order_by(_EVENT.created_at.desc(), _EVENT.id).limit(_MOST_SHOWN))
            found = last.mappings().all()
            count = (await connection.execute(pending)).scalar_one()
        return port.WebhookDetail(webhook=_view(row, count), deliveries=tuple(map(_delivery, found)))

    async def delete(self, id_: str, whose: port.Whose) -> None:
        """See `port.Webhooks.delete`."""
        async with engine.transaction(self.database) as connection:
            await _find(connection, id_, whose)
            await connection.execute(sa.delete(schema.WEBHOOK_EVENT).where(_EVENT.webhook == id_))
            await connection.execute(sa.delete(schema.WEBHOOK).where(_HOOK.id == id_))

    async def test(self, id_: str, whose: port.Whose) -> str:
        """See `port.Webhooks.test`."""
        async with engine.transaction(self.database) as connection:
            row = await _find(connection, id_, whose)
            if row["code"]:
                message = "its address is not confirmed yet"
                hint = f"the code that was sent there: `fairlead notify confirm {id_} CODE`"
                raise errors.Conflict(message, reason="NoticeUnconfirmed", hint=hint)
            if (wait_s := math.ceil(self.tests.take(_owner(row)).wait_s)) > 0:
                message = f"the webhooks of one tenancy are tried {TESTS.burst} times at once, and then every 10 s"
                hint = f"ask again in {wait_s} s; `fairlead webhook show {id_}` says how the last ones went"
                raise errors.Throttled(message, reason="WebhookTestsTooMany", hint=hint, retry_after_s=wait_s)
            event = port.Event(type=port.TEST, uid=row["tenancy_uid"], data={"webhook": id_})
            return await self._enqueue(connection, row, event)

    async def confirm(self, id_: str, code: str, whose: port.Whose) -> port.WebhookView:
        """See `port.Webhooks.confirm`."""
        async with engine.transaction(self.database) as connection:
            row = await _find(connection, id_, whose)
            one, is_right = _HOOK.id == id_, hmac.compare_digest(code.strip().encode(), row["code"].encode())
            tries = row["tries"] + 1
            if not row["code"] or is_right:
                await connection.execute(sa.update(schema.WEBHOOK).where(one).values(code="", tries=0))
                return _view({**row, "code": ""}, 0)
            if tries >= _TRIES:
                await connection.execute(sa.delete(schema.WEBHOOK_EVENT).where(_EVENT.webhook == id_))
                await connection.execute(sa.delete(schema.WEBHOOK).where(one))
            else:
                await connection.execute(sa.update(schema.WEBHOOK).where(one).values(tries=tries))
        hint = "it was the last try: add the notice again" if tries >= _TRIES else f"{_TRIES - tries} tries are left"
        raise errors.Denied("that is not the code which was sent to the address", reason="CodeWrong", hint=hint)

    async def seen(self) -> Mapping[str, str]:
        """See `port.Outbox.seen`."""
        async with engine.transaction(self.database) as connection:
            return {str(name): str(state) for name, state in await connection.execute(sa.select(schema.WEBHOOK_SEEN))}

    async def record(self, object_: str, state: str | None, events: Sequence[port.Event]) -> None:
        """See `port.Outbox.record`."""
        async with engine.transaction(self.database) as connection:
            await connection.execute(sa.delete(schema.WEBHOOK_SEEN).where(_SEEN.object == object_))
            if state is not None:
                await connection.execute(sa.insert(schema.WEBHOOK_SEEN).values(object=object_, state=state))
            await self.enqueue(connection, events)

    async def enqueue(self, connection: sqla.AsyncConnection, events: Sequence[port.Event]) -> None:
        """Write what is to be sent of events, as a part of another transaction."""
        for event in events:
            wanted = sa.select(schema.WEBHOOK).where(_told_of(event), _HOOK.code == "")
            for row in (await connection.execute(wanted)).mappings().all():
                if not row["events"] or event.type in row["events"].split():
                    await self._enqueue(connection, row, event)

    async def tell(self, connection: sqla.AsyncConnection, kind: str, uid: str, data: Mapping[str, Any]) -> None:
        """Write one event of a tenancy, as a part of another transaction."""
        await self.enqueue(connection, (port.Event(type=kind, uid=uid, data=data),))

    async def _enqueue(self, connection: sqla.AsyncConnection, owner: Mapping[Any, Any], event: port.Event) -> str:
        """Write one event for a webhook, given by its row."""
        now, id_, hook = self.now(), f"evt_{secrets.token_hex(12)}", owner["id"]
        body = {"type": event.type, "timestamp": timestamp.emit(now), "data": event.data}
        row = {
            "id": id_,
            "webhook": hook,
            "type": event.type,
            "body": msgspec.json.encode(body).decode(),
            "created_at": now,
            "next_at": now,
            "attempts": 0,
            "error": "",
        }
        if owner["format"] == port.EMAIL and await self._mailed(connection, owner, now) >= self.mail.per_hour:
            row |= {"next_at": None, "error": f"{_RATED}{self.mail.per_hour} in an hour are the most (mail.per_hour)"}
            self.dropped.append((owner["format"], port.LIMITED))
        waiting = (_EVENT.webhook == hook, _EVENT.next_at.is_not(None))
        count = (await connection.execute(sa.select(sa.func.count()).where(*waiting))).scalar_one()
        if count >= _MOST_PENDING:
            oldest = sa.select(_EVENT.id).where(*waiting).order_by(_EVENT.created_at).limit(count - _MOST_PENDING + 1)
            gone = sa.update(schema.WEBHOOK_EVENT).where(_EVENT.id.in_(oldest))
            await connection.execute(gone.values(next_at=None, error=f"given up: {_MOST_PENDING} newer ones wait"))
            self.dropped.extend([(owner["format"], port.GIVEN_UP)] * (count - _MOST_PENDING + 1))
        await connection.execute(sa.insert(schema.WEBHOOK_EVENT).values(row))
        return id_

    async def _mailed(self, connection: sqla.AsyncConnection, owner: Mapping[Any, Any], now: float) -> int:
        """Return how much e-mail one account, or one tenancy, was sent in the last hour, or will be."""
        mine = _HOOK.person == owner["person"]
        mine = mine if owner["person"] else sa.and_(mine, _HOOK.tenancy_uid == owner["tenancy_uid"])
        counted = sa.select(sa.func.count()).select_from(
            schema.WEBHOOK_EVENT.join(schema.WEBHOOK, _EVENT.webhook == _HOOK.id)
        )
        # What lies ahead was written before the clock was set back, and would count for as long as it was wrong.
        fresh = (_EVENT.created_at > now - _HOUR_S, _EVENT.created_at <= now, _EVENT.error.not_like(f"{_RATED}%"))
        found = await connection.execute(counted.where(mine, _HOOK.format == port.EMAIL, *fresh))
        return int(found.scalar_one())

    def take_dropped(self) -> tuple[tuple[str, str], ...]:
        """See `port.Outbox.take_dropped`."""
        taken = tuple(self.dropped)
        del self.dropped[: len(taken)]
        return taken

    async def due(self, *, busy: Collection[str] = ()) -> tuple[port.Due, ...]:
        """See `port.Outbox.due`."""
        order = (_EVENT.next_at, _EVENT.created_at)
        place = sa.func.row_number().over(partition_by=_EVENT.webhook, order_by=order).label("place")
        ranked = sa.select(schema.WEBHOOK_EVENT, place).where(_is_due(self.now()), _EVENT.webhook.not_in(busy))
        each = ranked.subquery()
        wanted = sa.select(each, _HOOK.url, _HOOK.secret, _HOOK.format, _HOOK.token).join_from(
            each, schema.WEBHOOK, each.c.webhook == _HOOK.id
        )
        ripe = wanted.where(each.c.place == 1).order_by(each.c.next_at, each.c.created_at).limit(_AT_ONCE - len(busy))
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(ripe)).mappings().all()
        return tuple(
            port.Due(
                id=row["id"],
                webhook=row["webhook"],
                url=row["url"],
                secret=row["secret"],
                body=row["body"].encode(),
                attempts=row["attempts"],
                format=row["format"],
                token=row["token"],
                created_at=row["created_at"],
            )
            for row in rows
        )

    async def done(self, one: port.Due, *, status: int | None, error: str, is_final: bool = False) -> bool:
        """See `port.Outbox.done`."""
        now = self.now()
        is_last = is_final or one.attempts >= len(WAITS_S)
        next_at = None if not error or is_last else now + WAITS_S[one.attempts]
        values = {
            "attempts": one.attempts + 1,
            "status": status,
            "error": f"given up: {error}"[:200] if error and is_last else error[:200],
            "next_at": next_at,
            "delivered_at": None if error else now,
        }
        async with engine.transaction(self.database) as connection:
            await connection.execute(sa.update(schema.WEBHOOK_EVENT).where(_EVENT.id == one.id).values(values))
        return bool(error) and is_last

    async def prune(self) -> int:
        """See `port.Outbox.prune`."""
        old = sa.and_(_EVENT.next_at.is_(None), _EVENT.created_at < self.now() - _KEPT_S)
        async with engine.transaction(self.database) as connection:
            return (await connection.execute(sa.delete(schema.WEBHOOK_EVENT).where(old))).rowcount


def _of(whose: port.Whose) -> tuple[sa.ColumnElement[bool], ...]:
    if whose.person is not None:
        return (_HOOK.person == whose.person,) if whose.person else (_HOOK.person != "",)
    mine = () if whose.uids is None else (_HOOK.tenancy_uid.in_(tuple(whose.uids)),)
    return (_HOOK.person == "", *mine)


def _told_of(event: port.Event) -> sa.ColumnElement[bool]:
    """Return which webhooks an event concerns. A person gets notices while their role allows it, no longer."""
    in_it = sa.exists().where(_MEMBER.account == _HOOK.person, _MEMBER.tenancy_uid == event.uid)
    is_administrator = sa.exists().where(_ACCOUNT.name == _HOOK.person, _ACCOUNT.is_administrator)
    of_nobody = sa.and_(_HOOK.person == "", sa.or_(_HOOK.tenancy_uid == "", _HOOK.tenancy_uid == event.uid))
    reaches = [of_nobody, sa.and_(_HOOK.reach == port.MACHINE, is_administrator)]
    if event.uid:
        of_tenancy = sa.and_(_HOOK.reach == port.TENANCY, _HOOK.tenancy_uid == event.uid)
        reaches.append(sa.and_(of_tenancy, sa.or_(in_it, is_administrator)))
    if event.account:
        is_there = sa.or_(in_it, is_administrator) if event.uid else is_administrator
        reaches.append(sa.and_(_HOOK.reach == port.OWN, _HOOK.person == event.account, is_there))
    return sa.or_(*reaches)


def _is_due(now: float) -> sa.ColumnElement[bool]:
    """Return which events' time has come; one that is further off than any wait had its time from a wrong clock."""
    waits = {tries: wait_s for tries, wait_s in enumerate((0.0, *WAITS_S))}
    wait_s = sa.case(waits, value=_EVENT.attempts, else_=WAITS_S[-1])
    return sa.or_(_EVENT.next_at <= now, _EVENT.next_at > now + wait_s)


def _owner(row: Mapping[Any, Any]) -> str:
    """Return whose requests are counted together."""
    return f"person {row['person']}" if row["person"] else str(row["tenancy_uid"])


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


async def _find(connection: sqla.AsyncConnection, id_: str, whose: port.Whose) -> dict[str, Any]:
    is_one = id_.isascii() and id_.isprintable() and len(id_) <= 32
    wanted = sa.select(schema.WEBHOOK).where(_HOOK.id == id_, *_of(whose))
    row = (await connection.execute(wanted)).mappings().first() if is_one else None
    if row is None:
        what, verb = ("webhook", "webhook") if whose.person is None else ("notice", "notify")
        message = f'there is no {what} "{errors.readable(id_[:80])}"'
        raise errors.NotFound(message, reason="WebhookUnknown", hint=f"`fairlead {verb} list` lists them")
    return dict(row)


def _view(row: Any, pending: int) -> port.WebhookView:
    return port.WebhookView(
        id=row["id"],
        tenancy=row["tenancy"],
        url=address.shown(row["url"], row["format"]),
        events=tuple(row["events"].split()),
        account=row["account"],
        created_at=timestamp.emit(row["created_at"]),
        pending=pending,
        format=row["format"],
        person=row["person"],
        reach=row["reach"],
        is_confirmed=not row["code"],
    )


def _delivery(row: Any) -> port.DeliveryView:
    is_over = row["next_at"] is None
    return port.DeliveryView(
        id=row["id"],
        type=row["type"],
        created_at=timestamp.emit(row["created_at"]),
        state="pending" if not is_over else "delivered" if row["delivered_at"] is not None else "given up",
        attempts=row["attempts"],
        status=row["status"],
        error=row["error"],
        next_at=None if is_over else timestamp.emit(row["next_at"]),
    )
