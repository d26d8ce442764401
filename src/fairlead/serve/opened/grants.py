"""Keeps who may reach which port of which container by a browser: grants, their tickets and their cookies.

A grant is one caller's, for one port of one pod. It is named by the host that it is reached on. A ticket leads a
browser to it once, within a minute; the cookie that the browser gets for it is good on that host alone. Grants are kept
in memory: a service that starts again has none, and `Open` makes new ones. Of tickets and cookies the digest is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.limits.places import Places
from fairlead.serve.opened import hosts
from fairlead.store.subresource import Connection

COOKIE: Final = "__Host-fairlead-open"
ENTRANCE: Final = "/.fairlead/open"
"""The path that tickets are shown at; no container sees it."""
TICKET_S: Final = 60.0
_CHECK_S: Final = 1.0
"""Between two looks at whether a grant with open connections still holds."""
_OF_CALLER: Final = 32
"""Grants of one caller; a further one ends the oldest."""
_MOST: Final = 4096
_TICKETS: Final = 8
"""Of one grant that was not used yet."""
_COOKIES: Final = 8
"""Browsers of one grant; a further one ends the oldest's cookie."""
_SECRET_BYTES: Final = 32


class Way(Protocol):
    """How a grant's port is reached, as its caller may reach it now."""

    async def check(self) -> None:
        """Refuse what the caller may not do any more.

        Raises: Unauthenticated: session or key are over; Denied: the role is; NotFound: the container is gone.
        """
        ...

    async def connect(self) -> Connection:
        """Connect to the port. Raises: as `check`; Conflict: it does not run; Unavailable (`PortRefused`)."""
        ...


@frozen
class Wish:
    """What is to be opened."""

    caller: str
    """By a name that no other caller has."""
    holder: str
    """Id of the session or key that the grant ends with; empty: the machine's socket."""
    network: str
    """That the browser is held to; empty: to none."""
    name: str
    namespace: str
    uid: str
    """Of the pod."""
    port: int
    way: Way
    host: str = ""
    """That the caller came by; empty: by none."""
    path: str = "/"
    """That the browser is led to first."""
    ends_at: float | None = None
    """Unix seconds: end of the session or key; None: it has none."""


@dataclass(eq=False, slots=True)
class Grant:
    """One port, opened for one caller."""

    label: str
    origin: str
    wish: Wish
    ends_at: float
    """Unix seconds."""
    tickets: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By digest: until when each is good, and where it leads."""
    cookies: list[str] = field(default_factory=list)
    """Digests, the newest last."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    checked_at: float = 0.0


@frozen
class Opened:
    """Where a browser finds an opened port."""

    address: str
    """With its ticket."""
    origin: str
    ends_at: float


@frozen
class Limits:
    """How long and how often."""

    life_s: float = 12 * 3600.0
    connections: int = 64
    """Of one caller at once."""


class Grants:
    """The grants of this process."""

    def __init__(
        self,
        *,
        domain: hosts.Domain | None = None,
        port: int = 443,
        limits: Limits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args: domain: of the setting.   port: that the service listens on, for callers who came by none."""
        self.connections = Places()
        self.limits = limits or Limits()
        self._domain, self._port, self._now = domain, port, now
        self._by_label: dict[str, Grant] = {}

    @property
    def domains(self) -> tuple[str, ...]:
        """Domains below which every host is a container's, or unknown."""
        return (hosts.LOCAL, *((self._domain.name,) if self._domain else ()))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_label)

    def open(self, wish: Wish) -> Opened:
        """Make a grant, or find the caller's own of the same port, and give a ticket for it.

        Raises: RequestError (`OpenDomainMissing`): browsers cannot find a host here; Throttled (`GrantsTooMany`).
        """
        domain, port = self._place(wish.host)
        now = self._now()
        found = self._same(wish, domain, port) or self._made(wish, domain, port, now)
        ticket = secrets.token_hex(_SECRET_BYTES)
        while len(found.tickets) >= _TICKETS:
            del found.tickets[next(iter(found.tickets))]
        found.tickets[_digest(ticket)] = (now + TICKET_S, wish.path)
        address = f"{found.origin}{ENTRANCE}?ticket={ticket}"
        return Opened(address=address, origin=found.origin, ends_at=found.ends_at)

    def _place(self, host: str) -> tuple[str, int]:
        """Return domain and port of the addresses for a caller. Raises: RequestError (`OpenDomainMissing`)."""
        if host and hosts.is_loopback(host):
            return hosts.LOCAL, hosts.port_of(host)
        if self._domain is not None:
            return self._domain.name, self._domain.port or (hosts.port_of(host) if host else self._port)
        if not host:
            return hosts.LOCAL, self._port
        message = f'you came by "{errors.readable(host)}", below which no names lead to containers'
        hint = "its operator sets api.open_domain; meanwhile `fairlead port-forward NAME PORT` leads there"
        raise errors.RequestError(message, reason="OpenDomainMissing", hint=hint)

    def _same(self, wish: Wish, domain: str, port: int) -> Grant | None:
        """Return the grant that the caller has of the port: a browser need not learn another host."""
        asked = (wish.caller, wish.holder, wish.network, wish.uid, wish.port)
        for one in self._living():
            has = one.wish
            is_same = (has.caller, has.holder, has.network, has.uid, has.port) == asked
            if is_same and one.origin == hosts.origin(one.label, domain, port):
                return one
        return None

    def _made(self, wish: Wish, domain: str, port: int, now: float) -> Grant:
        own = [one for one in self._living() if one.wish.caller == wish.caller]
        if len(own) >= _OF_CALLER:
            self.end(own[0])
        if len(self._by_label) >= _MOST:
            message = f"{_MOST} ports are open in browsers"
            raise errors.Throttled(message, reason="GrantsTooMany", hint="they end with their sessions; try later")
        label = secrets.token_hex(hosts.LABEL_LETTERS // 2)
        ends_at = now + self.limits.life_s
        made = Grant(
            label=label,
            origin=hosts.origin(label, domain, port),
            wish=wish,
            ends_at=ends_at if wish.ends_at is None else min(ends_at, wish.ends_at),
        )
        self._by_label[label] = made
        return made

    def _living(self) -> list[Grant]:
        """Return the grants that have not ended, the oldest first, and forget the others."""
        now = self._now()
        for one in [one for one in self._by_label.values() if one.ends_at <= now]:
            self.end(one)
        return list(self._by_label.values())

    def find(self, label: str) -> Grant | None:
        """Return the grant of a host; None: there is none in force."""
        found = self._by_label.get(label)
        if found is not None and found.ends_at <= self._now():
            self.end(found)
            return None
        return found

    def redeem(self, grant: Grant, ticket: str) -> tuple[str, str] | None:
        """Take a ticket; return a cookie's value and the path that it leads to. None: it is not good, or was used."""
        found = grant.tickets.pop(_digest(ticket), None)
        if found is None or found[0] <= self._now():
            return None
        cookie = secrets.token_hex(_SECRET_BYTES)
        grant.cookies = [*grant.cookies, _digest(cookie)][-_COOKIES:]
        return cookie, found[1]

    def holds(self, grant: Grant, cookie: str) -> bool:
        """Return whether a cookie is one of the grant's."""
        return bool(cookie) and _digest(cookie) in grant.cookies

    def end(self, grant: Grant) -> None:
        """End a grant, with the connections that are open by it. Idempotent."""
        self._by_label.pop(grant.label, None)
        grant.tickets.clear()
        grant.cookies.clear()
        grant.ended.set()

    async def watch(self, grant: Grant) -> None:
        """Return once a grant does not hold any more; looked at once a second, whatever is open by it."""
        while not grant.ended.is_set():
            try:
                async with asyncio.timeout(_CHECK_S):
                    await grant.ended.wait()
            except TimeoutError:
                await self._look(grant)

    async def _look(self, grant: Grant) -> None:
        now = self._now()
        if grant.ends_at <= now:
            self.end(grant)
        elif not grant.checked_at <= now < grant.checked_at + _CHECK_S / 2:
            grant.checked_at = now
            try:
                await grant.wish.way.check()
            except ENDING:
                self.end(grant)
            except errors.FairleadError:
                return  # not running, or not answered: what is open goes on until it breaks by itself


ENDING: Final = (errors.Unauthenticated, errors.Denied, errors.NotFound)
"""What a grant ends with."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cookie_header(value: str) -> bytes:
    """Return the Set-Cookie header of a grant; it ends with the browser, or with the grant."""
    return f"{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Lax".encode()
