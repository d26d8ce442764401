"""Makes, lists and removes podman's networks, over netavark or the CNI plugins.

Source: podman-network-create(1), podman-network-ls(1) of podman 4.3; containers/common, libnetwork/types.Network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead import errors
from fairlead.engine import checks, port
from fairlead.engine.podman import cli
from fairlead.engine.podman import json as podman_json

_BRIDGE: Final = "bridge"


class _Subnet(msgspec.Struct):
    subnet: str = ""
    gateway: str = ""


class _Row(msgspec.Struct):
    name: str
    driver: str = ""
    network_interface: str = ""
    subnets: list[_Subnet] | None = None
    labels: dict[str, str] | None = None


class PodmanNetworks:
    """`port.Networks` over the podman program."""

    _podman: cli.Podman

    async def list_networks(self) -> tuple[port.Network, ...]:
        """See `port.Networks.list_networks`."""
        result = await self._podman.checked("networks", "list", "network", "ls", "--format=json")
        rows = podman_json.decode(result.stdout or b"[]", list[_Row], what="network list")
        return tuple(_network(row) for row in rows if row.driver == _BRIDGE)

    async def create_network(
        self, name: str, subnets: tuple[str, ...], *, labels: Mapping[str, str], resolves_names: bool
    ) -> port.Network:
        """See `port.Networks.create_network`."""
        checks.check_name(name)
        host = await self._podman.host()
        if host.network not in {_BRIDGE, name}:
            why = next(iter(host.info.notes[-1:]), f'engine.network is "{host.network}"')
            message = f'network "{name}" cannot be made: {why}'
            hint = "`fairlead doctor` says what this machine lacks; a tenancy of --network none needs no network"
            raise errors.Unavailable(message, reason="NetworkUnusable", hint=hint)
        arguments = [
            *(f"--label={key}={value}" for key, value in labels.items()),
            *(["--ipv6"] if any(":" in one for one in subnets) else []),
            *(f"--subnet={one}" for one in subnets),
            *([] if resolves_names else ["--disable-dns"]),
        ]
        result = await self._podman.run("network", "create", *arguments, "--", name)
        if result.code != 0:
            text = result.last_line
            message = f'network "{name}" was not made: {text}'
            if "already" in text:
                raise errors.Conflict(message, reason="NetworkExists", hint="another name, or another subnet, is free")
            raise errors.Unavailable(message, reason="NetworkUnusable", hint="`podman network create` says the same")
        found = next((one for one in await self.list_networks() if one.name == name), None)
        if found is None:
            message = f'network "{name}" was made and is not listed'
            raise errors.Unavailable(message, reason="NetworkUnusable", hint="does another program remove networks?")
        return found

    async def remove_network(self, name: str) -> None:
        """See `port.Networks.remove_network`."""
        checks.check_name(name)
        result = await self._podman.run("network", "rm", "--", name)
        if result.code == 0 or "not found" in result.last_line:
            return
        message = f'network "{name}" was not removed: {result.last_line}'
        if "in use" in result.last_line or "associated containers" in result.last_line:
            raise errors.Conflict(message, reason="NetworkInUse", hint="a container is still in it: `podman ps -a`")
        raise errors.Unavailable(message, reason="NetworkUnusable", hint="`podman network rm` says the same")


def _network(row: _Row) -> port.Network:
    subnets = row.subnets or []
    return port.Network(
        name=row.name,
        interface=row.network_interface,
        subnets=tuple(one.subnet for one in subnets if one.subnet),
        gateways=tuple(one.gateway for one in subnets if one.gateway),
        labels=row.labels or {},
    )
