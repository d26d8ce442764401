"""Other CPU and memory over the API, of containers that wait: their spec changes, by quotas and the pod's rules."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
def still(world: World) -> httpx.AsyncClient:
    """A service whose machine starts nothing."""
    made: Any = application(world.services)
    return httpx.AsyncClient(transport=in_process(made), base_url="http://test")


async def _made(still: httpx.AsyncClient, **fields: Any) -> None:
    answer = await still.post("/v1/containers", json={"image": "demo", "name": "box", **fields})
    assert answer.status_code == 201, answer.text


async def _resize(still: httpx.AsyncClient, **body: Any) -> tuple[int, str]:
    answer = await still.patch("/v1/containers/box/resize", json=body)
    return answer.status_code, answer.json().get("reason") or answer.json().get("resize", "")


async def test_limits_change_and_gpus_do_not(still: httpx.AsyncClient, world: World) -> None:
    await _made(still, cpu="1", memory="1Gi", gpus=1)
    assert await _resize(still, cpu="1500m", memory="2Gi") == (200, "")
    found = (await world.store.get(core.Pod, "box", "default")).spec.containers[0].resources
    assert found.limits == {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": 1}
    assert (await still.get("/v1/containers/box")).json()["definition"]["limits"]["cpu"] == "1500m"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 422, "ResizeEmpty"),
        ({"cpu": "x"}, 422, ""),
        ({"cpu": "2", "container": "other"}, 422, "ContainerUnknown"),
        ({"gpus": 2}, 422, ""),
        ({"cpu": -1}, 422, "ResizeInvalid"),
        ({"cpu": 0}, 422, "ResizeInvalid"),
        ({"memory": "0Gi"}, 422, "ResizeInvalid"),
        ({"memory": "1e"}, 422, ""),
        ({"cpu": "2", "container": "\x1b[2J\x00"}, 422, "ContainerUnknown"),
    ],
)
async def test_what_is_no_size_is_refused(
    still: httpx.AsyncClient, body: dict[str, Any], status: int, reason: str
) -> None:
    await _made(still, cpu="1")
    answer = await _resize(still, **body)
    assert answer[0] in {400, status}
    assert not reason or answer[1] == reason


async def test_what_was_started_without_limits_keeps_its_class(still: httpx.AsyncClient) -> None:
    await _made(still, gpus=1)
    assert await _resize(still, cpu="1") == (422, "PodInvalid")


async def test_a_quota_counts_the_new_size(still: httpx.AsyncClient, world: World) -> None:
    await _made(still, cpu="1")
    spec = core.ResourceQuotaSpec(hard={"limits.cpu": "2"})
    await world.store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="default"), spec=spec))
    assert await _resize(still, cpu="2") == (200, "")
    assert await _resize(still, cpu="3") == (403, "Forbidden")


async def test_a_namespace_beyond_its_quota_may_shrink(still: httpx.AsyncClient, world: World) -> None:
    await _made(still, cpu="4", memory="1Gi")
    answer = await still.post("/v1/containers", json={"image": "demo", "name": "other", "cpu": "4", "memory": "1Gi"})
    assert answer.status_code == 201
    spec = core.ResourceQuotaSpec(hard={"limits.cpu": "2", "pods": "1", "requests.storage": "1"})
    await world.store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="default"), spec=spec))
    assert await _resize(still, cpu="3") == (200, "")
    assert await _resize(still, memory="2Gi") == (200, ""), "of memory it says nothing"
    assert await _resize(still, cpu="3500m") == (403, "Forbidden")


async def test_apply_says_configured_and_a_dry_run_changes_nothing(still: httpx.AsyncClient, world: World) -> None:
    def pod(cpu: str, gpus: str = "1") -> bytes:
        text = f"""{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "p"}}, "spec": {{"containers": [
            {{"name": "main", "image": "demo",
              "resources": {{"limits": {{"cpu": "{cpu}", "nvidia.com/gpu": "{gpus}"}}}}}}]}}}}"""
        return text.encode()

    async def applied(body: bytes, **params: str) -> httpx.Response:
        return await still.post("/v1/apply", content=body, params=params)

    async def cpus() -> object:
        return (await world.store.get(core.Pod, "p", "default")).spec.containers[0].resources.limits["cpu"]

    assert (await applied(pod("1"))).status_code in {200, 201}
    assert "configured" in (await applied(pod("2"), dry_run="true")).text
    assert await cpus() == "1"
    assert "configured" in (await applied(pod("2"))).text
    assert await cpus() == "2"
    assert "unchanged" in (await applied(pod("2000m"))).text
    refused = await applied(pod("2", "2"))
    assert (refused.status_code, "only cpu and memory" in refused.text) == (422, True), refused.text
