"""Keeps webhooks and their outbox in the service's database: the only implementation of both ports.

What happened and what was last seen of an object are written in one transaction, before anything is sent; an attempt's
end is written after its answer. So a process that is killed anywhere sends an event again rather than never, with the
same id. Secrets are kept as they are, since signing needs them; the database is readable to the service alone.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors
from fairlead.serve.database import engine, schema
from fairlead.serve.limits.bucket import Buckets, Rate
from fairlead.serve.webhooks import address, port, signing
from fairlead.wire.text import timestamp

_HOOK, _EVENT, _SEEN = schema.WEBHOOK.c, schema.WEBHOOK_EVENT.c, schema.WEBHOOK_SEEN.c
WAITS_S: Final = (5.0, 60.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0)
"""Wait after each failed attempt; after the ninth, some 27.6 hours later, an event is given up."""
_MOST_HOOKS, _MOST_PENDING, _MOST_SHOWN, _AT_ONCE = 10, 1000, 20, 256
TESTS: Final = Rate(per_s=0.1, burst=10)
"""Of the webhooks of one tenancy together: each is a request to whatever address its members named."""
_KEPT_S: Final = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWebhooks:
    """See `port.Webhooks` and `port.Outbox`."""

    database: sqla.AsyncEngine
    allowed: tuple[address.Network, ...] = ()
    now: Callable[[], float] = time.time
    tests: Buckets = field(default_factory=lambda: Buckets(TESTS, now=time.monotonic))
    """By uid of the tenancy."""

    async def create(self, spec: port.Spec) -> port.NewWebhook:
        """See `port.Webhooks.create`."""
        address.check_url(spec.url, self.allowed)
        secret = signing.make_secret()
        row = {
            "id": f"whk_{secrets.token_hex(6)}",
            "account": spec.account,
            "tenancy_uid": spec.uid,
            "tenancy": spec.tenancy,
            "url": spec.url,
            "events": " ".join(port.read_events(spec.events)),
            "secret": secret,
            "created_at": self.now(),
        }
        count = sa.select(sa.func.count()).select_from(schema.WEBHOOK).where(_HOOK.tenancy_uid == spec.uid)
        async with engine.transaction(self.database) as connection:
            if (await connection.execute(count)).scalar_one() >= _MOST_HOOKS:
                message = (
                    f'"{spec.tenancy or "the machine"}" has {_MOST_HOOKS} webhooks, which is the most there may be'
                )
                hint = "`fairlead webhook delete` makes room"
                raise errors.Conflict(message, reason="WebhooksTooMany", hint=hint)
            await connection.execute(sa.insert(schema.WEBHOOK).values(row))
        return port.NewWebhook(secret=secret, webhook=_view(row, 0))

    async def list(self, uids: Collection[str] | None) -> tuple[port.WebhookView, ...]:
        """See `port.Webhooks.list`."""
        wanted = sa.select(schema.WEBHOOK).where(*_of(uids)).order_by(_HOOK.created_at, _HOOK.id)
        waiting = sa.select(_EVENT.webhook, sa.func.count()).where(_EVENT.next_at.is_not(None)).group_by(_EVENT.webhook)
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
            counts = {str(name): int(number) for name, number in await connection.execute(waiting)}
        return tuple(_view(row, counts.get(row["id"], 0)) for row in rows)

    async def show(self, id_: str, uids: Collection[str] | None) -> port.WebhookDetail:
        """See `port.Webhooks.show`."""
        mine = sa.select(schema.WEBHOOK_EVENT).where(_EVENT.webhook == id_)
        pending = sa.select(sa.func.count()).where(_EVENT.webhook == id_, _EVENT.next_at.is_not(None))
        async with engine.transaction(self.database) as connection:
            row = await _find(connection, id_, uids)
            last = await connection.execute(mine.order_by(_EVENT.created_at.desc(), _EVENT.id).limit(_MOST_SHOWN))
            found = last.mappings().all()
            count = (await connection.execute(pending)).scalar_one()
        return port.WebhookDetail(webhook=_view(row, count), deliveries=tuple(map(_delivery, found)))

    async def delete(self, id_: str, uids: Collection[str] | None) -> None:
        """See `port.Webhooks.delete`."""
        async with engine.transaction(self.database) as connection:
            await _find(connection, id_, uids)
            await connection.execute(sa.delete(schema.WEBHOOK_EVENT).where(_EVENT.webhook == id_))
            await connection.execute(sa.delete(schema.WEBHOOK).where(_HOOK.id == id_))

    async def test(self, id_: str, uids: Collection[str] | None) -> str:
        """See `port.Webhooks.test`."""
        async with engine.transaction(self.database) as connection:
            row = await _find(connection, id_, uids)
            if (wait_s := math.ceil(self.tests.take(row["tenancy_uid"]).wait_s)) > 0:
                message = f"the webhooks of one tenancy are tried {TESTS.burst} times at once, and then every 10 s"
                hint = f"ask again in {wait_s} s; `fairlead webhook show {id_}` says how the last ones went"
                raise errors.Throttled(message, reason="WebhookTestsTooMany", hint=hint, retry_after_s=wait_s)
            event = port.Event(type=port.TEST, uid=row["tenancy_uid"], data={"webhook": id_})
            return await self._enqueue(connection, id_, event)

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
            whose = sa.or_(_HOOK.tenancy_uid == "", _HOOK.tenancy_uid == event.uid)
            for row in (await connection.execute(sa.select(schema.WEBHOOK).where(whose))).mappings().all():
                if not row["events"] or event.type in row["events"].split():
                    await self._enqueue(connection, row["id"], event)

    async def tell(self, connection: sqla.AsyncConnection, kind: str, uid: str, data: Mapping[str, Any]) -> None:
        """Write one event of a tenancy, as a part of another transaction."""
        await self.enqueue(connection, (port.Event(type=kind, uid=uid, data=data),))

    async def _enqueue(self, connection: sqla.AsyncConnection, hook: str, event: port.Event) -> str:
        now, id_ = self.now(), f"evt_{secrets.token_hex(12)}"
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
        waiting = (_EVENT.webhook == hook, _EVENT.next_at.is_not(None))
        count = (await connection.execute(sa.select(sa.func.count()).where(*waiting))).scalar_one()
        if count >= _MOST_PENDING:
            oldest = sa.select(_EVENT.id).where(*waiting).order_by(_EVENT.created_at).limit(count - _MOST_PENDING + 1)
            gone = sa.update(schema.WEBHOOK_EVENT).where(_EVENT.id.in_(oldest))
            await connection.execute(gone.values(next_at=None, error=f"given up: {_MOST_PENDING} newer ones wait"))
        await connection.execute(sa.insert(schema.WEBHOOK_EVENT).values(row))
        return id_

    async def due(self, *, busy: Collection[str] = ()) -> tuple[port.Due, ...]:
        """See `port.Outbox.due`."""
        order = (_EVENT.next_at, _EVENT.created_at)
        place = sa.func.row_number().over(partition_by=_EVENT.webhook, order_by=order).label("place")
        ranked = sa.select(schema.WEBHOOK_EVENT, place).where(_EVENT.next_at <= self.now(), _EVENT.webhook.not_in(busy))
        each = ranked.subquery()
        wanted = sa.select(each, _HOOK.url, _HOOK.secret).join_from(each, schema.WEBHOOK, each.c.webhook == _HOOK.id)
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
            )
            for row in rows
        )

    async def done(self, one: port.Due, *, status: int | None, error: str) -> None:
        """See `port.Outbox.done`."""
        now = self.now()
        is_last = one.attempts >= len(WAITS_S)
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

    async def prune(self) -> int:
        """See `port.Outbox.prune`."""
        old = sa.and_(_EVENT.next_at.is_(None), _EVENT.created_at < self.now() - _KEPT_S)
        async with engine.transaction(self.database) as connection:
            return (await connection.execute(sa.delete(schema.WEBHOOK_EVENT).where(old))).rowcount


def _of(uids: Collection[str] | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if uids is None else (_HOOK.tenancy_uid.in_(tuple(uids)),)


async def _find(connection: sqla.AsyncConnection, id_: str, uids: Collection[str] | None) -> dict[str, Any]:
    is_one = id_.isascii() and id_.isprintable() and len(id_) <= 32
    wanted = sa.select(schema.WEBHOOK).where(_HOOK.id == id_, *_of(uids))
    row = (await connection.execute(wanted)).mappings().first() if is_one else None
    if row is None:
        message = f'there is no webhook "{errors.readable(id_[:80])}"'
        raise errors.NotFound(message, reason="WebhookUnknown", hint="`fairlead webhook list` lists them")
    return dict(row)


def _view(row: Any, pending: int) -> port.WebhookView:
    return port.WebhookView(
        id=row["id"],
        tenancy=row["tenancy"],
        url=row["url"],
        events=tuple(row["events"].split()),
        account=row["account"],
        created_at=timestamp.emit(row["created_at"]),
        pending=pending,
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
