"""Decides which packets of tenancies' networks the host drops, as rules of iptables' table `mangle`. Pure.

The rules stand in `mangle`, which the kernel asks before `filter`: a packet dropped there is gone, whatever the
engine's own rules in `filter` accept (netavark accepts everything that comes from its networks). A connection is
judged by its first packet's direction: what a container sends on its own is judged packet by packet, also in a
connection that is established; only replies pass by the kernel's connection tracking. Rules name the bridge and not
addresses of the sender, so that a forged sender changes nothing.

One instance of Fairlead has one set of four chains for each family, named after its home id, and writes it whole in
one transaction. Rules are written as `iptables-save` prints them, so that what is in force is compared as text.
Source: iptables-extensions(8) (conntrack), iptables-restore(8); IANA special-purpose address registries.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PRIVATE: Final = {
    4: (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
        "240.0.0.0/4",
    ),
    6: ("::/96", "::ffff:0.0.0.0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32",
        "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
}  # fmt: skip
"""What is not the Internet, or leads into private ranges by another name (mapped, NAT64 and 6to4 addresses)."""
_REPLIES: Final = "-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY -j RETURN"
_PUBLISHED: Final = "-m conntrack --ctstate DNAT -j RETURN"
_NEIGHBOURS: Final = (135, 136)
"""ICMPv6 types without which no address of the host resolves: neighbour solicitation and advertisement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """One tenancy's network, and what its containers may reach."""

    interface: str
    """Bridge on the host."""
    subnets: tuple[str, ...]
    gateways: tuple[str, ...]
    internet: bool = False
    dns: bool = False
    publish: bool = False
    egress: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of one instance."""

    mark: str
    """Begins with a prefix that each instance on the machine has for itself; letters and digits."""

    @property
    def forward(self) -> str:
        """What crosses the host."""
        return f"FL-{self.mark}-FWD"

    @property
    def host(self) -> str:
        """What is for the host itself."""
        return f"FL-{self.mark}-IN"

    @property
    def tenancies(self) -> str:
        """What is for another tenancy."""
        return f"FL-{self.mark}-TEN"

    @property
    def private(self) -> str:
        """What is not the Internet."""
        return f"FL-{self.mark}-OUT"

    @property
    def all(self) -> tuple[str, ...]:
        """Every chain."""
        return (self.forward, self.host, self.tenancies, self.private)

    @property
    def jumps(self) -> tuple[tuple[str, str], ...]:
        """The kernel's chains and ours that they lead to."""
        return (("FORWARD", self.forward), ("INPUT", self.host))


def chains(home: str) -> Chains:
    """Return the chains of the instance with this home id."""
    return Chains("".join(letter for letter in home if letter.isalnum())[:8])


def rules(nets: Sequence[Net], own: Chains, family: int, on_link: Iterable[str] = ()) -> tuple[str, ...]:
    """Return every rule of our chains, in order.

    Args: family: 4 or 6.   on_link: networks that the host itself is in, which are denied like private ones.
    """
    return (
        f"-A {own.forward} {_REPLIES}",
        *(f"-A {own.forward} -i {net.interface} -o {net.interface} -j RETURN" for net in nets),
        *(rule for net in nets for rule in _leaving(net, own, family)),
        *(rule for net in nets for rule in _entering(net, own)),
        f"-A {own.host} {_REPLIES}",
        *(rule for net in nets for rule in _to_host(net, own, family)),
        *(f"-A {own.tenancies} -d {one} -j DROP" for net in nets for one in of_family(net.subnets, family)),
        *(f"-A {own.private} -d {one} -j DROP" for one in dict.fromkeys((*PRIVATE[family], *sorted(on_link)))),
    )


def _leaving(net: Net, own: Chains, family: int) -> Iterator[str]:
    yield f"-A {own.forward} -i {net.interface} -j {own.tenancies}"
    for one in of_family(net.egress, family):
        yield f"-A {own.forward} -d {one} -i {net.interface} -j RETURN"
    yield f"-A {own.forward} -i {net.interface} -j {own.private if net.internet else 'DROP'}"


def _entering(net: Net, own: Chains) -> Iterator[str]:
    if net.publish:
        yield f"-A {own.forward} -o {net.interface} {_PUBLISHED}"
    yield f"-A {own.forward} -o {net.interface} -j DROP"


def _to_host(net: Net, own: Chains, family: int) -> Iterator[str]:
    for gateway in of_family(net.gateways, family) if net.dns else ():
        for protocol in ("udp", "tcp"):
            match = f"-p {protocol} -m {protocol} --dport 53 -j RETURN"
            yield f"-A {own.host} -d {gateway}/{32 if family == 4 else 128} -i {net.interface} {match}"
    if family == 6:
        for number in _NEIGHBOURS:
            match = f"-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN"
            yield f"-A {own.host} -i {net.interface} {match}"
    yield f"-A {own.host} -i {net.interface} -j DROP"


def of_family(texts: Iterable[str], family: int) -> tuple[str, ...]:
    """Return the addresses or networks of one family, each in its one spelling."""
    found = (ipaddress.ip_network(text) if "/" in text else ipaddress.ip_address(text) for text in texts)
    return tuple(str(one) for one in found if one.version == family)


def payload(saved: str, wanted: Sequence[str], own: Chains) -> str:
    """Return what `iptables-restore --noflush` makes of the table as saved, so that the wanted rules are in force.

    Returns: empty where they are. One transaction: at no moment are there fewer rules than before or after.
    """
    is_led = all(_is_first(saved, chain, target) for chain, target in own.jumps)
    if is_led and _present(saved, own) == tuple(wanted):
        return ""
    lines = ["*mangle", *(f":{name} - [0:0]" for name in own.all)]
    for chain, target in own.jumps:
        lines += [f"-D {chain} -j {target}"] * _count(saved, chain, target)
        lines.append(f"-I {chain} 1 -j {target}")
    return "\n".join([*lines, *wanted, "COMMIT", ""])


def removal(saved: str, own: Chains) -> str:
    """Return what takes our chains out of the table as saved; empty where there are none."""
    there = [name for name in own.all if f":{name} " in saved]
    if not there:
        return ""
    lines = ["*mangle"]
    for chain, target in own.jumps:
        lines += [f"-D {chain} -j {target}"] * _count(saved, chain, target)
    lines += [*(f"-F {name}" for name in there), *(f"-X {name}" for name in there), "COMMIT", ""]
    return "\n".join(lines)


def missing(saved: str, net: Net, own: Chains, family: int) -> tuple[str, ...]:
    """Return what is not in force of one tenancy's rules; none: all are in force, and jumps to them come first.

    The other tenancies' rules need not be known: this one's are searched for in their order.
    """
    absent = [f"-A {chain} -j {target}" for chain, target in own.jumps if not _is_first(saved, chain, target)]
    present = _present(saved, own)
    lines = iter(present)
    for rule in (one for one in rules((net,), own, family) if not one.startswith(f"-A {own.private} ")):
        if not any(line == rule for line in lines):
            absent.append(rule)
            lines = iter(present)
    absent += [rule for one in PRIVATE[family] if (rule := f"-A {own.private} -d {one} -j DROP") not in present]
    return tuple(dict.fromkeys(absent))


def leftovers(saved: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the marks of instances that have chains in the table and are not known."""
    marks = {line[1:].split()[0].split("-")[1] for line in saved.splitlines() if line.startswith(":FL-")}
    return tuple(sorted(marks - set(known)))


def _present(saved: str, own: Chains) -> tuple[str, ...]:
    """Return our rules as they are in force, chain by chain in our order."""
    lines = [line.strip() for line in saved.splitlines()]
    return tuple(line for name in own.all for line in lines if line.startswith(f"-A {name} "))


def _count(saved: str, chain: str, target: str) -> int:
    return sum(line.strip() == f"-A {chain} -j {target}" for line in saved.splitlines())


def _is_first(saved: str, chain: str, target: str) -> bool:
    """Return whether a chain of the kernel's leads to ours, once, before any rule of others that could end the walk."""
    lines = [line.strip() for line in saved.splitlines() if line.startswith(f"-A {chain} ")]
    before = lines[: lines.index(f"-A {chain} -j {target}")] if _count(saved, chain, target) else []
    harmless = all(" -j FL-" in line for line in before)
    return _count(saved, chain, target) == 1 and harmless
