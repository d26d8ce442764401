"""Makes and reads sessions of browsers: `fls_ID_SECRET` in a cookie, of which SHA-256 of the secret is stored. Pure.

A cookie travels to every port of its host, and tenants publish ports there, so it is worth nothing alone: a session is
held to the network that it was begun from, and each change shows a second secret. That one is given once, with the
answer that begins the session, and kept by the page for its origin, of which the port is a part (localStorage); no
later answer holds it.
The cookie is `__Host-`: no other host, also not one of a sister name, can set or read it, and it travels on TLS alone.
A page of another site cannot read it and can have it sent only with links that a person follows (SameSite=Lax). A
request that names its origin must name ours.
Source: RFC 6265bis sections 4.1.3 and 5.6.7; OWASP Cross-Site Request Forgery Prevention Cheat Sheet.
"""

from __future__ import annotations

import dataclasses
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
from fairlead.serve.accounts.roles import Browser, Principal

COOKIE: Final = "__Host-fairlead"
CSRF_HEADER: Final = "x-csrf-token"
CONFIRM_HEADER: Final = "x-confirm-key"
"""A key beside a session, for what no session alone may do."""
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
    csrf_token: Annotated[
        str,
        msgspec.Meta(description="sent as X-CSRF-Token with each change; only in the answer that begins the session"),
    ] = ""


@frozen
class Opened:
    """A session that was begun: the only value that holds its secret."""

    text: str
    view: SessionView


class Sessions(Protocol):
    """Sessions of browsers."""

    async def open(self, account: str, *, key: str | None, address: str) -> Opened:
        """Begin one.

        Args:    key: id of the key it stands for, and ends with.   address: network of the browser.
        Raises:  NotFound (`AccountUnknown`).
        """
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


def page_token() -> str:
    """Return a new session's second secret, which its pages show with each change."""
    return secrets.token_hex(_SECRET_BYTES)


def digest(text: str) -> str:
    """Return what is stored of a page's token."""
    return hashlib.sha256(text.encode()).hexdigest()


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


def check_page(one: Browser, shown: str | None) -> None:
    """Refuse a change that does not show the token of the session's pages. Raises: Denied (`CSRFTokenMissing`)."""
    if hmac.compare_digest(digest(shown or ""), one.page_digest):
        return
    message = "a change by a browser's session must show the token of its pages, and this one does not"
    hint = "log in again; a program sends `csrf_token` of POST /v1/session as X-CSRF-Token, or an API key"
    raise errors.Denied(message, reason="CSRFTokenMissing", hint=hint)


def check_address(one: Browser, network: str) -> None:
    """Refuse a session at another network than its own. Raises: Unauthenticated (`SessionElsewhere`)."""
    if one.address != network:
        message = f"the browser's session was begun from another address than {network}"
        raise errors.Unauthenticated(message, reason="SessionElsewhere", hint="log in again from here")


def changes(scope_type: str, method: str) -> bool:
    """Return whether a request changes something: each WebSocket enters a container."""
    return scope_type == "websocket" or method not in _SAFE


SUBPROTOCOL: Final = "fairlead"
_SHOWN: Final = "fairlead-token."


def shown_by(offered: Iterable[str]) -> str | None:
    """Return the page's token among a WebSocket's subprotocols, the only place where a browser can put one."""
    return next((one.removeprefix(_SHOWN) for one in offered if one.startswith(_SHOWN)), None)


def with_token(place: str, token: str) -> str:
    """Return a path with the page's token as its fragment: browsers send none on, and the page takes it away."""
    return f"{place.partition('#')[0]}#token={token}"


def confirmed(one: Principal, holder: Principal) -> Principal:
    """Return a session's principal once a key came with it; what is made then ends with the key.

    Raises: Denied (`ConfirmationForeign`): the key is another account's.
    """
    if one.session is None or holder.account != one.account:
        message = f'the key that confirms is not one of "{one.account}"'
        raise errors.Denied(message, reason="ConfirmationForeign", hint="send a key of the account that is logged in")
    session = dataclasses.replace(one.session, is_confirmed=True)
    return dataclasses.replace(one, session=session, ends_at=holder.ends_at, scopes=one.scopes & holder.scopes)
