"""Chooses ports of this machine for requests that leave the choice to it (`-p IP::PORT`).

The kernel says which is free now, and pods of the store whose ports are theirs, listening or not, have none of them
chosen again. Between the choice and the start another program may take it: then the container's start says so.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.plan.pod.network import port
from fairlead.serve.admission.request import ContainerRequest, PortRequest
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core

_TRIES: Final = 64
_KINDS: Final = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM, "SCTP": socket.SOCK_STREAM}


async def chosen(wanted: ContainerRequest, store: Store, *, is_here: bool) -> ContainerRequest:
    """Return a request whose every port of the host is named.

    Args:   is_here: whether containers run on this machine.
    Raises: Invalid (`PortInvalid`): they do not, or an address is not this machine's; Insufficient: none is free.
    """
    if all(one.host_port for one in wanted.ports):
        return wanted
    if not is_here:
        message = "a free port is one of this machine, and on a cluster no node is chosen yet"
        raise errors.Invalid(message, reason="PortInvalid", hint="name the port: -p 8080:80; or use a Service")
    taken = {one.host_port for one in wanted.ports}
    for pod in (await store.list(core.Pod)).items:
        if not podstate.is_final(pod):
            taken |= {one.host_port for item in pod.spec.containers for one in item.ports}
    ports = []
    for one in wanted.ports:
        ports.append(one if one.host_port else msgspec.structs.replace(one, host_port=_free(one, taken)))
        taken.add(ports[-1].host_port)
    return msgspec.structs.replace(wanted, ports=tuple(ports))


def _free(asked: PortRequest, taken: Collection[int]) -> int:
    if asked.host_ip and not port.is_address(asked.host_ip):
        # Before it is bound: a name would be looked up, and the whole service would wait for that.
        message = f'no port of "{errors.readable(asked.host_ip)}" can be had: it is not an IP address'
        raise errors.Invalid(message, reason="PortInvalid", hint="an address of this machine, or none")
    family = socket.AF_INET6 if ":" in asked.host_ip else socket.AF_INET
    kind = _KINDS.get(asked.protocol, socket.SOCK_STREAM)
    for _ in range(_TRIES):
        try:
            with socket.socket(family, kind) as tried:
                tried.bind((asked.host_ip, 0))
                number = int(tried.getsockname()[1])
        except OSError as error:
            message = f'no port of "{errors.readable(asked.host_ip)}" can be had: {error.strerror}'
            raise errors.Invalid(message, reason="PortInvalid", hint="an address of this machine, or none") from error
        if number not in taken:
            return number
    raise errors.Insufficient("no port of this machine is free", reason="NoPort", hint="end what has ports published")
