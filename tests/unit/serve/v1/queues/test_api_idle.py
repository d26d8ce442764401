"""A queue's policy for idle GPUs by the API: set in part, refused where it would not be carried out, shown on pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.wire.kubernetes import core
from tests.unit.serve.world import World, application, in_process


def _client(world: World, **info: Any) -> httpx.AsyncClient:
    services = replace(world.services, info=replace(world.services.info, **info)) if info else world.services
    return httpx.AsyncClient(transport=in_process(application(services)), base_url="http://test")


async def test_fields_are_set_one_by_one(world: World) -> None:
    client = _client(world)
    body = {"namespaces": ["vision"], "idle": {"action": "stop", "after_seconds": 1800}}
    made = await client.put("/v1/queues/vision?create=true", json=body)
    assert made.status_code == 200, made.text
    more = await client.put("/v1/queues/vision", json={"idle": {"warn_seconds": 600, "exempt": ["vision/serve"]}})
    idle = more.json()["spec"]["idle"]
    assert idle == {"action": "stop", "afterSeconds": 1800, "warnSeconds": 600, "exempt": ["vision/serve"]}
    none = await client.put("/v1/queues/vision", json={"idle": {"exempt": []}})
    assert "exempt" not in none.json()["spec"]["idle"]


@pytest.mark.parametrize(
    "idle",
    [
        {"action": "kill"},
        {"after_seconds": 59},
        {"below_percent": 101},
        {"warn_seconds": -1},
        {"exempt": ["a"] * 101},
        {"exempt": ["a" * 201]},
        {"unknown": 1},
    ],
    ids=lambda one: str(one)[:30],
)
async def test_what_means_nothing_is_refused(world: World, idle: dict[str, Any]) -> None:
    answer = await _client(world).put("/v1/queues/q?create=true", json={"idle": idle})
    assert answer.status_code in {400, 422}, answer.text


async def test_a_cluster_refuses_it(world: World) -> None:
    answer = await _client(world, node="").put("/v1/queues/q?create=true", json={"idle": {"action": "stop"}})
    assert (answer.status_code, answer.json()["reason"]) == (422, "IdlePolicyInvalid")


async def test_the_warning_is_shown_with_the_container(world: World) -> None:
    client = _client(world)
    made = await client.post("/v1/containers", json={"image": "i", "name": "lazy"})
    assert made.status_code == 201, made.text
    pod = await world.store.get(core.Pod, "lazy", "default")
    said = core.IdleNotice(
        since="2026-11-29T10:00:00Z", warned_at="2026-11-29T11:00:00Z", action="warn", message="idle"
    )
    await world.store.update_status(
        msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, idle_notice=said))
    )
    shown = (await client.get("/v1/containers/lazy")).json()["idle"]
    assert shown == {"since": "2026-11-29T10:00:00Z", "action": "warn", "acts_at": None, "message": "idle"}
    assert (await client.get("/v1/containers/lazy/explain")).json()["idle"] == shown
