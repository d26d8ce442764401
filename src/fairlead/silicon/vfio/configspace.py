"""Reads a function's PCI configuration space: its serial number, whether it can reset itself, whether it answers.

Only what is needed is read: each four bytes are a transaction on the bus. Any bytes are taken; a list that leads back
into itself ends where it does.
Source: PCI Express Base Specification 5.0, 7.5.1 (header), 7.5.3 (PCI Express capability), 7.6.3 (extended
capabilities), 7.9.3 (Device Serial Number); kernel Documentation/PCI/sysfs-pci.rst, which shows 64 bytes without
CAP_SYS_ADMIN.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from fairlead.frozen import frozen
from fairlead.silicon.vfio import attribute

_HEADER: Final = 0x40
_LEGACY: Final = 0x100
_ALL: Final = 0x1000
_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 1 << 4, 0x34
_PCI_EXPRESS: Final = 0x10
_DEVICE_CAPABILITIES, _FLR = 4, 1 << 28
_SERIAL: Final = 0x0003
_NO_SERIALS: Final = frozenset({b"\0" * 8, b"\xff" * 8})


@frozen
class ConfigSpace:
    """What a configuration space says."""

    answers: bool = True
    """False: it reads as ones."""
    serial: str = ""
    """16 hexadecimal digits, most significant first; empty: it has none."""
    has_flr: bool | None = None
    """None: too little may be read to tell."""
    is_whole: bool = True
    """False: this process sees the header alone."""


def read(path: str) -> ConfigSpace:
    """Read the file `config` of a function. Raises: OSError."""
    return parse(lambda at, size: attribute.read(path, at=at, size=size))


def parse(read_at: Callable[[int, int], bytes]) -> ConfigSpace:
    """Judge a configuration space, in whole or as far as it may be read.

    Args:    read_at: returns at most so many bytes from an offset on.
    Raises:  OSError: it holds less than the identification, or `read_at` raises it.
    """
    space = read_at(0, _LEGACY)
    if len(space) < 4:
        raise OSError(errno.EIO, "configuration space is empty")
    if space[:4] == b"\xff" * 4:
        return ConfigSpace(answers=False)
    if len(space) < _LEGACY:
        return ConfigSpace(is_whole=False)
    return ConfigSpace(serial=_serial(read_at), has_flr=_has_flr(space))


def _has_flr(space: bytes) -> bool:
    if not space[_STATUS] & _HAS_CAPABILITIES:
        return False
    seen, at = set[int](), space[_FIRST] & ~3
    while at >= _HEADER and at not in seen:
        seen.add(at)
        if space[at] == _PCI_EXPRESS:
            word = space[at + _DEVICE_CAPABILITIES : at + _DEVICE_CAPABILITIES + 4]
            return bool(int.from_bytes(word, "little") & _FLR)
        at = space[at + 1] & ~3
    return False


def _serial(read_at: Callable[[int, int], bytes]) -> str:
    seen, at = set[int](), _LEGACY
    while _LEGACY <= at < _ALL and at not in seen:
        seen.add(at)
        head = read_at(at, 4)
        word = int.from_bytes(head, "little")
        if len(head) < 4 or word in {0, 0xFFFFFFFF}:
            return ""
        if word & 0xFFFF == _SERIAL:
            found = read_at(at + 4, 8)
            return found[::-1].hex() if len(found) == 8 and found not in _NO_SERIALS else ""
        at = (word >> 20) & ~3
    return ""
