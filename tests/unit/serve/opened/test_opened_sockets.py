"""WebSockets of opened ports: carried both ways, of the host's own pages alone, and counted until they are over."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio import client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from fairlead.serve.opened import socketway
from fairlead.serve.opened.grants import Limits
from tests.unit.serve.opened import openlab
from tests.unit.serve.opened.openlab import CONSOLE, DOMAIN, Open
from tests.unit.serve.world import World


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Open]:
    (tmp_path / "accounts").mkdir()
    async with openlab.listening(world, tmp_path / "accounts", limits=Limits(connections=2)) as made:
        await openlab.run(made)
        yield made


def connect(lab: Open, host: str, cookie: str, *, path: str = "/echo", origin: str | None = None) -> client.connect:
    shown = f"https://{host}" if origin is None else origin
    return client.connect(
        f"ws://{host}{path}",
        host="127.0.0.1",
        port=lab.port,
        origin=Origin(shown) if shown else None,
        additional_headers={"cookie": cookie},
        subprotocols=[Subprotocol("other"), Subprotocol("v1.kernel")],
        max_size=None,
        open_timeout=10,
        proxy=None,
    )


async def test_messages_go_both_ways_and_the_container_s_close_is_the_browser_s(lab: Open) -> None:
    async with openlab.site(lab) as seen:
        host, cookie = await lab.enter()
        async with connect(lab, host, cookie) as socket:
            assert socket.subprotocol == "v1.kernel"
            for message in ("text ü", b"\0\xff", "x" * 70_000, b"y" * (1 << 19), ""):
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send("big")
            assert len(await socket.recv()) == 3 << 20, "larger than a browser's own messages may be"
            await socket.send("end")
            with pytest.raises(ConnectionClosed) as over:
                await socket.recv()
            assert over.value.rcvd is not None
            assert (over.value.rcvd.code, over.value.rcvd.reason) == (4001, "as asked")
        (asked,) = seen
        assert asked.headers["host"] == host
        assert cookie.partition("=")[2] not in str(dict(asked.headers))
        assert "sec-websocket-extensions" not in asked.headers
    await lab.empty()


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        f"https://{CONSOLE}",
        f"https://{'0' * 24}.{DOMAIN}",
        "http://HOST",
        "https://HOST:1",
        "https://x.HOST",
    ],
)
async def test_only_the_host_s_own_pages_open_one(lab: Open, origin: str) -> None:
    async with openlab.site(lab) as seen:
        host, cookie = await lab.enter()
        with pytest.raises(InvalidStatus) as refused:
            async with connect(lab, host, cookie, origin=origin.replace("HOST", host)):
                pass
        assert refused.value.response.status_code == 403
        for wrong in ("", "__Host-fairlead-open=x"):
            with pytest.raises(InvalidStatus) as locked:
                async with connect(lab, host, wrong):
                    pass
            assert locked.value.response.status_code == 401
        assert not seen


async def test_what_is_open_ends_with_the_leave_and_is_counted_until_then(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        async with connect(lab, host, cookie) as first, connect(lab, host, cookie) as second:
            with pytest.raises(InvalidStatus) as busy:
                async with connect(lab, host, cookie):
                    pass
            assert busy.value.response.status_code == 429
            await second.close()
            async with asyncio.timeout(10):
                while len(lab.grants.connections) > 1:  # noqa: ASYNC110  (a count has no event)
                    await asyncio.sleep(0.01)
            await first.send("still")
            assert await first.recv() == "still"
            await lab.lab.accounts.keys.revoke(lab.lab.keys["developer"][4:16], None)
            lab.time[0] += 1
            with pytest.raises(ConnectionClosed) as over:
                await first.recv()
            assert over.value.rcvd is not None
            assert over.value.rcvd.code == 1008
    await lab.empty()


async def test_a_refusal_of_the_container_is_the_browser_s_answer(lab: Open) -> None:
    async with openlab.site(lab):
        host, cookie = await lab.enter()
        with pytest.raises(InvalidStatus) as refused:
            async with connect(lab, host, cookie, path="/not-a-socket"):
                pass
        assert refused.value.response.status_code == 502
    with pytest.raises(InvalidStatus) as waits:
        async with connect(lab, host, cookie):
            pass
    assert waits.value.response.status_code == 502
    await lab.empty()


def _accept(head: bytes) -> bytes:
    key = next(
        line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
    )
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())  # noqa: S324
    return (
        b"HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: " + proof + b"\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (b"\x83\x00", 1002),  # an opcode that is none
        (b"\x81\x02\xff\xfe", 1007),  # a text that is not UTF-8
        (b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), 1009),  # a terabyte
        (b"\x88\x02\x03\xed", 1002),  # 1005, which no frame may have
        (b"", 1011),  # gone without a word
    ],
)
async def test_a_hostile_container_ends_its_own_socket_alone(lab: Open, after: bytes, code: int) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_accept(await reader.readuntil(b"\r\n\r\n")) + after)
        await writer.drain()
        if after:
            await reader.read()
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        async with connect(lab, host, cookie) as socket:
            with pytest.raises(ConnectionClosed) as over:
                await socket.recv()
        assert over.value.rcvd is not None
        assert over.value.rcvd.code == code
    await lab.empty()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: x\r\n\r\n",
        b"HTTP/1.1 101 x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_answer_that_only_looks_like_an_upgrade_is_none(lab: Open, answer: bytes) -> None:
    taken = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        taken.extend(await reader.read())
        writer.close()

    async with await lab.serve(handle):
        host, cookie = await lab.enter()
        with pytest.raises(InvalidStatus) as refused:
            async with connect(lab, host, cookie):
                pass
        assert refused.value.response.status_code == 502
    assert not taken
    await lab.empty()


def test_messages_that_are_not_whole_have_a_budget() -> None:
    held = socketway.Held()
    assert held.take("ann", 32 << 20)
    assert not held.take("ann", 1)
    for who in ("bob", "cem", "dan"):
        assert held.take(who, 32 << 20)
    assert not held.take("eve", 1), "of all callers together"
    held.give_back("ann", 32 << 20)
    assert held.take("eve", 1)
    assert "ann" not in held.by
