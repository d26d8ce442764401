"""A folder that one process hides from all others, and what that process mounts elsewhere, with the real kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from fairlead.kernel.mounting import mount, mountnamespace
top, is_shared = Path(sys.argv[1]), sys.argv[2] == "shared"
assert ctypes.CDLL(None).unshare(0x20000) == 0
mount.mount(Path("/"), mount.RECURSIVE | 1 << 18)  # MS_PRIVATE: nothing of this test reaches the machine
run = top / "run"
run.mkdir()
mount.mount(run, 0, kind="tmpfs")
if is_shared:
    mount.mount(run, mount.SHARED)
(run / "cdi").mkdir()
(run / "cdi" / "first.json").write_text("{}")
ready, answer = os.pipe()
if (pid := os.fork()) == 0:
    mountnamespace.hide(run / "cdi", run / "netns")
    assert list((run / "cdi").iterdir()) == []
    (run / "cdi" / "second.json").write_text("{}")
    (run / "netns" / "a").touch()
    mount.bind(Path("/proc/self/ns/net"), run / "netns" / "a")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(sorted(one.name for one in (run / "cdi").iterdir()), mount.is_mounted(run / "netns" / "a"))
(run / "netns" / "b").touch()
mount.bind(Path("/proc/self/ns/net"), run / "netns" / "b")
print(mount.find_mount(run / "cdi" / "x").name, mount.find_mount(run / "netns" / "b").name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
@pytest.mark.parametrize("how", ["shared", "private"])
def test_a_folder_is_hidden_and_network_namespaces_outlive_the_process_that_made_them(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", _PROGRAM, str(tmp_path), how),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['first.json'] True", "run b"]
