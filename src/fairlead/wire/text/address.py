"""Tells addresses of the Internet from names of hosts."""

from __future__ import annotations

import ipaddress


def is_address(text: str) -> bool:
    """Return whether a text is an address of IPv4 or IPv6: without brackets, port or zone, which may be any text."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
