"""Processes that have a device open are found, by that very file where its numbers are not its own."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from fairlead.kernel import deviceusers
from fairlead.kernel.openfiles import Number
from tests import outsider

FULL: Number = ("c", 1, 7)
KEPT = "import sys, time; file = open(sys.argv[1], 'rb'); print(1, flush=True); time.sleep(60)"
BY_NAME = "import os, sys, time; os.open(sys.argv[1], os.O_PATH); time.sleep(60)"


def _open_paths(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile: the interpreter is still starting
            found.append(str(link.readlink()))
    return found


def pids(path: str, code: str, files: dict[Number, deviceusers.File] | None = None) -> bool:
    with outsider.running(sys.executable, "-c", code, path) as one:
        outsider.until(lambda: path in _open_paths(one.pid))
        found = {user.pid: user for user in deviceusers.find_users([FULL], files=files)}
        assert one.pid not in found or found[one.pid].devices == (FULL,)
        return one.pid in found


def test_one_that_has_it_open_is_found_and_one_that_names_it_is_not() -> None:
    assert pids("/dev/full", KEPT)
    assert not pids("/dev/full", BY_NAME)


def test_of_a_device_that_shares_its_numbers_the_very_file_counts(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for path in (own, other):
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 7))
    status = own.stat()
    files: dict[Number, deviceusers.File] = {FULL: (status.st_dev, status.st_ino)}
    assert pids(str(own), BY_NAME, files)
    assert not pids(str(other), BY_NAME, files)
    assert pids("/dev/full", KEPT, files)  # as in a container's /dev


def test_who_a_process_is_and_who_started_it() -> None:
    me = deviceusers.read(os.getpid())
    assert me is not None
    assert (me.uid, me.parent) == (os.getuid(), os.getppid())
    assert deviceusers.read(1 << 22) is None
    with outsider.running("sleep", "60") as one:
        stranger = deviceusers.read(one.pid)
    assert stranger is not None
    assert not deviceusers.descends(stranger, os.getpid())
    assert deviceusers.descends(me, os.getppid())
