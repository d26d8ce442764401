"""Parts of volumes are bound by descriptor: no link of a container's leads out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel.mounting import mount, subpath

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@needs_root
def test_a_folder_that_is_missing_is_made_and_shown_once(tmp_path: Path) -> None:
    volume, place = tmp_path / "volume", tmp_path / "parts" / "0"
    volume.mkdir()
    try:
        subpath.show(volume, "a/./b", place)
        subpath.show(volume, "a/b", place)
        (place / "file").write_text("x")
        assert (volume / "a" / "b" / "file").read_text() == "x"
        assert mount.is_mounted(place)
    finally:
        mount.unmount(place)
    assert not mount.is_mounted(place)


@needs_root
def test_a_file_is_shown_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "one").write_text("1")
    place = tmp_path / "parts" / "0"
    try:
        subpath.show(tmp_path / "volume", "one", place)
        assert place.read_text() == "1"
    finally:
        mount.unmount(place)


@needs_root
@pytest.mark.parametrize("path", ["link", "link/b", "folder/link"])
def test_a_link_is_refused_wherever_it_stands(tmp_path: Path, path: str) -> None:
    volume = tmp_path / "volume"
    (volume / "folder").mkdir(parents=True)
    (volume / "link").symlink_to("/etc")
    (volume / "folder" / "link").symlink_to("/etc/passwd")
    with pytest.raises(errors.Unavailable, match="it is a link"):
        subpath.show(volume, path, tmp_path / "parts" / "0")
    assert not mount.is_mounted(tmp_path / "parts" / "0")


@needs_root
def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "one").write_text("1")
    with pytest.raises(errors.Unavailable, match="Not a directory"):
        subpath.show(tmp_path / "volume", "one/two", tmp_path / "parts" / "0")
