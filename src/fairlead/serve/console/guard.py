"""Says what browsers may do with a page, and refuses what other pages have them send.

On the unix socket there is no login: who may connect is root, or a user of the machine. A browser reaches it through a
tunnel (`ssh -L 8080:/run/fairlead/api.sock`), and so would any page that it has open. So a request that names another
origin is refused there, and so is one whose Host is a name that can be registered: its owner may have it resolve to the
tunnel's address (DNS rebinding). By TLS a session's cookie, its token and its origin are judged by the API's door.
Source: Fetch standard, "Origin header" and "Sec-Fetch-Site"; Content Security Policy Level 3.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable
from typing import Final

from fairlead import errors

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",  # with none at all a form's Origin would be "null"
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_SAFE: Final = frozenset({"GET", "HEAD"})
_OURS: Final = frozenset({"same-origin", "none"})

Headers = Iterable[tuple[bytes, bytes]]


def header(headers: Headers, name: str) -> str | None:
    """Return a header's value; None: there is none, or several."""
    found = [value.decode("latin-1") for own, value in headers if own.lower() == name.encode()]
    return found[0] if len(found) == 1 else None


def check_form(method: str, headers: Headers) -> None:
    """Refuse a form that does not come from the console's pages. Raises: Denied (`OriginForeign`)."""
    if method in _SAFE:
        return
    headers = tuple(headers)
    site, origin = header(headers, "sec-fetch-site"), header(headers, "origin")
    is_ours = site in _OURS if site is not None else origin is not None
    if not is_ours or (origin is not None and not _is_host(origin, header(headers, "host") or "")):
        raise _foreign(origin)


def check_tunnel(headers: Headers) -> None:
    """Refuse what a page of another site has a browser send to the unix socket. Raises: Denied (`OriginForeign`)."""
    headers = tuple(headers)
    host, origin = header(headers, "host") or "", header(headers, "origin")
    if not _is_local(host):
        message = f'"{errors.readable(host)}" is not a local name, and this socket serves no other'
        raise errors.Denied(message, reason="OriginForeign", hint="open it as localhost")
    if origin is not None and not _is_host(origin, host):
        raise _foreign(origin)


def _foreign(origin: str | None) -> errors.Denied:
    message = f'the request comes from a page of "{errors.readable(origin or "nowhere")}"'
    hint = "open the console at this address, and send it from there"
    return errors.Denied(message, reason="OriginForeign", hint=hint)


def _is_host(origin: str, host: str) -> bool:
    found = urllib.parse.urlsplit(origin)
    return bool(found.netloc) and found.netloc.lower() == host.lower()


def _is_local(host: str) -> bool:
    """Return whether a host is this machine, or has a name that cannot be registered."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return "." not in name.removesuffix(".") or name.endswith(".localhost")
