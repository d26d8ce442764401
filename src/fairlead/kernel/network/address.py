"""Reads addresses and routes from /proc: those of a process's network namespace, and the networks the host is in.

No program is started and no namespace is entered.
Source: Linux Documentation/networking/proc_net_tcp.rst; net/ipv4/fib_trie.c (fib_trie), fib_semantics (route);
net/ipv6/addrconf.c (if_inet6), net/ipv6/route.c (ipv6_route).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LOCAL: Final = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_GLOBAL: Final = "00"
"""Scope of addresses that are neither of a link nor of the host, in if_inet6."""
_UP: Final = 0x1
_IS_GATEWAY: Final = 0x2


def of_process(pid: int | str, *, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the addresses in a process's network namespace, IPv4 first, without loopback's and link-local ones.

    Args: pid: or `self`, the host as we see it. None is returned where the process is gone.
    """
    net = root / "proc" / str(pid) / "net"
    found = [one for one in _LOCAL.findall(_read(net / "fib_trie")) if not one.startswith("127.")]
    for line in _read(net / "if_inet6").splitlines():
        packed, _, _, scope, *_ = line.split()
        if scope == _GLOBAL:
            found.append(str(ipaddress.IPv6Address(bytes.fromhex(packed))))
    return tuple(dict.fromkeys(found))


def on_link(*, root: Path = Path("/"), without: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the networks that the host reaches without a gateway, of both families.

    Args: without: interfaces that do not count.
    """
    net = root / "proc/net"
    return tuple(dict.fromkeys((*_ipv4(_read(net / "route"), without), *_ipv6(_read(net / "ipv6_route"), without))))


def _ipv4(text: str, without: frozenset[str]) -> Iterator[str]:
    for line in text.splitlines()[1:]:
        name, destination, _, flags, _, _, _, mask, *_ = line.split()
        address = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(destination), "little"))
        length = int.from_bytes(bytes.fromhex(mask), "little").bit_count()
        if int(flags, 16) & _UP and not int(flags, 16) & _IS_GATEWAY and name not in without and length:
            yield f"{address}/{length}"


def _ipv6(text: str, without: frozenset[str]) -> Iterator[str]:
    for line in text.splitlines():
        destination, length, *_, flags, name = line.split()
        network = ipaddress.IPv6Network((bytes.fromhex(destination), int(length, 16)))
        is_far = int(flags, 16) & _IS_GATEWAY or not int(flags, 16) & _UP
        if is_far or name in without or name == "lo" or not network.prefixlen:
            continue
        if not (network.is_link_local or network.is_multicast):
            yield str(network)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
