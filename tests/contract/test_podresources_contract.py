"""PodResources over a real socket: the embedded kubelet serves what the client reads, as the real kubelet does.

The same questions are put to the real one by `tests/cluster/test_trace_on_cluster.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import msgspec
import pytest

from fairlead import errors
from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.kubelet.devices import checkpoint, devicemanager
from fairlead.node.kubelet.devices import podresources as served
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubelet import podresources as wire
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import podresources_pb2 as pb

RESOURCE = "nvidia.com/gpu"
PATIENCE_S = 50.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


def pod(
    name: str, uid: str, *containers: str, init: tuple[core.Container, ...] = (), phase: str = "Running"
) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="team", uid=uid),
        spec=core.PodSpec(containers=tuple(core.Container(name=one) for one in containers), init_containers=init),
        status=core.PodStatus(phase=phase),
    )


def grant(uid: str, container: str, *ids: str) -> checkpoint.Grant:
    return checkpoint.Grant(pod_uid=uid, container=container, resource=RESOURCE, device_ids=ids, response=b"")


@contextlib.asynccontextmanager
async def kubelet(folder: Path, pods: list[core.Pod], *grants: checkpoint.Grant) -> AsyncIterator[podresources.Client]:
    devices = devicemanager.DeviceManager(checkpoint.Checkpoint(folder), grace_s=60, changed=lambda: None)
    devices.restore(grants)
    socket = folder / wire.FOLDER / wire.SOCKET
    async with served.serve_pod_resources(devices, lambda: pods, socket):
        client = podresources.Client(socket)
        yield client
        await client.close()


async def test_every_container_is_listed_with_what_it_holds(folder: Path) -> None:
    pods = [pod("a", "u1", "main", "side"), pod("b", "u2", "main")]
    grants = (grant("u1", "main", "g0", "g1"), grant("u1", "side", "g2"), grant("u2", "main", "g3"))
    async with kubelet(folder, pods, *grants) as client:
        found = await client.list_holdings()
    assert [(one.pod, one.container, one.ids) for one in found] == [
        ("a", "main", ("g0", "g1")),
        ("a", "side", ("g2",)),
        ("b", "main", ("g3",)),
    ]
    assert {one.namespace for one in found} == {"team"}


async def test_ended_pods_and_ordinary_init_containers_are_not_listed_and_sidecars_are(folder: Path) -> None:
    init = (core.Container(name="once"), core.Container(name="beside", restart_policy="Always"))
    pods = [pod("a", "u1", "main", init=init), pod("b", "u2", "main", phase="Succeeded")]
    grants = (grant("u1", "once", "g0"), grant("u1", "beside", "g1"), grant("u2", "main", "g2"))
    async with kubelet(folder, pods, *grants) as client:
        found = await client.list_holdings()
    assert [(one.container, one.ids) for one in found] == [("beside", ("g1",))]


async def test_an_init_container_is_listed_while_it_runs_and_no_longer(folder: Path) -> None:
    """Whoever audits it by the list finds what it has; its pod's others are listed with what they will have."""
    made = pod("a", "u1", "main", init=(core.Container(name="once"), core.Container(name="next")))
    running = core.ContainerStateUnion(running=core.ContainerStateRunning())
    ended = core.ContainerStateUnion(terminated=core.ContainerStateTerminated(exit_code=0))
    for state, expected in ((running, ["once", "main"]), (ended, ["main"])):
        statuses = (core.ContainerStatus(name="once", state=state), core.ContainerStatus(name="next"))
        status = msgspec.structs.replace(made.status, init_container_statuses=statuses)
        pods = [msgspec.structs.replace(made, status=status)]
        async with kubelet(folder, pods, grant("u1", "once", "g0"), grant("u1", "main", "g0")) as client:
            assert sorted(one.container for one in await client.list_holdings()) == sorted(expected)


async def ask(channel: grpc.aio.Channel, namespace: str, name: str) -> pb.GetPodResourcesResponse:
    call = deviceplugin.method(channel, wire.SERVICE, "Get")
    request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
    return await deviceplugin.answer(call(request, timeout=PATIENCE_S), "Get", pb.GetPodResourcesResponse)


async def test_one_pod_is_told_by_name_as_runtimes_of_machines_ask(folder: Path) -> None:
    pods = [pod("a", "u1", "main", "side"), pod("b", "u2", "main", phase="Pending")]
    grants = (grant("u1", "main", "g0"), grant("u2", "main", "g1", "g2"))
    async with kubelet(folder, pods, *grants) as client:
        channel = grpc.aio.insecure_channel(deviceplugin.target(client.socket), options=deviceplugin.CHANNEL_OPTIONS)
        async with channel:
            answer = await ask(channel, "team", "b")
            for namespace, name in (("team", "c"), ("other", "b"), ("", "b\x1b[31m" * 200)):
                with pytest.raises(errors.NotFound):
                    await ask(channel, namespace, name)
    found = answer.pod_resources
    assert (found.namespace, found.name) == ("team", "b")
    assert [
        (one.name, [(each.resource_name, list(each.device_ids)) for each in one.devices]) for one in found.containers
    ] == [("main", [(RESOURCE, ["g1", "g2"])])]


async def test_whoever_asks_now_updates_the_list_for_its_followers(folder: Path) -> None:
    async with kubelet(folder, [pod("a", "u1", "main")], grant("u1", "main", "g0")) as client:
        holdings = podresources.Holdings(client.socket)
        assert holdings.is_awaited
        found = await holdings.read()
    assert [(one.pod, one.ids) for one in found] == [("a", ("g0",))]
    assert (holdings.latest.value, holdings.is_awaited) == (found, False)


async def test_an_answer_that_comes_late_replaces_no_newer_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = (Holding(namespace="team", pod="a", container="main", resource=RESOURCE, ids=(DeviceID("g0"),)),)
    is_over = asyncio.Event()

    async def answer_late(_: Path) -> tuple[Holding, ...]:
        await is_over.wait()
        return older

    holdings = podresources.Holdings(folder / "kubelet.sock")
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
        monkeypatch.setattr(podresources, "list_holdings", answer_late)
        late = tasks.create_task(holdings.read())
        await asyncio.sleep(0)
        monkeypatch.setattr(podresources, "list_holdings", unlisted)
        assert await holdings.read() == ()
        is_over.set()
    assert (late.result(), holdings.latest.value) == (older, ())


async def unlisted(_: Path) -> tuple[Holding, ...]:
    return ()


async def test_the_socket_is_for_root_alone_and_goes_with_the_kubelet(folder: Path) -> None:
    async with kubelet(folder, []) as client:
        assert client.socket.stat().st_mode & 0o777 == 0o600
        assert await client.list_allocatable() == {}
    assert not client.socket.exists()


async def test_without_a_kubelet_nobody_is_said_to_hold_anything(folder: Path) -> None:
    client = podresources.Client(folder / "none.sock")
    with pytest.raises(errors.Unavailable):
        await client.list_holdings()
    await client.close()


def test_devices_that_are_named_one_by_one_are_one_holding() -> None:
    devices = [pb.ContainerDevices(resource_name=RESOURCE, device_ids=[name]) for name in ("g1", "g0")]
    container = pb.ContainerResources(name="main", devices=devices)
    answer = pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(name="a", namespace="team", containers=[container])]
    )
    (found,) = podresources.parse_holdings(answer)
    assert found == Holding(namespace="team", pod="a", container="main", resource=RESOURCE, ids=("g1", "g0"))  # type: ignore[arg-type]


@dataclass
class Scripted:
    """A kubelet that answers as a test says, and counts."""

    answer: pb.ListPodResourcesResponse = field(default_factory=pb.ListPodResourcesResponse)
    asked: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    count: int = 0

    async def list(self) -> pb.ListPodResourcesResponse:
        self.count += 1
        self.asked.put_nowait(self.count)
        return self.answer

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        devices = [pb.ContainerDevices(resource_name=RESOURCE, device_ids=[name]) for name in ("g0", "g1")]
        return pb.AllocatableResourcesResponse(devices=devices)

    async def get(self, namespace: str, name: str) -> pb.GetPodResourcesResponse:
        raise errors.NotFound(f"no pod {namespace}/{name}", reason="PodNotFound")


@contextlib.asynccontextmanager
async def scripted(socket: Path) -> AsyncIterator[Scripted]:
    one, server = Scripted(), grpc.aio.server()
    server.add_generic_rpc_handlers((wire.handlers(one),))
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()
    try:
        yield one
    finally:
        await server.stop(None)
        socket.unlink(missing_ok=True)


async def test_devices_that_a_kubelet_knows_are_told_by_resource(folder: Path) -> None:
    socket = folder / "kubelet.sock"
    async with scripted(socket):
        client = podresources.Client(socket)
        assert await client.list_allocatable() == {RESOURCE: {"g0", "g1"}}
        await client.close()


def listed(holdings: podresources.Holdings) -> list[str]:
    return [one.pod for one in holdings.latest.value or ()]


async def test_the_list_is_read_when_asked_and_again_when_a_wish_is_due(folder: Path) -> None:
    socket = folder / "kubelet.sock"
    holdings = podresources.Holdings(socket)
    async with scripted(socket) as one, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(holdings.run())
        assert await one.asked.get() == 1
        holdings.ask(after_s=0.05)
        assert await one.asked.get() == 2
        holdings.ask(after_s=60)
        holdings.ask()
        assert await one.asked.get() == 3
        task.cancel()


async def test_a_kubelet_that_comes_back_is_read_again_and_the_last_list_stands_meanwhile(folder: Path) -> None:
    socket = folder / "kubelet.sock"
    holdings = podresources.Holdings(socket)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        async with scripted(socket):
            task = tasks.create_task(holdings.run())
            await holdings.latest.wait(0)
        holdings.ask()
        async with scripted(socket) as one:
            container = pb.ContainerResources(
                name="main", devices=[pb.ContainerDevices(resource_name=RESOURCE, device_ids=["g0"])]
            )
            one.answer = pb.ListPodResourcesResponse(
                pod_resources=[pb.PodResources(name="a", namespace="team", containers=[container])]
            )
            assert listed(holdings) == []
            holdings.ask()
            await holdings.latest.wait(holdings.latest.version)
            assert listed(holdings) == ["a"]
        task.cancel()
