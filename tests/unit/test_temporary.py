"""A temporary folder of ours is known for abandoned once its process was killed, and no other folder is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fairlead import temporary

_HOLDS = """
import sys, time
from pathlib import Path
from fairlead import temporary
with temporary.folder(temporary.PODMAN, Path(sys.argv[1])) as folder:
    (folder / "conmon").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def _age(path: Path) -> None:
    os.utime(path, (time.time() - 3600,) * 2)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        _age(folder)
        assert temporary.sweep(within=tmp_path) == ()
        assert folder.is_dir()
        process.kill()
    assert temporary.find_abandoned(within=tmp_path) == (folder,)
    assert temporary.sweep(within=tmp_path) == (folder,)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fairlead-backup", "fairlead-podman-mine", "fairlead-podman-12345678-x", "other"])
def test_a_folder_of_a_name_that_is_not_made_here_is_left(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    _age(tmp_path / name)
    assert temporary.sweep(within=tmp_path) == ()


def test_what_is_young_or_a_link_is_left(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "fairlead-podman-abcdefgh").symlink_to(target)
    tempfile.mkdtemp(prefix=temporary.PAUSE, dir=tmp_path)
    assert temporary.sweep(within=tmp_path) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_another_users_folder_is_left(tmp_path: Path) -> None:
    theirs = Path(tempfile.mkdtemp(prefix=temporary.PAUSE, dir=tmp_path))
    _age(theirs)
    os.chown(theirs, 1000, 1000)
    assert temporary.sweep(within=tmp_path) == ()


def test_a_folder_is_its_owners_alone_and_goes_with_the_block(tmp_path: Path) -> None:
    with temporary.folder(".s", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
