"""Finds a device's name in the list of PCI ids that distributions install, without reading it into objects.

Source: the PCI ID Repository, pci.ids: a vendor's line begins with four digits, its devices' lines with a tab.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PLACES: Final = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids", "usr/pci.ids")
_LARGEST: Final = 16 << 20
_LONGEST: Final = 120
_HEX: Final = b"0123456789abcdef"


def find_names(root: Path, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the names of devices, by vendor and device; those that the list does not have are left out."""
    asked = dict.fromkeys(wanted)
    for place in PLACES if asked else ():
        try:
            handle = os.open(root / place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            with mmap.mmap(handle, min(os.fstat(handle).st_size, _LARGEST), prot=mmap.PROT_READ) as data:
                found = {key: _name(data, *key) for key in asked}
        except (OSError, ValueError):  # an empty file, or none that can be mapped
            continue
        finally:
            os.close(handle)
        return {key: name for key, name in found.items() if name}
    return {}


def _name(data: mmap.mmap, vendor: int, device: int) -> str:
    at = data.find(f"\n{vendor:04x}  ".encode())
    while at >= 0:
        at = data.find(b"\n", at + 1)
        line = data[at + 1 : at + 1 + _LONGEST].split(b"\n", 1)[0]
        if line[:1] and line[0] in _HEX:  # the next vendor
            return ""
        if line.startswith(f"\t{device:04x}  ".encode()):
            return line[7:].decode("utf-8", "replace").strip()
    return ""
