"""Reservations through the API: made, listed, refused with who and when; of others' only that GPUs are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.kernel import socketpeer
from fairlead.serve import peer
from fairlead.serve.v1 import dependencies
from fairlead.wire.kubernetes import core
from tests.unit.serve.world import World, application, in_process

As = Callable[[int], httpx.AsyncClient]
_PATH = "/v1/reservations"


@pytest.fixture
def as_user(world: World) -> As:
    made = application(replace(world.services, callers=dependencies.Callers(masters=frozenset({0}))))

    def client(uid: int) -> httpx.AsyncClient:
        async def called(scope: Any, receive: Any, send: Any) -> None:
            caller = socketpeer.Peer(pid=1, uid=uid, gid=uid)
            inner: Any = made
            await inner({**scope, "state": {peer.KEY: caller}}, receive, send)

        return httpx.AsyncClient(transport=in_process(called), base_url="http://test")

    return client


def _body(**fields: Any) -> dict[str, Any]:
    return {"gpus": 3, "from": "tomorrow 9:00", "duration_seconds": 3600, "name": "night", "zone": "UTC", **fields}


async def test_one_is_made_shown_listed_and_deleted(as_user: As) -> None:
    root = as_user(0)
    made = await root.post(_PATH, json=_body(namespace="vision", repeat="daily", until=""))
    assert made.status_code == 201, made.text
    shown = (await root.get(f"{_PATH}/night?namespace=vision")).json()
    assert (shown["state"], shown["gpus"], shown["first"][11:]) == ("upcoming", 3, "09:00")
    assert len(shown["windows"]) == 10
    (listed,) = (await root.get(_PATH)).json()["items"]
    assert listed == shown
    assert (await root.post(_PATH, json=_body(namespace="vision", gpus=1))).status_code == 409
    assert (await root.delete(f"{_PATH}/night?namespace=vision")).status_code == 204
    gone = await root.delete(f"{_PATH}/night?namespace=vision")
    assert (gone.status_code, gone.json()["reason"]) == (404, "ReservationNotFound")


async def test_another_user_learns_that_gpus_are_taken_and_when_and_nothing_else(as_user: As) -> None:
    await as_user(0).post(_PATH, json=_body(namespace="vision", name="secretplan"))
    mine = await as_user(1001).post(_PATH, json=_body(gpus=1, name="own"))
    assert mine.status_code == 201, mine.text
    assert mine.json()["namespace"] == "user-1001"
    found = await as_user(1001).get(_PATH)
    assert [one["name"] for one in found.json()["items"]] == ["own"]
    assert [one["gpus"] for one in found.json()["taken"]] == [3]
    refused = await as_user(1001).post(_PATH, json=_body(gpus=2, name="more"))
    assert (refused.status_code, refused.json()["reason"]) == (409, "ReservationConflict")
    feed = await as_user(1001).get(f"{_PATH}.ics")
    assert feed.headers["content-type"].startswith("text/calendar")
    assert "SUMMARY:3 GPUs taken" in feed.text
    assert "SUMMARY:1 GPU: own" in feed.text
    for answer in (found, refused, feed, await as_user(1002).get(_PATH), await as_user(1002).get(f"{_PATH}.ics")):
        assert "secretplan" not in answer.text
        assert "vision" not in answer.text
    for method in ("GET", "DELETE"):
        answer = await as_user(1001).request(method, f"{_PATH}/secretplan?namespace=vision")
        assert answer.status_code == 403
    assert (await as_user(1001).get(f"{_PATH}?namespace=vision")).status_code == 403
    assert (await as_user(1001).post(_PATH, json=_body(namespace="vision", gpus=1))).status_code == 403


async def test_root_hears_whose_reservation_is_in_the_way(as_user: As) -> None:
    await as_user(1001).post(_PATH, json=_body())
    refused = await as_user(0).post(_PATH, json=_body(gpus=2, namespace="vision"))
    assert refused.status_code == 409
    assert "user-1001/night" in refused.json()["detail"]


async def test_two_at_once_never_get_the_same_gpus(as_user: As) -> None:
    answers = await asyncio.gather(
        *(as_user(1000 + number).post(_PATH, json=_body(gpus=1, name=f"r{number}")) for number in range(8))
    )
    assert sorted(one.status_code for one in answers) == [201] * 4 + [409] * 4


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"from": "9999-12-31 23:59"}, 422, "TimeInvalid"),
        ({"from": "\x1b[2J"}, 422, "TimeInvalid"),
        ({"zone": "../../etc/passwd"}, 422, "ZoneUnknown"),
        ({"name": "../x"}, 422, "NameInvalid"),
        ({"name": "a\nb"}, 422, "NameInvalid"),
        ({"repeat": "daily", "until": "9999-12-31"}, 403, "ReservedTooFar"),
        ({"gpus": 3, "duration_seconds": 20 * 86400}, 403, "ReservationQuota"),
        ({"gpus": 400}, 409, "ReservationConflict"),
    ],
)
async def test_what_no_tenant_may_is_refused_by_its_field(
    as_user: As, fields: dict[str, Any], status: int, reason: str
) -> None:
    answer = await as_user(1001).post(_PATH, json=_body(**fields))
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)


async def test_a_tenant_does_not_reserve_everything_for_ever(as_user: As) -> None:
    made = 0
    for number in range(60):
        answer = await as_user(1001).post(_PATH, json=_body(name=f"r{number}", gpus=1, duration_seconds=60))
        made += answer.status_code == 201
        if answer.status_code == 403:
            break
    assert made <= 50
    assert (await as_user(1002).post(_PATH, json=_body(repeat="daily", duration_seconds=20 * 3600))).status_code == 403


async def test_a_container_runs_in_a_reservation_of_its_own_namespace_alone(as_user: As) -> None:
    made = await as_user(1001).post(_PATH, json=_body(gpus=2))
    assert made.status_code == 201, made.text

    async def run(uid: int, **fields: Any) -> tuple[int, str]:
        answer = await as_user(uid).post("/v1/containers", json={"image": "demo", "reservation": "night", **fields})
        return answer.status_code, answer.json().get("reason", "")

    assert await run(1001, gpus=2, name="batch") == (201, "")
    shown = (await as_user(1001).get("/v1/containers/batch")).json()
    assert shown["reservation"] == "night"
    assert await run(1001, gpus=3) == (409, "ReservationTooSmall")
    assert await run(1001, gpus=0) == (422, "ReservationUnused")
    assert await run(1002, gpus=1) == (422, "ReservationNotFound")
    assert await run(1002, gpus=1, namespace="user-1001") == (403, "NamespaceForbidden")
    assert (await run(1001, gpus=1, reservation="../\x1b[2J"))[0] == 422
    dry = await as_user(1002).post(
        "/v1/containers?dry_run=true", json={"image": "demo", "reservation": "night", "gpus": 1}
    )
    assert dry.json()["reason"] == "ReservationNotFound"
    body = {"image": "demo", "reservation": "night", "gpus": 1, "name": "other"}
    would = await as_user(1001).post("/v1/containers?dry_run=true", json=body)
    assert 'its reservation "night" begins ' in would.json()["waiting"]["message"]


async def test_a_dry_run_says_that_a_reservation_is_held_whole(as_user: As, world: World) -> None:
    api = as_user(0)
    made = await api.post(_PATH, json={"name": "now", "gpus": 1, "from": "now", "duration_seconds": 3600})
    assert made.status_code == 201, made.text
    body = {"image": "demo", "reservation": "now", "gpus": 1}
    would = await api.post("/v1/containers?dry_run=true", json={**body, "name": "b"})
    assert "there is room" in would.json()["waiting"]["message"]
    assert (await api.post("/v1/containers", json={**body, "name": "a"})).status_code == 201
    pod = await world.store.get(core.Pod, "a", "default")
    placed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="one"))
    await world.store.update(placed)
    would = await api.post("/v1/containers?dry_run=true", json={**body, "name": "b"})
    assert would.json()["waiting"]["message"] == 'reservation "now" has 1 GPUs and containers in it hold 1 of them'
