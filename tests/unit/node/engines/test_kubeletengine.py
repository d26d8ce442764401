"""Which engine serves the kubelet: the Node object, the operator or the engine itself says so, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fairlead.node.engines import kubeletengine
from fairlead.node.inventory import latest
from fairlead.plan.gpu.allocation import enginesupport
from fairlead.wire.kubelet import deviceplugin, engineversion
from fairlead.wire.proto import engineversion_pb2 as pb

PATIENCE_S = 50.0
CONTAINERD, CRIO = kubeletengine.SOCKETS[0], kubeletengine.SOCKETS[2]


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def engine(socket: Path, name: str, version: str) -> AsyncIterator[None]:
    """Serve the one call that is made."""

    async def said(_: pb.VersionRequest, __: object) -> pb.VersionResponse:
        return pb.VersionResponse(version="0.1.0", runtime_name=name, runtime_version=version, runtime_api_version="v1")

    call = grpc.unary_unary_rpc_method_handler(said, pb.VersionRequest.FromString, pb.VersionResponse.SerializeToString)
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(engineversion.SERVICE, {"Version": call})])
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def running(
    found: kubeletengine.KubeletEngine, node: latest.Latest[str] | None = None
) -> AsyncIterator[kubeletengine.KubeletEngine]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(found.run(node))
        yield found
        task.cancel()


async def until(found: kubeletengine.KubeletEngine, *engines: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for value in found.engines.changes():
            if value == engines:
                return


async def test_without_an_api_server_the_engine_on_its_socket_is_asked(root: Path) -> None:
    async with engine(root / CONTAINERD, "containerd", "v2.2.1"), running(kubeletengine.KubeletEngine(root=root)) as it:
        await until(it, "containerd://v2.2.1")


async def test_an_engine_that_comes_later_is_asked_then(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeletengine, "_UNKNOWN_WAIT_S", 0.01)
    async with running(kubeletengine.KubeletEngine(root=root)) as it:
        await asyncio.sleep(0.05)
        assert it.engines.value == ()
        async with engine(root / CRIO, "cri-o", "1.34.0"):
            await until(it, "cri-o://1.34.0")


async def test_of_two_engines_that_answer_each_may_be_the_kubelets(root: Path) -> None:
    async with (
        engine(root / CONTAINERD, "containerd", "1.6.36"),
        engine(root / CRIO, "cri-o", "1.34.0"),
        running(kubeletengine.KubeletEngine(root=root)) as it,
    ):
        await until(it, "containerd://1.6.36", "cri-o://1.34.0")


async def test_an_engine_without_a_release_and_a_socket_that_nobody_serves_say_nothing(root: Path) -> None:
    async with engine(root / CONTAINERD, "containerd", "dev-build"):
        assert await kubeletengine.ask([root / CONTAINERD, root / CRIO]) == ()
    (root / CRIO).parent.mkdir(parents=True)
    (root / CRIO).write_text("no socket")
    assert await kubeletengine.ask([root / CONTAINERD, root / CRIO]) == ()


async def test_the_node_object_goes_before_the_operator_and_the_operator_before_the_socket(root: Path) -> None:
    node: latest.Latest[str] = latest.Latest("")
    async with (
        engine(root / CONTAINERD, "containerd", "1.6.36"),
        running(kubeletengine.KubeletEngine("containerd://1.7.0", root=root), node) as it,
    ):
        assert it.engines.value == ("containerd://1.7.0",)  # at once, before anything was asked
        node.set("containerd://2.2.1")
        await until(it, "containerd://2.2.1")
        node.set("containerd://unreadable")
        await until(it, "containerd://1.7.0")


@pytest.mark.parametrize("text", ["", "containerd", "containerd://", "://2.2.1", "containerd://head", "2.2.1"])
def test_what_names_no_engine_or_no_release_says_nothing(text: str) -> None:
    assert not enginesupport.has_release(text)
    assert kubeletengine.KubeletEngine(text).engines.value == ()
