"""What a request says of proxies and of its own length is not believed: who connected is the kernel's word."""

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


async def test_a_request_of_two_lengths_is_refused_and_its_connection_closed() -> None:
    first = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    with contextlib.closing(server.listen_at("127.0.0.1:0")) as listener:
        async with asyncio.TaskGroup() as group, asyncio.timeout(10):
            serving = group.create_task(server.serve_at(_where, listener))
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            writer.write(first + b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await reader.read()
            writer.close()
            serving.cancel()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
