"""Figures over time by the API: forms, bounds, and what tenants may see."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fairlead.serve.v1 import dependencies
from tests.unit.serve.history.kept import Kept
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.v1.test_api_users import connected
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


async def start(api: httpx.AsyncClient, name: str, gpus: int = 1) -> None:
    body = {"image": "demo", "name": name, "gpus": gpus, "args": ["sleep", "60"]}
    assert (await api.post("/v1/containers", json=body)).status_code == 201
    await api.get(f"/v1/containers/{name}/wait", params={"state": "started"})


def period(kept: Kept, begin: float) -> dict[str, str]:
    def said(at: float) -> str:
        import datetime as dt

        return dt.datetime.fromtimestamp(at, dt.UTC).isoformat()

    return {"since": said(begin), "until": said(kept.at)}


async def test_a_container_has_its_own_figures_and_its_gpus(kept: Kept, world: World, api: httpx.AsyncClient) -> None:
    client = api
    await start(client, "train", 2)
    kept.load(90, 80, 70, 60)
    begin = kept.at
    await kept.tick(4)
    found = (await client.get("/v1/containers/train/metrics", params=period(kept, begin))).json()
    assert (found["of"], found["namespace"], found["source"], found["step_s"]) == ("train", "default", "machine", 10)
    assert len(found["times"]) == 4
    by = {(one["metric"], one["device"]): one for one in found["series"]}
    assert by["load", "GPU-0"]["means"] == [90] * 4
    assert by["load", "GPU-1"]["means"] == [80] * 4
    assert ("load", "GPU-2") not in by
    assert by["memory", ""]["means"] == [1 << 20] * 4
    assert by["power", "GPU-0"]["means"] == [None] * 4
    assert not by["load", "GPU-0"]["is_shared"]


async def test_a_table_is_comma_separated(kept: Kept, api: httpx.AsyncClient) -> None:
    kept.load(90, None, 0, 0)
    begin = kept.at
    await kept.tick(2)
    answer = await api.get("/v1/gpus/GPU-0/metrics", params={**period(kept, begin), "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0][:2] == ["time", "load (%) GPU-0"]
    assert [row[1] for row in rows[1:]] == ["90.0", "90.0"]
    assert (await api.get("/v1/gpus/GPU-0/metrics", params={"format": "xlsx"})).status_code == 400


@pytest.mark.parametrize(
    "asked",
    [
        {"step": "0"},
        {"step": "-10"},
        {"step": "x"},
        {"since": "yesterday"},
        {"since": "1h", "until": "2h"},
        {"since": "14d", "step": "10"},
        {"since": "999999999w"},
        {"since": "1h\0"},
    ],
)
async def test_what_is_no_period_is_refused(kept: Kept, api: httpx.AsyncClient, asked: dict[str, str]) -> None:
    answer = await api.get("/v1/gpus/GPU-0/metrics", params=asked)
    assert answer.status_code == 400, answer.text
    assert answer.json()["reason"] in {"StepInvalid", "PeriodInvalid", "RequestInvalid", "ParameterInvalid"}


async def test_a_year_is_answered_and_says_how_long_figures_are_kept(kept: Kept, api: httpx.AsyncClient) -> None:
    found = (await api.get("/v1/gpus/0/metrics", params={"since": "365d"})).json()
    assert len(found["times"]) <= 361
    assert any("14 days" in one for one in found["notes"])


@pytest.mark.parametrize("name", ["%00", "..%2f..%2fetc", "GPU-9", "-1", "%F0%9F%92%A5", "a" * 3000])
async def test_gpus_that_are_none_are_not_found(kept: Kept, api: httpx.AsyncClient, name: str) -> None:
    assert (await api.get(f"/v1/gpus/{name}/metrics")).status_code == 404
    assert (await api.get(f"/v1/containers/{name}/metrics")).status_code == 404


async def test_where_none_are_kept_the_next_step_is_said(api: httpx.AsyncClient) -> None:
    answer = await api.get("/v1/gpus/metrics")
    assert answer.status_code == 404
    assert answer.json()["reason"] == "HistoryAbsent"
    assert "history.days" in answer.json()["hint"]
    assert (await api.get("/v1/status")).json()["history"] is None


async def test_all_gpus_at_a_glance(kept: Kept, api: httpx.AsyncClient) -> None:
    await start(api, "train", 2)
    kept.load(50, 70, 0, 0)
    await kept.tick(12)
    found = (await api.get("/v1/gpus/metrics")).json()
    assert [one["gpu"] for one in found["items"]] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert len(found["items"][0]["loads"]) == 60
    assert found["items"][0]["loads"][-2] == 50
    assert [(one["name"], one["held_percent"], one["used_percent"]) for one in found["periods"]] == [
        ("today", 50, 30),
        ("week", 50, 30),
    ]


async def test_status_says_what_is_kept(kept: Kept, api: httpx.AsyncClient) -> None:
    kept.load(1, 1, 1, 1)
    await kept.tick(3)
    kept.file.forget(kept.at)
    found = (await api.get("/v1/status")).json()["history"]
    assert (found["days"], found["rows"], found["problem"]) == (14, 12, "")


# tenants


async def test_a_tenant_sees_a_gpu_only_while_it_held_it(kept: Kept, lab: Lab) -> None:
    kept.load(90, 0, 0, 0)
    begin = kept.at
    assert (await lab.run("stranger", "theirs", gpus=1, args=["sleep", "60"])).status_code == 201
    await lab.ask("stranger", "GET", "/v1/containers/theirs/wait", params={"state": "started"})
    await kept.tick(3)
    asked = period(kept, begin)
    assert (await lab.ask("viewer", "GET", "/v1/gpus/GPU-0/metrics", params=asked)).status_code == 404
    assert (await lab.ask("viewer", "GET", "/v1/gpus/metrics")).json() == {"items": [], "periods": []}
    assert (await lab.ask("stranger", "GET", "/v1/gpus/GPU-0/metrics", params=asked)).status_code == 200
    await lab.ask("stranger", "DELETE", "/v1/containers/theirs")
    await lab.ask("stranger", "GET", "/v1/containers/theirs/wait", params={"state": "gone"})
    kept.load(40, 0, 0, 0)
    await kept.tick(2)  # nobody's
    assert (await lab.run("developer", "mine", gpus=1, args=["sleep", "60"])).status_code == 201
    await lab.ask("developer", "GET", "/v1/containers/mine/wait", params={"state": "started"})
    kept.load(10, 0, 0, 0)
    await kept.tick(3)
    found = (await lab.ask("viewer", "GET", "/v1/gpus/GPU-0/metrics", params=period(kept, begin))).json()
    (loads,) = (one for one in found["series"] if one["metric"] == "load")
    assert loads["means"] == [None] * 5 + [10] * 3
    assert not [one for one in found["series"] if one["metric"] == "held"]  # whether others held it
    whole = (await lab.ask("root", "GET", "/v1/gpus/GPU-0/metrics", params=period(kept, begin))).json()
    assert whole["series"][0]["means"] == [90] * 3 + [40] * 2 + [10] * 3


async def test_another_tenancys_container_does_not_exist(kept: Kept, lab: Lab) -> None:
    assert (await lab.run("developer", "train", gpus=1, args=["sleep", "60"])).status_code == 201
    path = "/v1/containers/train/metrics"
    there = {"namespace": lab.namespaces["red"]}
    assert (await lab.ask("viewer", "GET", path)).status_code == 200
    assert (await lab.ask("stranger", "GET", path)).status_code == 404
    assert (await lab.ask("stranger", "GET", path, params=there)).status_code == 404
    assert (await lab.ask("nobody", "GET", path)).status_code == 403
    assert (await lab.ask("nobody", "GET", "/v1/gpus/GPU-0/metrics")).status_code == 403


async def test_a_namesake_does_not_inherit_what_an_earlier_tenancy_held(kept: Kept, lab: Lab) -> None:
    kept.load(90, 0, 0, 0)
    kept.at -= 7200  # before this tenancy was made
    begin = kept.at
    assert (await lab.run("developer", "train", gpus=1, args=["sleep", "60"])).status_code == 201
    await lab.ask("developer", "GET", "/v1/containers/train/wait", params={"state": "started"})
    await kept.tick(3)
    answer = await lab.ask("viewer", "GET", "/v1/gpus/GPU-0/metrics", params=period(kept, begin))
    assert answer.status_code == 404


async def test_many_questions_at_once_are_answered_or_told_to_come_again(kept: Kept, api: httpx.AsyncClient) -> None:
    kept.load(1, 2, 3, 4)
    await kept.tick(3)
    answers = await asyncio.gather(*(api.get("/v1/gpus/GPU-0/metrics") for _ in range(300)))
    said = {one.status_code for one in answers}
    assert said <= {200, 503}
    assert 200 in said
    assert (await api.get("/v1/gpus/GPU-0/metrics")).status_code == 200


async def test_a_user_of_the_machine_sees_their_own_gpus_alone(kept: Kept, world: World) -> None:
    made = application(replace(world.services, callers=dependencies.Callers(masters=frozenset({0}))))
    clients = [
        httpx.AsyncClient(transport=in_process(connected(made, uid)), base_url="http://test") for uid in (1001, 1002)
    ]
    ann, ben = clients
    await start(ben, "theirs")
    kept.load(90, 0, 0, 0)
    begin = kept.at
    await kept.tick(3)
    asked = period(kept, begin)
    assert (await ben.get("/v1/gpus/GPU-0/metrics", params=asked)).json()["series"][0]["means"] == [90] * 3
    for path in ("/v1/gpus/GPU-0/metrics", "/v1/containers/theirs/metrics"):
        assert (await ann.get(path, params=asked)).status_code == 404
    assert (await ann.get("/v1/gpus/metrics")).json() == {"items": [], "periods": []}
    for client in clients:
        await client.aclose()
