"""Figures over time by the API, where something is wrong: damage, a full disk, times beyond reason."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.serve.backend import port
from fairlead.serve.history.file import FILE
from tests.unit.serve.history.kept import Kept
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.v1.metrics.test_api_metrics import period
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    made = Kept(world, tmp_path)
    world.backend = replace(world.backend, history=made.history)
    world.services = replace(world.services, backend=world.backend)
    return made


@pytest.fixture
async def lab(kept: Kept, world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def test_damage_that_only_a_reader_meets_is_set_aside_at_the_next_sample(
    kept: Kept, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    kept.load(1, 2, 3, 4)
    begin = kept.at
    await kept.tick(400)
    file = tmp_path / FILE
    with contextlib.closing(sqlite3.connect(file)) as other, other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    with file.open("r+b") as raw:  # the writer has its pages, the first and the last, in memory
        for page in range(6, file.stat().st_size // 4096 - 6):
            raw.seek(page * 4096)
            raw.write(b"\xff" * 4096)
    asked = period(kept, begin)
    answer = await api.get("/v1/gpus/GPU-0/metrics", params=asked)
    assert (answer.status_code, answer.json()["reason"]) == (503, "HistoryUnreachable")
    await kept.recorder.tick()
    assert kept.file.set_aside is not None
    kept.at += 10
    kept.steady += 10
    await kept.tick(2)
    answer = await api.get("/v1/gpus/GPU-0/metrics", params={**period(kept, begin)})
    assert answer.status_code == 200
    assert [one for one in answer.json()["series"][0]["means"] if one is not None] == [1, 1]


async def test_a_tenant_is_told_no_path_of_the_machine(
    kept: Kept, lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (await lab.run("developer", "mine", gpus=1, args=["sleep", "60"])).status_code == 201
    await lab.ask("developer", "GET", "/v1/containers/mine/wait", params={"state": "started"})
    kept.load(10, 0, 0, 0)
    begin = kept.at
    await kept.tick(2)

    def full(at: int, rows: object) -> None:
        raise sqlite3.OperationalError(f"no space for {at}: {rows is not None}")

    monkeypatch.setattr(kept.file, "write", full)
    await kept.recorder.tick()
    path = "/v1/containers/mine/metrics"
    asked = period(kept, begin)
    seen = (await lab.ask("viewer", "GET", path, params=asked)).json()
    assert seen["notes"] == ["nothing was kept at the last sample"]
    where = {"namespace": lab.namespaces["red"]}
    whole = (await lab.ask("root", "GET", path, params={**asked, **where})).json()
    assert str(tmp_path) in whole["notes"][0]


async def test_a_file_that_could_not_be_opened_is_said_by_status(world: World) -> None:
    refusal = port.Absent(kind=errors.Unavailable, message="cannot open /x", reason="HistoryUnreachable", hint="room")
    world.services = replace(world.services, backend=replace(world.backend, history=refusal))
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        found = (await client.get("/v1/status")).json()["history"]
    assert (found["days"], found["problem"]) == (0, "cannot open /x")


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "9999-12-31T00:00:00Z", "until": "9999-12-31T23:59:59Z", "step": "604800"},
        {"since": "0001-01-01T00:00:00Z"},
        {"until": "9999-12-31T23:59:59+14:00"},
        {"since": "NaN"},
        {"since": "9" * 5000 + "s"},
        {"since": "٣h"},
        {"step": "9" * 5000},
    ],
)
async def test_times_and_steps_beyond_reason_are_refused(
    kept: Kept, api: httpx.AsyncClient, asked: dict[str, str]
) -> None:
    assert (await api.get("/v1/gpus/0/metrics", params=asked)).status_code == 400
