"""Keeps budgets in the service's database; what webhooks receive is written in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead.plan.metering import budget
from fairlead.plan.metering.budget import Limit, Standing
from fairlead.serve.database import engine, schema
from fairlead.serve.metering.budgets import Budget, BudgetNotice
from fairlead.wire.text import timestamp

_B = schema.BUDGET.c
Tell = Callable[[sqla.AsyncConnection, str, str, Mapping[str, Any]], Awaitable[None]]
"""Writes, as a part of a transaction, that an event (its type) happened in a tenancy (its uid)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBudgets:
    """See `budgets.Budgets`."""

    database: sqla.AsyncEngine
    tell: Tell
    now: Callable[[], float] = time.time

    async def put(self, uid: str, tenancy: str, limit: Limit, *, account: str) -> Budget:
        """See `Budgets.put`."""
        row = {
            "tenancy_uid": uid,
            "tenancy": tenancy,
            "amount": f"{limit.amount:f}",
            "action": limit.action,
            "grace_s": limit.grace_s,
            "notify_percent": " ".join(map(str, limit.notify_percent)),
            "account": account,
            "set_at": self.now(),
            "period": "",
            "spent": "0",
            "told": 0,
            "exceeded_at": None,
        }
        async with engine.transaction(self.database) as connection:
            before = await _row(connection, uid)
            if before is not None and Decimal(before["amount"]) == limit.amount:
                row |= {name: before[name] for name in ("period", "spent", "told", "exceeded_at")}
            await connection.execute(sa.delete(schema.BUDGET).where(_B.tenancy_uid == uid))
            await connection.execute(sa.insert(schema.BUDGET).values(row))
        return _budget(row)

    async def find(self, uid: str) -> Budget | None:
        """See `Budgets.find`."""
        async with engine.transaction(self.database) as connection:
            row = await _row(connection, uid)
        return None if row is None else _budget(row)

    async def list(self, uids: Collection[str] | None) -> tuple[Budget, ...]:
        """See `Budgets.list`."""
        whose = () if uids is None else (_B.tenancy_uid.in_(tuple(uids)),)
        wanted = sa.select(schema.BUDGET).where(*whose).order_by(_B.tenancy, _B.tenancy_uid)
        async with engine.transaction(self.database) as connection:
            return tuple(_budget(row) for row in (await connection.execute(wanted)).mappings().all())

    async def delete(self, uid: str) -> bool:
        """See `Budgets.delete`."""
        async with engine.transaction(self.database) as connection:
            gone = await connection.execute(sa.delete(schema.BUDGET).where(_B.tenancy_uid == uid))
        return bool(gone.rowcount)

    async def note(self, found: Budget, standing: Standing, notice: BudgetNotice | None) -> None:
        """See `Budgets.note`."""
        values = {
            "period": standing.period,
            "spent": f"{standing.spent:f}",
            "told": standing.told,
            "exceeded_at": standing.exceeded_at,
        }
        same = (_B.tenancy_uid == found.uid, _B.set_at == found.set_at)
        async with engine.transaction(self.database) as connection:
            changed = await connection.execute(sa.update(schema.BUDGET).where(*same).values(values))
            if changed.rowcount and notice is not None:
                await self.tell(connection, notice.type, found.uid, _data(found, standing, notice))


def _data(found: Budget, standing: Standing, notice: BudgetNotice) -> Mapping[str, Any]:
    at = budget.stops_at(found.limit, standing)
    return {
        "tenancy": found.tenancy,
        "period": standing.period,
        "percent": notice.percent,
        "spent": f"{standing.spent:f}",
        "amount": f"{found.limit.amount:f}",
        "currency": notice.currency,
        "action": found.limit.action,
        "stops_at": None if at is None else timestamp.emit(at),
    }


async def _row(connection: sqla.AsyncConnection, uid: str) -> dict[str, Any] | None:
    row = (await connection.execute(sa.select(schema.BUDGET).where(_B.tenancy_uid == uid))).mappings().first()
    return None if row is None else dict(row)


def _budget(row: Any) -> Budget:
    return Budget(
        uid=row["tenancy_uid"],
        tenancy=row["tenancy"],
        limit=Limit(
            amount=Decimal(row["amount"]),
            action=row["action"],
            grace_s=row["grace_s"],
            notify_percent=tuple(map(int, row["notify_percent"].split())),
        ),
        standing=Standing(
            period=row["period"], spent=Decimal(row["spent"]), told=row["told"], exceeded_at=row["exceeded_at"]
        ),
        account=row["account"],
        set_at=row["set_at"],
    )
