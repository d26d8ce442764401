"""What a request says of proxies and of its own length is not believed: who connected is the kernel's word."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.serve import certificate, plainserver, server, sockets

_CLAIMS = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "http", "forwarded": "for=203.0.113.9;proto=http"}


async def _where(scope: dict[str, Any], receive: Any, send: Any) -> None:
    said = f"{scope['client'][0]} {scope['scheme']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


async def test_no_header_says_where_a_connection_came_from(tmp_path: Path) -> None:
    files = certificate.own(tmp_path)
    certificate.ensure_own(files, ["127.0.0.1"], dt.datetime.now(dt.UTC))
    with contextlib.closing(sockets.listen_at("127.0.0.1:0")) as listener:
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        trusting = httpx.AsyncClient(base_url=address, verify=False)  # noqa: S501  (made above)
        async with asyncio.TaskGroup() as group, trusting as client:
            serving = group.create_task(server.serve_tls(_where, listener, certificate.open_context(files)))
            answer = await client.get("/", headers=_CLAIMS)
            serving.cancel()
    assert answer.text == "127.0.0.1 https"


@pytest.mark.parametrize("serve", [server.serve_unix, plainserver.serve_unix], ids=["api", "plain"])
async def test_a_request_of_two_lengths_is_refused_and_its_connection_closed(tmp_path: Path, serve: Any) -> None:
    first = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        serving = group.create_task(serve(_where, tmp_path / "s", ready=ready))
        await ready.wait()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(first + b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        serving.cancel()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
