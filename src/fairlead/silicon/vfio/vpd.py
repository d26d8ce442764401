"""Reads the Vital Product Data of a PCI function: the board's serial number, and what its maker wrote beside it.

Devices answer four bytes at a time and slowly, so it is read record by record and no further than its end tag. What is
in it is the board's word: it may be cut off, without an end, or no VPD at all.
Source: PCI Local Bus Specification 3.0, appendix I (resource tags 0x82, 0x90, 0x91, 0x78; keywords SN, PN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fairlead.frozen import frozen
from fairlead.silicon.vfio import attribute

_LARGEST: Final = 4096
"""Bytes that are read; those of network cards and GPUs have some hundreds."""
_MOST_RECORDS: Final = 32
_LARGE, _END = 0x80, 0x0F
_READ_ONLY: Final = 0x10
_LARGE_TAGS: Final = frozenset({0x02, _READ_ONLY, 0x11})
_SMALL_TAGS: Final = frozenset({0x0E, _END})
_NO_SERIALS: Final = frozenset({"", "0", "n/a", "na", "none", "unknown"})


@frozen
class VPD:
    """What a board says of itself."""

    serial: str = ""
    """Lower case; empty: it says none."""
    data: bytes = b""
    """All that was read, headers left out."""
    problem: str = ""
    """What is wrong with it; what was read before that holds."""


def read(path: str) -> VPD:
    """Read the file `vpd` of a function. Raises: OSError."""
    return parse(lambda at, size: attribute.read(path, at=at, size=size))


def parse(read_at: Callable[[int, int], bytes]) -> VPD:
    """Judge Vital Product Data. Args: read_at: returns at most so many bytes from an offset on, or raises OSError."""
    pieces: list[bytes] = []
    serial, at = "", 0
    for _ in range(_MOST_RECORDS):
        tag, start, size, problem = _head(read_at, at)
        if problem or tag == _END:
            return VPD(serial=serial, data=b"\n".join(pieces), problem=problem)
        at += start
        body = read_at(at, size) if at + size < _LARGEST else b""
        pieces.append(body)
        if tag == _READ_ONLY:
            serial = serial or _serial(body)
        if len(body) < size:
            problem = f"ends within a record, or has one that goes beyond {_LARGEST} bytes"
            return VPD(serial=serial, data=b"\n".join(pieces), problem=problem)
        at += size
    return VPD(serial=serial, data=b"\n".join(pieces), problem=f"has no end within {_MOST_RECORDS} records")


def _head(read_at: Callable[[int, int], bytes], at: int) -> tuple[int, int, int, str]:
    """Return the tag at an offset, how long its head and its record are, and what is wrong."""
    head = read_at(at, 3)
    if not head:
        return 0, 0, 0, f"ends without an end tag, after {at} bytes"
    wrong = f"holds no record at byte {at} but {head[0]:#04x}"
    if not head[0] & _LARGE:
        return head[0] >> 3, 1, head[0] & 7, "" if head[0] >> 3 in _SMALL_TAGS else wrong
    tag, size = head[0] & ~_LARGE, int.from_bytes(head[1:3], "little")
    return tag, 3, size, "" if tag in _LARGE_TAGS and len(head) == 3 else wrong


def _serial(body: bytes) -> str:
    found = next((value for keyword, value in _fields(body) if keyword == b"SN"), b"")
    text = found.rstrip(b"\0 ").decode("ascii", "replace").strip().lower()
    is_text = text.isprintable() and "\ufffd" not in text and set(text) != {"0"} and set(text) != {"f"}
    return text if is_text and text not in _NO_SERIALS else ""


def _fields(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + 3 <= len(body):
        keyword, size = body[at : at + 2], body[at + 2]
        at += 3 + size
        if at <= len(body):
            yield keyword, body[at - size : at]
