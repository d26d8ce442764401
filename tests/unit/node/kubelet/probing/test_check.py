"""Probes and hooks against real listeners, from inside a process's own network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc.aio
import pytest

from fairlead.engine.fake.engine import FakeEngine
from fairlead.engine.port import ContainerSpec
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.node.kubelet.probing import check, grpchealth
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import (
    ExecAction,
    GRPCAction,
    Handler,
    HTTPGetAction,
    HTTPHeader,
    Probe,
    SleepAction,
    TCPSocketAction,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace needs root")
_IMAGE = "localhost/tools:1"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _target(port: int = 0, *, pid: int | None = None, engine_name: str = "none") -> check.Target:
    item = core.Container(name="c", ports=(core.ContainerPort(container_port=port, name="web"),))
    return check.Target(item=item, engine_name=engine_name, pid=pid or os.getpid())


@contextlib.asynccontextmanager
async def _listening(talk: Talk) -> AsyncIterator[int]:
    ended = list[asyncio.Event]()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        mine = ended[-1]
        with contextlib.suppress(OSError, EOFError):
            await talk(reader, writer)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
        mine.set()

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for one in ended:
            await one.wait()


def _answers(*answers: bytes) -> tuple[Talk, list[bytes]]:
    left, asked = list(answers), list[bytes]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(left.pop(0))

    return talk, asked


async def _http(port: int, path: str = "/", **more: object) -> check.Result:
    wanted = HTTPGetAction(port="web", host="127.0.0.1", path=path, **more)  # type: ignore[arg-type]  # its fields
    return await check.probe(FakeEngine(), _target(port), Probe(http_get=wanted), 5)


@needs_root
async def test_a_port_is_named_and_what_is_asked_is_said_once() -> None:
    talk, asked = _answers(b"HTTP/1.1 204 No Content\r\n\r\n")
    async with _listening(talk) as port:
        result = await _http(port, "ready?deep=1", http_headers=(HTTPHeader(name="Host", value="app"),))
    assert result == check.Result(True)
    lines = asked[0].decode().split("\r\n")
    assert lines[0] == "GET /ready?deep=1 HTTP/1.1"
    assert [line for line in lines if line.lower().startswith("host:")] == ["host: app"]


@needs_root
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 503 No\r\n\r\n", "statuscode: 503"),
        (b"HTTP/1.1 99 No\r\n\r\n", "not HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"", "ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "limit"),
    ],
)
async def test_an_answer_that_is_none_fails_with_what_it_was(answer: bytes, words: str) -> None:
    async with _listening(_answers(answer)[0]) as port:
        result = await _http(port)
    assert not result.is_good
    assert words in result.text


@needs_root
async def test_a_redirect_on_the_same_host_is_followed_and_another_host_is_never_asked() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /there\r\n\r\n"
    talk, asked = _answers(moved, b"HTTP/1.1 500 No\r\n\r\n")
    async with _listening(talk) as port:
        assert not (await _http(port)).is_good
    assert asked[1].startswith(b"GET /there ")
    away = b"HTTP/1.1 302 Found\r\nLocation: http://198.51.100.1/\r\n\r\n"
    async with _listening(_answers(away)[0]) as port:
        assert (await _http(port)).is_good


@needs_root
async def test_redirects_without_end_are_given_up() -> None:
    async with _listening(_answers(*[b"HTTP/1.1 301 x\r\nLocation: /\r\n\r\n"] * 20)[0]) as port:
        assert (await _http(port)).is_good  # a redirect is an answer, as upstream has it


@needs_root
async def test_a_listener_that_never_answers_is_given_up_after_the_timeout() -> None:
    async def deaf(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _listening(deaf) as port:
        wanted = Probe(http_get=HTTPGetAction(port=port, host="127.0.0.1"))
        result = await check.probe(FakeEngine(), _target(port), wanted, 0.05)
    assert result == check.Result(False, "no result within 0.05s")


@needs_root
async def test_a_connection_is_enough_for_a_port_and_none_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wanted = Probe(tcp_socket=TCPSocketAction(port=port, host="localhost"))
        assert (await check.probe(FakeEngine(), _target(), wanted, 5)).is_good
    result = await check.probe(FakeEngine(), _target(), wanted, 5)
    assert "Connect call failed" in result.text or "refused" in result.text
    gone = await check.probe(FakeEngine(), _target(pid=1 << 30), wanted, 5)
    assert "cannot enter the network namespace" in gone.text
    unnamed = Probe(tcp_socket=TCPSocketAction(port="none", host="localhost"))
    assert (await check.probe(FakeEngine(), _target(), unnamed, 5)).text == 'the container has no port "none"'


class _Health(grpc.GenericRpcHandler):
    """The health service of a real gRPC server."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method != "/grpc.health.v1.Health/Check":
            return None

        async def answer(request: bytes, _: object) -> bytes:
            return {b"": b"\x08\x01", b"\x0a\x03bad": b"\x08\x02"}[request]

        return grpc.unary_unary_rpc_method_handler(answer)


@needs_root
async def test_the_health_service_of_a_real_grpc_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Health(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # The pod's own address is this machine's, where the server does not listen.
    monkeypatch.setattr("fairlead.kernel.network.address.of_process", lambda _pid: ("127.0.0.1",))
    try:
        results = [
            await check.probe(FakeEngine(), _target(), Probe(grpc=GRPCAction(port=port, service=name)), 5)
            for name in ("", "bad")
        ]
    finally:
        await server.stop(None)
    assert results == [check.Result(True), check.Result(False, "the service is NOT_SERVING")]


@needs_root
async def test_a_grpc_server_without_health_and_a_server_of_something_else_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.kernel.network.address.of_process", lambda _pid: ("127.0.0.1",))
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        result = await check.probe(FakeEngine(), _target(), Probe(grpc=GRPCAction(port=port)), 5)
    finally:
        await server.stop(None)
    assert result.text == "the server has no health service, or does not know this one"

    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with _listening(other) as port:
        result = await check.probe(FakeEngine(), _target(), Probe(grpc=GRPCAction(port=port)), 5)
    assert result.text == "the answer is not gRPC"


def test_a_long_name_of_a_service_has_a_length_that_a_server_reads() -> None:
    sent = grpchealth.request("s" * 1000, "a")
    assert b"\x0a\xe8\x07" + b"s" * 1000 in sent


async def _exec(*command: str, timeout_s: float = 5) -> check.Result:
    async with FakeEngine() as engine:
        engine.add_image(_IMAGE, command=("sleep", "60"))
        await engine.create(ContainerSpec(name="c", image=_IMAGE))
        await engine.start("c")
        target = _target(engine_name="c")
        return await check.probe(engine, target, Probe(exec=ExecAction(command=command)), timeout_s)


async def test_a_command_succeeds_by_its_code_and_a_failure_shows_what_it_wrote() -> None:
    assert await _exec("true") == check.Result(True)
    assert await _exec("sh", "-c", "echo not yet; exit 3") == check.Result(False, "exit code 3: not yet")


async def test_a_command_that_hangs_is_ended_after_the_timeout() -> None:
    assert await _exec("sleep", "60", timeout_s=0.05) == check.Result(False, "no result within 0.05s")


class _Writer:
    """A session that writes without end."""

    is_closed = False

    async def read(self) -> bytes:
        return b"x" * (1 << 20)

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)

    async def resize(self, rows: int, columns: int) -> None:
        raise AssertionError(rows, columns)

    async def wait(self) -> int:
        raise AssertionError

    async def close(self) -> None:
        self.is_closed = True


class _Writing(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.session = _Writer()

    async def exec(  # type: ignore[override]  # another session than the fake's
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        tty: bool,
        stdin: bool,
        options: ProcessOptions = AS_THE_CONTAINER,
    ) -> _Writer:
        return self.session


async def test_a_command_that_writes_a_gigabyte_is_ended_early() -> None:
    engine = _Writing()
    result = await check.probe(engine, _target(), Probe(exec=ExecAction(command=("yes",))), 5)
    assert result.text == "it wrote more than 16 MiB"
    assert engine.session.is_closed


async def test_a_hook_may_be_a_wait() -> None:
    assert (await check.hook(FakeEngine(), _target(), Handler(sleep=SleepAction(seconds=0)), 1)).is_good
    slow = await check.hook(FakeEngine(), _target(), Handler(sleep=SleepAction(seconds=9)), 0.01)
    assert slow.text == "it has not ended within 0.01s"
