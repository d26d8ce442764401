"""Sends the events in the outbox: to addresses that were checked, without redirects, again until accepted.

Each webhook has one event under way, the oldest, and does not wait for others: a receiver that never answers holds up
its own events alone. A name is looked up here and nowhere else: the addresses that `address` lets pass are the ones
that are connected to, so that a name which resolves differently later (DNS rebinding) reaches nothing else. Of an
answer only the status is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import abc

from fairlead import errors, telemetry
from fairlead.serve.webhooks import address, port, signing

_TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0)
_LOOK_S, _PRUNE_S = 1.0, 3600.0


class _Judging(abc.AbstractResolver):
    """Resolves names, and refuses addresses that a webhook may not reach."""

    def __init__(self, url: str, allowed: tuple[address.Network, ...]) -> None:
        self._url, self._allowed = url, allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[abc.ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        for _, _, _, _, where in found:
            # One forbidden address refuses the name: aiohttp chooses which of its addresses it connects to.
            address.check_address(ipaddress.ip_address(where[0]), self._allowed, url=self._url, is_named=True)
        return [
            abc.ResolveResult(
                hostname=host, host=str(where[0]), port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST
            )
            for kind, _, _, _, where in found
        ]

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Delivers to webhooks."""

    outbox: port.Outbox
    allowed: tuple[address.Network, ...] = ()
    now: Callable[[], float] = time.time
    _busy: set[str] = field(default_factory=set)
    """Webhooks that have an event under way."""
    _landed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where one has ended."""

    async def run(self) -> None:
        """Deliver until cancelled."""
        pruned = 0.0
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._landed.clear()
                try:
                    if self.now() - pruned > _PRUNE_S:
                        await self.outbox.prune()
                        pruned = self.now()
                    await self._begin(tasks)
                except errors.FairleadError as error:
                    _say(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._landed.wait()

    async def deliver(self) -> int:
        """Try the oldest due event of each webhook once; return how many that were."""
        async with asyncio.TaskGroup() as tasks:
            return await self._begin(tasks)

    async def _begin(self, tasks: asyncio.TaskGroup) -> int:
        due = await self.outbox.due(busy=frozenset(self._busy))
        for item in due:
            self._busy.add(item.webhook)
            tasks.create_task(self._carry(item))
        return len(due)

    async def _carry(self, item: port.Due) -> None:
        """Try one event, and write how that went; where it cannot be written, it is sent again after a while."""
        try:
            status, error = await self._send(item)
            telemetry.crash_point("webhook-answered")
            await self.outbox.done(item, status=status, error=error)
        except errors.FairleadError as failed:
            _say(failed)
            await asyncio.sleep(_LOOK_S)
        finally:
            self._busy.discard(item.webhook)
            self._landed.set()

    async def _send(self, one: port.Due) -> tuple[int | None, str]:
        """Return status and what went wrong; empty: it was taken."""
        try:
            address.check_url(one.url, self.allowed)
            headers = signing.headers(one.secret, id_=one.id, at=int(self.now()), body=one.body)
            connector = aiohttp.TCPConnector(resolver=_Judging(one.url, self.allowed), use_dns_cache=False)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False) as client,
                client.post(one.url, data=one.body, headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
        except errors.FairleadError as error:
            return None, error.message
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return None, errors.readable(f"{type(error).__name__}: {error}")
        return status, "" if 200 <= status < 300 else f"the receiver answers {status}"


def _say(error: errors.FairleadError) -> None:
    telemetry.log.error("webhooks not delivered", reason=error.reason, error=errors.sentence(error))
