"""Which files define the same devices: in one folder they cancel each other, in a higher one the other's counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.plan.cdi import conflict
from fairlead_cdi import directory

OURS = "fairlead.dev/gpu"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    low, high = tmp_path / "low", tmp_path / "high"
    low.mkdir()
    high.mkdir()
    return low, high


def put(path: Path, *devices: str, kind: str = OURS) -> str:
    edits = {"env": ["X=1"]}
    named = [{"name": one, "containerEdits": edits} for one in devices]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": named}))
    return str(path)


def find(*folders: Path, ours: dict[str, str]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.path, one.other, one.devices) for one in conflict.find(directory.scan(folders), ours)]


def test_two_files_of_one_folder_are_in_conflict_over_what_both_define(folders: tuple[Path, Path]) -> None:
    own, other = put(folders[0] / "a.json", "x", "y", "z"), put(folders[0] / "b.json", "y", "z", "w")
    ours = {f"{OURS}={name}": own for name in "xyz"}
    assert find(folders[0], ours=ours) == [(own, other, (f"{OURS}=y", f"{OURS}=z"))]


def test_a_definition_in_a_higher_folder_replaces_ours_and_one_in_a_lower_folder_changes_nothing(
    folders: tuple[Path, Path],
) -> None:
    low, high = put(folders[0] / "a.json", "x"), put(folders[1] / "b.json", "x")
    assert find(*folders, ours={f"{OURS}=x": low}) == [(low, high, (f"{OURS}=x",))]
    assert find(*folders, ours={f"{OURS}=x": high}) == []


def test_a_device_of_ours_that_no_file_has_is_no_conflict(folders: tuple[Path, Path]) -> None:
    assert find(*folders, ours={f"{OURS}=x": "/gone"}) == []


def test_anybodys_conflicts_are_told_with_the_file_that_should_stay_first(folders: tuple[Path, Path]) -> None:
    a, b = (put(folders[1] / name, "0", "1", kind="nvidia.com/gpu") for name in ("a.json", "b.json"))
    (found,) = conflict.find_any(directory.scan(folders), [b])
    assert (found.path, found.other) == (b, a)
    assert found.message == f"nvidia.com/gpu=0 and 1 more is defined in {b} and in {a}"
    assert "systemctl disable --now nvidia-cdi-refresh.path" in found.remedy
    assert f"mv {a} {a}.before" in found.remedy


def test_an_override_by_a_higher_folder_is_the_operators_and_no_conflict(folders: tuple[Path, Path]) -> None:
    put(folders[0] / "a.json", "0")
    put(folders[0] / "b.json", "0")
    put(folders[1] / "c.json", "0")
    assert conflict.find_any(directory.scan(folders)) == ()
