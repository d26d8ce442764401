"""Writes each request of the API on TLS into the audit log on its way in and out, and deletes what is too old."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.serve.accounts import audit, sessions
from fairlead.serve.limits import address

REFUSALS: Final = frozenset({401, 403, 404, 429})
"""Statuses that are written whatever was asked for. 404 is what another tenancy's objects are answered with."""
WINDOW_S: Final = 60.0
_OF_KIND: Final = 30
"""Refusals of one kind (`Refusals`) that have a row each in a window."""
_ANONYMOUS: Final = 100
"""Refusals without an account that have a row each in a window, from all addresses together."""
_KINDS: Final = 1000
"""Kinds that are counted apart in a window; further ones are counted by status and reason alone."""
_LOOK_S: Final = 3600.0
_DAY_S: Final = 86400.0


@dataclasses.dataclass(slots=True)
class _Count:
    """Refusals of one kind in a window."""

    rows: int = 0
    """Written one by one."""
    more: int = 0
    """Beyond those."""
    last: tuple[audit.Entry, audit.Outcome] | None = None
    """The latest of those."""


class Refusals:
    """Writes the first refusals of a window one by one, and the rest of each kind as one row at the window's end.

    A kind is account, address, status and reason. What is counted and not yet written when the service is killed is
    lost: a minute's at most.
    """

    def __init__(self, log: audit.Audit) -> None:
        """Args: log: where they are written."""
        self._log = log
        self._counts: dict[tuple[str, str, int, str], _Count] = {}
        self._anonymous = 0

    async def write(self, entry: audit.Entry, outcome: audit.Outcome) -> None:
        """Write a refusal, or count it. Raises: as `audit.Audit.refuse`."""
        kind = (entry.account, "" if entry.account else address.network(entry.peer), outcome.status, outcome.reason)
        if kind not in self._counts and len(self._counts) >= _KINDS:
            kind = ("", "", outcome.status, outcome.reason)
        found = self._counts.setdefault(kind, _Count())
        if found.rows < _OF_KIND and (entry.account or self._anonymous < _ANONYMOUS):
            found.rows += 1
            self._anonymous += not entry.account
            telemetry.log.info("request refused", method=entry.method, state=str(outcome.status), reason=outcome.reason)
            await self._log.refuse(entry, outcome)
            return
        found.more += 1
        found.last = (entry, outcome)

    async def flush(self) -> None:
        """Write what was counted, and begin a new window; a failure of that is logged."""
        counts, self._counts, self._anonymous = self._counts, {}, 0
        for (_, network, _, _), found in counts.items():
            if found.last is None:
                continue
            entry, outcome = found.last
            telemetry.log.info("requests refused", count=found.more, state=str(outcome.status), reason=outcome.reason)
            last = dataclasses.replace(entry, peer=network or entry.peer)
            try:
                await self._log.refuse(last, dataclasses.replace(outcome, count=found.more))
            except errors.FairleadError as error:
                _not_written(last, outcome, error)

    async def keep(self) -> None:
        """Write every minute what was counted, and once more at the end, until cancelled."""
        try:
            while True:
                await asyncio.sleep(WINDOW_S)
                await self.flush()
        finally:
            await self.flush()


def _not_written(entry: audit.Entry, outcome: audit.Outcome, error: errors.FairleadError) -> None:
    facts = {"method": entry.method, "path": entry.object, "state": str(outcome.status), "reason": outcome.reason}
    telemetry.log.error("audit entry not written", error=errors.sentence(error), **facts)


class Recording:
    """One request on its way into the log."""

    def __init__(self, log: audit.Audit, refusals: Refusals, *, scope: Mapping[str, Any]) -> None:
        """Args: scope: of the request, as ASGI has it."""
        self.log = log
        self.refusals = refusals
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
                await self.refusals.write(self.entry, outcome)
        except errors.FairleadError as error:
            _not_written(self.entry, outcome, error)

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
    """Delete entries older than `days`, now and every hour, until cancelled; 0: delete none."""
    while days > 0:
        try:
            if count := await log.prune(now() - days * _DAY_S):
                telemetry.log.info("old audit entries deleted", count=count)
        except errors.FairleadError as error:
            telemetry.log.error("old audit entries not deleted", reason=error.reason, error=errors.sentence(error))
        await asyncio.sleep(_LOOK_S)
