"""What a connection counts is given back: each kind of route, each way to leave it, in any order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import errors, telemetry
from fairlead.serve import server, sockets
from fairlead.serve.limits.gate import Gate, Policy
from fairlead.serve.limits.places import Places

_LIMITS: Final = sockets.Limits(head_s=30, per_address=8, connections=64)
_UPGRADE: Final = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
_ROUTES: Final = ("/ok", "/missing", "/fails", "/follows")
_SOCKETS: Final = ("/accepts", "/refuses", "/refuses-with-an-answer", "/fails", "/closes", "/follows")
_WAYS: Final = ("answer", "close", "reset", "half a request", "wrong handshake", "frame", "close frame")


class _Gauge:
    """A meter that keeps what it was set to last."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, metric: telemetry.Metric, *labels: str) -> None: ...

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        self.values[(metric.name, *labels)] = value

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


async def _app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    path = scope["path"]
    if path == "/fails":
        raise errors.Unavailable("as the test wants it", reason="Wanted")
    if scope["type"] == "websocket":
        await _talk(path, receive, send)
        return
    code = {"/missing": 404}.get(path, 200)
    await send({"type": "http.response.start", "status": code, "headers": [(b"content-length", b"2")]})
    if path == "/follows":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": b"ok"})


async def _talk(path: str, receive: Any, send: Any) -> None:
    await receive()
    if path == "/refuses":
        await send({"type": "websocket.close"})
    elif path == "/refuses-with-an-answer":
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"no"})
    else:
        await send({"type": "websocket.accept"})
        if path == "/closes":
            await send({"type": "websocket.close"})
        while path == "/follows" and (await receive())["type"] != "websocket.disconnect":
            pass


@contextlib.asynccontextmanager
async def _served() -> AsyncIterator[tuple[int, _Gauge]]:
    gauge = _Gauge()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(server._serve(_app, listener, limits=_LIMITS, meter=gauge, door="tls"))
            yield listener.getsockname()[1], gauge
            task.cancel()


async def _leave(port: int, path: str, way: str, *, upgrades: bool) -> None:
    """Make one request and end it in one way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = _UPGRADE if upgrades else b""
    if way == "wrong handshake":
        head = head.replace(b"13", b"1")
    whole = f"GET {path} HTTP/1.1\r\nhost: x\r\n".encode() + head + b"\r\n"
    writer.write(whole[: len(whole) // 2] if way == "half a request" else whole)
    with contextlib.suppress(ConnectionError):
        if way in {"answer", "frame", "close frame"}:
            await reader.readline()
        if way == "frame":
            writer.write(b"\x82\x81\0\0\0\0x")
        if way == "close frame":
            writer.write(b"\x88\x80\0\0\0\0")
        await writer.drain()
    if way == "reset":
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not reached():  # noqa: ASYNC110  (the gauge has no event)
            await asyncio.sleep(0.01)


async def _check_empty(port: int, gauge: _Gauge) -> None:
    key = (telemetry.CONNECTIONS.name, "tls")
    await _until(lambda: gauge.values[key] == 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("path", _SOCKETS)
async def test_an_address_that_upgrades_more_often_than_it_may_at_once_is_not_shut_out(path: str) -> None:
    async with _served() as (port, gauge):
        for _ in range(3 * _LIMITS.per_address):
            await _leave(port, path, "answer", upgrades=True)
            await _until(lambda: gauge.values[(telemetry.CONNECTIONS.name, "tls")] == 0)
        await _check_empty(port, gauge)


_STEP: Final = st.one_of(
    st.tuples(st.sampled_from(_ROUTES), st.sampled_from(_WAYS[:4]), st.just(False)),
    st.tuples(st.sampled_from(_SOCKETS), st.sampled_from(_WAYS), st.just(True)),
)


@settings(max_examples=25)
@given(steps=st.lists(st.lists(_STEP, min_size=1, max_size=12), min_size=1, max_size=3))
def test_every_way_out_of_every_kind_of_route_gives_the_place_back(steps: list[list[tuple[str, str, bool]]]) -> None:
    async def run() -> None:
        async with _served() as (port, gauge):
            for together in steps:
                leaving = [_leave(port, path, way, upgrades=upgrades) for path, way, upgrades in together]
                await asyncio.gather(*leaving)
            await _check_empty(port, gauge)

    asyncio.run(run())


async def test_a_server_that_is_cancelled_gives_all_places_back() -> None:
    async with _served() as (port, gauge), contextlib.AsyncExitStack() as stack:
        for path, head in (("/follows", b""), ("/follows", _UPGRADE), ("/ok", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n".encode() + head + b"\r\n")
            await reader.readline()
        assert gauge.values[(telemetry.CONNECTIONS.name, "tls")] == 3
    assert gauge.values[(telemetry.CONNECTIONS.name, "tls")] == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_places_are_those_taken_and_not_given_back_and_nothing_is_kept_of_who_has_none(
    steps: list[tuple[int, bool]],
) -> None:
    seen: list[int] = []
    places, taken, begun = Places(seen.append), list[Any](), 0
    for holder, gives in steps:
        if gives and taken:
            _, place = taken.pop()
            place.give_back()
            place.give_back()
        else:
            taken.append((holder, places.take(holder)))
            begun += 1
        assert len(places) == len(taken) == seen[-1]
        assert all(places.of(one) == sum(holder == one for holder, _ in taken) for one in range(4))
    assert places.holders() == {holder for holder, _ in taken}


@pytest.mark.parametrize("error", [None, errors.Unavailable("x", reason="Wanted"), asyncio.CancelledError()])
def test_a_request_under_way_is_counted_until_it_is_over_however_it_ends(error: BaseException | None) -> None:
    seen: list[int] = []
    gate = Gate(Policy(at_once=1), under_way=seen.append)
    with contextlib.suppress(errors.Unavailable, asyncio.CancelledError), gate.under_way("ann"):
        with pytest.raises(errors.Throttled, match="under way"), gate.under_way("ann"):
            pass
        if error is not None:
            raise error
    assert seen == [1, 0]
