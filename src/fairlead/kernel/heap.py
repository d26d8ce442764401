"""Gives memory back to the kernel that the C library's allocator keeps after much of it was freed.

Source: malloc_trim(3), a GNU extension; another C library has none, and then nothing is done.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Return free pages to the kernel, wherever in the heap they lie."""
    if (give_back := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        give_back(0)
