"""The packet filter of tenancies, walked packet by packet as the kernel walks it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.tenancy import firewall
from fairlead.plan.tenancy.firewall import Net

OWN = firewall.chains("51def8c0-0000-4000-8000-000000000000")


@dataclass(frozen=True, kw_only=True)
class Packet:
    """One packet as it reaches FORWARD or INPUT."""

    into: str
    out: str = ""
    """Empty: it is for the host itself."""
    to: str
    protocol: str = "tcp"
    port: int = 0
    icmp: int = 0
    is_reply: bool = False
    is_published: bool = False


def is_dropped(rules: Sequence[str], packet: Packet) -> bool:
    """Walk the chain that the packet comes to."""
    return _walk(rules, OWN.forward if packet.out else OWN.host, packet)


def _walk(rules: Sequence[str], chain: str, packet: Packet) -> bool:
    for rule in rules:
        words = rule.split()
        if words[1] != chain or not _matches(words[2:], packet):
            continue
        target = words[words.index("-j") + 1]
        if target == "RETURN":
            return False
        if target == "DROP" or _walk(rules, target, packet):
            return True
    return False


def _matches(words: Sequence[str], packet: Packet) -> bool:
    return all(_holds(option, value, packet) for option, value in zip(words[::2], words[1::2], strict=True))


def _holds(option: str, value: str, packet: Packet) -> bool:
    holds = {
        "-i": packet.into == value,
        "-o": packet.out == value,
        "-p": packet.protocol == value,
        "--dport": str(packet.port) == value,
        "--icmpv6-type": str(packet.icmp) == value,
        "--ctstate": packet.is_published if value == "DNAT" else packet.is_reply,
        "--ctdir": packet.is_reply,
        "-m": True,
        "-j": True,
    }
    if option == "-d":
        return ipaddress.ip_address(packet.to) in ipaddress.ip_network(value)
    return holds[option]


def net(number: int, **more: object) -> Net:
    subnets = (f"10.213.{number}.0/24", f"fd00:1:2:{number:x}::/64")
    gateways = (f"10.213.{number}.1", f"fd00:1:2:{number:x}::1")
    return Net(interface=f"podman{number}", subnets=subnets, gateways=gateways, **more)  # type: ignore[arg-type]


_NETS = st.builds(
    net,
    st.integers(1, 200),
    internet=st.booleans(),
    dns=st.booleans(),
    publish=st.booleans(),
    egress=st.lists(
        st.sampled_from(("10.0.0.0/8", "10.213.7.0/24", "192.168.0.0/16", "fd00::/8", "8.8.8.0/24")), unique=True
    ).map(tuple),
)


@given(
    st.lists(_NETS, min_size=2, max_size=5, unique_by=lambda one: one.interface),
    st.sampled_from((4, 6)),
    st.integers(1, 254),
    st.booleans(),
    st.sampled_from(("tcp", "udp", "ipv6-icmp")),
)
def test_across_tenancies_nothing_passes_but_replies(
    nets: list[Net], family: int, host: int, is_published: bool, protocol: str
) -> None:
    first, second = nets[:2]
    to = str(ipaddress.ip_network(second.subnets[0 if family == 4 else 1])[host])
    packet = Packet(into=first.interface, out=second.interface, to=to, protocol=protocol, is_published=is_published)
    assert is_dropped(firewall.rules(nets, OWN, family), packet)


@given(st.lists(_NETS, min_size=1, max_size=4, unique_by=lambda one: one.interface), st.integers(1, 65535))
def test_the_host_is_reached_for_names_alone(nets: list[Net], port: int) -> None:
    rules = firewall.rules(nets, OWN, 4)
    for one in nets:
        for protocol in ("tcp", "udp"):
            asked = Packet(into=one.interface, to=one.gateways[0], protocol=protocol, port=port)
            assert is_dropped(rules, asked) == (port != 53 or not one.dns)
            assert is_dropped(rules, Packet(into=one.interface, to="192.0.2.2", protocol=protocol, port=53))


@pytest.mark.parametrize(
    ("address", "family"),
    [
        *((one, 4) for one in ("10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1")),
        *((one, 6) for one in ("::ffff:10.0.0.1", "fd12::1", "2002:0a00:0001::1", "64:ff9b::0a00:1")),
    ],
)
@pytest.mark.parametrize("internet", [True, False])
def test_private_ranges_are_denied_whatever_the_internet_is(address: str, family: int, internet: bool) -> None:
    rules = firewall.rules([net(1, internet=internet)], OWN, family)
    assert is_dropped(rules, Packet(into="podman1", out="eth0", to=address))


@pytest.mark.parametrize(("address", "family"), [("8.8.8.8", 4), ("2a00:1450::1", 6)])
def test_the_internet_is_reached_where_it_is_allowed(address: str, family: int) -> None:
    packet = Packet(into="podman1", out="eth0", to=address)
    assert not is_dropped(firewall.rules([net(1, internet=True)], OWN, family), packet)
    assert is_dropped(firewall.rules([net(1)], OWN, family), packet)


def test_the_networks_that_the_host_is_in_are_denied_like_private_ones() -> None:
    rules = firewall.rules([net(1, internet=True)], OWN, 4, ["130.149.7.0/24"])
    assert is_dropped(rules, Packet(into="podman1", out="eth0", to="130.149.7.9"))
    assert not is_dropped(rules, Packet(into="podman1", out="eth0", to="130.149.8.9"))


def test_a_private_network_that_is_named_is_reached() -> None:
    rules = firewall.rules([net(1, egress=("192.168.7.0/24",)), net(2)], OWN, 4)
    assert not is_dropped(rules, Packet(into="podman1", out="eth0", to="192.168.7.9"))
    assert is_dropped(rules, Packet(into="podman1", out="eth0", to="192.168.8.9"))
    assert is_dropped(rules, Packet(into="podman2", out="eth0", to="192.168.7.9"))


def test_only_published_ports_lead_in_and_only_where_they_may() -> None:
    rules = firewall.rules([net(1, publish=True), net(2)], OWN, 4)
    assert is_dropped(rules, Packet(into="eth0", out="podman1", to="10.213.1.2"))
    assert not is_dropped(rules, Packet(into="eth0", out="podman1", to="10.213.1.2", is_published=True))
    assert is_dropped(rules, Packet(into="eth0", out="podman2", to="10.213.2.2", is_published=True))


def test_containers_of_one_tenancy_reach_each_other_and_replies_come_back() -> None:
    rules = firewall.rules([net(1)], OWN, 4)
    assert not is_dropped(rules, Packet(into="podman1", out="podman1", to="10.213.1.9"))
    assert not is_dropped(rules, Packet(into="eth0", out="podman1", to="10.213.1.9", is_reply=True))
    assert not is_dropped(rules, Packet(into="eth0", out="podman0", to="10.88.0.9"))


SAVED = "*mangle\n:FORWARD ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\nCOMMIT\n"


def _in_force(saved: str, payload: str) -> str:
    """Return the table after a transaction, as `iptables-save` would print it."""
    lines = [line for line in saved.splitlines() if line.startswith("-A ")]
    chains = [line for line in saved.splitlines() if line.startswith(":")]
    for line in payload.splitlines():
        if line.startswith(":"):
            lines = [one for one in lines if not one.startswith(f"-A {line[1:].split()[0]} ")]
            chains = [*(one for one in chains if one.split()[0] != line.split()[0]), line]
        elif line.startswith("-D "):
            lines.remove(line.replace("-D", "-A", 1))
        elif line.startswith("-I "):
            _, chain, _, *rest = line.split()
            lines.insert(0, " ".join(("-A", chain, *rest)))
        elif line.startswith("-A "):
            lines.append(line)
    return "\n".join(("*mangle", *chains, *lines, "COMMIT", ""))


@pytest.mark.parametrize("family", [4, 6])
def test_what_is_in_force_is_not_written_again(family: int) -> None:
    wanted = firewall.rules([net(1), net(2, dns=True)], OWN, family)
    after = _in_force(SAVED, firewall.payload(SAVED, wanted, OWN))
    assert firewall.payload(after, wanted, OWN) == ""
    assert firewall.missing(after, net(2, dns=True), OWN, family) == ()


@pytest.mark.parametrize("family", [4, 6])
def test_each_rule_that_is_taken_away_is_missed(family: int) -> None:
    mine = net(2, dns=True, publish=True, internet=True)
    wanted = firewall.rules([net(1), mine], OWN, family)
    after = _in_force(SAVED, firewall.payload(SAVED, wanted, OWN))
    for line in [line for line in after.splitlines() if line.startswith("-A ")]:
        without = after.replace(f"{line}\n", "", 1)
        assert firewall.payload(without, wanted, OWN) != "", line
        if "podman1" not in line and net(1).subnets[0 if family == 4 else 1] not in line:
            assert firewall.missing(without, mine, OWN, family) != (), line


def test_a_rule_of_others_before_ours_that_accepts_is_noticed() -> None:
    wanted = firewall.rules([net(1)], OWN, 4)
    after = _in_force(SAVED, firewall.payload(SAVED, wanted, OWN))
    accepting = after.replace("-A FORWARD -j", "-A FORWARD -i podman1 -j ACCEPT\n-A FORWARD -j", 1)
    assert firewall.missing(accepting, net(1), OWN, 4) != ()
    again = _in_force(accepting, firewall.payload(accepting, wanted, OWN))
    assert again.index(f"-A FORWARD -j {OWN.forward}") < again.index("-A FORWARD -i podman1 -j ACCEPT")


def test_a_removal_takes_everything_of_ours_and_nothing_of_others() -> None:
    other = firewall.chains("ffffffff")
    saved = _in_force(SAVED, firewall.payload(SAVED, firewall.rules([net(1)], OWN, 4), OWN))
    saved = _in_force(saved, firewall.payload(saved, firewall.rules([net(9)], other, 4), other))
    lines = firewall.removal(saved, OWN).splitlines()
    assert {line.split()[1] for line in lines if line.startswith("-X ")} == set(OWN.all)
    assert not any("ffffffff" in line for line in lines)
    assert firewall.removal(SAVED, OWN) == ""
    assert firewall.leftovers(saved, [OWN.mark]) == ("ffffffff",)
