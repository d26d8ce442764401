"""Parses IP addresses, networks and URLs, and answers what they are.

Source: apiserver pkg/cel/library ip.go, cidr.go, urls.go; Go net/netip and net/url.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.value import Address, Failed, Location, NameMap, Network, Value

_PREFIX: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:", re.ASCII)
_ESCAPES: Final = re.compile(r"%(?![0-9a-fA-F]{2})", re.ASCII)
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:.%a-z]+\]|[^\s<>\"`{}|\\^\[\]:]*)(?::[0-9]*)?", re.ASCII)


def _object(value: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.IPv4Address(value.number) if value.bits == 32 else ipaddress.IPv6Address(value.number)


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and (found.ipv4_mapped is not None or "%" in text):
        return None
    return Address(int(found), found.max_prefixlen)


def parse_address(text: str) -> Address:
    """Return the address that a text is; zones and IPv4 in IPv6 are refused. Raises: Failed."""
    found = _address(text)
    if found is None:
        raise Failed(f"IP Address {shown(text)} parse error during conversion from string")
    return found


def _network(text: str) -> Network | None:
    before, slash, prefix = text.partition("/")
    address = _address(before)
    if address is None or not slash or not _PREFIX.fullmatch(prefix) or int(prefix) > address.bits:
        return None
    return Network(address, int(prefix))


def parse_network(text: str) -> Network:
    """Return the network that a text is. Raises: Failed."""
    found = _network(text)
    if found is None:
        raise Failed(f"network address parse error during conversion from string: {shown(text)}")
    return found


def address_text(value: Address) -> str:
    """Return an address's canonical text."""
    return str(_object(value))


def network_text(value: Network) -> str:
    """Return a network's text."""
    return f"{address_text(value.address)}/{value.prefix}"


def _is_canonical(text: str) -> bool:
    return address_text(parse_address(text)) == text


def _masked(value: Network) -> Network:
    spare = value.address.bits - value.prefix
    return Network(Address(value.address.number >> spare << spare, value.address.bits), value.prefix)


def _holds(network: Network, address: Address) -> bool:
    spare = network.address.bits - network.prefix
    return address.bits == network.address.bits and address.number >> spare == network.address.number >> spare


def _holds_network(network: Network, other: Network) -> bool:
    return _holds(network, other.address) and network.prefix <= other.prefix


def _is_global(value: Address) -> bool:
    one = _object(value)
    is_broadcast = value.bits == 32 and value.number == 2**32 - 1
    return not (one.is_unspecified or one.is_loopback or one.is_multicast or one.is_link_local or is_broadcast)


def _is_link_local_multicast(value: Address) -> bool:
    if value.bits == 32:
        return value.number >> 8 == 0xE00000
    return value.number >> 112 & 0xFF0F == 0xFF02


def _location(text: str) -> Location | None:
    if not text or (not _SCHEME.match(text) and text[0] != "/") or any(ord(one) <= 32 or one == "\x7f" for one in text):
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if _ESCAPES.search(parts.path) or (parts.netloc and not _HOST.fullmatch(parts.netloc.rpartition("@")[2])):
        return None
    return Location(parts.scheme, parts.netloc.rpartition("@")[2], _escaped(parts), parts.query, text)


def _escaped(parts: SplitResult) -> str:
    if parts.scheme and not parts.netloc and parts.path[:1] != "/":
        return ""  # Go calls this opaque, and no path
    return parts.path if parts.path.isascii() else quote(unquote(parts.path), safe="/!$&'()*+,;=:@-._~")


def parse_location(text: str) -> Location:
    """Return the URL that a text is: absolute, or a path from the root. Raises: Failed."""
    found = _location(text)
    if found is None:
        raise Failed(f"URL parse error during conversion from string: parse {shown(text)}: invalid URI for request")
    return found


def _host_name(value: Location) -> str:
    if value.host.startswith("["):
        return value.host[1:].partition("]")[0]
    return value.host.partition(":")[0]


def _port(value: Location) -> str:
    return value.host.rpartition("]")[2].partition(":")[2]


def _query(value: Location) -> NameMap:
    found = NameMap()
    for key, one in parse_qsl(value.query, keep_blank_values=True):
        found[key] = (*found.get(key, ()), one)
    return found


TABLE: Final[dict[str, Callable[..., Value]]] = {
    "string_to_ip": parse_address,
    "is_ip": lambda text: _address(text) is not None,
    "cidr_ip": lambda value: value.address,
    "ip_is_canonical": _is_canonical,
    "ip_family": lambda value: 4 if value.bits == 32 else 6,
    "ip_is_unspecified": lambda value: value.number == 0,
    "ip_is_loopback": lambda value: _object(value).is_loopback,
    "ip_is_link_local_multicast": _is_link_local_multicast,
    "ip_is_link_local_unicast": lambda value: _object(value).is_link_local,
    "ip_is_global_unicast": _is_global,
    "string_to_cidr": parse_network,
    "is_cidr": lambda text: _network(text) is not None,
    "cidr_contains_ip_string": lambda value, text: _holds(value, parse_address(text)),
    "cidr_contains_ip_ip": _holds,
    "cidr_contains_cidr_string": lambda value, text: _holds_network(value, parse_network(text)),
    "cidr_contains_cidr": _holds_network,
    "cidr_prefix_length": lambda value: value.prefix,
    "cidr_masked": _masked,
    "string_to_url": parse_location,
    "is_url_string": lambda text: _location(text) is not None,
    "url_get_scheme": lambda value: value.scheme,
    "url_get_host": lambda value: value.host,
    "url_get_hostname": _host_name,
    "url_get_port": _port,
    "url_get_escaped_path": lambda value: value.path,
    "url_get_query": _query,
}
