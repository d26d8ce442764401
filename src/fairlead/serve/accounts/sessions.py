"""Makes and reads sessions of browsers: `fls_ID_SECRET` in a cookie, of which SHA-256 of the secret is stored. Pure.

The cookie is `__Host-`: no other host, also not one of a sister name, can set or read it, and it travels on TLS alone.
A page of another site cannot read it and can have it sent only with links that a person follows (SameSite=Lax). On top
of that, a request that changes something must show a token that only our own pages can read, and one that names its
origin must name ours.
Source: RFC 6265bis sections 4.1.3 and 5.6.7; OWASP Cross-Site Request Forgery Prevention Cheat Sheet.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Annotated, Final, Protocol

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts import keys
from fairlead.serve.accounts.roles import Principal

COOKIE: Final = "__Host-fairlead"
CSRF_HEADER: Final = "x-csrf-token"
_FORM: Final = re.compile(r"fls_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 6, 32
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@frozen
class Lifetime:
    """How long sessions last."""

    whole_s: float = 12 * 3600.0
    idle_s: float = 3600.0
    """Without a request; 0: as long as `whole_s`."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's session."""

    account: str
    expires_at: Annotated[str, msgspec.Meta(description="latest end; it ends earlier if no requests come")]
    csrf_token: Annotated[str, msgspec.Meta(description="sent as X-CSRF-Token with each request that is not a GET")]


@frozen
class Opened:
    """A session that was begun: the only value that holds its secret."""

    text: str
    view: SessionView


class Sessions(Protocol):
    """Sessions of browsers."""

    async def open(self, account: str, *, key: str | None) -> Opened:
        """Begin one. Args: key: id of the key it stands for, and ends with. Raises: NotFound (`AccountUnknown`)."""
        ...

    async def authenticate(self, token: keys.Key) -> Principal:
        """Return whose session it is. Raises: Unauthenticated (`SessionEnded`)."""
        ...

    async def close(self, id_: str) -> None:
        """End one; idempotent."""
        ...

    async def prune(self) -> int:
        """Delete those that are over; return how many."""
        ...


def make() -> keys.Key:
    """Return a new session's id and secret."""
    return keys.Key(id=secrets.token_hex(_ID_BYTES), secret=secrets.token_hex(_SECRET_BYTES))


def text_of(token: keys.Key) -> str:
    """Return a session as its cookie holds it."""
    return f"fls_{token.id}_{token.secret}"


def parse(text: str) -> keys.Key | None:
    """Return the parts of a session's text; None: it is not of the form of one."""
    found = _FORM.fullmatch(text)
    return None if found is None else keys.Key(id=found[1], secret=found[2])


def csrf_token(token: keys.Key) -> str:
    """Return what a page of ours sends with a change; it is computed from the cookie, which no script reads."""
    return hmac.new(token.secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def cookie(text: str, *, lifetime_s: float | None = None) -> str:
    """Return the Set-Cookie header of a session, which ends with the browser. Args: lifetime_s: 0 takes it away."""
    ends = "" if lifetime_s is None else f"; Max-Age={lifetime_s:.0f}"
    return f"{COOKIE}={text}; Path=/; Secure; HttpOnly; SameSite=Lax{ends}"


def of_cookies(values: Iterable[str], name: str = COOKIE) -> str:
    """Return a cookie's value among a request's Cookie headers; empty: it has none. Two of one name count as none."""
    pairs = (part.strip().partition("=") for value in values for part in value.split(";"))
    found = [value for own, _, value in pairs if own == name]
    return found[0] if len(found) == 1 else ""


def without(values: Iterable[str]) -> str:
    """Return what a request's Cookie headers hold besides a session."""
    parts = (part.strip() for value in values for part in value.split(";"))
    return "; ".join(part for part in parts if part and part.partition("=")[0] != COOKIE)


def check_origin(origin: str | None, host: str, *, is_required: bool) -> None:
    """Refuse a request of a page that is not ours. Raises: Denied (`OriginForeign`)."""
    if origin is None and not is_required:
        return
    if not host or (origin or "").lower() != f"https://{host}".lower():
        message = f'the request comes from a page of "{errors.readable(origin or "nowhere")}", and this is "{host}"'
        hint = "open the page at this address; a program sends an API key in place of a cookie"
        raise errors.Denied(message, reason="OriginForeign", hint=hint)


def check_csrf(method: str, shown: str | None, token: keys.Key) -> None:
    """Refuse a change that does not show the session's token. Raises: Denied (`CSRFTokenMissing`)."""
    if method in _SAFE or hmac.compare_digest((shown or "").encode(), csrf_token(token).encode()):
        return
    message = "a change by a browser's session must show the session's token, and this one does not"
    hint = "send `csrf_token` of GET /v1/session as X-CSRF-Token; a program sends an API key in place of a cookie"
    raise errors.Denied(message, reason="CSRFTokenMissing", hint=hint)
