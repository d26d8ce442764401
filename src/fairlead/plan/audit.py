"""Decides whether a container may open what it was given, and nothing else: rules in force against entitlement.

Pure. In: what the container is entitled to (devices by its allocation, the rest by its runtime spec), the rules and
device nodes read back from the kernel. Out: findings, and the rules and nodes that would mend them.

Only reading and writing count. Every runtime lets a container make nodes of any number (`*:* m`): a node that may not
be opened is harmless, and reported only for a known device.
Source: runc's and crun's default rules, as read back from runc 1.1.5 and crun 1.8.1 on cgroup v1 and v2.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.model import devicerule
from fairlead.model.devicerule import DeviceRule, DeviceRules, Kind

_RW: Final = "rw"
Number = tuple[Kind, int, int]


def _char(major: int, minor: int | None) -> DeviceRule:
    return DeviceRule(kind="c", major=major, minor=minor, access=devicerule.ACCESS)


NEEDED: Final = (
    *(_char(1, minor) for minor in (3, 5, 7, 8, 9)),
    *(_char(5, minor) for minor in (0, 2)),
    _char(136, None),
)
"""null, zero, full, random, urandom, tty, ptmx, pts: no container runs well without them."""
_PERMITTED: Final = (
    *NEEDED,
    _char(5, 1),
    _char(10, 200),
    *(DeviceRule(kind=kind, major=None, minor=None, access="m") for kind in devicerule.KINDS),
)
"""What runtimes allow beside that: console, tun, and making any node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedNode:
    """A device node a container is entitled to."""

    path: str
    """As the container sees it."""
    kind: Kind
    major: int
    minor: int
    access: str
    source: str
    """Who grants it: a CDI name, or the runtime spec."""
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    host_path: str = ""
    """Where the host has it; empty: at the same path."""

    @property
    def number(self) -> Number:
        """Type and numbers."""
        return (self.kind, self.major, self.minor)

    @property
    def rule(self) -> DeviceRule:
        """The rule that grants it."""
        return DeviceRule(kind=self.kind, major=self.major, minor=self.minor, access=self.access)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """What a container is entitled to."""

    granted: tuple[GrantedNode, ...] = ()
    base: DeviceRules = field(default_factory=DeviceRules)
    """What its runtime spec allows beside `granted` and beside what every container has."""

    def rules(self) -> DeviceRules:
        """Return all that it may do."""
        given = [*_PERMITTED, *self.base.rules, *(node.rule for node in self.granted)]
        return DeviceRules().changed(allow=[rule for rule in given if rule.access])

    @property
    def is_unconfined(self) -> bool:
        """Return whether its runtime spec allows every device: a privileged container."""
        return all(set(_RW) <= set(self.base.access(kind, None, None)) for kind in devicerule.KINDS)


class Verdict(enum.Enum):
    """What is wrong."""

    TOO_WIDE = "too wide"
    """It may open what it was not given."""
    TOO_NARROW = "too narrow"
    """It may not open what it was given."""
    NODE_MISSING = "node missing"
    NODE_WRONG = "node wrong"
    """The node's numbers are another device's."""
    NODE_STRAY = "node stray"
    """A node of a device it was not given, which it may not open."""
    UNCONFINED = "unconfined"
    """Privileged: device rules hold nothing back from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    verdict: Verdict
    subject: str
    """Rule or path."""
    message: str

    @property
    def is_told_only(self) -> bool:
        """Return whether it is harmless, or so on purpose."""
        return self.verdict in {Verdict.NODE_STRAY, Verdict.UNCONFINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Findings, and what would mend them."""

    findings: tuple[Finding, ...] = ()
    deny: tuple[DeviceRule, ...] = ()
    allow: tuple[DeviceRule, ...] = ()
    """Given after `deny` was taken."""
    make: tuple[GrantedNode, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Return whether the audit found no fault."""
        return all(finding.is_told_only for finding in self.findings)


def judge(
    entitlement: Entitlement,
    in_force: DeviceRules | None,
    nodes: Mapping[str, tuple[int, int]],
    *,
    known: Iterable[GrantedNode] = (),
) -> Audit:
    """Compare.

    Args:    in_force: None where it could not be read: then only nodes are judged.   nodes: numbers of the character
             devices in its /dev, by path.   known: device nodes this host offers to containers, to call them by name.
    """
    names = {node.number: node for node in known}
    findings: list[Finding] = []
    deny: tuple[DeviceRule, ...] = ()
    allow: tuple[DeviceRule, ...] = ()
    if entitlement.is_unconfined:
        text = "its runtime spec allows every device (privileged): rules hold nothing back"
        findings.append(Finding(verdict=Verdict.UNCONFINED, subject="a *:* rw", message=text))
    elif in_force is not None:
        wanted = entitlement.rules()
        deny = tuple(_too_wide(wanted, in_force))
        findings += [_wide(rule, names) for rule in deny]
        missing = tuple(_too_narrow(entitlement, in_force))
        findings += [_narrow(rule, entitlement) for rule in missing]
        allow = _to_allow(wanted, in_force, deny, missing)
    bad, make = _judge_nodes(entitlement, nodes, names, in_force)
    return Audit(findings=(*findings, *bad), deny=deny, allow=allow, make=make)


def _too_wide(wanted: DeviceRules, in_force: DeviceRules) -> Iterator[DeviceRule]:
    """Yield each rule in force with the access that goes beyond what the container is entitled to."""
    for rule in in_force.rules:
        entitled = wanted.access(rule.kind, rule.major, rule.minor)
        excess = devicerule.without(devicerule.common(rule.access, _RW), entitled)
        # The excess of a wider rule is reported with that rule, once.
        inherited = _wider(rule, in_force)
        if excess and not set(excess) <= set(inherited):
            yield DeviceRule(kind=rule.kind, major=rule.major, minor=rule.minor, access=_taken(rule, excess))


def _taken(rule: DeviceRule, excess: str) -> str:
    """Return what to take: all of a rule for everything, so that cgroup v1 can take it as a whole."""
    return devicerule.ACCESS if rule.major is rule.minor is None else excess


def _wider(rule: DeviceRule, rules: DeviceRules) -> str:
    if rule.major is None and rule.minor is None:
        return ""
    rest = DeviceRules(tuple(one for one in rules.rules if one != rule))
    return rest.access(rule.kind, rule.major, rule.minor)


def _too_narrow(entitlement: Entitlement, in_force: DeviceRules) -> Iterator[DeviceRule]:
    """Yield each rule it is entitled to with the access that is missing."""
    asked = [*NEEDED, *entitlement.base.rules, *(node.rule for node in entitlement.granted)]
    seen: set[tuple[str, int, int]] = set()
    for rule in asked:
        wanted = devicerule.common(rule.access, _RW)
        missing = devicerule.without(wanted, in_force.access(rule.kind, rule.major, rule.minor))
        if missing and rule.order not in seen:
            seen.add(rule.order)
            yield DeviceRule(kind=rule.kind, major=rule.major, minor=rule.minor, access=rule.access)


def _to_allow(
    wanted: DeviceRules, in_force: DeviceRules, deny: Sequence[DeviceRule], missing: Sequence[DeviceRule]
) -> tuple[DeviceRule, ...]:
    """Return what to give: what is missing, and what taking a wider rule away would take with it."""
    left = in_force.changed(deny=deny)
    lost = [
        rule
        for rule in wanted.rules
        if devicerule.without(rule.access, left.access(rule.kind, rule.major, rule.minor))
        and any(one.covers(rule) for one in deny)
    ]
    return tuple({rule.order: rule for rule in (*missing, *lost)}.values())


def _wide(rule: DeviceRule, names: Mapping[Number, GrantedNode]) -> Finding:
    found = None if rule.major is None or rule.minor is None else names.get((rule.kind, rule.major, rule.minor))
    if rule.major is rule.minor is None:
        what = f"every {'character' if rule.kind == 'c' else 'block'} device may be opened"
    elif found is not None:
        what = f"{found.source} may be opened and is not its own"
    else:
        what = "nothing that it was given allows this"
    return Finding(verdict=Verdict.TOO_WIDE, subject=str(rule), message=what)


def _narrow(rule: DeviceRule, entitlement: Entitlement) -> Finding:
    found = next((node for node in entitlement.granted if node.rule.covers(rule)), None)
    what = f"{found.path} of {found.source} is its own and may not be opened" if found else "every container has this"
    if found is None and rule not in NEEDED:
        what = "its runtime spec allows this"
    return Finding(verdict=Verdict.TOO_NARROW, subject=str(rule), message=what)


def _judge_nodes(
    entitlement: Entitlement,
    nodes: Mapping[str, tuple[int, int]],
    names: Mapping[Number, GrantedNode],
    in_force: DeviceRules | None,
) -> tuple[list[Finding], tuple[GrantedNode, ...]]:
    findings: list[Finding] = []
    make: list[GrantedNode] = []
    for node in entitlement.granted:
        found = nodes.get(node.path)
        if node.kind != "c" or found == (node.major, node.minor):
            continue
        make.append(node)
        if found is None:
            text, verdict = f"{node.kind} {node.major}:{node.minor} of {node.source}", Verdict.NODE_MISSING
        else:
            text = f"is {found[0]}:{found[1]}, not {node.major}:{node.minor} of {node.source}"
            verdict = Verdict.NODE_WRONG
        findings.append(Finding(verdict=verdict, subject=node.path, message=text))
    own = {node.number for node in entitlement.granted}
    for path, (major, minor) in nodes.items():
        stray = names.get(("c", major, minor))
        may_open = in_force is None or set(_RW) & set(in_force.access("c", major, minor))
        if stray is not None and stray.number not in own and not may_open and not entitlement.is_unconfined:
            text = f"a node of {stray.source}, which it may not open"
            findings.append(Finding(verdict=Verdict.NODE_STRAY, subject=path, message=text))
    return findings, tuple(make)
