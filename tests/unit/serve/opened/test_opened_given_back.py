"""Every way out of an opened port gives its place back: at the door, and at the container's server."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from fairlead import telemetry
from tests.unit.serve.opened import openlab
from tests.unit.serve.opened.openlab import Open
from tests.unit.serve.v1.test_routes_given_back import Counts
from tests.unit.serve.world import World

_UPGRADE: Final = (
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\norigin: https://HOST\r\n"
)
_ENDS: Final = ("read", "first byte", "close", "reset")
_REQUESTS: Final = ("answer", "stream", "half a body", "socket", "socket frame", "socket close", "locked", "nobody")


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
async def lab(world: World, tmp_path: Path, counts: Counts) -> AsyncIterator[Open]:
    (tmp_path / "accounts").mkdir()
    async with openlab.listening(world, tmp_path / "accounts", meter=counts) as made:
        await openlab.run(made)
        yield made


def _bytes(kind: str, host: str, cookie: str) -> bytes:
    path = {"stream": "/events", "socket": "/echo", "socket frame": "/echo", "socket close": "/echo"}.get(kind, "/")
    method = "POST" if kind == "half a body" else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n"
    if kind != "locked":
        head += f"cookie: {cookie}\r\n"
    if kind.startswith("socket"):
        frame = {"socket frame": b"\x81\x81\0\0\0\0x", "socket close": b"\x88\x80\0\0\0\0"}.get(kind, b"")
        return head.encode() + _UPGRADE.replace("HOST", host).encode() + b"\r\n" + frame
    if kind == "half a body":
        return head.encode() + b"content-length: 100\r\n\r\nhalf"
    return head.encode() + b"connection: close\r\n\r\n"


async def _leave(lab: Open, data: bytes, end: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(0.3):
            if end == "read":
                await reader.read()
            if end == "first byte":
                await reader.read(1)
    if end == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _until_empty(lab: Open, counts: Counts) -> None:
    await lab.empty()
    async with asyncio.timeout(20):
        while not counts.is_zero:  # noqa: ASYNC110  (gauges have no event)
            await asyncio.sleep(0.005)


async def test_every_way_out_gives_its_place_back(lab: Open, counts: Counts) -> None:
    every = [(kind, end) for kind in _REQUESTS for end in _ENDS]
    random.Random(7).shuffle(every)
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        other, nobody = await lab.enter(port=81)
        asked = {"nobody": (other, nobody)}
        for at in range(0, len(every), 16):
            ways = [(*asked.get(kind, (host, cookie)), kind, end) for kind, end in every[at : at + 16]]
            await asyncio.gather(*(_leave(lab, _bytes(kind, h, c), end) for h, c, kind, end in ways))
            await _until_empty(lab, counts)
    assert counts.most[telemetry.CONNECTIONS.name] > 1


async def test_a_service_that_stops_ends_what_is_open(lab: Open, counts: Counts) -> None:
    async with openlab.site(lab) as seen, asyncio.timeout(20), asyncio.TaskGroup() as leaving:
        host, cookie = await lab.enter()
        for kind in ("stream", "socket", "half a body"):
            leaving.create_task(_leave(lab, _bytes(kind, host, cookie), "read"))
        while len(seen) < 3:  # noqa: ASYNC110  (a list has no event)
            await asyncio.sleep(0.005)
        assert lab.serving is not None
        lab.serving.cancel()
        await asyncio.wait([lab.serving])
        assert len(lab.grants.connections) == 0
        assert counts.is_zero
