"""Connections are counted from accept to close: none is lost on any way out, and handshakes have a budget."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from fairlead.serve import accepted, certificate, server, sockets

_UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_LIMITS = sockets.Limits(
    head_s=5, connections=40, per_address=10, handshakes=6, handshakes_per_address=4, handshake_s=0.3
)


async def _app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        if scope["path"] == "/ws":
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        await receive()
        return
    await receive()
    if scope["path"] == "/breaks":
        raise RuntimeError("an application's bug")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@dataclass
class Served:
    """A TLS listener, and what is open on it."""

    port: int
    connections: accepted.Connections

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    async def ask(self, data: bytes, *, ends: bool = True) -> bytes:
        """Speak on a new connection over TLS until the server closes it, or until its first words."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            writer.write(data)
            await writer.drain()
            return await reader.read(1 << 16) if ends else b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def until_empty(self) -> None:
        async with asyncio.timeout(20):
            while len(self.connections.by) or len(self.connections.shaking):
                gc.collect()
                await asyncio.sleep(0.01)


async def _until(is_so: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + 20
    while not is_so():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    made: list[accepted.Connections] = []

    class Kept(accepted.Connections):
        def __init__(self, limits: sockets.Limits, report: Callable[[int], None] = lambda _: None) -> None:
            super().__init__(limits, report)
            made.append(self)

    monkeypatch.setattr(accepted, "Connections", Kept)
    files = certificate.own(folder)
    certificate.ensure_own(files, ["127.0.0.1"], dt.datetime.now(dt.UTC))
    listener = sockets.listen_at("127.0.0.1:0")
    port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as group:
        context = certificate.open_context(files)
        task = group.create_task(server.serve_tls(_app, listener, context, limits=_LIMITS))
        await _until(lambda: bool(made))
        yield Served(port, made[0])
        task.cancel()


async def test_upgrades_that_are_refused_lock_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _serving(tmp_path, monkeypatch) as served:
        for _ in range(3 * _LIMITS.per_address):
            assert b" 403 " in await served.ask(_UPGRADE)
        await served.until_empty()
        assert b" 200 " in await served.ask(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")


async def test_a_handshake_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _serving(tmp_path, monkeypatch) as served, asyncio.timeout(20):
        with contextlib.ExitStack() as stack:
            half = [stack.enter_context(served.plain()) for _ in range(_LIMITS.handshakes_per_address)]
            for one in half:
                one.send(b"\x16\x03\x01")  # the beginning of a ClientHello
                one.setblocking(False)
            await _until(lambda: len(served.connections.shaking) == len(half))
            await served.until_empty()  # though no client has closed anything
            for one in half:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.get_running_loop().sock_recv(one, 1) == b""


async def test_more_handshakes_than_the_budget_are_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _serving(tmp_path, monkeypatch) as served, asyncio.timeout(30):
        most = 0
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(served.plain())
                await asyncio.sleep(0)
                most = max(most, len(served.connections.shaking))
            await asyncio.sleep(0.05)
            most = max(most, len(served.connections.shaking))
        assert 0 < most <= _LIMITS.handshakes_per_address
        await served.until_empty()
        assert b" 200 " in await served.ask(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")


_WAYS = st.lists(
    st.sampled_from(
        [
            (b"", False),
            (b"GET / HTTP/1.1\r\n", False),
            (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", True),
            (b"GET /breaks HTTP/1.1\r\nhost: x\r\n\r\n", True),
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc", False),
            (b"nonsense\r\n\r\n", True),
            (_UPGRADE, True),
            (_UPGRADE.replace(b"/ws", b"/in"), False),
            (_UPGRADE.replace(b"13", b"99"), True),
        ]
    ),
    min_size=1,
    max_size=12,
)


@hypothesis.settings(max_examples=8, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(ways=_WAYS)
async def test_every_way_out_counts_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: list[Any]) -> None:
    async with _serving(tmp_path, monkeypatch) as served:
        for data, ends in ways:
            await served.ask(data, ends=ends)
        await served.until_empty()
        assert not served.connections.by.holders()


async def test_a_socket_that_is_forgotten_counts_down_too() -> None:
    connections = accepted.Connections(_LIMITS)
    one, other = socket.socketpair()
    with other:
        kept = accepted.Connection(one, 1000, connections, is_shaking=True)
        assert (connections.by.of(1000), connections.shaking.of(1000), kept.is_shaking) == (1, 1, True)
        kept.establish()
        assert (connections.by.of(1000), connections.shaking.of(1000)) == (1, 0)
        kept.close()
        kept.close()
        assert not connections.by.holders()


def test_each_holder_has_a_share_of_the_handshakes() -> None:
    connections = accepted.Connections(_LIMITS)
    while connections.may_shake("203.0.113.9"):
        connections.shaking.take("203.0.113.9")
    assert connections.shaking.of("203.0.113.9") == _LIMITS.handshakes_per_address
    assert connections.may_shake("203.0.113.10")
    for _ in range(2):
        connections.shaking.take("203.0.113.10")
    assert not connections.may_shake("203.0.113.11")  # all that there are


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"POST /v1/containers HTTP/1.1\r\n"])
async def test_a_plain_request_to_the_tls_port_is_answered_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: bytes
) -> None:
    async with _serving(tmp_path, monkeypatch) as served, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request_line)
        said = await reader.read()
        writer.close()
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"write https:// in place of http://" in said
        await served.until_empty()
        secure = await served.ask(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert secure.startswith(b"HTTP/1.1 200")
