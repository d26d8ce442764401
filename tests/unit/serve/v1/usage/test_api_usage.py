"""Usage over the API: added up, exported, and each user's own part."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.plan.metering import price
from fairlead.serve.backend import account
from fairlead.serve.console import app as console
from fairlead.serve.metering.leases import StoreMetering
from fairlead.serve.v1 import dependencies
from tests.unit.plan.metering.leases import keep, lease
from tests.unit.serve.v1.test_api_users import ANN, connected
from tests.unit.serve.world import World, application, in_process

_DAY = 86400


async def _keep(world: World) -> None:
    """Store what two namespaces had in the last hours, one of them a user's."""
    now = time.time()
    await keep(
        world.store,
        lease("a", now - 7200, now - 3600, of=("lab",)),
        lease("b", now - 3600, now - 1800, of=(f"user-{ANN}",)),
        lease("c", now - 1800, now - 900, of=()),
    )


def _priced(world: World, prices: str = "*=2") -> dependencies.Services:
    metering = StoreMetering(store=world.store, pricing=price.read(prices, "EUR"))
    return replace(world.services, backend=replace(world.services.backend, metering=metering))


def _client(services: dependencies.Services, uid: int = 0) -> httpx.AsyncClient:
    transport = in_process(connected(application(services), uid))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def _since() -> dict[str, str]:
    return {"since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - _DAY))}


async def test_usage_is_added_up_and_what_nobody_is_known_of_is_charged_to_no_one(world: World) -> None:
    await _keep(world)
    async with _client(_priced(world)) as api:
        shown = (await api.get("/v1/usage", params={**_since(), "group_by": "namespace"})).json()
    assert [(row["group"], round(row["gpu_seconds"]), row["cost"]) for row in shown["items"]] == [
        ({"namespace": "lab"}, 3600, "2.000000"),
        ({"namespace": f"user-{ANN}"}, 1800, "1.000000"),
    ]
    assert (shown["currency"], shown["total"]["cost"]) == ("EUR", "3.000000")
    assert round(shown["unattributed_seconds"]) == 900


async def test_hours_without_a_price_are_said(world: World) -> None:
    await _keep(world)
    async with _client(_priced(world, "H100=1")) as api:
        shown = (await api.get("/v1/usage", params=_since())).json()
    assert (round(shown["total"]["unpriced_seconds"]), shown["total"]["cost"]) == (5400, "0")


async def test_a_user_sees_their_own_part_and_no_lease_of_others(world: World) -> None:
    await _keep(world)
    callers = dependencies.Callers(masters=frozenset({0}))
    async with _client(replace(_priced(world), callers=callers), ANN) as api:
        shown = (await api.get("/v1/usage", params={**_since(), "group_by": "lease"})).json()
        file = (await api.get("/v1/usage/focus", params=_since())).text
    assert [row["group"] for row in shown["items"]] == [{"lease": "b"}]
    assert (shown["unattributed_seconds"], shown["notes"]) == (0, [])
    assert {row["ResourceName"] for row in csv.DictReader(io.StringIO(file))} == {"b"}


async def test_the_export_has_every_hour(world: World) -> None:
    await _keep(world)
    async with _client(_priced(world)) as api:
        answer = await api.get("/v1/usage/focus", params=_since())
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["SubAccountId"] for row in rows} == {"lab", f"user-{ANN}"}
    assert {row["BillingCurrency"] for row in rows} == {"EUR"}


async def test_usage_is_added_up_by_the_accounts_of_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "owner", lambda namespace: "ann" if namespace == f"user-{ANN}" else "")
    await _keep(world)
    async with _client(_priced(world)) as api:
        answer = await api.get("/v1/usage", params={"group_by": "user"})
    assert answer.status_code == 200, answer.text
    found = {row["group"]["user"]: round(row["gpu_seconds"]) for row in answer.json()["items"]}
    assert found == {"ann": 1800, "": 3600}


async def test_before_the_first_lease_usage_is_nothing(world: World) -> None:
    async with _client(world.services) as api:
        answer = await api.get("/v1/usage")
        file = await api.get("/v1/usage/focus")
    assert (answer.status_code, answer.json()["items"], answer.json()["notes"]) == (200, [], ["no GPU was held yet"])
    assert (file.status_code, len(file.text.splitlines())) == (200, 1)


async def test_without_a_ledger_it_says_how_leases_come_to_be_written(world: World) -> None:
    metering = StoreMetering(store=world.store, pricing=price.read("", "EUR"), is_kept=False)
    services = replace(world.services, backend=replace(world.backend, metering=metering))
    async with _client(services) as api:
        answer = await api.get("/v1/usage")
    assert (answer.status_code, answer.json()["reason"]) == (404, "NoLeases")
    assert "lease.ledger=on" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"group_by": "colour"}, "GroupUnknown"),
        ({"since": "yesterday"}, "PeriodInvalid"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "PeriodInvalid"),
        ({"since": "0001-01-01T00:00:00Z"}, "PeriodInvalid"),
        ({"until": "9999-12-31T00:00:00Z"}, "PeriodInvalid"),
        ({"since": "2020-01-01T00:00:00Z"}, "PeriodInvalid"),
    ],
)
async def test_a_question_that_has_no_answer_is_refused(world: World, params: dict[str, str], reason: str) -> None:
    async with _client(world.services) as api:
        answer = await api.get("/v1/usage", params=params)
    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


async def test_a_container_says_what_it_cost_its_phases_and_what_verified_its_gpu(world: World) -> None:
    async with _client(_priced(world)) as api:
        await api.post("/v1/containers", json={"image": "demo", "name": "train", "command": ["echo"]})
        ended = (await api.get("/v1/containers/train/wait", params={"timeout": 20})).json()
        assert ended["phases"] == []
        now = time.time()
        mine = lease("mine", now - 1800, now - 900, of=("default",))
        holders = tuple(msgspec.structs.replace(one, pod="train", pod_uid=ended["uid"]) for one in mine.status.holders)
        mine = msgspec.structs.replace(
            mine,
            spec=msgspec.structs.replace(mine.spec, verified_by="full-3"),
            status=msgspec.structs.replace(mine.status, holders=holders, report="full-4"),
        )
        await keep(world.store, mine, lease("other", now - 900, None, of=("lab",)))
        shown = (await api.get("/v1/containers/train")).json()
        told = (await api.get("/v1/containers/train/explain")).json()
        listed = (await api.get("/v1/containers", params={"all": "true"})).json()["items"][0]
    assert shown["phases"][0]["name"] == "queued"
    assert shown["phases"][-1]["ended_at"] is not None
    assert (shown["cost"]["amount"], shown["cost"]["hourly"], shown["cost"]["currency"]) == ("0.500000", "0", "EUR")
    assert [(one["lease"], one["verified_by"], one["report"]) for one in shown["gpu_leases"]] == [
        ("mine", "full-3", "full-4")
    ]
    assert {name: told[name] for name in ("cost", "gpu_leases")} == {
        name: shown[name] for name in ("cost", "gpu_leases")
    }
    assert (listed["cost"], listed["gpu_leases"]) == (None, [])


async def test_the_console_shows_a_containers_cost_and_what_verified_its_gpu(world: World) -> None:
    services = _priced(world)
    async with _client(services) as api:
        await api.post("/v1/containers?wait=20", json={"image": "demo", "name": "train", "command": ["sleep", "60"]})
        uid = (await world.pod("train")).metadata.uid
        held = lease("mine", time.time() - 1800, None, of=("default",))
        holders = tuple(msgspec.structs.replace(one, pod="train", pod_uid=uid) for one in held.status.holders)
        spec = msgspec.structs.replace(held.spec, verified_by="full-3")
        status = msgspec.structs.replace(held.status, holders=holders)
        await keep(world.store, msgspec.structs.replace(held, spec=spec, status=status))
    made: Any = console.create_app(application(services), has_login=False)
    headers = {"origin": "http://localhost", "accept": "text/html"}
    async with httpx.AsyncClient(
        transport=in_process(made), base_url="http://localhost", headers=headers, timeout=30
    ) as browser:
        text = (await browser.get("/console/containers/default/train")).text
    assert "Cost so far" in text
    assert " an hour)" in text
    assert "<code>full-3</code>" in text


async def test_another_user_sees_the_cost_of_their_own_alone(world: World) -> None:
    await _keep(world)
    async with _client(_priced(world), ANN) as api:
        await api.post("/v1/containers", json={"image": "demo", "name": "p", "command": ["echo"]})
        shown = (await api.get("/v1/containers/p")).json()
    assert shown["gpu_leases"] == []
    assert shown["cost"]["gpu_seconds"] == 0
