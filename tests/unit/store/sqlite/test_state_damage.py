"""State that cannot be read is refused by name and never written to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.store import repair
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta


def node(name: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name, annotations={"filler": "x" * 2000}))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A closed state file of some hundred pages."""
    path = tmp_path / "state.db"
    with sqlite.SQLiteStore(path) as store:
        await asyncio.gather(*(store.create(node(f"n{number}")) for number in range(100)))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def garble_everything(path: Path) -> None:
    path.write_bytes(b"not a database at all\n" * 4000)


def alter(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: cut(path, 0),
    "cut inside the header": lambda path: cut(path, 50),
    "cut after the first page": lambda path: cut(path, 4096),
    "cut in the middle": lambda path: cut(path, path.stat().st_size // 2),
    "last page gone": lambda path: cut(path, path.stat().st_size - 4096),
    "garbled": garble_everything,
    "header garbled": lambda path: overwrite(path, 0, b"\0" * 16),
    "schema page garbled": lambda path: overwrite(path, 100, b"\xff" * 3000),
    "pages in the middle garbled": lambda path: overwrite(path, path.stat().st_size // 2 & ~4095, b"\xa5" * 16_384),
    "of another program": lambda path: alter(path, "PRAGMA application_id = 7"),
    "without its tables": lambda path: alter(path, "DROP TABLE meta"),
    "without its schema number": lambda path: alter(path, "DELETE FROM meta WHERE name = 'schema'"),
}


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
def test_damaged_state_is_refused_and_left_alone(path: Path, harm: Callable[[Path], None]) -> None:
    harm(path)
    before = content(path.parent)
    with pytest.raises(errors.ProtocolError) as refused:
        sqlite.SQLiteStore(path)
    assert refused.value.reason == "StateDamaged"
    assert str(path) in refused.value.message
    assert refused.value.hint
    assert content(path.parent)[path.name] == before[path.name]


def test_state_of_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    alter(path, "UPDATE meta SET value = 999 WHERE name = 'schema'", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = content(path.parent)
    with pytest.raises(errors.ProtocolError, match="schema 999") as refused:
        sqlite.SQLiteStore(path)
    assert refused.value.reason == "StateFromNewerVersion"
    assert content(path.parent)[path.name] == before[path.name]


def kill_a_writer(path: Path) -> None:
    """Leave a log behind that holds committed changes."""
    code = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from fairlead.store.sqlite import store as sqlite\n"
        "from fairlead.wire.kubernetes import core, meta\n"
        "store = sqlite.SQLiteStore(pathlib.Path(sys.argv[1]))\n"
        "asyncio.run(store.create(core.Node(metadata=meta.ObjectMeta(name='in-the-log'))))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL


async def test_what_only_the_log_holds_is_read_back(path: Path) -> None:
    kill_a_writer(path)
    assert path.with_name("state.db-wal").stat().st_size
    with sqlite.SQLiteStore(path) as store:
        assert (await store.get(core.Node, "in-the-log")).metadata.name == "in-the-log"


def test_a_log_without_its_file_is_not_replayed_into_a_new_one(path: Path) -> None:
    kill_a_writer(path)
    path.unlink()
    before = content(path.parent)
    with pytest.raises(errors.ProtocolError, match="missing"):
        sqlite.SQLiteStore(path)
    assert content(path.parent) == before


async def test_state_is_set_aside_whole_on_request(path: Path) -> None:
    kill_a_writer(path)
    garbled = path.read_bytes()[:5000]
    cut(path, 5000)
    log = path.with_name("state.db-wal").read_bytes()
    moved = repair.set_state_aside(path)
    assert [file.name for file in moved] == ["state.db.damaged-1", "state.db.damaged-1-wal", "state.db.damaged-1-shm"]
    assert (moved[0].read_bytes(), moved[1].read_bytes()) == (garbled, log)
    with sqlite.SQLiteStore(path) as store:
        assert (await store.list(core.Node)).items == ()


def test_a_second_copy_does_not_replace_the_first(path: Path) -> None:
    first = repair.set_state_aside(path)
    sqlite.SQLiteStore(path).close()
    second = repair.set_state_aside(path)
    assert [first[0].name, second[0].name] == ["state.db.damaged-1", "state.db.damaged-2"]


def test_a_lonely_log_can_be_set_aside_too(path: Path) -> None:
    kill_a_writer(path)
    path.unlink()
    assert repair.set_state_aside(path)
    sqlite.SQLiteStore(path).close()


@pytest.mark.parametrize("name", ["absent/state.db", "file/state.db", ""])
def test_a_place_that_cannot_hold_the_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.Unavailable, match=str(tmp_path)) as refused:
        sqlite.SQLiteStore(tmp_path / name)
    assert refused.value.reason == "StateUnreachable"
    assert refused.value.hint


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user or to mount")


@as_root
@pytest.mark.parametrize("folder_mode", [0o700, 0o755])
def test_another_users_file_is_refused_and_left_alone(path: Path, folder_mode: int) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from fairlead import errors\n"
        "from fairlead.store.sqlite import store as sqlite\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    sqlite.SQLiteStore(pathlib.Path(sys.argv[1]))\n"
        "except errors.Unavailable as error:\n    print(error.reason)\n"
    )
    before = content(path.parent)
    for folder in (path.parent, *path.parent.parents):
        if "pytest" in folder.name:
            folder.chmod(folder_mode)
    said = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["StateUnreachable"]
    assert content(path.parent) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def fill(store: sqlite.SQLiteStore, made: list[str]) -> None:
    for number in range(1000):
        made.append((await store.create(node(f"n{number}"))).metadata.name)  # noqa: PERF401 - it ends by raising


@as_root
async def test_a_full_disk_loses_nothing_and_passes(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 500_000)
    made: list[str] = []
    with sqlite.SQLiteStore(small_disk / "state.db") as store:
        with pytest.raises(errors.Unavailable) as refused:
            await fill(store, made)
        assert refused.value.reason == "StateDiskFull"
        assert made
        assert sorted(made) == [item.metadata.name for item in (await store.list(core.Node)).items]
        ballast.unlink()
        made.append((await store.create(node("after"))).metadata.name)
    with sqlite.SQLiteStore(small_disk / "state.db") as reopened:
        assert sorted(made) == [item.metadata.name for item in (await reopened.list(core.Node)).items]


@as_root
def test_a_full_disk_is_named_when_state_is_first_made(small_disk: Path) -> None:
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(b"\0" * 4096) == 4096:
            pass
    with pytest.raises(errors.Unavailable) as refused:
        sqlite.SQLiteStore(small_disk / "state.db")
    assert refused.value.reason == "StateDiskFull"
    assert [file.name for file in small_disk.iterdir()] == ["ballast"]
