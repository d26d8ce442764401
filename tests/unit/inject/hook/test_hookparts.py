"""Parts of the hook that hostile files and runtimes meet: signals, sizes, numbers, and what is not a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.inject import rootfs
from fairlead.inject.hook import compat
from fairlead.inject.hook import program as hook

_LIBRARY = "/opt/gpu/libx.so.9.9"


@pytest.fixture
def root(tmp_path: Path) -> rootfs.Root:
    (tmp_path / "opt/gpu").mkdir(parents=True)
    return rootfs.Root(str(tmp_path))


def test_the_hook_hears_its_alarm_though_the_runtime_blocked_every_signal() -> None:
    """crun runs hooks with all signals blocked, and a blocked or ignored alarm never comes."""
    code = (
        "import signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "from fairlead.inject.hook import program as hook\n"
        "hook._hear_signals()\n"
        "signal.alarm(1)\n"
        "time.sleep(20)\n"
    )
    done = subprocess.run((sys.executable, "-c", code), check=False, timeout=15)
    assert done.returncode == -signal.SIGALRM


def test_a_volume_of_the_tenants_that_is_a_pipe_is_not_waited_for(root: rootfs.Root, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / _LIBRARY[1:])
    assert hook._soname(root, _LIBRARY) is None


def test_a_library_that_leads_out_of_the_container_is_not_read(root: rootfs.Root, tmp_path: Path) -> None:
    (tmp_path / _LIBRARY[1:]).symlink_to("/../../../etc/passwd")
    assert hook._soname(root, _LIBRARY) is None


@pytest.mark.parametrize("driver", ["9" * 5000, "\u0663", "", "-1", "550" * 40])
def test_a_drivers_version_that_no_driver_has_is_0(driver: str) -> None:
    assert compat._major(driver) == 0


@pytest.mark.parametrize("note", ["[" * 100_000, '{"Driver":' * 50_000, '{"Driver": ["' + "9" * 5000 + '"]}'])
def test_a_compatibility_note_without_end_is_no_note(note: str) -> None:
    assert compat._majors(note) in (None, [0])


def test_a_path_file_larger_than_is_read_leaves_the_step_out(root: rootfs.Root, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with (tmp_path / "etc/ld-musl-x86_64.path").open("wb") as file:
        file.truncate(17 << 20)
    with hook._Step("library search"):
        root.read("/etc/ld-musl-x86_64.path")
