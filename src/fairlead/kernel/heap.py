"""Returns freed memory to the kernel that the C library's allocator would keep.

Source: malloc_trim(3), mallopt(3), GNU extensions; another C library has none, and then nothing is done.
"""

from __future__ import annotations

import ctypes
from typing import Final

_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 128 * 1024
"""Where the allocator begins, before it follows the largest block that was ever freed."""


def trim() -> None:
    """Return free pages to the kernel, wherever in the heap they lie."""
    if (give_back := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        give_back(0)


def return_large() -> None:
    """Return each block of 128 KiB and more to the kernel as soon as it is freed, in this process from now on.

    The allocator by itself stops doing so with the first one: from then on they lie in the heap, between what stays.
    """
    if (choose := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        choose(_MMAP_THRESHOLD, _LARGE)
