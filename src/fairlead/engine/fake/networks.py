"""Implements `engine.port.Networks` in memory: names, subnets and who is in them, and no packet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from fairlead import errors
from fairlead.engine import checks, port


class FakeNetworks:
    """Networks that no kernel knows, held to the same contract suite as podman's."""

    def __init__(self) -> None:
        self.networks: dict[str, port.Network] = {}
        """By name."""

    def networks_in_use(self) -> Iterator[str]:
        """Yield the name of each container's network."""
        yield from ()

    async def list_networks(self) -> tuple[port.Network, ...]:
        """See `port.Networks.list_networks`."""
        return tuple(self.networks.values())

    async def create_network(
        self, name: str, subnets: tuple[str, ...], *, labels: Mapping[str, str], resolves_names: bool
    ) -> port.Network:
        """See `port.Networks.create_network`."""
        del resolves_names
        checks.check_name(name)
        if name in self.networks:
            raise _taken(name, f"network name {name} is already used")
        wanted = [ipaddress.ip_network(one) for one in subnets]
        for there in (ipaddress.ip_network(one) for known in self.networks.values() for one in known.subnets):
            if any(one.version == there.version and one.overlaps(there) for one in wanted):
                raise _taken(name, f"subnet {there} is already used")
        interfaces = {known.interface for known in self.networks.values()}
        made = port.Network(
            name=name,
            interface=next(one for number in range(len(interfaces) + 1) if (one := f"br{number}") not in interfaces),
            subnets=tuple(str(one) for one in wanted),
            gateways=tuple(str(one[1]) for one in wanted),
            labels=dict(labels),
        )
        self.networks[name] = made
        return made

    async def remove_network(self, name: str) -> None:
        """See `port.Networks.remove_network`."""
        checks.check_name(name)
        if name in self.networks_in_use():
            message = f'network "{name}" was not removed: it is in use'
            raise errors.Conflict(message, reason="NetworkInUse", hint="a container is still in it: remove it first")
        self.networks.pop(name, None)


def _taken(name: str, why: str) -> errors.Conflict:
    message = f'network "{name}" was not made: {why}'
    return errors.Conflict(message, reason="NetworkExists", hint="another name, or another subnet, is free")
