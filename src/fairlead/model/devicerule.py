"""Declares what a device cgroup lets its processes do, in one form for both cgroup versions.

A `DeviceRule` says exactly what may be done with the device numbers it covers; of several that cover a number the most
specific one counts, and what none covers may not be touched. (The kernel's own list of version 1 is a union of grants,
a program of version 2 is any code at all: `wire.oci.devicerule` and `wire.oci.deviceprogram` bring both into this
form.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

ACCESS: Final = "rwm"
"""Read, write, mknod, in the order in which they are written."""
Kind = Literal["b", "c"]
KINDS: Final[tuple[Kind, ...]] = ("b", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """Access to one device number, or to all numbers of a pattern."""

    kind: Kind
    major: int | None
    """None: any."""
    minor: int | None
    """None: any."""
    access: str
    """Part of `ACCESS`, in its order; empty: nothing may be done."""

    def __str__(self) -> str:
        """Return the rule as the kernel writes it, `c 195:0 rwm`."""
        numbers = ":".join("*" if number is None else str(number) for number in (self.major, self.minor))
        return f"{self.kind} {numbers} {self.access or 'none'}"

    def covers(self, other: DeviceRule) -> bool:
        """Return whether this rule matches every number that the other one matches."""
        return self.kind == other.kind and self.major in {None, other.major} and self.minor in {None, other.minor}

    @property
    def order(self) -> tuple[str, int, int]:
        """Sort key: a pattern sorts before the numbers it covers."""
        return (self.kind, -1 if self.major is None else self.major, -1 if self.minor is None else self.minor)


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """All rules of one cgroup, sorted, at most one of each pattern."""

    rules: tuple[DeviceRule, ...] = ()

    @classmethod
    def of(cls, rules: Iterable[DeviceRule]) -> DeviceRules:
        """Return the rules sorted; of two rules of one pattern the later one wins."""
        return cls(tuple(sorted({rule.order: rule for rule in rules}.values(), key=lambda rule: rule.order)))

    def access(self, kind: Kind, major: int | None, minor: int | None) -> str:
        """Return the access to a number; None stands for every number that no rule names."""
        table = {(rule.major, rule.minor): rule.access for rule in self.rules if rule.kind == kind}
        for pattern in ((major, minor), (major, None), (None, minor), (None, None)):
            if pattern in table:
                return table[pattern]
        return ""

    def lines(self) -> tuple[str, ...]:
        """Return the rules as the kernel writes them; a rule for all devices of both kinds is one line, `a *:* rwm`."""
        everything = {kind: self.access(kind, None, None) for kind in KINDS}
        if everything["b"] and everything["b"] == everything["c"]:
            rest = [rule for rule in self.rules if (rule.major, rule.minor) != (None, None)]
            return (f"a *:* {everything['b']}", *(str(rule) for rule in rest))
        return tuple(str(rule) for rule in self.rules)

    def changed(self, *, deny: Iterable[DeviceRule] = (), allow: Iterable[DeviceRule] = ()) -> DeviceRules:
        """Return the rules after access was denied to some patterns, then allowed to others."""
        result = self
        for rule in deny:
            result = result._with(rule, is_allowed=False)
        for rule in allow:
            result = result._with(rule, is_allowed=True)
        return result

    def _with(self, change: DeviceRule, *, is_allowed: bool) -> DeviceRules:
        def after(access: str) -> str:
            if is_allowed:
                return united(access, change.access)
            return without(access, change.access)

        kept = [
            DeviceRule(kind=rule.kind, major=rule.major, minor=rule.minor, access=after(rule.access))
            if change.covers(rule)
            else rule
            for rule in self.rules
        ]
        own = after(self.access(change.kind, change.major, change.minor))
        return DeviceRules.of(
            [*kept, DeviceRule(kind=change.kind, major=change.major, minor=change.minor, access=own)]
        ).shortest()

    def agrees(self, other: DeviceRules) -> bool:
        """Return whether both allow the same access to every number."""
        rules = (*self.rules, *other.rules)
        majors, minors = {rule.major for rule in rules} | {None}, {rule.minor for rule in rules} | {None}
        asks = [(kind, major, minor) for kind in KINDS for major in majors for minor in minors]
        return all(self.access(*ask) == other.access(*ask) for ask in asks)

    def shortest(self) -> DeviceRules:
        """Return equivalent rules without those that a wider rule already implies."""
        kept = list(self.rules)
        for rule in reversed(self.rules):
            rest = DeviceRules(tuple(one for one in kept if one is not rule))
            if self._is_idle(rule, rest):
                kept.remove(rule)
        return DeviceRules(tuple(kept))

    @staticmethod
    def _is_idle(rule: DeviceRule, rest: DeviceRules) -> bool:
        """Return whether nothing changes without the rule; a whole major shields its numbers from `*:minor`."""
        if rest.access(rule.kind, rule.major, rule.minor) != rule.access:
            return False
        if rule.major is None or rule.minor is not None:
            return True
        # Of the rules that are left: a number's own rule may have gone a moment ago because this one said the same.
        minors = {one.minor for one in rest.rules if one.kind == rule.kind and one.major is None}
        own = {one.minor for one in rest.rules if one.kind == rule.kind and one.major == rule.major}
        return not (minors - own - {None})


def united(one: str, other: str) -> str:
    """Return the access that at least one of two allows."""
    return "".join(letter for letter in ACCESS if letter in one or letter in other)


def without(access: str, taken: str) -> str:
    """Return an access less what another one allows."""
    return "".join(letter for letter in ACCESS if letter in access and letter not in taken)


def common(one: str, other: str) -> str:
    """Return the access that both allow."""
    return "".join(letter for letter in ACCESS if letter in one and letter in other)
