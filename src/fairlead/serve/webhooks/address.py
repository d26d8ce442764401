"""Decides where webhooks may go: to public addresses, and to networks that the operator names. Pure.

Tenants choose the addresses, and this machine reaches more than they do: its own services, its cloud's metadata, the
network behind it. So the address that a name leads to is judged, and the request goes to that very address.
Source: OWASP Server Side Request Forgery Prevention Cheat Sheet; RFC 6052 section 2.1; RFC 4291 section 2.5.5;
        RFC 8215.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Sequence
from typing import Final

from fairlead import errors

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(one) for one in ("64:ff9b:1::/48", "fec0::/10", "192.0.0.0/24", "192.88.99.0/24")
)
"""What `is_global` of some Python lets pass: local translation to IPv4, whose form each network chooses (RFC 8215),
site-local addresses, protocol assignments and relays (RFC 6890)."""
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_LONGEST: Final = 1024


def read_networks(text: str) -> tuple[Network, ...]:
    """Read the setting `webhooks.allow`. Raises: Invalid (`NetworkInvalid`)."""
    found = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            message = f'webhooks.allow: "{errors.readable(part)}" is not a network'
            raise errors.Invalid(message, reason="NetworkInvalid", hint="as 10.1.0.0/16") from error
    return tuple(found)


def check_url(url: str, allowed: Sequence[Network]) -> None:
    """Refuse what is not an address to send to, as far as it shows without looking its name up.

    Raises: Invalid (`WebhookURLInvalid`); Denied (`WebhookAddressRefused`).
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_right = parts.scheme in {"https", "http"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url and len(url) <= _LONGEST
    if not is_right or not is_plain or parts.username is not None or parts.password is not None or parts.fragment:
        message = f'"{errors.readable(url[:200])}" is not an address for a webhook'
        hint = "https://HOST/PATH, without a user name: the signature says who sends"
        raise errors.Invalid(message, reason="WebhookURLInvalid", hint=hint)
    if parts.scheme == "http" and not allowed:
        raise _refused(url, "plain http is for networks of webhooks.allow")
    try:
        literal = ipaddress.ip_address(str(parts.hostname))
    except ValueError:
        return
    check_address(literal, allowed, url=url)


def check_address(found: Address, allowed: Sequence[Network], *, url: str, is_named: bool = False) -> None:
    """Refuse an address that webhooks must not reach.

    Args:    is_named: it was looked up, and is not said: who asks may not know what names of this network stand for.
    Raises:  Denied (`WebhookAddressRefused`).
    """
    real, said = _real(found), "what" if is_named else f"{found}, which"
    if any(real in network for network in allowed):
        return
    if urllib.parse.urlsplit(url).scheme == "http":
        raise _refused(url, f"plain http to {said} is not of webhooks.allow")
    is_ours = any(real in network for network in _NOT_PUBLIC)
    if is_ours or not real.is_global or real.is_multicast or real.is_reserved or real.is_unspecified:
        raise _refused(url, f"it leads to {said} is not a public address")


def _real(found: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, or itself."""
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in _NAT64 or (found in _COMPATIBLE and int(found) > 1):
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    teredo = found.teredo[1] if found.teredo else None
    return found.ipv4_mapped or found.sixtofour or teredo or found


def _refused(url: str, why: str) -> errors.Denied:
    message = f"no webhook goes to {urllib.parse.urlsplit(url).netloc}: {why}"
    hint = "the machine's operator names networks that are not public in webhooks.allow"
    return errors.Denied(message, reason="WebhookAddressRefused", hint=hint)


def shown(url: str, form: str) -> str:
    """Return an address as it is shown: the path of a chat's is its secret, and so may a query be."""
    parts = urllib.parse.urlsplit(url)
    if form == "slack":
        return f"{parts.scheme}://{parts.netloc}/…"
    return urllib.parse.urlunsplit(parts._replace(query="…" if parts.query else ""))
