"""Free memory goes back to the kernel."""

from __future__ import annotations

import ctypes
from pathlib import Path

from fairlead.kernel import heap


def resident_kb() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])


def test_pages_between_blocks_in_use_go_back_to_the_kernel() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    blocks = [libc.malloc(100_000) for _ in range(400)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks[:-1]:
        libc.free(block)  # the last one keeps the heap's end where it is
    before = resident_kb()
    heap.trim()
    after = resident_kb()
    libc.free(blocks[-1])
    assert before - after > 30_000
