"""State that cannot be read or written: a clear error, nothing lost, nothing overwritten."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman


def stopped(home: Home) -> None:
    assert home.process is not None
    home.process.terminate()
    home.process.wait(15)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("damage", ["garbage", pytest.param("truncated", marks=pytest.mark.slow)])
def test_a_damaged_database_is_refused_and_left_as_it_is(home: Home, damage: str) -> None:
    home.up()
    home.start("kept", "-g", "1")
    stopped(home)
    database = home.state / "state.db"
    data = database.read_bytes()
    database.write_bytes(b"not a database" * 400 if damage == "garbage" else data[: len(data) // 3])
    for rest in home.state.glob("state.db-*"):
        rest.unlink()
    seen = digest(database)
    result = home("up", "--simulate", "h100x8")
    assert result.code == 8, result.err
    assert str(database) in result.err
    assert digest(database) == seen
    assert [item["State"] for item in home.containers()] == ["running"]
    database.write_bytes(data)
    home.up()
    assert home.show("kept")["state"] == "running"


def test_a_database_from_a_newer_version_is_refused(home: Home) -> None:
    home.up()
    stopped(home)
    with contextlib.closing(sqlite3.connect(home.state / "state.db")) as connection, connection:
        connection.execute("update meta set value = 9999 where name = 'schema'")
    connection.close()
    result = home("up", "--simulate", "h100x8")
    assert result.code in {6, 8}
    assert "9999" in result.err


def test_a_damaged_checkpoint_is_set_aside_and_made_anew(home: Home) -> None:
    home.up()
    home.start("holder", "-g", "3")
    held = home.show("holder")["gpu_ids"]
    home.kill()
    path = home.state / "kubelet" / "device-manager.json"
    damaged = path.read_bytes()[:-20]
    path.write_bytes(damaged)
    home.up()
    aside = path.parent / "device-manager.json.damaged-1"
    home.until(aside.exists, what="the kubelet has set it aside")
    assert aside.read_bytes() == damaged
    home.until(lambda: home.allocatable() == 8, what="the plugin registered")
    home.start("other", "-g", "5")
    assert not set(held) & set(home.show("other")["gpu_ids"])
    home.ok("run", "-d", "-g", "1", "--name", "waits", home.image, "--", "true")
    home.until(lambda: "too few GPUs free" in home.ok("explain", "waits").out, what="nothing is handed out twice")


@pytest.mark.slow
def test_a_checkpoint_from_a_newer_version_is_refused_and_left_as_it_is(home: Home) -> None:
    home.up()
    home.start("holder", "-g", "1")
    stopped(home)
    path = home.state / "kubelet" / "device-manager.json"
    document = json.loads(path.read_bytes())
    newer = json.dumps({**document, "version": 99}).encode()
    path.write_bytes(newer)
    result = home("up", "--simulate", "h100x8")
    assert result.code == 6, result.err
    assert "version 99" in result.err
    assert path.read_bytes() == newer


@pytest.fixture
def small(home: Home) -> Iterator[Home]:
    """A home whose state folder is a file system of 24 MiB."""
    home.state.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(home.state)), check=True)
    yield home
    home.close()
    subprocess.run(("umount", "-l", str(home.state)), check=True)


def test_a_full_disk_is_told_and_survived(small: Home) -> None:
    small.up()
    small.start("before", "-g", "2")
    filler = small.state / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    result = small("run", "-d", "-g", "2", "--name", "during", small.image, "--", "sleep", "1000")
    assert result.code == 6, (result.out, result.err)
    assert "disk" in (result.err + result.out).lower() or "space" in (result.err + result.out).lower()
    assert small.show("before")["state"] == "running"
    filler.unlink()
    small.start("after", "-g", "2")
    small.until(lambda: small.free_gpus() == 4, what="two containers hold two GPUs each")
