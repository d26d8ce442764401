"""Judging isolation: what is too wide, too narrow, missing, and what would mend it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.devicerule import ACCESS, DeviceRule, DeviceRules, Kind
from fairlead.plan import audit
from fairlead.plan.audit import Entitlement, GrantedNode, Verdict
from fairlead.wire.oci import devicerule


def node(minor: int, *, path: str = "", access: str = "rw") -> GrantedNode:
    return GrantedNode(
        path=path or f"/dev/nvidia{minor}",
        kind="c",
        major=195,
        minor=minor,
        access=access,
        source=f"nvidia.com/gpu={minor}",
    )


def rules(*lines: str) -> DeviceRules:
    return DeviceRules.of(rule for line in lines for rule in devicerule.parse_line(line))


STANDARD = ("a *:* m", *(str(rule) for rule in audit.NEEDED))
KNOWN = tuple(node(minor) for minor in range(4))


def nodes(*minors: int) -> dict[str, tuple[int, int]]:
    return {f"/dev/nvidia{minor}": (195, minor) for minor in minors} | {"/dev/null": (1, 3)}


def judge(granted: tuple[int, ...], in_force: DeviceRules | None, present: dict[str, tuple[int, int]]) -> audit.Audit:
    entitlement = Entitlement(granted=tuple(node(minor) for minor in granted))
    return audit.judge(entitlement, in_force, present, known=KNOWN)


def said(found: audit.Audit) -> list[tuple[Verdict, str]]:
    return [(one.verdict, one.subject) for one in found.findings]


def test_what_was_given_and_nothing_else_is_clean() -> None:
    found = judge((0, 1), rules(*STANDARD, "c 195:0 rw", "c 195:1 rwm"), nodes(0, 1))
    assert found == audit.Audit()
    assert found.is_clean


def test_another_containers_gpu_is_called_by_its_name() -> None:
    found = judge((0,), rules(*STANDARD, "c 195:0 rw", "c 195:2 rw"), nodes(0))
    assert said(found) == [(Verdict.TOO_WIDE, "c 195:2 rw")]
    assert "nvidia.com/gpu=2 may be opened and is not its own" in found.findings[0].message
    assert [str(rule) for rule in found.deny] == ["c 195:2 rw"]
    assert found.allow == ()


def test_a_gpu_that_was_taken_away_from_it_is_missed() -> None:
    found = judge((0, 3), rules(*STANDARD, "c 195:0 rw"), nodes(0))
    assert said(found) == [(Verdict.TOO_NARROW, "c 195:3 rw"), (Verdict.NODE_MISSING, "/dev/nvidia3")]
    assert [str(rule) for rule in found.allow] == ["c 195:3 rw"]
    assert found.make == (node(3),)


def test_a_wildcard_is_taken_and_what_is_its_own_given_back() -> None:
    found = judge((1,), rules(*STANDARD, "c 195:* rw"), nodes(1))
    assert said(found) == [(Verdict.TOO_WIDE, "c 195:* rw")]
    assert [str(rule) for rule in found.deny] == ["c 195:* rw"]
    assert [str(rule) for rule in found.allow] == ["c 195:1 rwm"]  # making nodes it may anyhow


def test_everything_is_taken_as_a_whole() -> None:
    found = judge((1,), devicerule.EVERYTHING, nodes(1))
    assert [one.verdict for one in found.findings] == [Verdict.TOO_WIDE, Verdict.TOO_WIDE]
    after = devicerule.EVERYTHING.changed(deny=found.deny, allow=found.allow)
    assert judge((1,), after, nodes(1)).is_clean
    assert after.access("c", 1, 3) == ACCESS
    assert after.access("c", 8, 0) == "m"


def test_a_privileged_container_is_told_and_left() -> None:
    entitlement = Entitlement(granted=(node(0),), base=devicerule.EVERYTHING)
    found = audit.judge(entitlement, devicerule.EVERYTHING, nodes(0, 1), known=KNOWN)
    assert said(found) == [(Verdict.UNCONFINED, "a *:* rw")]
    assert found.is_clean
    assert (found.deny, found.allow) == ((), ())


def test_what_its_runtime_spec_allows_is_its_own() -> None:
    entitlement = Entitlement(granted=(node(0),), base=rules("c 10:229 rwm"))
    assert audit.judge(entitlement, rules(*STANDARD, "c 195:0 rw", "c 10:229 rwm"), nodes(0)).is_clean
    found = audit.judge(entitlement, rules(*STANDARD, "c 195:0 rw"), nodes(0))
    assert said(found) == [(Verdict.TOO_NARROW, "c 10:229 rwm")]
    assert "runtime spec allows this" in found.findings[0].message


def test_a_container_without_null_is_told() -> None:
    found = judge((), rules("a *:* m"), nodes())
    assert (Verdict.TOO_NARROW, "c 1:3 rwm") in said(found)
    assert judge((), DeviceRules().changed(allow=found.allow), nodes()).is_clean


def test_a_node_with_another_devices_numbers_is_replaced() -> None:
    present = {"/dev/nvidia0": (195, 2)}
    found = judge((0,), rules(*STANDARD, "c 195:0 rw"), present)
    assert said(found) == [(Verdict.NODE_WRONG, "/dev/nvidia0"), (Verdict.NODE_STRAY, "/dev/nvidia0")]
    assert found.make == (node(0),)


def test_a_node_that_may_not_be_opened_hurts_nobody() -> None:
    found = judge((0,), rules(*STANDARD, "c 195:0 rw"), nodes(0, 2))
    assert said(found) == [(Verdict.NODE_STRAY, "/dev/nvidia2")]
    assert found.is_clean


def test_rules_that_could_not_be_read_are_not_judged() -> None:
    found = judge((0,), None, {})
    assert said(found) == [(Verdict.NODE_MISSING, "/dev/nvidia0")]
    assert (found.deny, found.allow) == ((), ())


kinds: st.SearchStrategy[Kind] = st.sampled_from(("b", "c"))
in_force = st.lists(
    st.builds(
        lambda kind, major, minor, access: DeviceRule(kind=kind, major=major, minor=minor, access=access),
        kinds,
        st.sampled_from((None, 1, 195)),
        st.sampled_from((None, 0, 3, 5)),
        st.sampled_from(("", "r", "rw", "rwm", "m")),
    ),
    max_size=8,
).map(DeviceRules.of)


@given(in_force, st.sets(st.sampled_from((0, 3, 5))))
def test_mending_mends_whatever_was_in_force(found: DeviceRules, granted: set[int]) -> None:
    own, after = tuple(sorted(granted)), found
    for _ in range(3):
        verdict = judge(own, after, nodes(*own))
        after = after.changed(deny=verdict.deny, allow=verdict.allow)
    assert judge(own, after, nodes(*own)).is_clean
    assert all(("r" in after.access("c", 195, minor)) == (minor in granted) for minor in (0, 3, 5, 7))


@pytest.mark.parametrize("line", ["c 136:* rw", "c 136:4 rw", "c 10:200 rwm", "c 5:1 rw"])
def test_what_runtimes_allow_everybody_is_nobodys_breach(line: str) -> None:
    assert judge((), rules(*STANDARD, line), nodes()).is_clean
