"""Quotas over the API: set, counted, enforced at submission, removed."""

from __future__ import annotations

import asyncio

import httpx
import pytest

_QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpu-quota, namespace: red}
spec:
  hard: {requests.nvidia.com/gpu: 3, pods: "10"}
"""


async def _set(api: httpx.AsyncClient, text: str = _QUOTA) -> httpx.Response:
    return await api.put("/v1/quotas", content=text)


async def _run(api: httpx.AsyncClient, gpus: int, namespace: str = "red", seconds: float = 60) -> httpx.Response:
    lasting = {"command": ["sleep", str(seconds)], "namespace": namespace}
    return await api.post("/v1/containers", json={"image": "demo", "gpus": gpus, **lasting})


async def test_a_container_beyond_the_quota_is_refused_with_what_is_left_and_the_api_servers_words_beside(
    api: httpx.AsyncClient,
) -> None:
    assert (await _set(api)).status_code == 200
    assert (await _run(api, 2)).status_code == 201
    answer = await _run(api, 2)
    assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
    assert answer.json()["detail"].endswith('is more than the quota "gpu-quota" allows: 2 GPUs asked, 2 of 3 in use')
    assert answer.json()["context"]["kubernetes"].endswith(
        "exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, "
        "limited: requests.nvidia.com/gpu=3"
    )
    assert (await _run(api, 2, namespace="blue")).status_code == 201


async def test_what_is_used_is_counted_and_freed(api: httpx.AsyncClient) -> None:
    await _set(api)
    name = (await _run(api, 2, seconds=0.5)).json()["name"]
    (shown,) = (await api.get("/v1/quotas")).json()["items"]
    assert shown["hard"] == {"requests.nvidia.com/gpu": "3", "pods": "10"}
    assert shown["used"] == {"requests.nvidia.com/gpu": "2", "pods": "1"}
    await api.get(f"/v1/containers/{name}/wait", params={"state": "ended", "namespace": "red"})
    (shown,) = (await api.get("/v1/quotas", params={"namespace": "red"})).json()["items"]
    assert shown["used"] == {"requests.nvidia.com/gpu": "0", "pods": "0"}
    assert (await api.get("/v1/quotas", params={"namespace": "blue"})).json()["items"] == []


async def test_containers_asked_for_at_once_never_share_the_same_rest(api: httpx.AsyncClient) -> None:
    await _set(api, _QUOTA.replace("nvidia.com/gpu: 3", "nvidia.com/gpu: 4"))
    answers = await asyncio.gather(*(_run(api, 3) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 403, 403, 403, 403]


async def test_a_quota_is_changed_by_setting_it_again_and_gone_when_removed(api: httpx.AsyncClient) -> None:
    await _set(api)
    await _set(api, _QUOTA.replace("gpu: 3", "gpu: 0"))
    assert (await _run(api, 1)).status_code == 403
    gone = await api.delete("/v1/quotas/gpu-quota", params={"namespace": "red"})
    assert gone.status_code == 204
    assert (await _run(api, 1)).status_code == 201
    assert (await api.delete("/v1/quotas/gpu-quota", params={"namespace": "red"})).status_code == 404


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_QUOTA.replace("pods: ", "cpu: ").replace('"10"', "much"), 'spec.hard[cpu]: Invalid value: "much"'),
        (_QUOTA.replace('"10"', '"-1"'), "must be greater than or equal to 0"),
        (_QUOTA.replace("name: gpu-quota, ", ""), "metadata.name: Required value"),
        (_QUOTA.replace("ResourceQuota", "Pod"), "known"),
    ],
)
async def test_what_is_no_quota_is_refused(api: httpx.AsyncClient, text: str, says: str) -> None:
    answer = await _set(api, text)
    assert answer.status_code in {400, 422}
    assert says in answer.text.replace("\\", "")
