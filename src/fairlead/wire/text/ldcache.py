"""Parses and emits the dynamic linker's cache (`/etc/ld.so.cache`).

glibc writes its own format, `glibc-ld.so.cache1.1`; older releases put a `ld.so-1.7.0` table in front of it for the
linker of libc5. Strings lie behind the tables and are found by offsets from the start of the newer header. Which
library a driver is made of is for `silicon.nvidia.files.library` to say.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

OLD_MAGIC: Final = b"ld.so-1.7.0"
NEW_MAGIC: Final = b"glibc-ld.so.cache1.1"
# Old: magic, count; entries of flags, key, value. New: magic, count, length of strings, flags (byte order), extensions;
# entries of flags, key, value, OS version, hardware capabilities. Key and value are offsets of strings.
_OLD_HEADER: Final = struct.Struct("<12sI")
_OLD_ENTRY: Final = struct.Struct("<iII")
_NEW_HEADER: Final = struct.Struct("<20sIIB3xI12x")
_NEW_ENTRY: Final = struct.Struct("<iIIIQ")
_FLAG_ELF: Final = 0x0001
_LITTLE_ENDIAN: Final = 2


class Arch(enum.Enum):
    """The second byte of an entry's flags, as far as GPU drivers come in it."""

    I386 = 0x00
    PPC64LE = 0x05
    X86_64 = 0x03
    X32 = 0x08
    ARMHF = 0x09
    AARCH64 = 0x0A


@frozen
class Entry:
    """One library the linker can find by name."""

    soname: str
    """What a program asks for, `libcuda.so.1`."""
    path: str
    """Absolute path below the root the cache belongs to; often a symbolic link."""
    flags: int = 0x0303

    @property
    def is_elf(self) -> bool:
        """Whether the entry is an ELF library at all (the format also knows libc5's)."""
        return bool(self.flags & _FLAG_ELF)

    @property
    def arch(self) -> Arch | None:
        """The architecture; None for one not listed in `Arch`."""
        code = self.flags >> 8 & 0xFF
        return next((arch for arch in Arch if arch.value == code), None)


def parse_ldcache(data: bytes) -> tuple[Entry, ...]:
    """Return the entries in file order.

    Raises:  ProtocolError: neither header is there, the file is big-endian, or a table or string leaves the file.
    Source:  glibc sysdeps/generic/dl-cache.h, struct cache_file_new and struct file_entry_new.
    """
    start = _new_header_offset(data)
    try:
        magic, count, _, endian, _ = _NEW_HEADER.unpack_from(data, start)
        if magic != NEW_MAGIC:
            raise _malformed(f"no {NEW_MAGIC.decode()} header at offset {start}")
        if endian not in (0, _LITTLE_ENDIAN):
            raise _malformed(f"byte order {endian} is not little-endian")
        body = start + _NEW_HEADER.size
        rows = [_NEW_ENTRY.unpack_from(data, body + index * _NEW_ENTRY.size) for index in range(count)]
    except struct.error as error:
        raise _malformed(f"cut off inside a table ({len(data)} bytes)") from error
    return tuple(
        Entry(soname=_text(data, start + key), path=_text(data, start + value), flags=flags)
        for flags, key, value, _, _ in rows
    )


def emit_ldcache(entries: Iterable[Entry]) -> bytes:
    """Return a cache in the newer format alone, little-endian, without extensions."""
    kept = list(entries)
    offset = _NEW_HEADER.size + len(kept) * _NEW_ENTRY.size
    rows, strings = bytearray(), bytearray()
    for entry in kept:
        positions = []
        for text in (entry.soname, entry.path):
            positions.append(offset + len(strings))
            strings += text.encode() + b"\0"
        rows += _NEW_ENTRY.pack(entry.flags, positions[0], positions[1], 0, 0)
    header = _NEW_HEADER.pack(NEW_MAGIC, len(kept), len(strings), _LITTLE_ENDIAN, 0)
    return header + bytes(rows) + bytes(strings)


def _new_header_offset(data: bytes) -> int:
    if not data.startswith(OLD_MAGIC):
        return 0
    try:
        _, count = _OLD_HEADER.unpack_from(data, 0)
    except struct.error as error:
        raise _malformed("cut off inside the old header") from error
    end = _OLD_HEADER.size + count * _OLD_ENTRY.size
    return int(end + 7 & ~7)  # the newer table is aligned to its 64-bit field


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if offset >= len(data) or end < 0:
        raise _malformed(f"string at offset {offset} leaves the file ({len(data)} bytes)")
    return data[offset:end].decode("utf-8", "surrogateescape")


def _malformed(what: str) -> errors.ProtocolError:
    return errors.ProtocolError(
        f"ld.so.cache is malformed: {what}", reason="LinkerCacheMalformed", hint="run ldconfig to write it anew"
    )
