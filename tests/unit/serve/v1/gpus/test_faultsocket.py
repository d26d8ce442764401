"""The door of an agent for faults: one path, the API's words, and no other node's silicon."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest

from fairlead.serve.v1.gpus import faultsocket
from tests.unit.serve.world import Faulty


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


def client(faulty: Faulty) -> httpx.AsyncClient:
    app = faultsocket.create_app(faulty, "worker-1")
    return httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://agent")


@pytest.mark.parametrize("node", [None, "worker-1"])
async def test_a_fault_reaches_the_silicon(faulty: Faulty, node: str | None) -> None:
    async with client(faulty) as door:
        answer = await door.post("/v1/faults", json={"fault": "xid", "gpu": 3, "value": "79", "node": node})
    assert (answer.status_code, answer.json()) == (200, {"message": "xid injected"})
    assert faulty.asked == [("xid", 3, "79")]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/v1/faults", b'{"fault": "fire"}', 422, "FaultUnknown"),
        ("POST", "/v1/faults", b'{"fault": "xid", "node": "worker-2"}', 404, "NodeUnknown"),
        ("POST", "/v1/faults", b'{"fault": "xid", "more": 1}', 422, "RequestInvalid"),
        ("POST", "/v1/faults", b"\xff\x00", 422, "RequestInvalid"),
        ("POST", "/v1/faults", b"", 422, "RequestInvalid"),
        ("POST", "/v1/faults", b"x" * (1 << 20), 422, "RequestTooLarge"),
        ("GET", "/v1/faults", b"", 404, "NoSuchRoute"),
        ("POST", "/v1/containers", b"{}", 404, "NoSuchRoute"),
    ],
)
async def test_everything_else_is_a_problem_and_breaks_nothing(
    faulty: Faulty, method: str, path: str, body: bytes, status: int, reason: str
) -> None:
    async with client(faulty) as door:
        answer = await door.request(method, path, content=body)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert answer.headers["content-type"] == "application/problem+json"
    assert faulty.asked == []
