"""Decides which hosts are containers', and which origin a container is opened on. Pure.

Each opened port has a host of its own, `LABEL.DOMAIN`, so that no page of a container shares an origin with the console
or with another container. `DOMAIN` is `api.open_domain`. For callers who came by a name of the loopback it is
`apps.localhost`: browsers resolve every name below `localhost` to the loopback, and take a certificate's wildcard only
where two more labels follow it, which is why it is not `localhost` itself.
Source: RFC 6761 section 6.3; RFC 9110 section 7.2 (Host); Fetch standard, "Sec-Fetch-Site".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

LOCAL: Final = "apps.localhost"
LABEL_LETTERS: Final = 24
"""Of a grant's name: 96 random bits. The name is not a secret, but one in use cannot be guessed."""
_HTTPS: Final = 443
_LARGEST: Final = 65535
_LONGEST: Final = 253 - LABEL_LETTERS - 1
_DOMAIN: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_LABEL: Final = re.compile(rf"[0-9a-f]{{{LABEL_LETTERS}}}", re.ASCII)


@frozen
class Domain:
    """Where opened ports have their hosts."""

    name: str
    port: int | None = None
    """Of addresses that browsers are led to; None: the one that the request came by."""


def parse_domain(text: str) -> Domain | None:
    """Return the domain of the setting; None: it is empty. Raises: Invalid (`OpenDomainInvalid`)."""
    if not text:
        return None
    name, colon, port = text.lower().partition(":")
    is_port = not colon or (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) <= _LARGEST)
    if len(name) > _LONGEST or _DOMAIN.fullmatch(name) is None or not is_port:
        message = f'api.open_domain "{errors.readable(text)}" is not a domain of two labels or more'
        hint = "for example apps.gpu.lab.example; its wildcard *.apps.gpu.lab.example leads to this service"
        raise errors.Invalid(message, reason="OpenDomainInvalid", hint=hint)
    return Domain(name=name, port=int(port) if colon else None)


def check_apart(domain: Domain, names: Iterable[str]) -> None:
    """Refuse a domain that the service's own names lie below: they would lead to containers.

    Raises: Invalid (`OpenDomainTaken`).
    """
    if taken := next((name for name in names if name.lower().rstrip(".").endswith(f".{domain.name}")), ""):
        message = f'api.open_domain "{domain.name}" has the service\'s own name "{taken}" below it'
        hint = "give opened ports a domain that nothing else is below, such as apps.gpu.lab.example"
        raise errors.Invalid(message, reason="OpenDomainTaken", hint=hint)


def name_of(host: str) -> str:
    """Return the name in a Host header, in small letters and without its port; as it is where it is not one."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[").lower()
    return host.partition(":")[0].lower().removesuffix(".")


def port_of(host: str) -> int:
    """Return the port in a Host header: HTTPS' where it names none."""
    text = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) <= _LARGEST else _HTTPS


def label_of(host: str, domains: Sequence[str]) -> str | None:
    """Return the label that a host is named by; empty: it is a container's domain and no label; None: neither."""
    name = name_of(host)
    for domain in domains:
        if name.endswith(f".{domain}"):
            label = name.removesuffix(f".{domain}")
            return label if _LABEL.fullmatch(label) else ""
    return None


def is_loopback(host: str) -> bool:
    """Return whether a caller came by a name or an address of the loopback."""
    name = name_of(host)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def origin(label: str, domain: str, port: int) -> str:
    """Return an opened port's origin."""
    return f"https://{label}.{domain}" + (f":{port}" if port != _HTTPS else "")
