"""Sends the events in the outbox: to addresses that were checked, without redirects, again until accepted.

A webhook has a form: signed for programs, or in words for a chat or by e-mail, whose server is the operator's.

Each webhook has one event under way, the oldest, and does not wait for others: a receiver that never answers holds up
its own events alone. A name is looked up here and nowhere else: the addresses that `address` lets pass are the ones
that are connected to, so that a name which resolves differently later (DNS rebinding) reaches nothing else. Of an
answer only the status is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.errors
import errno
import functools
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import abc

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.serve.webhooks import address, mail, port, signing, words
from fairlead.serve.webhooks.calls import Calls

_TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0)
_LOOK_S, _PRUNE_S, _AGAIN_S = 1.0, 3600.0, 60.0
_TAKEN: Final = 250
"""A mail server's reply to a message that it takes."""
_MAILS, _MAIL_S = 4, 120.0
"""Messages under way, and how long one is waited for in all."""
_NAMES, _NAME_S = 64, 15.0
"""Names that are looked up, and how long one is waited for."""
_NO_MAIL: Final = mail.Server()
_JSON: Final = {"content-type": "application/json", "user-agent": "fairlead-webhooks"}


@frozen
class _Request:
    """What is sent."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    method: str = "POST"


@frozen
class _Sent:
    """How an attempt ended; no error: it was taken."""

    status: int | None = None
    error: str = ""
    is_final: bool = False


def _mails() -> Calls:
    return Calls(name="mail", most=_MAILS, longest_s=_MAIL_S)


def _names() -> Calls:
    return Calls(name="webhook: name", most=_NAMES, longest_s=_NAME_S)


async def _ignored(_item: port.Due, _why: str) -> None:
    return None


class _Judging(abc.AbstractResolver):
    """Resolves names, and refuses addresses that a webhook may not reach."""

    def __init__(self, url: str, allowed: tuple[address.Network, ...], names: Calls) -> None:
        self._url, self._allowed, self._names = url, allowed, names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[abc.ResolveResult]:
        asking = functools.partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
        if not (found := await self._names.run(asking)):
            raise OSError(errno.EADDRNOTAVAIL, "the name leads nowhere")
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
    mail: mail.Server = _NO_MAIL
    meter: telemetry.Meter = telemetry.UNMETERED
    given_up: Callable[[port.Due, str], Awaitable[None]] = _ignored
    """Called with what will not be sent, and why."""
    _busy: set[str] = field(default_factory=set)
    """Webhooks that have an event under way."""
    mails: Calls = field(default_factory=_mails)
    """Messages on their way to the mail server."""
    names: Calls = field(default_factory=_names)
    """Names that are being looked up."""
    _landed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where one has ended."""

    async def run(self) -> None:
        """Deliver until cancelled."""
        pruned = 0.0
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._landed.clear()
                try:
                    if abs(self.now() - pruned) > _PRUNE_S:
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
        for form, outcome in self.outbox.take_dropped():
            self.meter.add(telemetry.NOTICES, form, outcome)
        due = await self.outbox.due(busy=frozenset(self._busy))
        for item in due:
            self._busy.add(item.webhook)
            tasks.create_task(self._carry(item))
        return len(due)

    async def _carry(self, item: port.Due) -> None:
        """Try one event, and write how that went."""
        try:
            sent = await self._send(item)
            telemetry.crash_point("webhook-answered")
            is_over = await self._written(item, sent)
            outcome = "sent" if not sent.error else port.GIVEN_UP if is_over else "failed"
            self.meter.add(telemetry.NOTICES, item.format, outcome)
            if sent.error and is_over:
                telemetry.log.warning("notice given up", role=item.format, reason="NoticeGivenUp", error=sent.error)
                await self.given_up(item, sent.error)
        except errors.FairleadError as failed:
            _say(failed)
        finally:
            self._busy.discard(item.webhook)
            self._landed.set()

    async def _written(self, item: port.Due, sent: _Sent) -> bool:
        """Write how an attempt ended, retrying until it is written: a full disk must not cause a notice a second."""
        wait_s = _LOOK_S
        while True:
            try:
                return await self.outbox.done(item, status=sent.status, error=sent.error, is_final=sent.is_final)
            except errors.FairleadError as failed:
                _say(failed)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _AGAIN_S)

    async def _send(self, one: port.Due) -> _Sent:
        if one.format == port.EMAIL:
            return await self._mailed(one)
        try:
            address.check_url(one.url, self.allowed)
            asked = self._asked(one)
            connector = aiohttp.TCPConnector(resolver=_Judging(one.url, self.allowed, self.names), use_dns_cache=False)
            async with (
                aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False) as client,
                client.request(
                    asked.method, asked.url, data=asked.body, headers=asked.headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except errors.FairleadError as error:
            return _Sent(error=error.message)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # An address of a chat is its secret, and some of these errors quote it.
            said = str(error).replace(one.url, address.shown(one.url, one.format))
            return _Sent(error=errors.readable(f"{type(error).__name__}: {said}"))
        return _Sent(status=status, error="" if 200 <= status < 300 else f"the receiver answers {status}")

    def _asked(self, one: port.Due) -> _Request:
        """Return what is sent of an event to an address."""
        if one.format == port.SLACK:
            return _Request(url=one.url, body=words.slack(one.body), headers=_JSON)
        if one.format == port.MATRIX:
            # The event's id is the transaction's: a server that has it already does not show it again.
            headers = {**_JSON, "authorization": f"Bearer {one.token}"}
            return _Request(method="PUT", url=f"{one.url}/{one.id}", body=words.matrix(one.body), headers=headers)
        headers = signing.headers(one.secret, id_=one.id, at=int(self.now()), body=one.body)
        return _Request(url=one.url, body=one.body, headers=headers)

    async def _mailed(self, one: port.Due) -> _Sent:
        to = one.url.removeprefix(mail.SCHEME)
        try:
            mail.check_recipient(to, self.mail, is_trusted=True)
            made = mail.compose(one.body, to=to, sender=self.mail.sender, id_=one.id, at=one.created_at)
            sending = functools.partial(mail.send, self.mail, made, to=to)
            failed = await self.mails.run(sending)
        except TimeoutError:
            return _Sent(error=f"the mail server has not taken it within {self.mails.longest_s:g} s")
        except (errors.FairleadError, ValueError, email.errors.MessageError) as error:
            return _Sent(error=errors.readable(str(error))[:200])
        if failed is None:
            return _Sent(status=_TAKEN)
        return _Sent(status=failed.code, error=failed.message, is_final=failed.is_final)


def _say(error: errors.FairleadError) -> None:
    telemetry.log.error("webhooks not delivered", reason=error.reason, error=errors.sentence(error))
