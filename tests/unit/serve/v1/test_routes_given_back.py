"""Every route of the API as it is served, every way to leave it: connections, requests and bodies are counted down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import random
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from fairlead import telemetry
from fairlead.serve import authentication, bodies, server, sockets
from fairlead.serve.api import app as base
from fairlead.serve.limits.gate import Gate
from fairlead.serve.opened import hosts
from fairlead.serve.opened.grants import Grants
from fairlead.serve.v1 import app as v1
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application

_LIMITS: Final = sockets.Limits(head_s=30, body_s=30, per_address=512, connections=1024)
_UPGRADE: Final = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
_QUERY: Final = {
    "read_logs": "follow=true",
    "list_events": "follow=true",
    "list_container_events": "follow=true",
    "wait_container": "timeout_s=60",
    "exec_in_container": "command=cat&stdin=true",
}
"""What makes a route take long."""
_BODY: Final[dict[str, dict[str, object]]] = {
    "create_container": {"name": "one", "image": "demo", "args": ["sleep", "600"]},
    "create_user": {"name": "new"},
    "create_key": {"account": "root"},
    "create_tenancy": {"name": "green"},
}
_WAYS: Final = (
    "answer",
    "no key",
    "no right",
    "half a head",
    "half a body",
    "large body",
    "gone at once",
    "gone at the first byte",
    "reset",
)
_SOCKET_WAYS: Final = ("answer", "no key", "half a head", "wrong handshake", "frame", "close frame", "reset")
_BUDGET: Final = bodies.Budget
_PATIENCE_S: Final = 0.3
"""So long an answer that goes on is listened to."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route, as a client asks for it."""

    name: str
    method: str
    path: str

    @property
    def upgrades(self) -> bool:
        """Whether it is a WebSocket's."""
        return self.method == ""

    @property
    def ways(self) -> tuple[str, ...]:
        """How a client may leave it."""
        return _SOCKET_WAYS if self.upgrades else _WAYS


def _routes() -> Iterator[Route]:
    for one in (*v1.ROUTES, base.document):
        name = one.handler_name
        (path,) = one.paths
        path = re.sub(r"\{port:int\}", "80", re.sub(r"\{\w+:str\}", "one", path)).replace("/:", ":")
        for method in sorted(getattr(one, "http_methods", [""])):
            yield Route(name, str(method), path + (f"?{_QUERY[name]}" if name in _QUERY else ""))


ROUTES: Final = tuple(_routes())


class Counts:
    """A meter that keeps what it was set to last, and the budget of bodies."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.budgets: list[bodies.Budget] = []
        self.most: dict[str, float] = {}

    def add(self, metric: telemetry.Metric, *labels: str) -> None: ...

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        self.values[metric.name] = value
        self.most[metric.name] = max(value, self.most.get(metric.name, 0))

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...

    def budget(self) -> bodies.Budget:
        """Make a budget that is looked at."""
        self.budgets.append(_BUDGET())
        return self.budgets[-1]

    @property
    def is_zero(self) -> bool:
        """Whether nothing is held."""
        return not any(self.values.values()) and not any(one.read or one.judged for one in self.budgets)


@dataclass(slots=True)
class Door:
    """The API of a lab, listening."""

    lab: Lab
    port: int
    counts: Counts
    serving: asyncio.Task[None]

    async def leave(self, route: Route, way: str) -> None:
        """Ask for a route once and leave it in one way."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        whole, body = self._request(route, way)
        with contextlib.suppress(ConnectionError):
            writer.write(whole[: len(whole) // 2] if way == "half a head" else whole + body)
            await writer.drain()
            if way in {"answer", "no key", "no right", "large body", "frame", "close frame", "wrong handshake"}:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await (reader.readline() if route.upgrades else reader.read())
            if way == "gone at the first byte":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await reader.readexactly(1)
            if way in {"frame", "close frame"}:
                writer.write(b"\x82\x81\0\0\0\0x" if way == "frame" else b"\x88\x80\0\0\0\0")
                await writer.drain()
        if way in {"reset", "half a body"}:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def _request(self, route: Route, way: str) -> tuple[bytes, bytes]:
        who = {"no key": "", "no right": self.lab.keys["nobody"]}.get(way, self.lab.keys["root"])
        head = f"{route.method or 'GET'} {route.path} HTTP/1.1\r\nhost: x\r\n".encode()
        if who:
            head += f"authorization: Bearer {who}\r\n".encode()
        if route.upgrades:
            upgrade = _UPGRADE.replace(b"13", b"1") if way == "wrong handshake" else _UPGRADE
            return head + upgrade + b"\r\n", b""
        given: dict[str, object] = dict(_BODY.get(route.name, {}))
        if way == "large body":
            given["more"] = "x" * (2 * bodies.SMALL)
        body = json.dumps(given).encode() if route.method in {"POST", "PUT"} or way == "large body" else b""
        head += b"connection: close\r\ncontent-type: application/json\r\n"
        if way == "half a body":
            return head + b"content-length: %d\r\n\r\n" % (2 * bodies.SMALL), b"{"
        return head + b"content-length: %d\r\n\r\n" % len(body), body

    async def empty(self) -> None:
        """Return once nothing is held."""
        async with asyncio.timeout(20):
            while not self.counts.is_zero:  # noqa: ASYNC110  (gauges have no event)
                await asyncio.sleep(0.005)

    async def ensure_container(self) -> None:
        """Have a container that runs."""
        await self.lab.ask("root", "POST", "/v1/containers", json=_BODY["create_container"])


@contextlib.asynccontextmanager
async def _door(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    counts = Counts()
    monkeypatch.setattr(bodies, "Budget", counts.budget)
    async with opened(world, folder) as lab, asyncio.TaskGroup() as tasks:
        lab.services = dataclasses.replace(lab.services, grants=Grants(domain=hosts.Domain(name="apps.example")))
        gate = Gate(lab.policy, under_way=functools.partial(counts.set, telemetry.UNDER_WAY))
        app = authentication.create_app(application(lab.services), lab.accounts, gate=gate, refusals=lab.refusals)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            serving = tasks.create_task(server._serve(app, listener, limits=_LIMITS, meter=counts, door="tls"))
            yield Door(lab, listener.getsockname()[1], counts, serving)
            serving.cancel()


@pytest.fixture
async def door(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    # Outside of the world's own folder, which is its state.
    (tmp_path / "accounts").mkdir()
    async with _door(world, tmp_path / "accounts", monkeypatch) as one:
        yield one


def _shuffled(seed: int) -> list[tuple[Route, str]]:
    every = [(route, way) for route in ROUTES for way in route.ways]
    random.Random(seed).shuffle(every)
    return every


def _pieces(every: Sequence[tuple[Route, str]], size: int) -> Iterator[Sequence[tuple[Route, str]]]:
    for at in range(0, len(every), size):
        yield every[at : at + size]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.timeout(120)
async def test_every_way_out_of_every_route_gives_back_all_that_it_has_taken(door: Door, seed: int) -> None:
    for together in _pieces(_shuffled(seed), 40):
        await door.ensure_container()
        await asyncio.gather(*(door.leave(route, way) for route, way in together))
        await door.empty()
    assert door.counts.most[telemetry.UNDER_WAY.name] > 1
    assert door.counts.budgets


async def test_a_server_that_stops_gives_back_what_requests_under_way_have_taken(door: Door) -> None:
    await door.ensure_container()
    long = [route for route in ROUTES if route.name in _QUERY or route.upgrades]
    async with asyncio.timeout(20), asyncio.TaskGroup() as leaving:
        for route in long:
            leaving.create_task(door.leave(route, "answer"))
        while door.counts.most.get(telemetry.CONNECTIONS.name, 0) < len(long):  # noqa: ASYNC110  (as above)
            await asyncio.sleep(0.005)
        door.serving.cancel()
        await asyncio.wait([door.serving])
        assert door.counts.is_zero
