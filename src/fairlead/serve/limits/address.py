"""Names the network that counts as one client: an IPv4 address, or the /64 of an IPv6 address. Pure.

A host of IPv6 has a /64 to itself, and could otherwise come from 2**64 addresses.
Source: RFC 4291 section 2.5.1 (interface identifiers of 64 bits), section 2.5.5.2 (IPv4-mapped addresses).
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Any


@functools.lru_cache(maxsize=4096)
def network(address: str) -> str:
    """Return the address of IPv4, the /64 of IPv6, and what is neither as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


def of_scope(scope: Any) -> str:
    """Return the network that a request of ASGI comes from; empty: it names none."""
    return network(str((scope.get("client") or ("",))[0]))
