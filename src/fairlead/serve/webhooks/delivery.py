"""Sends what is in the outbox: to the address that was judged, never led elsewhere, again until it is taken.

A name is looked up here and nowhere else: the addresses that `address` lets pass are the ones that are connected to, so
that a name which changes its answer leads nowhere. What a receiver answers is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import abc

from fairlead import errors, telemetry
from fairlead.serve.webhooks import address, port, signing

_TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0)
_LOOK_S, _PRUNE_S = 1.0, 3600.0
_AT_ONCE: Final = 8


class _Judging(abc.AbstractResolver):
    """Looks names up, and lets pass what a webhook may reach."""

    def __init__(self, url: str, allowed: tuple[address.Network, ...]) -> None:
        self._url, self._allowed = url, allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[abc.ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        for _, _, _, _, where in found:
            # One forbidden address condemns the name: which of them is connected to is not ours to say.
            address.check_address(ipaddress.ip_address(where[0]), self._allowed, url=self._url)
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

    async def run(self) -> None:
        """Deliver until cancelled."""
        pruned = 0.0
        while True:
            try:
                if self.now() - pruned > _PRUNE_S:
                    await self.outbox.prune()
                    pruned = self.now()
                count = await self.deliver()
            except errors.FairleadError as error:
                telemetry.log.error("webhooks not delivered", reason=error.reason, error=errors.sentence(error))
                count = 0
            await asyncio.sleep(0.0 if count else _LOOK_S)

    async def deliver(self) -> int:
        """Try what is due once; return how many that were."""
        due, free = await self.outbox.due(), asyncio.Semaphore(_AT_ONCE)

        async def one(item: port.Due) -> None:
            async with free:
                status, error = await self._send(item)
            telemetry.crash_point("webhook-answered")
            await self.outbox.done(item, status=status, error=error)

        async with asyncio.TaskGroup() as tasks:
            for item in due:
                tasks.create_task(one(item))
        return len(due)

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
