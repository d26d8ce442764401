"""Where a connection comes from is the kernel's word: no header of a proxy that nobody set up changes it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx

from fairlead.serve import server

_CLAIMS = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https", "forwarded": "for=203.0.113.9;proto=https"}


async def _where(scope: dict[str, Any], receive: Any, send: Any) -> None:
    said = f"{scope['client'][0]} {scope['scheme']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


async def test_no_header_says_where_a_connection_came_from() -> None:
    with contextlib.closing(server.listen_at("127.0.0.1:0")) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(base_url=address, trust_env=False) as client:
            serving = group.create_task(server.serve_at(_where, listener))
            answer = await client.get("/", headers=_CLAIMS)
            serving.cancel()
    assert answer.text == "127.0.0.1 http"
