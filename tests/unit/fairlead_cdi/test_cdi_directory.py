"""Spec folders: priority, shadowing, conflicts, and errors that stay where they belong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead_cdi import directory, errors, parse


def write(folder: Path, name: str, kind: str, *devices: str, mark: str = "x") -> Path:
    """Write a spec whose devices set MARK, and make it look old enough for its fingerprint to count."""
    folder.mkdir(exist_ok=True)
    document = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": device, "containerEdits": {"env": [f"MARK={mark}"]}} for device in devices],
    }
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def mark_of(registry: directory.Registry, name: str) -> str:
    (found,) = registry.resolve([name])
    return found.device.edits.env[0].removeprefix("MARK=")


def test_devices_are_listed_by_qualified_name(tmp_path: Path) -> None:
    write(tmp_path / "a", "one.json", "vv.com/gpu", "1", "0")
    write(tmp_path / "a", "two.json", "ww.com/gpu", "0")
    registry = directory.scan([tmp_path / "a"])
    assert list(registry.devices) == ["vv.com/gpu=0", "vv.com/gpu=1", "ww.com/gpu=0"]
    assert registry.problems == {}


@pytest.mark.parametrize("name", ["spec.JSON", "spec.yml", "spec.json.bak", "spec.txt", "json", ".json.swp"])
def test_other_suffixes_are_not_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("not a spec")
    assert directory.scan([tmp_path]).files == ()


def test_folders_below_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "below.json", "one.json", "vv.com/gpu", "0")
    assert directory.scan([tmp_path]).files == ()


def test_symbolic_links_count_as_files(tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere", "real.json", "vv.com/gpu", "0")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "link.json").symlink_to(target)
    assert list(directory.scan([tmp_path / "specs"]).devices) == ["vv.com/gpu=0"]


def test_missing_folders_are_fine(tmp_path: Path) -> None:
    assert directory.scan([tmp_path / "nope"]).problems == {}


def test_no_folders_means_the_default_ones() -> None:
    assert directory.scan([]).directories == directory.DEFAULT_DIRECTORIES


def test_a_later_folder_shadows_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "vv.com/gpu", "0", "1", mark="low")
    write(tmp_path / "high", "a.json", "vv.com/gpu", "0", mark="high")
    registry = directory.scan([tmp_path / "low", tmp_path / "high"])
    assert mark_of(registry, "vv.com/gpu=0") == "high"
    assert mark_of(registry, "vv.com/gpu=1") == "low"
    assert registry.problems == {}


def test_a_conflict_in_one_folder_removes_the_device_and_blames_both_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a", "one.json", "vv.com/gpu", "0", "1")
    two = write(tmp_path / "a", "two.json", "vv.com/gpu", "0")
    registry = directory.scan([tmp_path / "a"])
    assert list(registry.devices) == ["vv.com/gpu=1"]
    assert {path: [e.reason for e in found] for path, found in registry.problems.items()} == {
        str(one): ["DeviceConflict"],
        str(two): ["DeviceConflict"],
    }
    with pytest.raises(errors.DeviceNotFound) as caught:
        registry.resolve(["vv.com/gpu=0"])
    assert str(one) in str(caught.value.hint)
    assert str(two) in str(caught.value.hint)


def test_a_conflict_above_hides_the_valid_device_below(tmp_path: Path) -> None:
    write(tmp_path / "low", "a.json", "vv.com/gpu", "0")
    write(tmp_path / "high", "a.json", "vv.com/gpu", "0")
    write(tmp_path / "high", "b.json", "vv.com/gpu", "0")
    assert directory.scan([tmp_path / "low", tmp_path / "high"]).devices == {}


@pytest.mark.parametrize("mimic_go", [False, True])
def test_an_override_survives_a_conflict_below_unlike_in_go(tmp_path: Path, *, mimic_go: bool) -> None:
    write(tmp_path / "low", "a.json", "vv.com/gpu", "0")
    write(tmp_path / "low", "b.json", "vv.com/gpu", "0")
    write(tmp_path / "high", "a.json", "vv.com/gpu", "0", mark="high")
    registry = directory.scan([tmp_path / "low", tmp_path / "high"], mimic_go=mimic_go)
    assert list(registry.devices) == ([] if mimic_go else ["vv.com/gpu=0"])
    assert len(registry.problems) == 2


def test_one_bad_file_disables_only_itself(tmp_path: Path) -> None:
    write(tmp_path / "a", "a.json", "vv.com/gpu", "0")
    (tmp_path / "a" / "b.json").write_text("{")
    write(tmp_path / "a", "c.json", "ww.com/gpu", "0")
    registry = directory.scan([tmp_path / "a"])
    assert list(registry.devices) == ["vv.com/gpu=0", "ww.com/gpu=0"]
    assert list(registry.problems) == [str(tmp_path / "a" / "b.json")]


@pytest.mark.parametrize("mimic_go", [False, True])
def test_an_unreadable_folder_hides_no_later_one_unlike_in_go(tmp_path: Path, *, mimic_go: bool) -> None:
    (tmp_path / "bad").write_text("a file where a folder should be")
    write(tmp_path / "good", "a.json", "vv.com/gpu", "0")
    registry = directory.scan([tmp_path / "bad", tmp_path / "good"], mimic_go=mimic_go)
    assert list(registry.devices) == ([] if mimic_go else ["vv.com/gpu=0"])
    assert [e.reason for e in registry.problems[str(tmp_path / "bad")]] == ["SpecFolderUnreadable"]


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(directory.MAX_FILE_BYTES + 1)


def make_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_folder_link(path: Path) -> None:
    path.symlink_to("/")


@pytest.mark.parametrize("make", [make_pipe, make_huge, make_broken_link, make_loop, make_folder_link])
def test_what_is_no_file_is_an_error_and_blocks_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd.json")
    registry = directory.scan([tmp_path])
    assert [e.reason for e in registry.problems[str(tmp_path / "odd.json")]] == ["SpecFileUnreadable"]


def test_yaml_is_read_unless_only_json_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "cdiVersion: 0.3.0\nkind: vv.com/gpu\ndevices: [{name: a, containerEdits: {env: [A=b]}}]"
    )
    unread = directory.scan([tmp_path], decoders=directory.JSON_ONLY)
    assert [e.reason for e in unread.problems[str(tmp_path / "a.yaml")]] == ["SpecFormatUnread"]
    assert list(directory.scan([tmp_path]).devices) == ["vv.com/gpu=a"]


def test_resolving_is_all_or_nothing_and_names_all_that_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "vv.com/gpu", "gpu0")
    registry = directory.scan([tmp_path])
    with pytest.raises(errors.DeviceNotFound) as caught:
        registry.resolve(["vv.com/gpu=gpu0", "vv.com/gpu=gpu1", "zz.com/x=y"])
    assert caught.value.message == "no CDI spec defines vv.com/gpu=gpu1, zz.com/x=y"
    assert "vv.com/gpu offers gpu0" in str(caught.value.hint)


def test_a_hint_stays_short(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "vv.com/gpu", *(f"d{n}" for n in range(20)))
    with pytest.raises(errors.DeviceNotFound) as caught:
        directory.scan([tmp_path]).resolve(["vv.com/gpu=x"])
    assert str(caught.value.hint).endswith("and 12 more")


def test_a_missing_device_points_to_the_files_that_could_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(errors.DeviceNotFound) as caught:
        directory.scan([tmp_path]).resolve(["zz.com/x=y"])
    assert str(tmp_path / "bad.json") in str(caught.value.hint)


def test_an_unqualified_name_is_the_askers_mistake(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match="not a fully qualified"):
        directory.scan([tmp_path]).resolve(["gpu0"])


def test_each_device_is_resolved_once_in_the_order_of_the_request(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "vv.com/gpu", "0", "1")
    found = directory.scan([tmp_path]).resolve(["vv.com/gpu=1", "vv.com/gpu=0", "vv.com/gpu=1"])
    assert [item.name for item in found] == ["vv.com/gpu=1", "vv.com/gpu=0"]


class Counter:
    """A decoder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: bytes) -> object:
        self.calls += 1
        return parse.decode_json(data)


def age(path: Path) -> None:
    """Wait until the file is old enough for its fingerprint to be trusted: its change time cannot be set."""
    while directory.scan([path.parent]).files[0].fingerprint is None:
        os.sched_yield()


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", "vv.com/gpu", "0", mark="one")
    age(path)
    counter = Counter()
    decoders: dict[str, Any] = {".json": counter}
    first = directory.scan([tmp_path], decoders=decoders)
    second = directory.scan([tmp_path], decoders=decoders, previous=first)
    assert counter.calls == 1
    assert second is first
    write(tmp_path, "a.json", "vv.com/gpu", "0", mark="two")
    third = directory.scan([tmp_path], decoders=decoders, previous=second)
    assert mark_of(third, "vv.com/gpu=0") == "two"


def test_a_file_changed_a_moment_ago_is_read_again_whatever_its_times_say(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", "vv.com/gpu", "0", mark="one")
    first = directory.scan([tmp_path])
    stamp = path.stat()
    write(tmp_path, "a.json", "vv.com/gpu", "0", mark="two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert mark_of(directory.scan([tmp_path], previous=first), "vv.com/gpu=0") == "two"


def test_a_file_that_went_away_is_forgotten(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", "vv.com/gpu", "0")
    first = directory.scan([tmp_path])
    path.unlink()
    assert directory.scan([tmp_path], previous=first).devices == {}
