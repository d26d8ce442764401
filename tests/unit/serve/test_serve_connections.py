"""Connections that say nothing, or little by little, or come by the thousand: ended, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.serve import plainserver, server, sockets

_GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
_LIMITS = sockets.Limits(head_s=0.2, body_s=0.3, connections=5)


async def _echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    if scope["path"] == "/slow":
        await asyncio.sleep(0.6)
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(params=[server.serve_unix, plainserver.serve_unix], ids=["api", "plain"])
async def path(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Path]:
    path, ready = tmp_path / "s", asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(request.param(_echo, path, ready=ready, limits=_LIMITS))
        await ready.wait()
        yield path
        task.cancel()


@contextlib.asynccontextmanager
async def _connected(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _dripped(path: Path, begun: bytes, drop: bytes) -> bytes:
    """Send a beginning, then drops until the server hangs up; return all that it answered.

    A socket without asyncio's streams, which lose what came in once a drop cannot be sent any more.
    """
    loop, answer = asyncio.get_running_loop(), b""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        await loop.sock_connect(client, str(path))
        await loop.sock_sendall(client, begun)
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            dripping = group.create_task(_drip(client, drop))
            with contextlib.suppress(ConnectionError):
                while part := await loop.sock_recv(client, 1 << 16):
                    answer += part
            dripping.cancel()
    return answer


async def _drip(client: socket.socket, drop: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.get_running_loop().sock_sendall(client, drop)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\n", b"GE"])
async def test_who_does_not_say_what_it_wants_is_hung_up_on(path: Path, begun: bytes) -> None:
    async with _connected(path) as (reader, writer), asyncio.timeout(5):
        writer.write(begun)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("before", [b"", _GET])
async def test_headers_that_come_drop_by_drop_are_not_waited_for(path: Path, before: bytes) -> None:
    assert b"HTTP/1.1 408 " in await _dripped(path, before + b"GET / HTTP/1.1\r\n", b"a: b\r\n")


async def test_a_body_that_comes_drop_by_drop_is_not_waited_for(path: Path) -> None:
    begun = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
    assert b" 200 " not in await _dripped(path, begun, b"x")


async def test_an_answer_may_take_longer_than_a_question(path: Path) -> None:
    async with _connected(path) as (reader, writer), asyncio.timeout(5):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_too_many_is_told_so_and_the_next_is_served(path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(5):
        for _ in range(5):
            reader, _ = await stack.enter_async_context(_connected(path))
        async with _connected(path) as (refused, _):
            assert (await refused.read()).startswith(b"HTTP/1.1 503 ")
        await reader.read()  # the last of the silent ones is hung up on
    async with _connected(path) as (reader, writer), asyncio.timeout(5):
        writer.write(_GET)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
