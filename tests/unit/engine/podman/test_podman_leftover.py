"""Which conmons watch a container of ours, by their command lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.engine.podman import leftover

BUNDLES = Path("/var/lib/containers/storage/overlay-containers")
OURS = ("/usr/bin/conmon", "-c", "aa11", "-n", "kl-1", "-b", f"{BUNDLES}/aa11/userdata", "-p", "/run/x/pidfile")


def found(tmp_path: Path, *words: str) -> dict[int, str]:
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "cmdline").write_bytes(b"\0".join(word.encode() for word in (*words, "")))
    (tmp_path / "18").mkdir()  # it ended meanwhile
    (tmp_path / "uptime").write_text("1 1")
    return leftover.find_conmons(BUNDLES, "kl-1", proc=tmp_path)


def test_a_conmon_of_our_container_is_found_with_its_id(tmp_path: Path) -> None:
    assert found(tmp_path, *OURS) == {17: "aa11"}


def test_the_runtime_that_a_conmon_was_given_is_found_with_it(tmp_path: Path) -> None:
    own = (*OURS, "-r", "/usr/libexec/fairlead/podman/fairlead-gvisor")
    assert found(tmp_path, *own) == {17: "aa11"}
    runtimes = leftover.find_runtimes(BUNDLES, "kl-1", proc=tmp_path)
    assert runtimes == {"aa11": "/usr/libexec/fairlead/podman/fairlead-gvisor"}
    assert leftover.find_runtimes(BUNDLES, "kl-2", proc=tmp_path) == {}


def test_a_conmon_not_yet_reached_through_the_shell_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, "/bin/sh", "/tmp/fairlead-podman-x/conmon", *OURS[1:]) == {17: "aa11"}


def test_a_process_that_has_the_kernel_show_a_terabyte_as_its_words_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    with (tmp_path / "9/cmdline").open("wb") as file:
        file.truncate(1 << 40)
    assert found(tmp_path, *OURS) == {17: "aa11"}


def test_another_name_is_not_ours(tmp_path: Path) -> None:
    assert found(tmp_path, *("kl-11" if word == "kl-1" else word for word in OURS)) == {}


def test_the_same_name_in_another_storage_is_not_ours(tmp_path: Path) -> None:
    assert found(tmp_path, *(word.replace("/var/lib", "/home/x") for word in OURS)) == {}


def test_a_bundle_of_another_id_is_not_ours(tmp_path: Path) -> None:
    assert found(tmp_path, *("bb22" if word == "aa11" else word for word in OURS)) == {}


def test_a_command_line_that_breaks_off_is_not_ours(tmp_path: Path) -> None:
    assert found(tmp_path, "conmon", "-n", "kl-1", "-b", "/x", "-c") == {}


def test_a_container_that_only_its_runtime_has_is_found_by_its_name(tmp_path: Path) -> None:
    bundles, run = tmp_path / "storage", tmp_path / "run"
    bundles.mkdir()
    rows = [{"id": "aa11", "names": ["kl-1"]}, {"id": "bb22", "names": ["kl-2"]}, {"id": "cc33", "names": ["kl-1"]}]
    (bundles / "containers.json").write_text(json.dumps(rows))
    for identity in ("aa11", "bb22"):
        (run / "runc" / identity).mkdir(parents=True)

    assert leftover.find_made(bundles, "kl-1", "/usr/sbin/runc", run=run) == {"aa11"}
    assert leftover.find_made(bundles, "kl-1", "crun", run=run) == set()
    assert leftover.find_made(tmp_path / "none", "kl-1", "runc", run=run) == set()


class _Podman:
    async def host(self) -> None:
        return None


async def test_a_search_that_takes_too_long_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(leftover, "find_left", lambda *_: time.sleep(0.5))
    with pytest.raises(errors.Unavailable, match="the search for it takes too long") as caught:
        await leftover.discard(_Podman(), "kl-1")  # type: ignore[arg-type]  # it is asked for its host alone
    assert caught.value.reason == "ContainerLeft"


def stored(folder: Path, metadata: str) -> bool:
    (folder / "containers.json").write_text(json.dumps([{"id": "aa11", "names": ["kl-1"], "metadata": metadata}]))
    return leftover.is_stored(folder, "kl-1")


def test_storage_that_podman_made_for_a_container_is_found_by_its_name(tmp_path: Path) -> None:
    assert stored(tmp_path, json.dumps({"image-name": "localhost/x:1", "name": "kl-1", "created-at": 1}))
    assert not leftover.is_stored(tmp_path, "kl-11")


@pytest.mark.parametrize(
    "metadata",
    ["", "null", "3", '{"name": "other"}', '{"name": "kl-1", "pod-name": "k8s_POD"}', '{"name": 1}'],
    ids=["a build's", "null", "a number", "another name", "CRI-O's", "a name that is none"],
)
def test_storage_of_another_program_is_left_alone(tmp_path: Path, metadata: str) -> None:
    assert not stored(tmp_path, metadata)


def test_storage_that_cannot_be_read_holds_nothing(tmp_path: Path) -> None:
    assert not leftover.is_stored(tmp_path, "kl-1")
    (tmp_path / "containers.json").write_text("{")
    assert not leftover.is_stored(tmp_path, "kl-1")
