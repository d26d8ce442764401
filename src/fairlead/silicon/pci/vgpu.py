"""Distinguishes a vGPU from a GPU by its PCI configuration space, and reads which driver its hypervisor runs.

A vGPU has a vendor-specific capability that begins with `VF`, followed by records of an id, a length and data; record
0 holds the host's driver version and branch, 10 characters each.
Source: PCI Local Bus Specification 3.0, 6.7 (capability list) and 6.8 (status bit 4); NVIDIA GPU feature discovery,
internal/vgpu.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead.model.gpu import HostDriver
from fairlead.silicon.pci import pci

_STATUS: Final = 0x06
_HAS_CAPABILITIES: Final = 1 << 4
_FIRST: Final = 0x34
_HEADER: Final = 0x40
"""What the kernel shows of the configuration space to who is not CAP_SYS_ADMIN; capabilities come behind it."""
_SIZE: Final = 0x100
_VENDOR_SPECIFIC: Final = 0x09
_SIGNATURE: Final = b"VF"
_RECORDS: Final = 5
_TEXT: Final = 10


def read(root: Path, address: str) -> tuple[bool | None, HostDriver | None]:
    """Return whether a device is a vGPU (None: unknown) and its host's driver, where it says."""
    try:
        with (pci.folder(root, address) / "config").open("rb") as file:
            space = file.read(_SIZE)
    except FileNotFoundError:
        return False, None
    except OSError:
        return None, None
    return parse(space)


def parse(space: bytes) -> tuple[bool | None, HostDriver | None]:
    """Judge a configuration space, in whole or as far as it may be read; any bytes are taken."""
    if len(space) < _HEADER:
        return None, None
    if not space[_STATUS] & _HAS_CAPABILITIES:
        return False, None
    if len(space) < _SIZE:
        return None, None
    for found in _capabilities(space):
        if found[3:_RECORDS] == _SIGNATURE:
            return True, _host_driver(found)
    return False, None


def _capabilities(space: bytes) -> list[bytes]:
    """Return the vendor-specific capabilities. A list that leads back into itself ends where it does."""
    found, seen, at = [], set[int](), space[_FIRST] & ~3
    while at >= _HEADER and at not in seen:
        seen.add(at)
        if space[at] == _VENDOR_SPECIFIC:
            found.append(space[at : at + space[at + 2]])
        at = space[at + 1] & ~3
    return found


def _host_driver(capability: bytes) -> HostDriver | None:
    at = _RECORDS
    while at + 1 < len(capability):
        record, length = capability[at], capability[at + 1]
        if record == 0:
            data = capability[at + 2 : at + 2 + 2 * _TEXT]
            version, branch = (part.rstrip(b"\0").decode("ascii", "replace") for part in (data[:_TEXT], data[_TEXT:]))
            return HostDriver(version=version, branch=branch) if len(data) == 2 * _TEXT else None
        if length == 0:
            return None
        at += length
    return None
