"""One network a tenancy on this machine, and its rules in the kernel's table: made, kept in force, taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.fake.networks import FakeNetworks
from fairlead.kernel.network import netfilter
from fairlead.node.tenancy import network as networks
from fairlead.plan.tenancy import baseline, firewall
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy, TenancyNetwork, TenancySpec
from fairlead.wire.kubernetes import meta, names

HOME = "a-home"


class Bridges(FakeNetworks):
    """Networks in memory that refuse some and count."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        """So many subnets more are refused as taken."""
        self.listings = 0

    async def list_networks(self) -> tuple[port.Network, ...]:
        self.listings += 1
        return await super().list_networks()

    async def create_network(
        self, name: str, subnets: tuple[str, ...], *, labels: Mapping[str, str], resolves_names: bool
    ) -> port.Network:
        if self.refusals:
            self.refusals -= 1
            raise errors.Conflict(f"subnet {subnets[0]} is already used", reason="NetworkExists")
        return await super().create_network(name, subnets, labels=labels, resolves_names=resolves_names)


@dataclass
class Table:
    """The table `mangle` of one family, as iptables-restore changes it and iptables-save prints it."""

    chains: dict[str, list[str]] = field(default_factory=lambda: {"FORWARD": [], "INPUT": [], "PREROUTING": []})
    written: int = 0
    is_deaf: bool = False

    def restore(self, payload: str) -> None:
        self.written += 1
        for line in () if self.is_deaf else payload.splitlines():
            verb, _, rest = line.partition(" ")
            chain, _, rule = rest.partition(" ")
            if line.startswith(":"):
                self.chains[verb[1:]] = []
            elif verb == "-A":
                self.chains[chain].append(rule)
            elif verb == "-I":
                self.chains[chain].insert(0, rule.removeprefix("1 "))
            elif verb == "-D":
                self.chains[chain].remove(rule)
            elif verb in {"-F", "-X"}:
                self.chains[chain].clear()
                if verb == "-X":
                    del self.chains[chain]

    def saved(self) -> str:
        rules = [f"-A {name} {rule}" for name, chain in self.chains.items() for rule in chain]
        return "\n".join(["*mangle", *(f":{name} - [0:0]" for name in self.chains), *rules, "COMMIT", ""])

    def ours(self) -> list[str]:
        return [name for name in self.chains if name.startswith("FL-")]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[int, Table]:
    made = {4: Table(), 6: Table()}

    async def saved(family: int) -> str:
        return made[family].saved()

    async def restore(family: int, payload: str) -> None:
        made[family].restore(payload)

    monkeypatch.setattr(netfilter, "saved", saved)
    monkeypatch.setattr(netfilter, "restore", restore)
    monkeypatch.setattr(netfilter, "families", lambda _root: (4, 6))
    return made


@pytest.fixture
def bridges() -> Bridges:
    return Bridges()


@pytest.fixture
def machine(bridges: Bridges, tables: dict[int, Table], tmp_path: Path) -> networks.MachineNetworks:
    return networks.MachineNetworks(bridges, home=HOME, pool="10.213.0.0/16", root=tmp_path)


def tenancy(name: str, wanted: TenancyNetwork | None = None) -> Tenancy:
    about = meta.ObjectMeta(name=name, uid=f"{name}-0000-1111-2222-333333333333", generation=1)
    return Tenancy(metadata=about, spec=TenancySpec(network=wanted or TenancyNetwork()))


async def test_each_tenancy_gets_a_network_and_its_rules_are_in_force_in_both_families(
    machine: networks.MachineNetworks, bridges: Bridges, tables: dict[int, Table]
) -> None:
    red, blue = tenancy("red"), tenancy("blue")
    first = await machine.ensure(red, (red, blue))
    second = await machine.ensure(blue, (red, blue))
    assert (first.interface, second.interface) == ("br0", "br1")
    assert not set(first.subnets) & set(second.subnets)
    own = firewall.chains(HOME)
    for family, table in tables.items():
        for one in bridges.networks.values():
            assert firewall.missing(table.saved(), networks.net(one, red), own, family) == ()


async def test_what_was_just_seen_in_force_is_not_looked_at_again_until_a_tenancy_changes(
    machine: networks.MachineNetworks, bridges: Bridges, tables: dict[int, Table]
) -> None:
    red = tenancy("red")
    made = await machine.ensure(red, (red,))
    looked, written = bridges.listings, tables[4].written
    assert await machine.ensure(red, (red,)) == made
    assert bridges.listings == looked
    await machine.ensure(red, (red, tenancy("blue", TenancyNetwork(mode=kind.NONE))))
    assert bridges.listings > looked
    assert tables[4].written == written, "the rules were right already"


async def test_rules_that_another_program_took_away_are_written_again(
    machine: networks.MachineNetworks, tables: dict[int, Table]
) -> None:
    red, blue = tenancy("red"), tenancy("blue")
    await machine.ensure(red, (red,))
    tables[4].chains[firewall.chains(HOME).forward].clear()
    tables[6].chains["FORWARD"].insert(0, "-j ACCEPT")
    await machine.ensure(red, (red, blue))
    assert tables[4].chains[firewall.chains(HOME).forward]
    assert tables[6].chains["FORWARD"][0] == f"-j {firewall.chains(HOME).forward}"


async def test_rules_that_do_not_take_hold_are_an_error(
    machine: networks.MachineNetworks, tables: dict[int, Table]
) -> None:
    tables[4].is_deaf = True
    red = tenancy("red")
    with pytest.raises(errors.Unavailable, match="not in force as written") as caught:
        await machine.ensure(red, (red,))
    assert caught.value.reason == "RulesNotInForce"


async def test_a_tenancy_without_a_network_gets_none_and_no_rules(
    machine: networks.MachineNetworks, bridges: Bridges, tables: dict[int, Table]
) -> None:
    bare = tenancy("bare", TenancyNetwork(mode=kind.NONE))
    assert await machine.ensure(bare, (bare,)) == kind.NetworkStatus()
    assert bridges.networks == {}
    assert tables[4].ours() == []


async def test_a_subnet_that_the_engine_refuses_is_followed_by_another_but_not_for_ever(
    machine: networks.MachineNetworks, bridges: Bridges
) -> None:
    red = tenancy("red")
    bridges.refusals = 3
    made = await machine.ensure(red, (red,))
    assert made.subnets[0] == "10.213.3.0/24"
    bridges.refusals = 1000
    blue = tenancy("blue")
    with pytest.raises(errors.Conflict, match="is already used"):
        await machine.ensure(blue, (red, blue))


async def test_a_network_goes_with_its_tenancy_and_the_chains_with_the_last(
    machine: networks.MachineNetworks, bridges: Bridges, tables: dict[int, Table]
) -> None:
    red, blue = tenancy("red"), tenancy("blue")
    gone = await machine.ensure(red, (red, blue))
    await machine.ensure(blue, (red, blue))
    await machine.remove(red.metadata.uid, (red, blue))
    assert [one.labels[baseline.UID] for one in bridges.networks.values()] == [blue.metadata.uid]
    assert f" {gone.interface} " not in tables[4].saved()
    assert tables[4].ours()
    await machine.remove(blue.metadata.uid, (blue,))
    assert bridges.networks == {}
    assert [table.ours() + table.chains["FORWARD"] for table in tables.values()] == [[], []]


async def test_a_sweep_takes_networks_of_no_tenancy_and_leaves_those_of_others(
    machine: networks.MachineNetworks, bridges: Bridges, tables: dict[int, Table]
) -> None:
    red = tenancy("red")
    await machine.ensure(red, (red,))
    for name, home in (("fl-lost", HOME), ("theirs", "another-home")):
        bridges.networks[name] = port.Network(
            name=name,
            interface=name,
            subnets=(f"10.99.{len(name)}.0/24",),
            gateways=(),
            labels={names.HOME: home, baseline.UID: "lost"},
        )
    await machine.sweep((red,))
    assert "fl-lost" not in bridges.networks
    assert "theirs" in bridges.networks
    assert tables[4].ours()
    await machine.sweep(())
    assert list(bridges.networks) == ["theirs"]
    assert [table.ours() for table in tables.values()] == [[], []]


async def test_a_network_that_a_container_is_still_in_keeps_no_other_from_being_swept(
    machine: networks.MachineNetworks, bridges: Bridges, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fl-a", "fl-b", "fl-c"):
        bridges.networks[name] = port.Network(
            name=name,
            interface=name,
            subnets=(f"10.99.{ord(name[-1])}.0/24",),
            gateways=(),
            labels={names.HOME: HOME, baseline.UID: name},
        )
    remove = bridges.remove_network

    async def remove_others(name: str) -> None:
        if name == "fl-a":
            raise errors.Conflict("in use", reason="NetworkInUse")
        await remove(name)

    monkeypatch.setattr(bridges, "remove_network", remove_others)
    with pytest.raises(errors.Conflict), capture_logs() as logged:
        await machine.sweep(())
    assert list(bridges.networks) == ["fl-a"]
    assert [one["tenant"] for one in logged if "removed" in one["event"]] == ["fl-b", "fl-c"]


async def test_clearing_passes_a_family_without_a_packet_filter(
    monkeypatch: pytest.MonkeyPatch, tables: dict[int, Table], tmp_path: Path
) -> None:
    own = firewall.chains(HOME)
    tables[6].restore(firewall.payload(tables[6].saved(), (), own))
    plain = netfilter.saved

    async def saved(family: int) -> str:
        if family == 4:
            raise errors.Unavailable("no iptables", reason="NetfilterUnusable")
        return await plain(family)

    monkeypatch.setattr(netfilter, "saved", saved)
    await networks.clear(own, tmp_path)
    assert tables[6].ours() == []


def test_a_network_of_no_tenancy_is_closed() -> None:
    found = port.Network(name="n", interface="br0", subnets=("10.0.0.0/24",), gateways=("10.0.0.1",), labels={})
    closed = networks.net(found, None)
    assert (closed.internet, closed.dns, closed.publish, closed.egress) == (False, False, False, ())
    opened = networks.net(found, tenancy("red", TenancyNetwork(egress=("10.9.0.0/16",))))
    assert (opened.internet, opened.dns, opened.publish, opened.egress) == (True, True, True, ("10.9.0.0/16",))
