"""Who could change a file: the way to it counts, not only the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead_cdi import directory, lint, parse, yamlfile
from fairlead_cdi.host import node, trust

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")
OTHER = 1000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    (tmp_path / "ours").mkdir(mode=0o755)
    (tmp_path / "ours/file").write_text("x")
    (tmp_path / "ours/file").chmod(0o644)
    return tmp_path


def test_what_is_ours_all_the_way_is_closed(place: Path) -> None:
    (place / "link").symlink_to(place / "ours/../ours/file")
    assert trust.find_open(str(place / "ours/file")) == trust.find_open(str(place / "link")) == ""


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_is_open(place: Path, mode: int) -> None:
    (place / "ours/file").chmod(mode)
    assert trust.find_open(str(place / "ours/file")) == str(place / "ours/file")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_on_the_way_that_others_may_write_is_open(place: Path, mode: int) -> None:
    place.chmod(mode)
    assert trust.find_open(str(place / "ours/file")) == str(place)


def test_in_a_sticky_folder_what_is_ours_stays(place: Path) -> None:
    place.chmod(0o1777)
    assert trust.find_open(str(place / "ours/file")) == ""
    assert trust.find_open(str(place)) == str(place)


@needs_root
def test_a_link_into_another_users_folder_is_open_though_the_file_is_roots(place: Path) -> None:
    (place / "theirs").mkdir()
    (place / "theirs/file").write_text("x")
    os.chown(place / "theirs", OTHER, OTHER)
    (place / "ours/link").symlink_to(place / "theirs/file")
    assert trust.find_open(str(place / "ours/link")) == str(place / "theirs")


@needs_root
def test_another_users_link_in_a_sticky_folder_is_open(place: Path) -> None:
    place.chmod(0o1777)
    (place / "link").symlink_to(place / "ours/file")
    os.chown(place / "link", OTHER, OTHER, follow_symlinks=False)
    assert trust.find_open(str(place / "link")) == str(place / "link")


def test_a_circle_is_an_error(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(OSError, match="too many links"):
        trust.find_open(str(place / "a"))


def test_a_scan_keeps_owner_and_mode_of_the_very_file_that_it_read(place: Path) -> None:
    (place / "ours/a.json").write_text("{}")
    (place / "ours/a.json").chmod(0o646)
    (found,) = directory.scan([place / "ours"]).files
    assert found.owner == (os.geteuid(), 0o100646)


# lint says it


@needs_root
def test_lint_tells_a_spec_by_a_link_through_another_users_folder(place: Path) -> None:
    (place / "theirs").mkdir()
    (place / "theirs/a.json").write_text("{}")
    (place / "theirs/a.json").chmod(0o644)
    os.chown(place / "theirs", OTHER, OTHER)
    (place / "ours/a.json").symlink_to(place / "theirs/a.json")
    found = lint.lint_file(str(place / "ours/a.json"), stat_file=node.stat_file, find_open=node.find_open)
    assert [(one.code, one.where) for one in found] == [("spec-way-open", str(place / "theirs"))]


def test_lint_tells_a_hooks_program_behind_a_link_in_an_open_folder(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    (place / "ours/file").chmod(0o755)
    (place / "open/hook").symlink_to(place / "ours/file")
    text = (
        '{"cdiVersion":"0.5.0","kind":"a.com/b","devices":[{"name":"0","containerEdits":{"hooks":[{"hookName":'
        f'"createContainer","path":"{place}/open/hook","env":["A=b"],"timeout":5}}]}}}}]}}'
    )
    found = lint.lint(parse.parse_spec(text.encode()), stat_file=node.stat_file, find_open=node.find_open)
    assert "hook-writable" in {one.code for one in found}


# YAML that would end the process


@pytest.mark.parametrize("data", [b"[" * 200_000, b"{a: " * 100_000, b"- " * 100_000])
def test_yaml_nested_without_end_is_refused_and_ends_nobody(data: bytes) -> None:
    with pytest.raises(Exception, match="nested deeper") as caught:
        yamlfile.decode_yaml(data)
    assert type(caught.value).__name__ == "DocumentError"
