"""Judges the ports of a pod's containers before it is stored, in the API server's words.

Source: kubernetes pkg/apis/core/validation, validateContainerPorts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

from fairlead.wire.kubernetes import core

_LAST: Final = 65535
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_RANGE: Final = f"must be between 1 and {_LAST}, inclusive"


def problems(containers: Iterable[tuple[str, core.Container]]) -> Iterator[str]:
    """Yield what is wrong. Args: containers: with their field paths, `spec.containers[0]`."""
    taken: set[tuple[str, str, int]] = set()
    for path, item in containers:
        for index, one in enumerate(item.ports):
            where = f"{path}.ports[{index}]"
            yield from _port(where, one)
            key = (one.host_ip, one.protocol, one.host_port)
            if one.host_port and key in taken:
                yield f"{where}.hostPort: Duplicate value: {one.host_port}"
            taken.add(key)


def _port(where: str, one: core.ContainerPort) -> Iterator[str]:
    if not 1 <= one.container_port <= _LAST:
        yield f"{where}.containerPort: Invalid value: {one.container_port}: {_RANGE}"
    if not 0 <= one.host_port <= _LAST:
        yield f"{where}.hostPort: Invalid value: {one.host_port}: {_RANGE}"
    if one.protocol not in _PROTOCOLS:
        offered = ", ".join(f'"{item}"' for item in _PROTOCOLS)
        yield f'{where}.protocol: Unsupported value: "{one.protocol}": supported values: {offered}'
    if one.host_ip and not is_address(one.host_ip):
        yield f'{where}.hostIP: Invalid value: "{one.host_ip}": must be a valid IP address, (e.g. 10.9.8.7)'


def is_address(text: str) -> bool:
    """Return whether a text is an IP address in its one spelling, without a zone: it becomes an engine's argument."""
    try:
        return "%" not in text and str(ipaddress.ip_address(text)) == text.lower()
    except ValueError:
        return False
