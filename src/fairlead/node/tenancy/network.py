"""Keeps one network for each tenancy of this machine, and the rules that isolate it in force.

The engine's networks and the kernel's tables are the state: nothing is remembered but what was last seen to be in
force. Every look lists this instance's networks, renders the rules of all of them and compares them with the tables as
they are; what differs is written anew, whole. A network of ours that belongs to no tenancy stays closed until it is
removed. Rules come before the network's first container and leave after its last one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.engine.port import Network, Networks
from fairlead.kernel.network import address, netfilter
from fairlead.plan.pod import tenantrule
from fairlead.plan.tenancy import address as addressplan
from fairlead.plan.tenancy import baseline, firewall
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import names

FRESH_S: Final = 3.0
"""How long the rules that were seen in force count as seen, while no tenancy changes."""
_TRIES: Final = 8
"""Subnets that are tried where the engine refuses the one before as taken."""


class MachineNetworks:
    """`control.tenancy.port.Network` over the engine's networks and the kernel's packet filter."""

    def __init__(
        self,
        engine: Networks,
        *,
        home: str,
        pool: str,
        root: Path = Path("/"),
        empty: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take the engine, the id that tells this instance's networks apart, and the networks to choose from.

        Args: empty: takes what is no tenancy's out of the networks, before they are swept.
        """
        self._empty = empty
        self._engine, self._home, self._pool, self._root = engine, home, pool, root
        self._chains = firewall.chains(home)
        self._lock = asyncio.Lock()
        self._seen: tuple[object, float] = ((), 0.0)
        self._networks: dict[str, Network] = {}
        """By uid of the tenancy, as last listed."""

    async def ensure(self, item: Tenancy, every: Sequence[Tenancy]) -> kind.NetworkStatus:
        """See `control.tenancy.port.Network.ensure`."""
        async with self._lock:
            state = tuple((one.metadata.uid, one.metadata.generation) for one in every)
            uid = item.metadata.uid
            is_fresh = self._seen[0] == state and time.monotonic() - self._seen[1] < FRESH_S
            if is_fresh and (uid in self._networks or item.spec.network.mode == kind.NONE):
                return _status(self._networks.get(uid))
            self._networks = await self._own()
            if item.spec.network.mode != kind.NONE and uid not in self._networks:
                self._networks[uid] = await self._create(item)
            await self._enforce(every)
            self._seen = (state, time.monotonic())
            return _status(self._networks.get(uid))

    async def remove(self, uid: str, every: Sequence[Tenancy]) -> None:
        """See `control.tenancy.port.Network.remove`."""
        async with self._lock:
            self._seen = ((), 0.0)
            for one in await self._engine.list_networks():
                if one.labels.get(names.HOME) == self._home and one.labels.get(baseline.UID) == uid:
                    await self._engine.remove_network(one.name)
            self._networks = await self._own()
            await self._enforce([one for one in every if one.metadata.uid != uid])

    async def sweep(self, every: Sequence[Tenancy]) -> None:
        """See `control.tenancy.port.Network.sweep`."""
        if self._empty is not None:
            await self._empty()
        known = {one.metadata.uid for one in every}
        problem: errors.FairleadError | None = None
        for uid in sorted(set(await self._own()) - known):
            try:
                await self.remove(uid, every)
                telemetry.log.warning("network of no tenancy removed", tenant=uid)
            except errors.FairleadError as error:
                problem = error
        if problem is not None:
            raise problem
        if not every:
            async with self._lock:
                if not await self._own():
                    await clear(self._chains, self._root)

    async def _own(self) -> dict[str, Network]:
        listed = await self._engine.list_networks()
        own = [one for one in listed if one.labels.get(names.HOME) == self._home]
        return {one.labels.get(baseline.UID, ""): one for one in own}

    async def _create(self, item: Tenancy) -> Network:
        about = item.metadata
        name = f"fl-{self._chains.mark}-{about.uid.replace('-', '')[:12]}"
        labels = {names.HOME: self._home, baseline.UID: about.uid, tenantrule.TENANCY: about.name}
        refused: list[str] = []
        while True:
            subnets = await self._free_subnets(refused)
            try:
                made = await self._engine.create_network(
                    name, subnets, labels=labels, resolves_names=item.spec.network.dns
                )
            except errors.Conflict:
                refused += subnets
                if len(refused) > 2 * _TRIES:
                    raise
                continue
            telemetry.crash_point("tenancy.network-made")
            telemetry.log.info("network of a tenancy made", tenant=about.name, resource=name)
            return made

    async def _free_subnets(self, refused: Sequence[str]) -> tuple[str, ...]:
        listed = await self._engine.list_networks()
        routes = await asyncio.to_thread(address.on_link, root=self._root)
        taken = [*(one for network in listed for one in network.subnets), *routes, *refused]
        has_ipv6 = 6 in netfilter.families(self._root)
        return addressplan.choose(self._pool, self._home, taken, ipv6=has_ipv6)

    async def _enforce(self, every: Sequence[Tenancy]) -> None:
        """Bring the rules of all our networks into force, in both families. Raises: Unavailable."""
        nets = _nets(self._networks, every)
        if not nets:
            return await clear(self._chains, self._root)
        without = frozenset(one.interface for one in self._networks.values())
        near = await asyncio.to_thread(address.on_link, root=self._root, without=without)
        for family in netfilter.families(self._root):
            own = firewall.of_family(near, family)
            wanted = firewall.rules(nets, self._chains, family, own)
            saved = await netfilter.saved(family)
            if payload := firewall.payload(saved, wanted, self._chains):
                await netfilter.restore(family, payload)
                telemetry.crash_point("tenancy.rules-written")
                saved = await netfilter.saved(family)
                telemetry.log.info("packet filter of tenancies written", version=f"IPv{family}", count=len(wanted))
            if firewall.payload(saved, wanted, self._chains):
                message = f"the rules for IPv{family} that were written are not in force as written"
                hint = "does another program rewrite the table mangle? `iptables-save -t mangle`"
                raise errors.Unavailable(message, reason="RulesNotInForce", hint=hint)
        return None


async def clear(own: firewall.Chains, root: Path) -> None:
    """Take an instance's rules out of the tables. Idempotent; without a packet filter there is nothing to take."""
    for family in netfilter.families(root):
        try:
            saved = await netfilter.saved(family)
        except errors.Unavailable:
            continue
        if payload := firewall.removal(saved, own):
            await netfilter.restore(family, payload)


def _nets(networks: Mapping[str, Network], every: Sequence[Tenancy]) -> tuple[firewall.Net, ...]:
    """Return what is enforced of each network, in a steady order; one of no tenancy is closed."""
    by_uid = {one.metadata.uid: one for one in every}
    return tuple(net(one, by_uid.get(uid)) for uid, one in sorted(networks.items()))


def net(network: Network, item: Tenancy | None) -> firewall.Net:
    """Return what is enforced of one network; everything is denied where no tenancy is named."""
    plain = firewall.Net(interface=network.interface, subnets=network.subnets, gateways=network.gateways)
    return plain if item is None else of_spec(plain, item)


def of_spec(plain: firewall.Net, item: Tenancy) -> firewall.Net:
    """Return a network with what its tenancy is allowed."""
    wanted = item.spec.network
    return dataclasses.replace(
        plain,
        internet=wanted.internet == kind.ALLOW,
        dns=wanted.dns,
        publish=wanted.publish,
        egress=wanted.egress,
    )


def _status(network: Network | None) -> kind.NetworkStatus:
    if network is None:
        return kind.NetworkStatus()
    return kind.NetworkStatus(
        name=network.name, interface=network.interface, subnets=network.subnets, gateways=network.gateways
    )
