"""What only the file-backed store can do or suffer: several processes, sudden death, long history."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncinotify
import pytest

from fairlead import errors
from fairlead.store import port
from fairlead.store.sqlite import database, notify
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

PRELUDE = """
import asyncio, pathlib, sys, time
from fairlead import telemetry
from fairlead.store import port
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta
def node(name): return core.Node(metadata=meta.ObjectMeta(name=name))
store = sqlite.SQLiteStore(pathlib.Path(sys.argv[1]))
"""


def node(name: str, **labels: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[sqlite.SQLiteStore]:
    with sqlite.SQLiteStore(path) as opened:
        yield opened


@contextlib.asynccontextmanager
async def child(path: Path, body: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process on the same file, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRELUDE + body, str(path), stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # else its pipes warn at the end of the loop


async def line(process: asyncio.subprocess.Process) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().split()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


FOLLOW = """
async def main():
    listing = await store.list(core.Node)
    print("ready", flush=True)
    async for change in store.watch(core.Node, since=listing.resource_version):
        print(change.object.metadata.name, time.monotonic(), flush=True)
asyncio.run(main())
"""


async def test_another_process_sees_changes_at_once_and_in_order(path: Path, store: sqlite.SQLiteStore) -> None:
    delays = []
    async with child(path, FOLLOW) as process:
        assert await line(process) == ["ready"]
        for number in range(50):
            await store.create(node(f"n{number}"))
            written = time.monotonic()
            name, seen = await line(process)
            assert name == f"n{number}"
            delays.append(float(seen) - written)
    assert statistics.median(delays) < notify.SLOW_S / 10, "woken by the notifier, not by a timer"


FLOOD = """
async def main():
    async def write(lane):
        for number in range(100_000):
            await store.create(node(f"{lane}-{number}"))
            print(f"{lane}-{number}", flush=True)
    async with asyncio.TaskGroup() as group:
        for lane in "abc": group.create_task(write(lane))
asyncio.run(main())
"""


@pytest.mark.parametrize("enough", [1, 57, 300])
async def test_kill_loses_nothing_committed(path: Path, enough: int) -> None:
    async with child(path, FLOOD) as process:
        said = [(await line(process))[0] for _ in range(enough)]
        process.kill()
        assert process.stdout is not None
        rest = (await process.stdout.read()).decode()
        said += rest[: rest.rfind("\n") + 1].split()
    with sqlite.SQLiteStore(path) as reopened:
        listing = await reopened.list(core.Node)
    names = {item.metadata.name for item in listing.items}
    assert set(said) <= names
    assert listing.resource_version == str(len(names)), "every step of history is one object here, none is half done"


async def test_a_commit_is_heard_though_its_writer_died_before_telling(path: Path, store: sqlite.SQLiteStore) -> None:
    body = """
sys.stdin.readline()
telemetry.arm_crash_point("store-committed")
asyncio.run(store.create(node("last-words")))
"""
    async with child(path, body) as process, asyncio.timeout(20):
        stream = store.watch(core.Node, since=(await store.list(core.Node)).resource_version)
        async with asyncio.TaskGroup() as group:
            heard = group.create_task(anext_of(stream))
            await asyncio.sleep(0)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            await process.wait()
        assert process.returncode == -signal.SIGKILL
        assert heard.result().object.metadata.name == "last-words"


async def anext_of(stream: AsyncIterator[port.Change[core.Node]]) -> port.Change[core.Node]:
    change = await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # every watch is an async generator
    return change


COUNT = """
async def main():
    for _ in range(40):
        while True:
            item = await store.get(core.Node, "shared")
            labels = {"count": str(int(item.metadata.labels["count"]) + 1)}
            changed = meta.msgspec.structs.replace(item.metadata, labels=labels)
            try:
                await store.update(meta.msgspec.structs.replace(item, metadata=changed))
                break
            except Exception as error:
                assert error.reason == "StaleVersion", error
asyncio.run(main())
"""


async def test_writers_in_several_processes_lose_no_update(path: Path, store: sqlite.SQLiteStore) -> None:
    await store.create(node("shared", count="0"))
    async with child(path, COUNT) as first, child(path, COUNT) as second:
        assert list(await asyncio.gather(first.wait(), second.wait())) == [0, 0]
    assert (await store.get(core.Node, "shared")).metadata.labels == {"count": "80"}


async def test_state_survives_reopening(path: Path) -> None:
    with sqlite.SQLiteStore(path) as first:
        made = await first.create(node("n", pool="a"))
    with sqlite.SQLiteStore(path) as second:
        assert await second.get(core.Node, "n") == made
        stream = second.watch(core.Node, since="0")
        assert (await anext_of(stream)).object == made


def test_the_file_is_private(path: Path, store: sqlite.SQLiteStore) -> None:
    assert {name.stat().st_mode & 0o777 for name in path.parent.iterdir()} == {0o600}


def test_creating_leaves_nothing_beside_the_file(path: Path) -> None:
    sqlite.SQLiteStore(path).close()
    assert [name.name for name in path.parent.iterdir()] == ["state.db"]


async def test_a_watch_gives_its_descriptor_back(store: sqlite.SQLiteStore) -> None:
    before = open_descriptors()
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(anext_of(store.watch(core.Node))) for _ in range(200)]
        await asyncio.sleep(0)
        assert open_descriptors() < before + 10, "all watchers share one"
        await store.create(node("n"))
    assert {reader.result().object.metadata.name for reader in readers} == {"n"}
    assert open_descriptors() == before


async def test_a_slow_timer_stands_in_for_inotify(
    path: Path, store: sqlite.SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> asyncinotify.Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncinotify, "Inotify", refuse)
    monkeypatch.setattr(notify, "SLOW_S", 0.01)
    with sqlite.SQLiteStore(path) as elsewhere:
        async with asyncio.TaskGroup() as group, asyncio.timeout(20):
            heard = group.create_task(anext_of(store.watch(core.Node)))
            await asyncio.sleep(0)
            await elsewhere.create(node("n"))
        assert heard.result().object.metadata.name == "n"


async def test_one_refusal_takes_nothing_else_of_its_transaction_with_it(store: sqlite.SQLiteStore) -> None:
    await store.create(node("taken"))
    names = ["a", "taken", "b", "Not-A-Name", "c"]
    outcomes = await asyncio.gather(*(store.create(node(name)) for name in names), return_exceptions=True)
    assert [getattr(outcome, "reason", "made") for outcome in outcomes] == [
        "made",
        "AlreadyExists",
        "made",
        "InvalidMetadata",
        "made",
    ]
    assert [item.metadata.name for item in (await store.list(core.Node)).items] == ["a", "b", "c", "taken"]
    assert (await store.list(core.Node)).resource_version == "4", "refused steps leave no gap in history"


async def test_a_bug_in_a_step_reaches_its_caller_and_nothing_is_kept(store: sqlite.SQLiteStore) -> None:
    unencodable = node("n", broken=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await store.create(unencodable)
    assert (await store.list(core.Node)).items == ()
    assert (await store.create(node("n"))).metadata.name == "n"


async def test_another_process_that_holds_the_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    with sqlite.SQLiteStore(path) as store, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.Unavailable) as refused:
            await store.create(node("n"))
        assert refused.value.reason == "StateBusy"
        other.execute("ROLLBACK")
        assert (await store.create(node("n"))).metadata.name == "n"


async def test_a_listing_far_behind_is_continued_from_the_file(path: Path, store: sqlite.SQLiteStore) -> None:
    """More changes than the feed keeps in memory: the watcher reads the rest from history."""
    start = (await store.list(core.Node)).resource_version
    stream = store.watch(core.Node, since=start)
    async with asyncio.TaskGroup() as group:
        for number in range(1500):
            group.create_task(store.create(node(f"n{number:04}")))
    seen = [(await anext(stream)).object.metadata.name for _ in range(1500)]
    await stream.aclose()  # type: ignore[attr-defined]  # every watch is an async generator
    assert sorted(seen) == [f"n{number:04}" for number in range(1500)]


def test_every_commit_is_flushed_before_it_is_told(path: Path, store: sqlite.SQLiteStore) -> None:
    """No test here can cut the power; SQLite's own word for it must do."""
    with contextlib.closing(database.connect(path, writes=True)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
