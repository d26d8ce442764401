"""Interprets BPF device programs without a kernel: returns whether a program allows an access.

A `BPF_CGROUP_DEVICE` program is asked "may this type of node, of this major and minor, be read, written, made?" and
says 0 or 1. Those that runc, crun, systemd and others attach load the three fields, compare them with constants and
leave; the interpreter runs exactly that: loads from the context, arithmetic on registers, jumps. Whatever needs more
(helper calls, maps, a stack) is refused by name, never guessed.

While it runs it notes which constants the major and the minor were compared with: `wire.oci.deviceprogram` asks on from
there until it has asked everything that can be answered differently.
Source: Linux Documentation/bpf/standardization/instruction-set.rst; include/uapi/linux/bpf.h, bpf_cgroup_dev_ctx.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fairlead import errors

TYPE_OF: Final = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR
BIT_OF: Final = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_MKNOD, _READ, _WRITE
_MASK: Final = (1 << 64) - 1
_STEPS_MAX: Final = 100_000
"""Bounds a question to a fraction of a second, whatever the program does: those of runtimes take a few hundred."""
_INSTRUCTION: Final = struct.Struct("<BBhi")


class Instruction(NamedTuple):
    """One instruction; `immediate` is signed."""

    code: int
    target: int
    source: int
    offset: int
    immediate: int


class Ask(NamedTuple):
    """One access to a device, which a program allows or denies."""

    kind: str
    """`b` or `c`."""
    access: int
    """Bits of `BIT_OF`."""
    major: int
    minor: int


@dataclass(slots=True)
class Seen:
    """The constants that the fields of a question were compared with on the way to its answer."""

    majors: set[int] = field(default_factory=set)
    minors: set[int] = field(default_factory=set)


class _Value(NamedTuple):
    """What a register holds, and which field of the question it is, unchanged (`major`, `minor`, `context`)."""

    number: int
    field: str = ""


def parse_program(data: bytes) -> tuple[Instruction, ...]:
    """Split a program into instructions. Raises: ProtocolError: not a whole number of them."""
    if len(data) % _INSTRUCTION.size:
        message = f"a BPF program of {len(data)} bytes is not made of instructions of {_INSTRUCTION.size}"
        raise errors.ProtocolError(message, reason="ProgramInvalid")
    # One byte holds both registers, the target in its low half.
    return tuple(
        Instruction(code, registers & 0xF, registers >> 4, offset, immediate)
        for code, registers, offset, immediate in _INSTRUCTION.iter_unpack(data)
    )


def emit_program(program: Sequence[Instruction]) -> bytes:
    """Return the bytes that the kernel loads."""
    return b"".join(
        _INSTRUCTION.pack(one.code, one.target | one.source << 4, one.offset, one.immediate) for one in program
    )


def decide(program: Sequence[Instruction], ask: Ask, seen: Seen) -> bool:
    """Run a program for one question; what its fields are compared with is added to `seen`.

    Raises: ProtocolError (`ProgramUndecodable`): it does something that only a kernel can do.
    """
    machine = _Machine(ask, seen)
    place = 0
    for _ in range(_STEPS_MAX):
        if not 0 <= place < len(program):
            raise _undecodable(f"jumps to instruction {place} of {len(program)}")
        one = program[place]
        if one.code == _EXIT:
            return machine.read(0).number & 0xFFFFFFFF != 0
        place += machine.step(one, program[place + 1] if place + 1 < len(program) else None)
    raise _undecodable(f"takes more than {_STEPS_MAX} steps")


def _undecodable(what: str) -> errors.ProtocolError:
    message = f"a device program {what}: what it decides is known to the kernel alone"
    return errors.ProtocolError(message, reason="ProgramUndecodable")


_LD, _LDX, _ALU, _JMP, _JMP32, _ALU64 = 0x00, 0x01, 0x04, 0x05, 0x06, 0x07
_LD_IMM64, _NOSPEC = 0x18, 0xC2
_EXIT, _JA, _CALL = 0x95, 0x05, 0x85
_X: Final = 0x08
_MOV: Final = 0xB0
_SIZES: Final = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_FIELDS: Final = {(4, 4): "major", (8, 4): "minor"}


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


# By the upper four bits of an arithmetic code. The kernel masks shifts by the width; x / 0 is 0 and x % 0 is x.
_OPERATIONS: Final[dict[int, Callable[[int, int, int], int]]] = {
    0x00: lambda a, b, _: a + b,
    0x10: lambda a, b, _: a - b,
    0x20: lambda a, b, _: a * b,
    0x30: lambda a, b, _: a // b if b else 0,
    0x40: lambda a, b, _: a | b,
    0x50: lambda a, b, _: a & b,
    0x60: lambda a, b, bits: a << (b & (bits - 1)),
    0x70: lambda a, b, bits: a >> (b & (bits - 1)),
    0x80: lambda a, _, __: -a,
    0x90: lambda a, b, _: a % b if b else a,
    0xA0: lambda a, b, _: a ^ b,
    _MOV: lambda _, b, __: b,
    0xC0: lambda a, b, bits: _signed(a, bits) >> (b & (bits - 1)),
}
_EQUAL, _UNEQUAL = 0x10, 0x50
_TESTS: Final[dict[int, Callable[[int, int, int], bool]]] = {
    _EQUAL: lambda a, b, _: a == b,
    0x20: lambda a, b, _: a > b,
    0x30: lambda a, b, _: a >= b,
    0x40: lambda a, b, _: bool(a & b),
    _UNEQUAL: lambda a, b, _: a != b,
    0x60: lambda a, b, bits: _signed(a, bits) > _signed(b, bits),
    0x70: lambda a, b, bits: _signed(a, bits) >= _signed(b, bits),
    0xA0: lambda a, b, _: a < b,
    0xB0: lambda a, b, _: a <= b,
    0xC0: lambda a, b, bits: _signed(a, bits) < _signed(b, bits),
    0xD0: lambda a, b, bits: _signed(a, bits) <= _signed(b, bits),
}


class _Machine:
    """Runs one program: its registers, and the access in question."""

    def __init__(self, ask: Ask, seen: Seen) -> None:
        access_type = ask.access << 16 | TYPE_OF[ask.kind]
        self._context = struct.pack("<III", access_type, ask.major & 0xFFFFFFFF, ask.minor & 0xFFFFFFFF)
        self._seen = seen
        self._registers: dict[int, _Value] = {1: _Value(0, "context")}

    def read(self, register: int) -> _Value:
        found = self._registers.get(register)
        if found is None:
            raise _undecodable(f"reads register {register} before it is set")
        return found

    def step(self, one: Instruction, following: Instruction | None) -> int:
        """Carry out one instruction; returns how far to go on."""
        group = one.code & 0x07
        if one.code == _NOSPEC:
            return 1
        if one.code == _LD_IMM64 and one.source == 0 and following is not None:
            number = (one.immediate & 0xFFFFFFFF) | (following.immediate & 0xFFFFFFFF) << 32
            self._registers[one.target] = _Value(number)
            return 2
        if one.code == _JA:
            return 1 + one.offset
        if group == _LDX:
            self._load(one)
            return 1
        if group in {_ALU, _ALU64}:
            self._compute(one, bits=64 if group == _ALU64 else 32)
            return 1
        if group in {_JMP, _JMP32} and one.code != _CALL:
            return 1 + (one.offset if self._test(one, bits=64 if group == _JMP else 32) else 0)
        raise _undecodable(f"calls helper {one.immediate}" if one.code == _CALL else f"uses opcode {one.code:#04x}")

    def _load(self, one: Instruction) -> None:
        size = _SIZES[one.code & 0x18]
        base = self.read(one.source)
        if one.code & 0xE0 != 0x60 or base.field != "context" or not 0 <= one.offset <= len(self._context) - size:
            raise _undecodable(f"reads memory outside its question (opcode {one.code:#04x}, offset {one.offset})")
        number = int.from_bytes(self._context[one.offset : one.offset + size], "little")
        is_part = one.offset + size > 4 and (one.offset, size) not in _FIELDS
        name = "part" if is_part else _FIELDS.get((one.offset, size), "")
        self._registers[one.target] = _Value(number, name)

    def _operand(self, one: Instruction, bits: int) -> _Value:
        value = self.read(one.source) if one.code & _X else _Value(one.immediate & _MASK)
        return value._replace(number=value.number & ((1 << bits) - 1))

    def _compute(self, one: Instruction, *, bits: int) -> None:
        kind, limit = one.code & 0xF0, (1 << bits) - 1
        operation = _OPERATIONS.get(kind)
        if operation is None or one.offset:
            raise _undecodable(f"uses opcode {one.code:#04x}")
        operand = self._operand(one, bits)
        if kind == _MOV:
            self._registers[one.target] = operand
            return
        before = self.read(one.target)
        after = operation(before.number & limit, operand.number, bits) & limit
        fields = {value.field for value in (before, operand)} - {""}
        name = ""
        if fields:
            # A field that a mask or an extension left as it was is still that field.
            name = before.field if after == before.number and not operand.field else "part"
        self._registers[one.target] = _Value(after, name)

    def _test(self, one: Instruction, *, bits: int) -> bool:
        kind, limit = one.code & 0xF0, (1 << bits) - 1
        test = _TESTS.get(kind)
        if test is None:
            raise _undecodable(f"uses opcode {one.code:#04x}")
        left, right = self.read(one.target), self._operand(one, bits)
        for value, other in ((left, right), (right, left)):
            if value.field:
                self._note(value, other, kind)
        return test(left.number & limit, right.number & limit, bits)

    def _note(self, value: _Value, other: _Value, kind: int) -> None:
        if value.field not in {"major", "minor"} or other.field or kind not in {_EQUAL, _UNEQUAL}:
            raise _undecodable(f"compares {value.field} of a number with something other than one constant")
        found = self._seen.majors if value.field == "major" else self._seen.minors
        found.add(other.number & 0xFFFFFFFF)
