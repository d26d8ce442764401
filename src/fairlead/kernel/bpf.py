"""Lists, attaches and detaches the device programs of cgroup v2, and reads their instructions.

bpf(2) through ctypes; no library, no compiler. Programs are asked for by id, opened, and read back as the kernel keeps
them (after its verifier), which is what really runs. Needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN); a kernel or
sandbox that refuses is known by errno. What the instructions mean is `wire.oci.deviceprogram`'s matter.
Source: bpf(2); include/uapi/linux/bpf.h, union bpf_attr, struct bpf_prog_info.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SYSCALLS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _GET_FD_BY_ID, _GET_INFO, _PROG_QUERY = 5, 8, 9, 13, 15, 16  # enum bpf_cmd
_CGROUP_DEVICE_PROGRAM: Final = 15  # enum bpf_prog_type
_CGROUP_DEVICE: Final = 6  # enum bpf_attach_type
_QUERY_EFFECTIVE: Final = 1
_ALLOW_OVERRIDE, _ALLOW_MULTI, _REPLACE = 1, 2, 4
_PROGRAMS_MAX: Final = 64
_INFO_BYTES: Final = 128
_NAME: Final = b"fairlead_device"
_QUERY: Final = struct.Struct("<IIIIQII")
_INFO_HEAD: Final = struct.Struct("<II8sIIQQQIIQ16s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One device program."""

    id: int
    name: str
    """As its loader called it; runc and crun give none, systemd `sd_devices`."""
    instructions: bytes
    """As they run; empty where the kernel keeps them to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The programs of one cgroup folder itself."""

    programs: tuple[Program, ...]
    flags: int
    """How they are attached: 0, or `BPF_F_ALLOW_OVERRIDE`, or `BPF_F_ALLOW_MULTI`."""


class Refused(Exception):
    """The kernel said no; the message is a sentence."""


def effective(folder: Path) -> tuple[Program, ...]:
    """Return every device program that is asked for processes of a cgroup v2 folder, inherited ones too.

    Raises: Refused.
    """
    with _folder(folder) as handle:
        ids, _ = _query(handle, folder, _QUERY_EFFECTIVE)
    return tuple(_read(number) for number in ids)


def attached(folder: Path) -> Attached:
    """Return the programs attached to the folder itself. Raises: Refused."""
    with _folder(folder) as handle:
        ids, flags = _query(handle, folder, 0)
    return Attached(programs=tuple(_read(number) for number in ids), flags=flags)


def replace(folder: Path, instructions: bytes) -> int:
    """Put one program in the place of all that are attached to the folder itself; returns its id.

    The first one is replaced in one step and the others are taken off after it, so that there is no moment without.
    Raises: Refused: the kernel does not take the program, or an ancestor forbids one here.
    """
    with _folder(folder) as handle, contextlib.ExitStack() as stack:
        ids, flags = _query(handle, folder, 0)
        new = _load(instructions)
        stack.callback(os.close, new)
        old = [_open(number) for number in ids]
        for one in old:
            stack.callback(os.close, one)
        is_multi = not old or bool(flags & _ALLOW_MULTI)
        # Attached without MULTI there is one program at most, which the kernel replaces by itself.
        how = _ALLOW_MULTI | (_REPLACE if old else 0) if is_multi else flags & _ALLOW_OVERRIDE
        replaced = old[0] if old and is_multi else 0
        _call(_PROG_ATTACH, struct.pack("<IIIII", handle, new, _CGROUP_DEVICE, how, replaced), f"attach to {folder}")
        for one in old[1:]:
            _call(_PROG_DETACH, struct.pack("<IIII", handle, one, _CGROUP_DEVICE, 0), f"detach from {folder}")
        return _info(new).id


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[int]:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _query(handle: int, folder: Path, flags: int) -> tuple[tuple[int, ...], int]:
    ids = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    attributes = _QUERY.pack(handle, _CGROUP_DEVICE, flags, 0, ctypes.addressof(ids), _PROGRAMS_MAX, 0)
    answer = _call(_PROG_QUERY, attributes, f"query {folder}")[1]
    _, _, _, attach_flags, _, count, _ = _QUERY.unpack(answer)
    return tuple(ids[:count]), attach_flags


def _open(number: int) -> int:
    return _call(_GET_FD_BY_ID, struct.pack("<III", number, 0, 0), f"open program {number}")[0]


def _read(number: int) -> Program:
    handle = _open(number)
    try:
        return _info(handle)
    finally:
        os.close(handle)


def _info(handle: int) -> Program:
    size = _length(handle)
    code = ctypes.create_string_buffer(max(size, 1))
    head = _ask_info(handle, ctypes.addressof(code), size)
    number, length, place, name = head[1], head[4], head[6], bytes(head[11])
    # The kernel clears the address where it keeps the instructions to itself (hardened JIT, no right to see them).
    instructions = code.raw[: min(length, size)] if place else b""
    return Program(id=number, name=name.split(b"\0")[0].decode("ascii", "replace"), instructions=instructions)


def _length(handle: int) -> int:
    length: int = _ask_info(handle, 0, 0)[4]
    return length


def _ask_info(handle: int, address: int, size: int) -> tuple[Any, ...]:
    head = _INFO_HEAD.pack(0, 0, b"", 0, size, 0, address, 0, 0, 0, 0, b"")
    info = ctypes.create_string_buffer(head, _INFO_BYTES)
    _call(_GET_INFO, struct.pack("<IIQ", handle, _INFO_BYTES, ctypes.addressof(info)), "read a program")
    return _INFO_HEAD.unpack_from(info.raw)


def _load(instructions: bytes) -> int:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    text = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "<IIQQIIQII16s",
        *(_CGROUP_DEVICE_PROGRAM, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(text)),
        *(0, 0, 0, 0, 0, _NAME),
    )
    return _call(_PROG_LOAD, attributes, "load a device program")[0]


def _call(command: int, attributes: bytes, what: str) -> tuple[int, bytes]:
    """Call bpf(2); returns its result and the attributes as the kernel left them. Raises: Refused."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise Refused(f"no number of bpf(2) known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, command, buffer, len(attributes))
    if result < 0:
        raise Refused(f"bpf: {what}: {errno.errorcode.get(ctypes.get_errno(), 'unknown')}")
    return result, buffer.raw
