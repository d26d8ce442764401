"""Folders of ours are made closed, closed where they are open, and refused where they are another user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.node.isolation import ownfolder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away")


def _mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o7777


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    assert ownfolder.ensure(tmp_path / "above" / "state") == ""
    assert _mode(tmp_path / "above" / "state") == 0o700


@pytest.mark.parametrize(
    ("mode", "wanted", "left"),
    [(0o755, ownfolder.OURS, 0o700), (0o711, ownfolder.OURS, 0o700), (0o777, ownfolder.PASSABLE, 0o755)],
)
def test_an_open_folder_is_closed_and_said(tmp_path: Path, mode: int, wanted: int, left: int) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    assert f"mode {mode:04o}" in ownfolder.problem(folder, wanted)
    said = ownfolder.ensure(folder, wanted)
    assert str(folder) in said
    assert f"mode {mode:04o}" in said
    assert f"mode {left:04o}" in said
    assert _mode(folder) == left
    assert (ownfolder.ensure(folder, wanted), ownfolder.problem(folder, wanted)) == ("", "")


@needs_root
def test_a_folder_of_another_user_is_refused_with_the_next_step(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    os.chown(folder, 20001, 20001)
    assert "20001" in ownfolder.problem(folder)
    with pytest.raises(errors.Denied, match="20001") as caught:
        ownfolder.ensure(folder)
    assert (caught.value.reason, f"chown 0:0 {folder}" in str(caught.value.hint)) == ("FolderForeign", True)


def test_what_is_not_a_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    for path in (tmp_path / "state", tmp_path / "state" / "pods"):
        with pytest.raises(errors.Unavailable, match=str(path)) as caught:
            ownfolder.ensure(path)
        assert caught.value.reason == "FolderUnusable"


def test_a_folder_that_is_not_there_is_no_problem(tmp_path: Path) -> None:
    assert ownfolder.problem(tmp_path / "none") == ""


@given(mode=st.integers(0, 0o7777), owner=st.integers(0, 3), wanted=st.sampled_from((0o700, 0o755)))
def test_a_folder_passes_only_where_others_can_do_no_more_than_is_wanted(mode: int, owner: int, wanted: int) -> None:
    verdict = ownfolder.judge(mode, owner, wanted=wanted, me=1)
    if owner > 1:
        assert verdict == "foreign"
    else:
        assert (verdict == "") == (mode & 0o077 | wanted & 0o077 == wanted & 0o077)
