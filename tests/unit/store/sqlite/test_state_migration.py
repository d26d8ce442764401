"""State of an older version is opened, brought to the present schema and read; what it is looked up by is indexed."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import sqlite3
from pathlib import Path

import pytest

from fairlead.model.container.step import TraceStep
from fairlead.store import tracerecorder
from fairlead.store.port import Selector
from fairlead.store.sqlite import database
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

SCHEMA_1 = Path(__file__).parent / "fixtures" / "state-schema-1.db"
"""Written by the last version with schema 1: a namespace, two pods, three events of each."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(SCHEMA_1, tmp_path / "state.db"))


def described(path: Path) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()


def schema_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()[0])


async def test_objects_and_history_of_the_old_schema_are_all_there(old: Path) -> None:
    assert schema_of(old) == 1
    with sqlite.SQLiteStore(old) as store:
        pods = await store.list(core.Pod)
        assert [pod.metadata.name for pod in pods.items] == ["alpha", "beta"]
        steps = await tracerecorder.list_steps(store, tracerecorder.reference(pods.items[1]))
        assert [step.message for step in steps] == ["step 0 of beta", "step 1 of beta", "step 2 of beta"]
        async with contextlib.aclosing(store.watch(core.Pod, since="1")) as changes:  # type: ignore[type-var]
            assert (await anext(changes)).object.metadata.name == "alpha"
    assert schema_of(old) == database.SCHEMA


def test_a_migrated_file_is_built_as_a_new_one_is(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    database.ensure(old)
    database.ensure(new)
    assert described(old) == described(new)


def test_a_migration_that_cannot_finish_leaves_the_old_schema(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {1: (*database._STEPS[1], "CREATE INDEX no_such ON nothing (nowhere)")}
    before = described(old)
    with monkeypatch.context() as patch:
        patch.setattr(database, "_STEPS", broken)
        with pytest.raises(Exception, match="nothing"):
            database.ensure(old)
    assert schema_of(old) == 1
    assert described(old) == before
    database.ensure(old)
    assert schema_of(old) == database.SCHEMA


def test_processes_that_open_old_state_at_once_migrate_it_once(old: Path) -> None:
    context = multiprocessing.get_context("spawn")
    starters = [context.Process(target=database.ensure, args=(old,)) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert [starter.exitcode for starter in starters] == [0] * 4
    assert schema_of(old) == database.SCHEMA


def test_an_older_process_that_has_the_file_open_goes_on_writing(old: Path) -> None:
    with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as earlier:
        earlier.execute("SELECT * FROM objects").fetchall()
        database.ensure(old)
        event = '{"kind":"Event","metadata":{"name":"e"},"involvedObject":{"uid":"u-1","name":"late"}}'
        earlier.execute("INSERT INTO objects VALUES ('v1/Event', 'default', 'e', 'x', 99, ?)", (event,))
        rows = earlier.execute("SELECT name FROM objects WHERE about_uid = 'u-1' AND about_name = 'late'").fetchall()
    assert rows == [("e",)]


@pytest.mark.parametrize(("field", "index"), [("uid", "objects_about_uid"), ("name", "objects_about_name")])
def test_events_are_looked_up_in_an_index(tmp_path: Path, field: str, index: str) -> None:
    path = tmp_path / "state.db"
    database.ensure(path)
    selector = Selector(namespace="default", fields={"involvedObject.kind": "Pod", f"involvedObject.{field}": "x"})
    where, values = sqlite._narrow("v1/Event", selector)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN SELECT document FROM objects WHERE {where} ORDER BY namespace, name",  # noqa: S608 - ours
            values,
        ).fetchall()
    assert [row[3] for row in plan] == [
        f"SEARCH objects USING INDEX {index} ({index.removeprefix('objects_')}=? AND kind=? AND namespace=?)"
    ]


async def test_events_are_found_by_object_as_a_scan_would_find_them(tmp_path: Path) -> None:
    with sqlite.SQLiteStore(tmp_path / "state.db") as store:
        for name, uid in (("one", "u1"), ("two", "u2"), ("two", "u3")):
            about = core.ObjectReference(kind="Pod", name=name, namespace="default", uid=uid)
            await tracerecorder.record(store, about, TraceStep(layer="api", reason="Accepted", message=uid, at=1.0))
        await store.create(core.Event(metadata=meta.ObjectMeta(name="bare", namespace="default")))

        async def found(**fields: str) -> list[str]:
            wanted = Selector(fields={f"involvedObject.{name}": value for name, value in fields.items()})
            return sorted(event.message for event in (await store.list(core.Event, wanted)).items)

        assert await found(name="two") == ["u2", "u3"]
        assert await found(uid="u3", name="two") == ["u3"]
        assert await found(uid="u3", name="one") == []
        assert await found(uid="") == [""]
