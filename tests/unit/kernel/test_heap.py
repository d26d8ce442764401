"""Free memory goes back to the kernel."""

from __future__ import annotations

import ctypes
import subprocess
import sys
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


_FREED = """
import ctypes
from fairlead.kernel import heap
from tests.unit.kernel.test_heap import resident_kb
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
heap.return_large()
libc.free(libc.malloc(8 << 20))  # by itself the allocator keeps what is smaller than this in the heap now
before, held = resident_kb(), []
for _ in range(100):
    block = libc.malloc(1 << 18)
    ctypes.memset(block, 1, 1 << 18)
    held.append((block, libc.malloc(1000)))  # the small ones stay between them
for block, _ in held:
    libc.free(block)
print(resident_kb() - before)
"""


def test_large_blocks_go_back_one_by_one_whatever_was_freed_before() -> None:
    done = subprocess.run((sys.executable, "-c", _FREED), check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2_000
