"""Profiles: those that come with the package, a user's own, and mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.silicon.sim import profile

OWN = """
title = "one part of my own"
driver = "580.65.06"
cuda = [13, 0]
[parts.mine]
name = "NVIDIA Imagined"
device_id = 0x1234
memory_mib = 1024
compute_capability = [12, 0]
[[groups]]
part = "mine"
pci = ["0001:01:00.0"]
"""


def test_the_promised_profiles_are_offered() -> None:
    lending = ["l40sx2-vgpu", "t4x2-vgpu", "vgpu-guest"]
    assert profile.list_names() == sorted(["a100x8", "b200x8", "h100x8", "h200x8", "l40sx8", "mixed", "t4x4", *lending])


@pytest.mark.parametrize("name", profile.list_names())
def test_a_profile_is_the_same_machine_every_time(name: str) -> None:
    assert profile.load(name) == profile.load(name)
    assert len({board.uuid for board in profile.load(name).boards}) == len(profile.load(name).boards)


@pytest.mark.parametrize("name", ["a100x8", "h100x8", "h200x8", "b200x8"])
def test_a_board_has_two_numa_nodes_of_four(name: str) -> None:
    assert [board.numa for board in profile.load(name).boards] == [0] * 4 + [1] * 4


def test_two_profiles_share_no_uuid() -> None:
    uuids = [board.uuid for name in profile.list_names() for board in profile.load(name).boards]
    assert len(set(uuids)) == len(uuids)


def test_a_users_file_may_bring_its_own_part(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    (board,) = profile.load(str(path)).boards
    assert (board.part.name, board.pci, board.part.mig, board.nvlink) == ("NVIDIA Imagined", "0001:01:00.0", (), "none")


def test_a_users_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    groups = [{"part": "t4-16", "pci": ["0000:01:00.0", "0000:02:00.0"], "minors": [1, 0]}]
    path.write_text(json.dumps({"title": "t", "driver": "550.163.01", "cuda": [12, 4], "groups": groups}))
    assert [board.minor for board in profile.load(str(path)).boards] == [1, 0]


@pytest.mark.parametrize("name", ["h100x9", "parts", "", "/nowhere/mine.toml", "../parts.toml"])
def test_an_unknown_profile_lists_what_is_offered(name: str) -> None:
    with pytest.raises(errors.Invalid, match="offered: a100x8, b200x8") as caught:
        profile.load(name)
    assert caught.value.reason == "ProfileUnknown"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('part = "mine"', 'part = "yours"'),
        ("cuda = [13, 0]", "cuda = 13"),
        ("[[groups]]", "[[gruppen]]"),
        ('title = "one part of my own"', "title = "),
        ('pci = ["0001:01:00.0"]', 'pci = ["0001:01:00.0", "0001:01:00.0"]'),
        ('pci = ["0001:01:00.0"]', 'pci = ["0001:01:00.0"]\nminors = [1, 2]'),
        ('pci = ["0001:01:00.0"]', 'pci = ["0001:01:00.0"]\npcie = "near"'),
    ],
)
def test_a_file_that_breaks_the_form_is_invalid(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(errors.Invalid) as caught:
        profile.load(str(path))
    assert caught.value.reason == "ProfileInvalid"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0001:01:00.0", "../../../../etc"),
        ("580.65.06", "../../x"),
        ("NVIDIA Imagined", "a\\nb"),
        ("memory_mib = 1024", "memory_mib = -1"),
        ("device_id = 0x1234", "device_id = 0x12345"),
        ("[13, 0]", "[13, 1e999]"),
    ],
)
def test_what_becomes_a_path_or_a_number_of_the_machine_has_a_form(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(errors.Invalid, match="breaks the form"):
        profile.load(str(path))


def test_a_profile_of_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN + "#" * (2 << 20))
    with pytest.raises(errors.Invalid, match="larger than"):
        profile.load(str(path))
