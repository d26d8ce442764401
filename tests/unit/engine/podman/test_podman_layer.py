"""A container's folders are its first user's, and closed to others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead.engine.podman import layer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give folders away")
FIRST = 1_879_048_192


@needs_root
def test_the_layer_and_the_folder_of_host_names_are_closed(tmp_path: Path) -> None:
    root, run = tmp_path / "overlay/ab/merged", tmp_path / "run/userdata"
    for folder in (root, run):
        folder.mkdir(parents=True)
        folder.chmod(0o711)
    assert layer.close(root, run, FIRST) == ""
    for folder in (root.parent, run):
        found = folder.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (FIRST, FIRST, 0o700)
    assert root.parent.parent.stat().st_uid == 0


def test_what_stays_open_is_said(tmp_path: Path) -> None:
    assert "no layer of the overlay driver" in layer.close(tmp_path / "vfs/dir/ab", tmp_path, FIRST)
    assert f"{tmp_path}/none" in layer.close(tmp_path / "none/merged", tmp_path, FIRST)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "ab").symlink_to("etc")
    assert layer.close(tmp_path / "ab/merged", tmp_path, FIRST) != ""
    assert (tmp_path / "etc").stat().st_uid == os.geteuid()
