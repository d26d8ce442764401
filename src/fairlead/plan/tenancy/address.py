"""Decides the subnets of a new network: the first free part of the pool, and one of IPv6 by the instance's home id.

Pure. An IPv4 subnet is free where no network of the engine's and no route of the host meets it. The prefix of IPv6 is
a unique local one made of the home id, so that two instances on one machine do not meet; the part of it that a tenancy
gets has the number of its IPv4 part.
Source: RFC 4193 (unique local addresses).
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from typing import Final

from fairlead import errors

_PREFIX: Final = 24
"""Of one tenancy: 253 containers."""


def choose(pool: str, home: str, taken: Iterable[str], *, ipv6: bool) -> tuple[str, ...]:
    """Return the subnets of one more network.

    Args:    pool: CIDR of IPv4.   home: id of the instance.   taken: networks and routes that are in use.
    Raises:  Invalid (`PoolInvalid`); Insufficient (`PoolExhausted`): every part of the pool is in use.
    """
    try:
        whole = ipaddress.IPv4Network(pool)
    except ValueError as error:
        message = f'control.tenancy_subnets "{pool}" is not a network of IPv4'
        raise errors.Invalid(message, reason="PoolInvalid", hint="such as 10.213.0.0/16") from error
    if whole.prefixlen > _PREFIX:
        message = f'control.tenancy_subnets "{pool}" is smaller than one tenancy\'s network (/{_PREFIX})'
        raise errors.Invalid(message, reason="PoolInvalid", hint="such as 10.213.0.0/16")
    used = [one for text in taken if isinstance(one := ipaddress.ip_network(text, strict=False), ipaddress.IPv4Network)]
    for number, part in enumerate(whole.subnets(new_prefix=_PREFIX)):
        # A default route (/0) overlaps every subnet and uses none of them.
        if not any(one.prefixlen and one.overlaps(part) for one in used):
            return (str(part), *([_unique_local(home, number)] if ipv6 else []))
    message = f"every /{_PREFIX} of {pool} (control.tenancy_subnets) is in use on this machine"
    raise errors.Insufficient(message, reason="PoolExhausted", hint="delete tenancies, or set a larger pool")


def _unique_local(home: str, number: int) -> str:
    identity = hashlib.sha256(home.encode()).digest()[:5]
    packed = b"\xfd" + identity + number.to_bytes(2) + bytes(8)
    return str(ipaddress.IPv6Network((packed, 64)))
