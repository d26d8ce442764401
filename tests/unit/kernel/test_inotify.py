"""A user namespace holds no more inotify instances than its share of root's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.kernel import inotify

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a user namespace")
_GREEDY = """
import ctypes, sys
print("ready", flush=True); sys.stdin.readline()
kernel, count = ctypes.CDLL(None), 0
while count < 1000 and kernel.inotify_init() >= 0:
    count += 1
print(count, flush=True)
"""


@pytest.mark.parametrize(("most", "part"), [("128\n", 32), ("8192", 2048), ("20", 16)])
def test_the_share_is_a_quarter(tmp_path: Path, most: str, part: int) -> None:
    path = tmp_path / "proc/sys/user/max_inotify_instances"
    path.parent.mkdir(parents=True)
    path.write_text(most)
    assert inotify.share(tmp_path) == part


@needs_root
def test_a_namespace_gets_its_share_and_not_one_more() -> None:
    # In a namespace below, so that what it takes is not the machine's: other tests hold instances too.
    line = ("unshare", "--user", "--map-root-user", sys.executable, "-c", _GREEDY)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as greedy:
        assert greedy.stdin is not None
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == "ready\n"
        assert inotify.has_own_users(greedy.pid)
        asyncio.run(inotify.confine(greedy.pid))
        greedy.stdin.write("\n")
        greedy.stdin.flush()
        held = int(greedy.stdout.readline())
    assert 0 < held <= inotify.share()


async def test_our_own_namespace_is_left_alone() -> None:
    before = inotify.limit()
    await inotify.confine(os.getpid())
    assert inotify.limit() == before
    assert not inotify.has_own_users(os.getpid())
    assert inotify.count() >= 0
