"""Keeps the audit log in the service's database: the only implementation of its port.

Entries and outcomes are two tables that rows are added to and never changed in; an entry without an outcome is a
request whose end could not be written. Pages go by id, so that what is added meanwhile moves none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sqla

from fairlead.serve.accounts import audit
from fairlead.serve.database import engine, schema
from fairlead.wire.text import timestamp

_ENTRY, _OUTCOME = schema.AUDIT.c, schema.AUDIT_OUTCOME.c
_SHOWN: Final = (_OUTCOME.status, _OUTCOME.reason, _OUTCOME["count"], _OUTCOME.namespace, _OUTCOME.tenancy)
_AT_ONCE: Final = 1000
"""Entries deleted in one transaction, which requests have to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAudit:
    """See `audit.Audit`."""

    database: sqla.AsyncEngine
    now: Callable[[], float] = time.time

    async def begin(self, entry: audit.Entry) -> int:
        """See `audit.Audit.begin`."""
        async with engine.transaction(self.database) as connection:
            return await self._insert(connection, entry)

    async def end(self, id_: int, outcome: audit.Outcome) -> None:
        """See `audit.Audit.end`."""
        async with engine.transaction(self.database) as connection:
            await self._conclude(connection, id_, outcome)

    async def refuse(self, entry: audit.Entry, outcome: audit.Outcome) -> None:
        """See `audit.Audit.refuse`."""
        async with engine.transaction(self.database) as connection:
            await self._conclude(connection, await self._insert(connection, entry), outcome)

    async def _insert(self, connection: sqla.AsyncConnection, entry: audit.Entry) -> int:
        row = {
            "at": self.now(),
            "request": entry.request,
            "account": entry.account,
            "key": entry.key,
            "peer": entry.peer,
            "method": entry.method,
            "action": entry.action,
            "object": entry.object,
        }
        done = await connection.execute(sa.insert(schema.AUDIT).values(row).returning(_ENTRY.id))
        return int(done.scalar_one())

    async def _conclude(self, connection: sqla.AsyncConnection, id_: int, outcome: audit.Outcome) -> None:
        row = {
            "entry": id_,
            "at": self.now(),
            "status": outcome.status,
            "reason": outcome.reason,
            "count": outcome.count,
            "namespace": outcome.place.namespace,
            "tenancy": outcome.place.tenancy,
            "tenancy_uid": outcome.place.uid,
        }
        await connection.execute(sa.insert(schema.AUDIT_OUTCOME).values(row))

    async def list(self, query: audit.Query) -> tuple[tuple[audit.AuditView, ...], int | None]:
        """See `audit.Audit.list`."""
        wanted = (
            sa.select(schema.AUDIT, *_SHOWN)
            .select_from(schema.AUDIT.outerjoin(schema.AUDIT_OUTCOME, _OUTCOME.entry == _ENTRY.id))
            .where(*_conditions(query))
            .order_by(_ENTRY.id.desc())
            .limit(query.limit + 1)
        )
        async with engine.transaction(self.database) as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        page = rows[: query.limit]
        return tuple(map(_view, page)), page[-1]["id"] if len(rows) > len(page) else None

    async def prune(self, before: float) -> int:
        """See `audit.Audit.prune`; outcomes go with their entries."""
        oldest = sa.select(_ENTRY.id).where(_ENTRY.at < before).order_by(_ENTRY.id).limit(_AT_ONCE)
        count, gone = 0, _AT_ONCE
        while gone == _AT_ONCE:
            async with engine.transaction(self.database) as connection:
                done = await connection.execute(sa.delete(schema.AUDIT).where(_ENTRY.id.in_(oldest)))
            gone = done.rowcount
            count += gone
        return count


def _conditions(query: audit.Query) -> list[sa.ColumnElement[bool]]:
    found = []
    if query.since is not None:
        found.append(_ENTRY.at >= query.since)
    if query.until is not None:
        found.append(_ENTRY.at < query.until)
    if query.account:
        found.append(_ENTRY.account == audit.shown(query.account))
    if query.before is not None:
        found.append(_ENTRY.id < query.before)
    if query.uids is not None:
        found.append(_OUTCOME.tenancy_uid.in_(tuple(query.uids)))
    return found


def _view(row: Any) -> audit.AuditView:
    return audit.AuditView(
        at=timestamp.emit(row["at"]),
        request=row["request"],
        account=row["account"],
        key=row["key"],
        peer=row["peer"],
        method=row["method"],
        action=row["action"],
        object=row["object"],
        namespace=row["namespace"] or "",
        tenancy=row["tenancy"] or "",
        status=row["status"],
        reason=row["reason"] or "",
        count=row["count"] or 1,
    )
