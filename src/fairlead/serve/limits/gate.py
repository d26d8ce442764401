"""Limits how often the API on TLS is asked: by key or session, by account, and by address.

An account is limited over all its keys and sessions; an address limits requests without one in force. Limited too is
how many requests of an account are under way at once: one that waits or follows keeps its connection for an hour, and
all clients share the connections.

An address is charged for requests without a key or a session in force, so that many who share one address
share no limit as long as their keys are good. A key that was accepted lately is let through to its own limit while the
address it comes from is held back: guesses at keys shut no other client out.
Source: IETF draft-ietf-httpapi-ratelimit-headers-10 (RateLimit, RateLimit-Policy); RFC 9110 section 10.2.3
        (Retry-After); RFC 6585 section 4 (429).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.limits import address as addresses
from fairlead.serve.limits.bucket import Buckets, Level, Rate
from fairlead.serve.limits.places import Places

_ACCOUNT: Final = 4
"""Limit of an account, as a multiple of the limit of one key, however many keys it has."""
_KNOWN: Final = 4096
"""Keys that are remembered as good."""

Headers = tuple[tuple[bytes, bytes], ...]


@frozen
class Policy:
    """How often each may ask."""

    key: Rate = Rate(per_s=50.0, burst=200)
    address: Rate = Rate(per_s=2.0, burst=60)
    """Requests of one address without a key or a session in force."""
    at_once: int = 1024
    """Requests of one account that are under way, those that wait or follow among them."""


@frozen
class Standing:
    """A limit, and how much of it is left."""

    name: str
    rate: Rate
    level: Level

    @property
    def headers(self) -> Headers:
        """Headers that state it; none where there is no limit."""
        if not self.rate.per_s:
            return ()
        left, full = max(0, math.floor(self.level.tokens)), math.ceil(self.level.full_s)
        policy = f'"{self.name}";q={self.rate.burst};w={self.rate.window_s}'
        return (
            (b"ratelimit-policy", policy.encode()),
            (b"ratelimit", f'"{self.name}";r={left};t={full}'.encode()),
        )


class Gate:
    """The limits of the API on TLS."""

    def __init__(
        self,
        policy: Policy,
        *,
        now: Callable[[], float] = time.monotonic,
        under_way: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Args: now: monotonic seconds.   under_way: called with the number of requests under way, for a gauge."""
        all_keys = Rate(per_s=policy.key.per_s * _ACCOUNT, burst=policy.key.burst * _ACCOUNT)
        self._keys = Buckets(policy.key, now=now)
        self._accounts = Buckets(all_keys, now=now)
        self._addresses = Buckets(policy.address, now=now)
        self._at_once = Places(under_way)
        self._most_at_once = policy.at_once
        self._good: OrderedDict[str, str] = OrderedDict()
        """Digests of the keys that were accepted last, by id."""

    def check_address(self, address: str, key: str = "", digest: str = "") -> None:
        """Refuse an address that was refused too often, unless it brings a key that is known to be good.

        Args:   key: id of the key that it brings; empty: none.
        Raises: Throttled (`AddressThrottled`).
        """
        name = addresses.network(address)
        level = self._addresses.level(name)
        if level.wait_s <= 0 or (key and self._good.get(key) == digest):
            return
        rate = self._addresses.rate
        message = f"{name} was refused more than {rate.per_s:g} times a second"
        standing = Standing(name="address", rate=rate, level=level)
        raise Refused(message, reason="AddressThrottled", standing=standing, setting="api.address_rate")

    def refused(self, address: str, key: str = "", digest: str = "") -> Standing:
        """Charge an address with a request that had no key in force. Args: key: id of the one that was refused."""
        level = self._addresses.take(addresses.network(address))
        # Another digest is a guess at the key: the key itself stays good.
        if self._good.get(key) == digest:
            self._good.pop(key, None)
        return Standing(name="address", rate=self._addresses.rate, level=level)

    def admit(self, account: str, key: str, digest: str) -> Standing:
        """Count a request of a key that is in force; return how near its limit it is.

        Raises: Throttled: `KeyThrottled`, `AccountThrottled`.
        """
        self._good[key] = digest
        self._good.move_to_end(key)
        if len(self._good) > _KNOWN:
            self._good.popitem(last=False)
        standing = Standing(name="key", rate=self._keys.rate, level=self._keys.take(key))
        if standing.level.wait_s > 0:
            message = f'key "{key}" sent more than {standing.rate.per_s:g} requests a second'
            raise Refused(message, reason="KeyThrottled", standing=standing, setting="api.key_rate")
        together = Standing(name="account", rate=self._accounts.rate, level=self._accounts.take(account))
        if together.level.wait_s > 0:
            message = f'the keys of "{account}" sent more than {together.rate.per_s:g} requests a second'
            raise Refused(message, reason="AccountThrottled", standing=together, setting="api.key_rate")
        return standing

    @contextlib.contextmanager
    def under_way(self, account: str) -> Iterator[None]:
        """Count a request that was admitted until its answer is over.

        Raises: Throttled (`AccountBusy`).
        """
        if self._at_once.of(account) >= self._most_at_once:
            message = f'"{account}" has {self._most_at_once} requests under way'
            hint = "end one that waits or follows; the setting api.account_connections is the limit"
            raise errors.Throttled(message, reason="AccountBusy", hint=hint)
        place = self._at_once.take(account)
        try:
            yield
        finally:
            place.give_back()

    def owe(self, account: str, key: str, count: int) -> None:
        """Count more requests for one that was admitted and turned out to be worth as many."""
        self._keys.owe(key, count)
        self._accounts.owe(account, count)


class Refused(errors.Throttled):
    """A request that met its limit."""

    def __init__(self, message: str, *, reason: str, standing: Standing, setting: str) -> None:
        """Args: setting: the one that the limit is of."""
        self.standing = standing
        self.wait_s = max(1, math.ceil(standing.level.wait_s))
        hint = f"ask again in {self.wait_s} s; the setting {setting} is the limit"
        super().__init__(message, reason=reason, hint=hint, retry_after_s=self.wait_s)

    @property
    def headers(self) -> Headers:
        """What the answer says of the limit."""
        return ((b"retry-after", str(self.wait_s).encode()), *self.standing.headers)
