"""Declares people's logins by an identity provider, and who is whom; without the database and without HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fairlead.frozen import frozen
from fairlead.serve.accounts.oidc.mapping import Mapped


@frozen
class Started:
    """A browser's login on its way to the provider."""

    url: str
    """Where the browser is sent."""
    sealed: str
    """What it brings back in a cookie: sealed, so that this service alone reads it."""


@frozen
class Person:
    """Whom the provider vouches for."""

    issuer: str
    subject: str
    claims: Mapping[str, Any]
    back: str = "/"
    """Path of this service that the browser came from."""


@frozen
class DeviceStarted:
    """A login on another device, which a person confirms in a browser of theirs."""

    sealed: str
    user_code: str
    url: str
    whole_url: str
    """With the code in it; empty: the provider has none."""
    expires_s: float
    interval_s: float


class Provider(Protocol):
    """The identity provider."""

    async def start(self, redirect: str, back: str) -> Started:
        """Begin a browser's login. Raises: Unavailable; ProtocolError; RequestError: `back` is not a path of ours."""
        ...

    async def finish(self, redirect: str, sealed: str, answer: Mapping[str, str]) -> Person:
        """Return who came back from the provider. Raises: Unauthenticated (`LoginFailed`); Unavailable."""
        ...

    async def start_device(self) -> DeviceStarted:
        """Begin a login on another device. Raises: Unavailable; ProtocolError; NotFound (`DeviceLoginOff`)."""
        ...

    async def poll_device(self, sealed: str) -> Person | None:
        """Return who confirmed it; None: not yet. Raises: Unauthenticated (`LoginFailed`); Unavailable."""
        ...

    def decide(self, person: Person) -> Mapped:
        """Return what the table of the settings says of a person."""
        ...


class Identities(Protocol):
    """Which person of the provider is which account."""

    async def settle(self, person: Person, mapped: Mapped, uids: Mapping[str, str], *, may_create: bool) -> str:
        """Return the account of a person, and give it the roles that the table says.

        Args:    uids: of tenancies, by name.   may_create: make the account of a stranger.
        Raises:  Denied: `IdentityUnknown`, `IdentityTaken`, `AccountProtected`.
        """
        ...


@frozen
class Logins:
    """How people log in by the provider."""

    provider: Provider
    identities: Identities
    may_create: bool
    redirect: str
    """Where the provider sends browsers back to; empty: the address that this service listens at."""
    key_s: float
    """How long a key lives that `fairlead login --oidc` gets."""
