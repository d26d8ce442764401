"""Parses and emits device rules in others' forms: cgroup v1's list, the OCI runtime spec, and any oracle.

`derive` turns whatever answers questions (a v1 list, a v2 program, several of them together) into `DeviceRules`: it
asks about a number that no rule names, learns from the answer's way which constants were compared with, and asks about
those, until no further answer can differ. The answer is therefore complete and not a sample.

Why that is enough: every answer depends on type, access, and whether major and minor equal certain constants. A row is
one major with all its minors. Two majors whose comparisons all fail on every path of the "other" row walk the same
paths; so only majors compared with in that row can differ from it, and within a row only minors compared with there.
Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst; OCI runtime-spec config-linux.md, allowedDevices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fairlead import errors
from fairlead.model import devicerule
from fairlead.model.devicerule import DeviceRule, DeviceRules, Kind
from fairlead.wire.oci import bpfprogram

Decide = Callable[[bpfprogram.Ask, bpfprogram.Seen], bool]
_OTHER: Final = 0x7FFFFF01
"""A number no device can have: majors have 12 bits, minors 20. Source: include/linux/kdev_t.h."""
_ANY: Final = 0xFFFFFFFF
_LINE: Final = re.compile(r"([abc]) (\*|\d+):(\*|\d+) ([rwm]+)")
EVERYTHING: Final = DeviceRules.of(
    DeviceRule(kind=kind, major=None, minor=None, access=devicerule.ACCESS) for kind in devicerule.KINDS
)


def parse_line(text: str) -> tuple[DeviceRule, ...]:
    """Return one line of cgroup v1's `devices.list`; `a` gives a rule for each kind. Raises: ProtocolError."""
    found = _LINE.fullmatch(text.strip())
    if found is None:
        message = f'"{text}" is not a line of a device cgroup'
        raise errors.ProtocolError(message, reason="DeviceRuleInvalid", hint="for example c 195:0 rw")
    kinds: tuple[Kind, ...] = devicerule.KINDS if found[1] == "a" else ("c",) if found[1] == "c" else ("b",)
    major, minor = (None if part == "*" else int(part) for part in (found[2], found[3]))
    access = devicerule.united(found[4], "")
    return tuple(DeviceRule(kind=kind, major=major, minor=minor, access=access) for kind in kinds)


def parse_list(text: str) -> tuple[DeviceRule, ...]:
    """Return all lines of a `devices.list`, as the grants they are. Raises: ProtocolError."""
    return tuple(rule for line in text.splitlines() for rule in parse_line(line))


def grants(rules: Sequence[DeviceRule]) -> Decide:
    """Return a function that answers as cgroup v1 does: yes where one grant covers the number and the whole access."""

    def decide(ask: bpfprogram.Ask, seen: bpfprogram.Seen) -> bool:
        answer = False
        for rule in rules:
            if rule.kind != ask.kind:
                continue
            if rule.major is not None:
                seen.majors.add(rule.major)
            if rule.major in {None, ask.major} and rule.minor is not None:
                seen.minors.add(rule.minor)
            is_covered = rule.major in {None, ask.major} and rule.minor in {None, ask.minor}
            answer = answer or (is_covered and not ask.access & ~_bits(rule.access))
        return answer

    return decide


def _bits(access: str) -> int:
    return sum(bpfprogram.BIT_OF[letter] for letter in access)


def derive(deciders: Sequence[Decide]) -> DeviceRules:
    """Return the access that all deciders allow together; without a decider, everything.

    Raises: ProtocolError (`ProgramUndecodable`): one cannot be decided, or grants reading and writing in pieces.
    """
    rules: list[DeviceRule] = []
    for kind in devicerule.KINDS:
        rules += _rules_of(kind, deciders)
    return DeviceRules.of(rules)


def _rules_of(kind: Kind, deciders: Sequence[Decide]) -> list[DeviceRule]:
    # First the row of a major that no rule names, then one row for each major that this one was compared with.
    default, majors = _row(kind, None, deciders)
    rows = {major: _row(kind, major, deciders)[0] for major in majors if major != _ANY}
    rules = [
        DeviceRule(kind=kind, major=None, minor=minor, access=access)
        for minor, access in default.items()
        if access != ("" if minor is None else default[None])
    ]
    for major, row in rows.items():
        # A row that answers as the default row does needs no rule; a minor missing in one has that row's `None`.
        minors = {*row, *default}
        if all(row.get(minor, row[None]) == default.get(minor, default[None]) for minor in minors):
            continue
        if row[None] != default[None] or len(default) > 1:
            rules.append(DeviceRule(kind=kind, major=major, minor=None, access=row[None]))
        rules += [
            DeviceRule(kind=kind, major=major, minor=minor, access=access)
            for minor, access in row.items()
            if minor is not None and access != row[None]
        ]
    return rules


def _row(kind: Kind, major: int | None, deciders: Sequence[Decide]) -> tuple[dict[int | None, str], set[int]]:
    """Return what may be done by minor (None: all that are not named), and the majors that were compared with."""
    # Ends: a program compares with at most one constant an instruction, and each constant is asked about once.
    found: dict[int | None, str] = {}
    majors: set[int] = set()
    waiting: list[int | None] = [None]
    while waiting:
        minor = waiting.pop()
        if minor in found:
            continue
        found[minor], seen = _access(
            kind, _OTHER if major is None else major, _OTHER if minor is None else minor, deciders
        )
        majors |= seen.majors
        waiting += [number for number in seen.minors if number != _ANY]
    return found, majors


def _access(kind: Kind, major: int, minor: int, deciders: Sequence[Decide]) -> tuple[str, bpfprogram.Seen]:
    seen = bpfprogram.Seen()

    def ask(access: int) -> bool:
        question = bpfprogram.Ask(kind, access, major, minor)
        # Every one is asked, also after a no: which constants it compares with must be known.
        answers = [decide(question, seen) for decide in deciders]
        return all(answers)

    access = "".join(letter for letter in devicerule.ACCESS if ask(bpfprogram.BIT_OF[letter]))
    # The kernel asks for mknod alone, and for reading and writing as an open wants them: apart or together.
    if {"r", "w"} <= set(access) and not ask(_bits("rw")):
        numbers = f"{kind} {major}:{minor}".replace(str(_OTHER), "*")
        message = f"{numbers}: reading and writing are granted apart but not together"
        raise errors.ProtocolError(message, reason="ProgramUndecodable")
    return access, seen


def parse_oci(entries: Iterable[Mapping[str, Any]]) -> DeviceRules:
    """Return what `linux.resources.devices` of a runtime spec asks for; later entries win, nothing is allowed before.

    Default devices, which runtimes allow by themselves, are not in it. Raises: ProtocolError: an entry is misshapen.
    """
    rules = DeviceRules()
    for entry in entries:
        change = [DeviceRule(kind=kind, major=a, minor=b, access=c) for kind, a, b, c in _oci_entry(entry)]
        rules = rules.changed(allow=change) if entry.get("allow") else rules.changed(deny=change)
    return rules


def _oci_entry(entry: Mapping[str, Any]) -> list[tuple[Kind, int | None, int | None, str]]:
    kind, access = entry.get("type") or "a", entry.get("access") or devicerule.ACCESS
    numbers = [entry.get("major"), entry.get("minor")]
    is_whole = all(number is None or isinstance(number, int) for number in numbers)
    if kind not in {"a", "b", "c", "u"} or not isinstance(access, str) or not is_whole:
        message = f"runtime spec: linux.resources.devices has {dict(entry)}"
        raise errors.ProtocolError(message, reason="RuntimeSpecInvalid", field="linux.resources.devices")
    kinds: tuple[Kind, ...] = devicerule.KINDS if kind == "a" else ("b",) if kind == "b" else ("c",)
    major, minor = (None if number is None or number < 0 else number for number in numbers)
    return [(one, major, minor, devicerule.united(access, "")) for one in kinds]
