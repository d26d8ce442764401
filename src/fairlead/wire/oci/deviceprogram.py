"""Decodes device programs of cgroup v2 into rules, and encodes rules as programs.

Decoding asks the program (`wire.oci.bpfprogram`) about every number it distinguishes (`wire.oci.devicerule.derive`), so
it works for whatever wrote it; how runc, crun and systemd lay theirs out does not matter. Writing gives one short block
a rule, the most specific first, and is decoded again before it is returned: a program that does not say exactly what
was meant is a bug and never reaches the kernel.
Source: Linux Documentation/admin-guide/cgroup-v2.rst, "Device controller"; include/uapi/linux/bpf.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from fairlead import errors
from fairlead.model.devicerule import DeviceRule, DeviceRules
from fairlead.wire.oci import bpfprogram
from fairlead.wire.oci import devicerule as wire
from fairlead.wire.oci.bpfprogram import Instruction

_R0, _R1, _TYPE, _ACCESS, _MAJOR, _MINOR = range(6)
_LOAD_WORD: Final = 0x61
_MOV_K, _AND_K, _SHIFT_RIGHT_K, _MOV_X = 0xB7, 0x57, 0x77, 0xBF
_JUMP_EQUAL_K, _JUMP_UNEQUAL_K, _EXIT = 0x15, 0x55, 0x95
_EVERYTHING: Final = 7


def decode(programs: Sequence[bytes]) -> DeviceRules:
    """Return the access that attached programs allow together; without a program, everything.

    Raises: ProtocolError (`ProgramUndecodable`): one does more than compare its question with constants.
    """
    return wire.derive([partial(bpfprogram.decide, bpfprogram.parse_program(program)) for program in programs])


def encode(rules: DeviceRules) -> bytes:
    """Return a program that says what the rules say."""
    program = bpfprogram.emit_program(_assemble(rules))
    again = decode([program])
    if not again.agrees(rules):
        message = f"rules {rules.lines()} became a program that says {again.lines()}"
        raise errors.ProtocolError(message, reason="ProgramWrong", hint="this is a bug in fairlead")
    return program


def _assemble(rules: DeviceRules) -> list[Instruction]:
    # bpf_cgroup_dev_ctx is three 32-bit words: access_type (type in the lower half, access in the upper), major, minor.
    program = [
        Instruction(_LOAD_WORD, _TYPE, _R1, 0, 0),
        Instruction(_MOV_X, _ACCESS, _TYPE, 0, 0),
        Instruction(_AND_K, _TYPE, 0, 0, 0xFFFF),
        Instruction(_SHIFT_RIGHT_K, _ACCESS, 0, 0, 16),
        Instruction(_LOAD_WORD, _MAJOR, _R1, 4, 0),
        Instruction(_LOAD_WORD, _MINOR, _R1, 8, 0),
    ]
    for rule in sorted(rules.rules, key=_specific):
        program += _block(rule)
    return [*program, *_answer(0)]


def _specific(rule: DeviceRule) -> tuple[bool, bool, tuple[str, int, int]]:
    return (rule.major is None, rule.minor is None, rule.order)


def _block(rule: DeviceRule) -> list[Instruction]:
    """Return the instructions that answer where the rule covers the number, and else fall through."""
    bits = sum(bpfprogram.BIT_OF[letter] for letter in rule.access)
    body = _answer(int(bits == _EVERYTHING))
    if 0 < bits < _EVERYTHING:
        # Whatever is asked beyond the rule's access makes the answer no.
        body = [
            Instruction(_AND_K, _ACCESS, 0, 0, _EVERYTHING & ~bits),
            Instruction(_MOV_K, _R0, 0, 0, 1),
            Instruction(_JUMP_EQUAL_K, _ACCESS, 0, 1, 0),
            *_answer(0),
        ]
    tests = [(_TYPE, bpfprogram.TYPE_OF[rule.kind]), (_MAJOR, rule.major), (_MINOR, rule.minor)]
    wanted = [(register, number) for register, number in tests if number is not None]
    return [
        *(
            Instruction(_JUMP_UNEQUAL_K, register, 0, len(wanted) - place - 1 + len(body), number)
            for place, (register, number) in enumerate(wanted)
        ),
        *body,
    ]


def _answer(number: int) -> list[Instruction]:
    return [Instruction(_MOV_K, _R0, 0, 0, number), Instruction(_EXIT, 0, 0, 0, 0)]
