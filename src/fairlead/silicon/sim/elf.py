"""Emits the smallest shared library that linkers accept: a name, no symbols.

The simulated driver root is filled with these, so that `ldconfig` links them by their soname and a program that opens
one by name gets a library, if one in which nothing is found.
"""

from __future__ import annotations

import platform
import struct
from typing import Final

from fairlead.model.driver import MACHINES

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<QQ")
_MACHINES: Final = {name: number for number, name in MACHINES.items()}
_SHARED_OBJECT: Final = 3
_LOAD, _DYN, _STACK = 1, 2, 0x6474E551
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14
_SYMBOL_SIZE: Final = 24


def library(soname: str, *, remark: str = "") -> bytes:
    """Return a 64-bit shared library for this machine with DT_SONAME `soname`; `remark` ends the file as text."""
    strings = b"\0" + soname.encode() + b"\0"
    dynamic_at = _HEADER.size + 3 * _SEGMENT.size
    hash_at = dynamic_at + 7 * _DYNAMIC.size
    symbols_at = hash_at + 24
    strings_at = symbols_at + _SYMBOL_SIZE
    end = strings_at + len(strings)
    entries = ((_HASH, hash_at), (_STRTAB, strings_at), (_SYMTAB, symbols_at), (_STRSZ, len(strings)))
    dynamic = b"".join(_DYNAMIC.pack(*e) for e in (*entries, (_SYMENT, _SYMBOL_SIZE), (_SONAME, 1), (0, 0)))
    size = len(dynamic)
    segments = (
        _SEGMENT.pack(_LOAD, 6, 0, 0, 0, end, end, 0x10000)
        + _SEGMENT.pack(_DYN, 6, dynamic_at, dynamic_at, dynamic_at, size, size, 8)
        + _SEGMENT.pack(_STACK, 6, 0, 0, 0, 0, 0, 16)
    )
    machine = _MACHINES.get(platform.machine(), _MACHINES["x86_64"])
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = _HEADER.pack(
        identity, _SHARED_OBJECT, machine, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 3, 64, 0, 0
    )
    table = struct.pack("<IIIII4x", 1, 1, 0, 0, 0)  # one bucket, one chain, the undefined symbol
    return header + segments + dynamic + table + bytes(_SYMBOL_SIZE) + strings + remark.encode()
