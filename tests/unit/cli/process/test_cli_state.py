"""`fairlead state`: names what cannot be read, sets it aside whole, and touches nothing while a service runs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.process import owner
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.kubelet.dra import claimrecord
from fairlead.store.sqlite import store as sqlite
from tests.unit.cli.conftest import fairlead

HOME = "b8a1a3a0-6c55-4c0c-9b43-1f0d9a2d6c11"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder as a service leaves it."""
    folder = tmp_path / "state"
    (folder / "kubelet").mkdir(parents=True)
    (folder / "kubelet" / "home-id").write_text(f"{HOME}\n")
    grant = checkpoint.Grant(pod_uid="u", container="c", resource="r", device_ids=("d",), response=b"")
    checkpoint.Checkpoint(folder / "kubelet").save({("u", "c", "r"): grant})
    record = claimrecord.ClaimRecord(namespace="n", name="c", uid="u", allocation="", drivers=())
    claimrecord.state_file(folder / "kubelet").save([record])
    sqlite.SQLiteStore(folder / "state.db").close()
    return folder


def names(folder: Path) -> set[str]:
    """Return what is in the folder, but for the lock and the empty log that SQLite's readers leave."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return found - {"lock", "state.db-wal", "state.db-shm"}


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


def states(folder: Path) -> dict[str, str]:
    answer = fairlead("state", "check", "-o", "json", "--state-folder", str(folder))
    return {row["file"]: row["state"] for row in json.loads(answer.stdout)}


def damage(folder: Path) -> None:
    (folder / "state.db").write_bytes(b"not a database at all\n" * 400)


def test_a_whole_folder_is_told_file_by_file(folder: Path) -> None:
    answer = fairlead("state", "check", "--state-folder", str(folder))
    assert answer.exit_code == 0
    assert [line.split(maxsplit=2) for line in answer.stdout.splitlines()[1:]] == [
        ["state.db", "ok", "schema 2"],
        ["kubelet/home-id", "ok", HOME],
        ["kubelet/device-manager.json", "ok", "containers with devices: 1"],
        ["kubelet/dra_manager_state", "ok", "claims of containers: 1"],
    ]


def test_a_folder_before_its_first_start_has_nothing_to_check(tmp_path: Path) -> None:
    assert set(states(tmp_path).values()) == {"absent"}
    assert names(tmp_path) == set()


@pytest.mark.parametrize("verb", ["check", "repair"])
def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path, verb: str) -> None:
    answer = fairlead("state", verb, "--state-folder", str(tmp_path / "nowhere"))
    assert (answer.exit_code, f"{tmp_path}/nowhere is not there" in answer.stderr) == (2, True)
    assert not (tmp_path / "nowhere").exists()


def test_every_file_that_cannot_be_used_has_its_reason(folder: Path) -> None:
    damage(folder)
    (folder / "kubelet" / "home-id").write_text("\x1b[2Jmine")
    (folder / "kubelet" / "device-manager.json").write_text("{")
    (folder / "kubelet" / "dra_manager_state").write_text("[")
    before = content(folder)
    answer = fairlead("state", "check", "--state-folder", str(folder))
    assert answer.exit_code == 8
    assert "\x1b" not in answer.stdout
    assert states(folder) == {
        "state.db": "StateDamaged",
        "kubelet/home-id": "HomeIdDamaged",
        "kubelet/device-manager.json": "CheckpointUnreadable",
        "kubelet/dra_manager_state": "CheckpointUnreadable",
    }
    assert content(folder) == before


def test_a_database_that_can_be_read_stays(folder: Path) -> None:
    before = content(folder)
    answer = fairlead("state", "repair", "--state-folder", str(folder))
    assert (answer.exit_code, "nothing was changed" in answer.stdout) == (0, True)
    assert content(folder) == before


def test_a_lost_database_takes_the_identity_with_it_so_that_containers_stay(folder: Path) -> None:
    damage(folder)
    before = content(folder)
    answer = fairlead("state", "repair", "--state-folder", str(folder))
    assert (answer.exit_code, f"label=fairlead.dev/home={HOME}" in answer.stdout) == (0, True)
    after = content(folder)
    assert after == {
        "state.db.damaged-1": before["state.db"],
        "kubelet/home-id.old-1": before["kubelet/home-id"],
        "kubelet/device-manager.json.old-1": before["kubelet/device-manager.json"],
        "kubelet/dra_manager_state.old-1": before["kubelet/dra_manager_state"],
    }
    assert set(states(folder).values()) == {"absent"}


def test_the_identity_stays_where_containers_are_to_go(folder: Path) -> None:
    damage(folder)
    answer = fairlead("state", "repair", "--remove-containers", "--state-folder", str(folder))
    assert answer.exit_code == 0
    assert names(folder) == {
        "state.db.damaged-1",
        "kubelet/home-id",
        "kubelet/device-manager.json",
        "kubelet/dra_manager_state",
    }


def test_a_second_repair_replaces_nothing_that_the_first_set_aside(folder: Path) -> None:
    for _ in range(2):
        damage(folder)
        (folder / "kubelet" / "home-id").write_text(HOME)
        assert fairlead("state", "repair", "--state-folder", str(folder)).exit_code == 0
    assert {"state.db.damaged-1", "state.db.damaged-2"} <= names(folder)
    assert {"kubelet/home-id.old-1", "kubelet/home-id.old-2"} <= names(folder)


def test_an_identity_that_cannot_be_read_does_not_stop_the_repair(folder: Path) -> None:
    damage(folder)
    (folder / "kubelet" / "home-id").write_text("")
    assert fairlead("state", "repair", "--state-folder", str(folder)).exit_code == 0
    assert "kubelet/home-id.old-1" in names(folder)


def test_a_newer_database_is_refused_and_stays(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection, connection:
        connection.execute("UPDATE meta SET value = 999 WHERE name = 'schema'")
    connection.close()
    before = content(folder)
    answer = fairlead("state", "repair", "--state-folder", str(folder))
    assert (answer.exit_code, "schema 999" in answer.stderr) == (8, True)
    assert content(folder) == before


def test_repair_is_refused_while_a_service_owns_the_folder_and_check_is_not(folder: Path) -> None:
    damage(folder)
    before = content(folder)
    config = settings.load(flags={"state.folder": str(folder)}, env={}, file=None)
    with owner.own_state(config):
        answer = fairlead("state", "repair", "--state-folder", str(folder))
        assert states(folder)["state.db"] == "StateDamaged"
    assert (answer.exit_code, "in use by another fairlead (pid " in answer.stderr) == (4, True)
    assert content(folder) == before
