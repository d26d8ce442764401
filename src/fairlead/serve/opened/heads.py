"""Decides which headers pass between a browser and a container's server. Pure.

What frames a message belongs to one connection and is rebuilt on each side (`upstream`), so that both sides agree
where a message ends. What proves who asks is taken out: the container's server may be anybody's program.
Source: RFC 9110 section 7.6.1 (Connection); RFC 9112 sections 6 and 11.2 (framing, request smuggling); RFC 6265bis
        section 4.1 (Set-Cookie); RFC 6797 (HSTS); RFC 7838 (Alt-Svc); Clear Site Data section 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from fairlead.frozen import frozen
from fairlead.serve.accounts import sessions
from fairlead.serve.opened import grants

Header = tuple[bytes, bytes]

_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS: Final = frozenset({b"expect", b"host", b"forwarded", b"x-real-ip", b"http2-settings", b"x-confirm-key"})
"""Rebuilt, answered by the server itself, or not a client's to say."""
_FORWARDED: Final = b"x-forwarded-"
_LENGTH: Final = b"content-length"
_SOCKET: Final = b"sec-websocket-"
_WITHHELD: Final = frozenset(
    {
        b"alt-svc",  # would lead the host's later requests past this service
        b"date",  # the service's own server says it
        b"clear-site-data",  # "cookies" reaches every host of the domain, other containers' among them
        b"nel",
        b"public-key-pins",
        b"strict-transport-security",  # TLS is this service's
    }
)
_OWN_COOKIES: Final = frozenset({grants.COOKIE, sessions.COOKIE})
_KEY: Final = re.compile(rb"fl[ks]_[0-9a-f]{12}_[0-9a-f]{64}")
"""An API key or a session."""
_PAGES: Final = frozenset({"same-origin", "none"})


@frozen
class Came:
    """How a request came to the service."""

    host: str
    client: str
    """Address; empty: it is not known."""


def request(headers: Iterable[Header], came: Came) -> list[Header]:
    """Return the headers of a request as a container's server is sent them, without those of a WebSocket."""
    given = [(name.lower(), value) for name, value in headers]
    named = _connection_options(given)
    is_chunked = any(name == b"transfer-encoding" for name, _ in given)
    kept = [(b"host", came.host.encode("latin-1"))]
    for name, value in given:
        alike = name.replace(b"_", b"-")  # servers of CGI's kind cannot tell them apart
        if alike in _HOP or alike in _OURS or alike.startswith((_FORWARDED, _SOCKET)) or name in named:
            continue
        if alike == _LENGTH and (is_chunked or name != _LENGTH):
            continue
        if name == b"cookie":
            continue
        if name == b"authorization" and _KEY.search(value):
            continue
        kept.append((name, value))
    if is_chunked:
        kept.append((b"transfer-encoding", b"chunked"))
    if cookies := _without_ours(value for name, value in given if name == b"cookie"):
        kept.append((b"cookie", cookies))
    if came.client:
        kept.append((b"x-forwarded-for", came.client.encode("latin-1")))
    return [*kept, (b"x-forwarded-proto", b"https"), (b"x-forwarded-host", came.host.encode("latin-1"))]


def _connection_options(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the headers that a message says to be of its connection alone; those that frame it never are."""
    said = (part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b","))
    return frozenset(said) - {_LENGTH, b"host", b"cookie"}


def _without_ours(values: Iterable[bytes]) -> bytes:
    parts = (part.strip() for value in values for part in value.split(b";"))
    named = ((part, part.partition(b"=")[0].strip().decode("latin-1")) for part in parts if part)
    return b"; ".join(part for part, name in named if name not in _OWN_COOKIES)


def response(headers: Iterable[Header], host: str) -> Iterator[Header]:
    """Yield the headers of a container's answer as a browser is sent them."""
    given = [(name.lower(), value) for name, value in headers]
    named = _connection_options(given)
    for name, value in given:
        if name in _HOP or name in _WITHHELD or name in named or name.startswith(_SOCKET):
            continue
        if name == b"origin-agent-cluster":
            continue
        if name == b"set-cookie":
            if (kept := _cookie(value)) is not None:
                yield name, kept
        elif name == b"location":
            yield name, _secure(value, host.encode("latin-1"))
        else:
            yield name, value
    # Its pages cannot widen their origin to the domain that all containers share (document.domain).
    yield b"origin-agent-cluster", b"?1"


def _cookie(value: bytes) -> bytes | None:
    """Return a Set-Cookie without its domain, so that it is the host's own; None: its name is ours."""
    pair, *attributes = value.split(b";")
    name = pair.partition(b"=")[0].strip().decode("latin-1")
    # A cookie without a name is sent as its value alone, which can spell the name of another.
    if name in _OWN_COOKIES or (not name and b"fairlead" in value.lower()):
        return None
    return b";".join((pair, *(one for one in attributes if one.partition(b"=")[0].strip().lower() != b"domain")))


def _secure(value: bytes, host: bytes) -> bytes:
    """Return where an answer leads; a server that takes itself to be on plain HTTP means its own host on TLS."""
    plain = b"http://" + host
    is_own = value == plain or value[len(plain) : len(plain) + 1] in {b"/", b"?", b"#"}
    return b"https" + value[4:] if value.startswith(plain) and is_own else value


def value_of(headers: Iterable[Header], name: bytes) -> str | None:
    """Return a header's value; None: there is none, or several."""
    found = [value.decode("latin-1") for own, value in headers if own.lower() == name]
    return found[0] if len(found) == 1 else None


def is_own_page(headers: Iterable[Header], *, method: str, origin: str, is_socket: bool) -> bool:
    """Return whether a request comes of the host's own pages, or of a person who follows a link to it.

    Hosts of other containers are of the same site as this one, so that a browser would send the cookie with what their
    pages ask for in secret: what is not of this origin may lead here, and do nothing else.
    """
    headers = tuple(headers)
    site, said = value_of(headers, b"sec-fetch-site"), value_of(headers, b"origin")
    if is_socket:
        return said == origin
    if any(name.lower() == b"origin" for name, _ in headers) and said != origin:
        return False
    if site is None or site in _PAGES:
        return True
    is_link = value_of(headers, b"sec-fetch-mode") == "navigate" and value_of(headers, b"sec-fetch-dest") == "document"
    return is_link and method in {"GET", "HEAD"}
