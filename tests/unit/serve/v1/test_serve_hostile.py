"""Requests that nobody means well: refused or skipped, never an error of the service."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from fairlead.serve.backend.containers import devicechange
from fairlead.serve.v1.containers.access import carry as exec_route
from tests.unit.serve.world import inventory


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"image":' * 100_000])
async def test_a_body_nested_without_end_is_a_bad_request(api: httpx.AsyncClient, body: bytes) -> None:
    answer = await api.post("/v1/containers", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("rows", [-1, 65536, 70000, 2**70])
def test_a_terminals_size_that_no_terminal_has_is_skipped(rows: int) -> None:
    text = json.dumps({"resize": {"rows": rows, "columns": 80}})
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(text, type=exec_route.Control)


@pytest.mark.parametrize("path", ["/v1/containers", "/v1/faults"])
async def test_a_body_that_is_not_utf8_is_a_bad_request(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.post(path, content=b'{"image":"\xff"}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["reason"] in {"BodyUnreadable", "RequestInvalid"}


async def test_a_refusal_can_be_read_whatever_it_names(api: httpx.AsyncClient) -> None:
    for body in ({"image": "demo", "x" * 9000: 1}, {"image": "demo", "cpu": "x" * 9000}):
        answer = await api.post("/v1/containers", json=body)
        assert answer.status_code in {400, 422}
        assert len(answer.content) < 4000


@pytest.mark.parametrize("user", ["9" * 5000, "1:" + "9" * 5000, "\u0661"])
async def test_a_users_number_that_no_kernel_has_is_refused(api: httpx.AsyncClient, user: str) -> None:
    answer = await api.post("/v1/containers", json={"image": "demo", "user": user})
    assert answer.status_code == 422


def test_an_index_of_5000_digits_is_no_gpus() -> None:
    assert devicechange.device_id(inventory().gpus, "9" * 5000) == "9" * 5000
    assert devicechange.device_id(inventory().gpus, "01") == "GPU-1"


@pytest.mark.parametrize("path", ["/v1/containers", "/v1/tenancies", "/v1/keys", "/v1/webhooks"])
async def test_a_request_without_its_body_hears_what_is_missing(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.post(path)
    assert (answer.status_code, answer.json()["detail"]) == (400, "the request has no body, and needs one of JSON")


async def test_a_manifest_of_too_many_objects_is_refused_before_any_is_made(api: httpx.AsyncClient) -> None:
    """Each is stored on its own and counted against quotas of all: thousands would keep the writer busy for minutes."""
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{n}"}, "spec": {"containers": [{"name": "a"}]}}
        for n in range(501)
    ]
    answer = await api.post("/v1/pods", content=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    assert (answer.status_code, answer.json()["reason"]) == (422, "ManifestTooLong")
    assert "501 objects" in answer.json()["detail"]
    assert (await api.get("/v1/containers", params={"all": "true"})).json()["items"] == []
