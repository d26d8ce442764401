"""Reads attributes and links of sysfs with a limit: what firmware or a broken driver shows there is untrusted.

An attribute is a page at most, is never a link itself, and reading one never waits: a tree may hold a pipe or a file
without end in its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

_PAGE: Final = 4096
_LONGEST_NUMBER: Final = 20
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_MOST_ENTRIES: Final = 16384


def is_address(name: str) -> bool:
    """Return whether a name is a PCI address as the kernel writes it."""
    return _ADDRESS.fullmatch(name) is not None


def order(address: str) -> tuple[int, str]:
    """Return what sorts addresses as the kernel numbers them: `10000:…` comes behind `ffff:…`."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


def read(path: str, *, at: int = 0, size: int = _PAGE) -> bytes:
    """Return at most `size` bytes of a file. Raises: OSError: also for a link."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(handle, size, at)
    finally:
        os.close(handle)


def text(path: str) -> str:
    """Return an attribute without blanks around it. Raises: OSError."""
    return read(path).decode("ascii", "replace").strip()


def find_text(path: str) -> str:
    """Return the same; empty where it is absent or does not answer."""
    try:
        return text(path)
    except OSError:
        return ""


def find_number(path: str) -> int | None:
    """Return an attribute that is a number, decimal or 0x hexadecimal; None: absent, no answer, or no number."""
    return parse_number(find_text(path))


def number(path: str) -> int:
    """Return an attribute that is a number. Raises: OSError: absent or no answer.   ValueError: no number."""
    found = parse_number(text(path))
    if found is None:
        raise ValueError("is not a number")
    return found


def parse_number(written: str) -> int | None:
    """Return a number as sysfs writes it; None: it is none."""
    try:
        return int(written, 0) if 0 < len(written) <= _LONGEST_NUMBER else None
    except ValueError:
        return None


def find_link(path: str) -> str:
    """Return the last part of where a link leads, which is not followed; empty: there is none."""
    try:
        return os.readlink(path).rpartition("/")[2]  # noqa: PTH115  (a name, not a path)
    except OSError:
        return ""


def names(folder: str) -> list[str]:
    """Return the names in a folder, in order; none where there is no such folder."""
    return sorted(name for name, _ in zip(_names(folder), range(_MOST_ENTRIES), strict=False))


def _names(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return
