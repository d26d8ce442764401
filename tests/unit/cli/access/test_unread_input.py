"""A kubelet whose program reads none of its input, and that does not tell its end: `cp` and `exec -i` are not held."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fairlead.cli.core.terminal import streams
from fairlead.client import calls, httptransport
from fairlead.client.session import copying
from fairlead.client.session.standstill import Standstill
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.serve import server
from fairlead.serve.backend.containers.podaccess import ExecAccess
from fairlead.store.kubernetes import channel
from fairlead.wire.kubernetes import core
from tests.unit.cli.liveservice import Service, serving
from tests.unit.serve.world import World

_LARGE = 32 << 20
"""More than all buffers on the way."""


class Kubelet:
    """`subresource.Streams` over a WebSocket to a kubelet that leaves input unread."""

    def __init__(self) -> None:
        self.complaint = b""
        self.ends_after_s = float("inf")
        self.closed = threading.Event()
        self._over = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def _answer(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=[channel.V5])
        await socket.prepare(request)
        if self.complaint:
            await socket.send_bytes(b"\2" + self.complaint)
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(self._over.wait(), min(self.ends_after_s, 60))
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\3" + json.dumps({"status": "Success"}).encode())
        return socket

    async def end(self) -> None:
        self._over.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def exec(
        self,
        pod: core.Pod,
        container: str,
        argv: tuple[str, ...],
        *,
        tty: bool,
        stdin: bool,
        options: ProcessOptions = AS_THE_CONTAINER,
    ) -> channel.ProcessStreams:
        del container, options
        if self._runner is None:
            app = web.Application()
            app.router.add_get("/", self._answer)
            self._runner = web.AppRunner(app, shutdown_timeout=0)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        session = aiohttp.ClientSession()
        socket = await session.ws_connect(f"http://{host}:{port}/", protocols=[channel.V5])
        carried = channel.ProcessStreams(socket, what=f"{argv[0]} in {pod.metadata.name}", tty=tty, stdin=stdin)
        closed = carried.close

        async def close() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed(), 0.2)
            await session.close()
            self.closed.set()

        carried.close = close  # type: ignore[method-assign]  # its connections are the test's
        return carried

    async def port_forward(self, pod: core.Pod, port: int) -> Any:
        """Return a connection to a server that reads nothing."""
        del pod, port
        never = asyncio.Event()

        async def close() -> None:
            self.closed.set()

        async def wait(_data: bytes = b"") -> bytes:
            await never.wait()
            return b""

        return SimpleNamespace(read=wait, write=wait, close=close)


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def service(tmp_path: Path, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(server, "_PING_S", 0.2)

    def prepare(world: World) -> None:
        far: Any = kubelet
        backend = dataclasses.replace(world.backend, streams=far, access=ExecAccess(streams=far))
        world.services = dataclasses.replace(world.services, backend=backend)

    with serving(tmp_path, prepare) as live:
        assert live.fairlead("run", "-d", "--name", "box", "demo", "--", "sleep", "1000").exit_code == 0
        yield live
        asyncio.run_coroutine_threadsafe(kubelet.end(), live.loop).result(30)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(_LARGE)
    return path


def test_a_copy_that_was_complained_of_ends_though_it_cannot_all_be_sent(
    service: Service, kubelet: Kubelet, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_UNTOLD_S", 0.3)
    kubelet.complaint = b"tar: /none: Cannot open: No such file or directory\n"
    began = time.monotonic()
    result = service.fairlead("cp", str(large), "box:/none/")
    assert (result.exit_code, time.monotonic() - began < 30) == (2, True), result.output
    assert "Cannot open: No such file or directory (how it ended was not told)" in result.stderr
    assert kubelet.closed.wait(10), "the service keeps a session whose asker is gone"


def test_a_copy_that_nothing_is_said_of_is_waited_for_and_that_is_said_once(
    service: Service, kubelet: Kubelet, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_UNTOLD_S", 0.1)
    kubelet.ends_after_s = 1.5
    told = list[bool]()
    client = calls.Calls(httptransport.HTTPTransport(service.env["FAIRLEAD_URL"].removeprefix("http+unix://")))
    end = copying.End(path="/data/", container="box", where={"namespace": "default"})
    copying.copy_in(client, str(large), end, stands=lambda: told.append(True))
    assert told == [True]


def test_input_that_a_process_leaves_unread_is_said_once_and_its_end_taken(
    service: Service, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet.ends_after_s = 1.5
    told, client = list[bool](), httptransport.HTTPTransport(service.env["FAIRLEAD_URL"].removeprefix("http+unix://"))
    ours, theirs = os.pipe()
    os.write(theirs, b"x" * 1000)
    os.close(theirs)
    monkeypatch.setattr(sys, "stdin", os.fdopen(ours))
    params = [("command", "true"), ("stdin", "true"), ("split", "true"), ("namespace", "default")]
    with calls.Calls(client).connect("/v1/containers/box/exec", params) as connection:
        still = Standstill(lambda: told.append(True), limit_s=0.2)
        code = streams.carry(streams.Session(connection, still=still), stdin=True, terminal=False)
    sys.stdin.close()
    assert (code, told) == (0, [True])


@pytest.mark.parametrize(("node", "lines"), [("", 3), ("one", 0)])
def test_it_is_said_of_a_cluster_alone_with_the_way_out(
    capsys: pytest.CaptureFixture[str], node: str, lines: int
) -> None:
    """One machine tells each end."""
    client: Any = SimpleNamespace(status=lambda: SimpleNamespace(node=node))
    streams.warn_of_standstill(client)()
    said = capsys.readouterr().err
    assert (len(said.splitlines()), "Ctrl-C" in said) == (lines, bool(lines))
    assert max(map(len, said.splitlines()), default=0) <= 80


def test_a_forwarded_port_whose_server_reads_nothing_ends_with_its_asker(service: Service, kubelet: Kubelet) -> None:
    client = calls.Calls(httptransport.HTTPTransport(service.env["FAIRLEAD_URL"].removeprefix("http+unix://")))
    with client.connect("/v1/containers/box/ports/80", [("namespace", "default")]) as connection:
        for _ in range(4):
            connection.send(b"x" * 1000)
        client.close()
    assert kubelet.closed.wait(10)
