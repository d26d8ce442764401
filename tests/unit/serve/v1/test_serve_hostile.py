"""Requests that nobody means well: refused or skipped, never an error of the service."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from fairlead.serve.v1.containers import exec as exec_route


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
