"""Device programs: what they decide, told without a kernel; written from rules and read again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.devicerule import DeviceRule, DeviceRules, Kind
from fairlead.wire.oci import bpfprogram, deviceprogram, devicerule
from fairlead.wire.oci.bpfprogram import Instruction

# A small world, so that rules of drawn numbers meet each other.
MAJORS, MINORS = (1, 5, 195, 510), (0, 1, 3, 255)
numbers = st.sampled_from(("b", "c")), st.sampled_from((None, *MAJORS)), st.sampled_from((None, *MINORS))
accesses = st.sampled_from(("", "r", "w", "rw", "m", "rwm", "rm"))


def rule(kind: Kind, major: int | None, minor: int | None, access: str) -> DeviceRule:
    return DeviceRule(kind=kind, major=major, minor=minor, access=access)


rules = st.lists(st.builds(rule, *numbers, accesses), max_size=8).map(DeviceRules.of)


def table(wanted: DeviceRules) -> list[str]:
    """Every answer there is in the small world, and one of a number nobody named."""
    kinds: tuple[Kind, ...] = ("b", "c")
    return [wanted.access(*ask) for ask in itertools.product(kinds, (*MAJORS, 77), (*MINORS, 99))]


@given(rules)
def test_a_program_made_from_rules_says_what_they_say(wanted: DeviceRules) -> None:
    assert table(deviceprogram.decode([deviceprogram.encode(wanted)])) == table(wanted)


@example(DeviceRules.of([rule("b", None, 0, "r"), rule("b", 1, None, ""), rule("b", 1, 0, "")]))
@given(rules)
def test_the_shortest_form_says_the_same(wanted: DeviceRules) -> None:
    assert table(wanted.shortest()) == table(wanted)


@settings(max_examples=40)
@given(rules, rules)
def test_two_programs_allow_what_both_allow(one: DeviceRules, other: DeviceRules) -> None:
    both = deviceprogram.decode([deviceprogram.encode(one), deviceprogram.encode(other)])
    common = ["".join(x for x in "rwm" if x in a and x in b) for a, b in zip(table(one), table(other), strict=True)]
    assert table(both) == common


def test_without_a_program_everything_is_allowed() -> None:
    assert deviceprogram.decode([]).lines() == ("a *:* rwm",)


R0, R1, R2, R3, R4, R5 = range(6)


def systemd(*entries: tuple[int, int, int, int | None]) -> bytes:
    """A program laid out as systemd lays its own out: (type, access bits, major, minor or None for any)."""
    blocks: list[list[Instruction]] = []
    for kind, access, major, minor in entries:
        block = [Instruction(0x55, R2, 0, 0, kind)]
        if access != 7:
            block += [Instruction(0xBC, R1, R3, 0, 0), Instruction(0x54, R1, 0, 0, access)]
            block += [Instruction(0x5D, R1, R3, 0, 0)]
        block += [Instruction(0x55, R4, 0, 0, major)]
        block += [Instruction(0x55, R5, 0, 0, minor)] if minor is not None else []
        block += [Instruction(0x05, 0, 0, 0, 0)]
        blocks.append(
            [
                one._replace(offset=len(block) - 1 - at) if one.code & 0x07 == 0x05 else one
                for at, one in enumerate(block)
            ]
        )
    body = [one for block in blocks for one in block]
    body = [
        one._replace(offset=len(body) - 1 - at + 2) if one.code == 0x05 else one for at, one in enumerate(body)
    ]  # to "allowed", behind the two instructions that deny
    head = [
        Instruction(0x61, R2, R1, 0, 0),
        Instruction(0x54, R2, 0, 0, 0xFFFF),
        Instruction(0x61, R3, R1, 0, 0),
        Instruction(0x74, R3, 0, 0, 16),
        Instruction(0x61, R4, R1, 4, 0),
        Instruction(0x61, R5, R1, 8, 0),
    ]
    tail = [
        Instruction(0xB7, R0, 0, 0, 0),
        Instruction(0x05, 0, 0, 1, 0),
        Instruction(0xB7, R0, 0, 0, 1),
        Instruction(0x95, 0, 0, 0, 0),
    ]
    return bpfprogram.emit_program([*head, *body, *tail])


def test_systemds_layout_is_read() -> None:
    program = systemd((2, 7, 1, 3), (2, 6, 195, 0), (2, 6, 136, None), (1, 2, 8, None))
    assert deviceprogram.decode([program]).lines() == ("b 8:* r", "c 1:3 rwm", "c 136:* rw", "c 195:0 rw")


def test_a_list_of_version_1_and_a_program_hold_together() -> None:
    listed = devicerule.grants(devicerule.parse_list("a *:* m\nc 1:3 rwm\nc 195:0 rw\n"))
    code = bpfprogram.parse_program(systemd((2, 7, 1, 3), (2, 7, 195, 1)))
    found = devicerule.derive([listed, lambda ask, seen: bpfprogram.decide(code, ask, seen)])
    assert found.lines() == ("c 1:3 rwm", "c 195:1 m")


def load(register: int, offset: int) -> Instruction:
    return Instruction(0x61, register, R1, offset, 0)


END = (Instruction(0xB7, R0, 0, 0, 1), Instruction(0x95, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ([Instruction(0x85, 0, 0, 0, 1), *END], "calls helper 1"),
        ([Instruction(0x18, 1, 1, 0, 4), Instruction(0, 0, 0, 0, 0), *END], "uses opcode 0x18"),
        ([load(R4, 4), Instruction(0x25, R4, 0, 0, 100), *END], "compares major"),
        ([load(R4, 4), load(R5, 8), Instruction(0x1D, R4, R5, 0, 0), *END], "compares"),
        ([load(R4, 4), Instruction(0x77, R4, 0, 0, 4), Instruction(0x15, R4, 0, 0, 3), *END], "compares part"),
        ([Instruction(0x69, R4, R1, 8, 0), Instruction(0x15, R4, 0, 0, 3), *END], "compares part"),
        ([Instruction(0x61, R4, R1, 12, 0), *END], "outside its question"),
        ([Instruction(0x61, R4, R2, 0, 0), *END], "reads register 2"),
        ([Instruction(0x05, 0, 0, -1, 0)], "steps"),
        ([Instruction(0xB7, R0, 0, 0, 1)], "jumps to instruction 1 of 1"),
        ([Instruction(0x7B, 10, 1, -8, 0), *END], "uses opcode 0x7b"),
        ([Instruction(0xD4, R1, 0, 0, 16), *END], "uses opcode 0xd4"),
        ([Instruction(0x37, R0, 0, 1, 3), *END], "uses opcode 0x37"),  # a division with signs, of newer kernels
        ([load(R4, 4), Instruction(0xE5, R4, 0, 0, 1), *END], "uses opcode 0xe5"),
    ],
)
def test_what_only_a_kernel_can_do_is_refused_by_name(program: list[Instruction], why: str) -> None:
    with pytest.raises(errors.ProtocolError, match=why) as caught:
        deviceprogram.decode([bpfprogram.emit_program(program)])
    assert caught.value.reason == "ProgramUndecodable"


def test_a_wide_constant_and_what_stops_speculation_are_read() -> None:
    wide = [Instruction(0x18, R0, 0, 0, 1), Instruction(0, 0, 0, 0, 0)]
    program = [*wide, Instruction(0xC2, 0, 0, 0, 0), Instruction(0x95, 0, 0, 0, 0)]
    assert deviceprogram.decode([bpfprogram.emit_program(program)]).lines() == ("a *:* rwm",)


def test_a_mask_that_leaves_a_number_whole_is_no_change() -> None:
    program = [load(R4, 4), Instruction(0x54, R4, 0, 0, -1), Instruction(0x56, R4, 0, 2, 195), *END]
    program += [Instruction(0xB7, R0, 0, 0, 0), Instruction(0x95, 0, 0, 0, 0)]
    assert deviceprogram.decode([bpfprogram.emit_program(program)]).lines() == ("b 195:* rwm", "c 195:* rwm")


def test_reading_and_writing_granted_in_pieces_is_refused() -> None:
    listed = devicerule.grants(devicerule.parse_list("c 195:0 r\nc 195:* w\n"))
    with pytest.raises(errors.ProtocolError, match="apart but not together"):
        devicerule.derive([listed])


@pytest.mark.parametrize("text", ["", "c 195:0", "d 1:1 rw", "c 1:x rw", "c 1:1 rwx"])
def test_what_is_no_line_of_a_list_is_refused(text: str) -> None:
    with pytest.raises(errors.ProtocolError):
        devicerule.parse_line(text)


def test_a_broken_program_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="15 bytes"):
        bpfprogram.parse_program(b"\0" * 15)


def test_rules_of_a_runtime_spec_win_in_their_order() -> None:
    entries = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rw"},
        {"allow": False, "type": "c", "major": 195, "minor": 1, "access": "rwm"},
        {"allow": True, "type": "u", "major": 10, "minor": None},
    ]
    assert devicerule.parse_oci(entries).lines() == ("c 10:* rwm", "c 195:* rw", "c 195:1 none")


@pytest.mark.parametrize("entry", [{"allow": True, "type": "x"}, {"allow": True, "major": "1"}, {"access": 7}])
def test_a_misshapen_entry_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(errors.ProtocolError):
        devicerule.parse_oci([entry])


def test_changes_reach_the_rules_that_a_pattern_covers() -> None:
    before = DeviceRules.of([rule("c", None, None, "m"), rule("c", 195, 0, "rwm"), rule("c", 195, 1, "rw")])
    denied = before.changed(deny=[rule("c", 195, None, "rw")])
    assert denied.lines() == ("c *:* m", "c 195:1 none")
    assert denied.changed(allow=[rule("c", 195, 1, "rw")]).lines() == ("c *:* m", "c 195:1 rw")
