"""Writes each request of the API on TLS into the audit log on its way in and out, and deletes what is too old."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.serve.accounts import audit, sessions

REFUSALS: Final = frozenset({401, 403, 404})
"""Statuses that are written whatever was asked for. 404 is what another tenancy's objects are answered with."""
_LOOK_S: Final = 3600.0
_DAY_S: Final = 86400.0


class Recording:
    """One request on its way into the log."""

    def __init__(self, log: audit.Audit, *, scope: Mapping[str, Any]) -> None:
        """Args: scope: of the request, as ASGI has it."""
        self.log = log
        self.places: Mapping[str, audit.Place] = {}
        """Tenancies of the machine, by namespace."""
        self.home = audit.Place()
        """Where the request counts as long as it names no other place."""
        self._namespace = ""
        self._id: int | None = None
        self._is_over = False
        client = scope.get("client") or ("",)
        self.entry = audit.Entry(
            request=uuid.uuid4().hex,
            peer=audit.shown(str(client[0])),
            method=audit.shown(str(scope.get("method", "GET"))),
            object=audit.shown(str(scope.get("path", ""))),
        )

    def tell(self, **facts: str) -> None:
        """Fill in fields of the entry."""
        self.entry = dataclasses.replace(self.entry, **facts)

    def note(self, namespace: str) -> None:
        """Say where the request has its effect."""
        self._namespace = namespace

    @property
    def has_begun(self) -> bool:
        """Whether the request changes something, and was written."""
        return self._id is not None

    async def begin(self) -> None:
        """Write the request before it is carried out. Raises: Unavailable (`AuditUnavailable`): it must not be."""
        try:
            self._id = await self.log.begin(self.entry)
        except errors.FairleadError as error:
            message = f"this was not done, because it cannot be written into the audit log: {error.message}"
            raise errors.Unavailable(message, reason="AuditUnavailable", hint=error.hint) from error

    async def end(self, status: int, reason: str) -> None:
        """Write how the request ended, where it is one that is written; a failure of that is logged."""
        if self._is_over or (self._id is None and status not in REFUSALS):
            return
        self._is_over = True
        outcome = audit.Outcome(status=status, reason=reason, place=self._place())
        try:
            if self._id is not None:
                await self.log.end(self._id, outcome)
            else:
                await self.log.refuse(self.entry, outcome)
        except errors.FairleadError as error:
            facts = {"method": self.entry.method, "path": self.entry.object, "state": str(status), "reason": reason}
            telemetry.log.error("audit entry not written", error=errors.sentence(error), **facts)

    def _place(self) -> audit.Place:
        if not self._namespace:
            return self.home
        return self.places.get(self._namespace) or audit.Place(namespace=audit.shown(self._namespace))


async def keep_sessions(kept: sessions.Sessions) -> None:
    """Delete browsers' sessions that are over, now and every hour, until cancelled."""
    while True:
        try:
            await kept.prune()
        except errors.FairleadError as error:
            telemetry.log.error("old sessions not deleted", reason=error.reason, error=errors.sentence(error))
        await asyncio.sleep(_LOOK_S)


async def keep(log: audit.Audit, days: int, now: Callable[[], float]) -> None:
    """Delete what is older than that, now and every hour, until cancelled. Args: days: 0: nothing is deleted."""
    while days > 0:
        try:
            if count := await log.prune(now() - days * _DAY_S):
                telemetry.log.info("old audit entries deleted", count=count)
        except errors.FairleadError as error:
            telemetry.log.error("old audit entries not deleted", reason=error.reason, error=errors.sentence(error))
        await asyncio.sleep(_LOOK_S)
