"""The device plugin over real unix sockets, against a kubelet that behaves as the real one does.

It empties its folder of sockets when it starts, dials a plugin back within Register, follows ListAndWatch and marks a
plugin gone when its stream ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import GPU, Inventory, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.deviceplugin import registration
from fairlead.node.inventory import foldermonitor
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests import devices

PATIENCE_S = 50.0


class Kubelet:
    """The kubelet's side of the protocol, and its memory of what it was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / wire.KUBELET_SOCKET
        self.registered: list[str] = []
        self.lists: dict[str, list[dict[str, str]]] = {}
        self.messages: dict[str, pb.ListAndWatchResponse] = {}
        self.refuse: errors.FairleadError | None = None
        self.is_deaf = False
        """Never ask for the list of the next that registers."""
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.sweeps_late = False
        """Remove the plugin's socket once it asks to register, as a kubelet does that still empties its folder."""
        self._changed = asyncio.Condition()
        self._stack = contextlib.AsyncExitStack()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Kubelet:
        await self._stack.__aenter__()
        for entry in self.folder.iterdir():
            if entry.is_socket():
                entry.unlink()
        await self._stack.enter_async_context(self._tasks)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([wire.registration_handlers(self)])
        server.add_insecure_port(wire.target(self.socket))
        self._stack.push_async_callback(server.stop, 0)
        await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks._tasks):
            task.cancel()
        await self._stack.aclose()
        self.socket.unlink(missing_ok=True)

    async def register(self, request: pb.RegisterRequest) -> pb.Empty:
        if self.refuse is not None:
            refusal, self.refuse = self.refuse, None
            raise refusal
        assert request.version == wire.VERSION
        channel = grpc.aio.insecure_channel(wire.target(self.folder / request.endpoint), options=wire.CHANNEL_OPTIONS)
        if self.sweeps_late:
            self.sweeps_late = False
            (self.folder / request.endpoint).unlink()
            try:
                async with asyncio.timeout(PATIENCE_S):  # the real one blocks in its dial for 10 s
                    await asyncio.Event().wait()
            finally:
                await channel.close()
        options = await wire.DevicePluginStub(channel).options(timeout_s=PATIENCE_S)
        assert options == request.options
        self.channels[request.resource_name] = channel
        if self.is_deaf:
            self.is_deaf = False
            await channel.close()
        else:
            self._tasks.create_task(self._follow(request.resource_name, channel))
        await self._note(lambda: self.registered.append(request.resource_name))
        return pb.Empty()

    async def _follow(self, resource: str, channel: grpc.aio.Channel) -> None:
        try:
            async for answer in wire.DevicePluginStub(channel).list_and_watch():
                await self._note(lambda answer=answer: self._keep(resource, answer))  # type: ignore[misc]
        except errors.FairleadError:
            await self._note(lambda: self.lists.setdefault(resource, []).append({}))
        finally:
            await channel.close()

    def _keep(self, resource: str, answer: pb.ListAndWatchResponse) -> None:
        self.messages[resource] = answer
        self.lists.setdefault(resource, []).append({device.ID: device.health for device in answer.devices})

    async def _note(self, act: Callable[[], object]) -> None:
        async with self._changed:
            act()
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(condition)

    async def until_list(self, resource: str, wanted: dict[str, str]) -> None:
        await self.until(lambda: self.lists.get(resource, [None])[-1] == wanted)

    @contextlib.asynccontextmanager
    async def stub(self, path: Path) -> AsyncIterator[wire.DevicePluginStub]:
        async with grpc.aio.insecure_channel(wire.target(path), options=wire.CHANNEL_OPTIONS) as channel:
            yield wire.DevicePluginStub(channel)


class Node:
    """Plugins as the agent composes them."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self.watch = foldermonitor.FolderMonitor(folder)
        self.tasks = tasks
        self.running = [tasks.create_task(self.watch.run())]
        self.endpoints: dict[str, deviceplugin.Endpoint] = {}
        self.registrars: list[registration.Registrar] = []
        self.returns = 0
        """How often a socket was about to be served again."""

    def serve(
        self, resource: str, count: int = 2, *, way: answer.AllocateOptions = answer.DEFAULT
    ) -> deviceplugin.Plugin:
        plugin = deviceplugin.Plugin(resource, allocate_options=way)
        offer(plugin, count)
        self.endpoints[resource] = deviceplugin.Endpoint(plugin, self.watch.folder)
        registrar = registration.Registrar(
            self.endpoints[resource], self.watch, first_wait_s=0.05, before_return=self._count
        )
        self.registrars.append(registrar)
        self.running.append(self.tasks.create_task(registrar.run()))
        return plugin

    async def _count(self) -> None:
        self.returns += 1

    async def until_standing_by(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.registrars[0].is_standing_by:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.wait(self.running)


def offer(plugin: deviceplugin.Plugin, count: int, *, broken: tuple[int, ...] = ()) -> bool:
    gpus = tuple(
        GPU(uuid=GPUUUID(f"GPU-{i}"), index=i, minor=i, pci_bus_id=f"0000:{i:02x}:00.0", name="X", memory_bytes=1)
        for i in range(count)
    )
    vendor = Vendor.AMD if plugin.resource.startswith("amd") else Vendor.NVIDIA
    offered = tuple(
        devices.gpu(
            f"GPU-{i}",
            vendor=vendor,
            is_healthy=i not in broken,
            reason="XID79" if i in broken else "",
            numa_node=i // 2,
            index=str(i),
            nodes=(f"/dev/nvidia{i}",),
        )
        for i in range(count)
    )
    ad = advertise.Advertisement(resource=plugin.resource, vendor=vendor, devices=offered)
    nodes = [
        DeviceNode(path=path, host_path=f"/root{path}", major=195, minor=0, mode=0o666)
        for path in ("/dev/nvidiactl", *(f"/dev/nvidia{i}" for i in range(count)))
    ]
    return plugin.update(ad, choose.plan_topology(Inventory(gpus=gpus)), nodes=nodes)


NVIDIA = "nvidia.com/gpu"
BOTH_HEALTHY = {"GPU-0": "Healthy", "GPU-1": "Healthy"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "dp"
    path.mkdir()
    yield path
    assert [entry.name for entry in path.iterdir()] == [], "an orderly stop leaves no socket behind"


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    async with asyncio.TaskGroup() as tasks:
        node = Node(folder, tasks)
        yield node
        await node.stop()


async def test_a_plugin_registers_and_its_devices_arrive(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        numa = [device.topology.nodes[0].ID for device in kubelet.messages[NVIDIA].devices]
        assert (kubelet.registered, numa) == ([NVIDIA], [0, 0])
        assert node.endpoints[NVIDIA].path.name == "fairlead-nvidia.com_gpu.sock"


async def test_a_kubelet_that_comes_later_is_found(folder: Path, node: Node) -> None:
    node.serve(NVIDIA)
    while not node.endpoints[NVIDIA].is_present():
        await node.watch.ticks.wait(node.watch.ticks.version)
    async with Kubelet(folder) as kubelet:
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_a_restarted_kubelet_is_registered_with_again_each_time(folder: Path, node: Node) -> None:
    node.serve(NVIDIA)
    for _ in range(3):
        async with Kubelet(folder) as kubelet:
            await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
            assert kubelet.registered == [NVIDIA]


async def test_an_own_socket_that_vanishes_is_served_and_registered_again(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        node.endpoints[NVIDIA].path.unlink()
        await kubelet.until(lambda: kubelet.registered == [NVIDIA, NVIDIA])
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            assert (await stub.options()).get_preferred_allocation_available


async def test_a_kubelet_that_refuses_at_first_is_asked_again(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        kubelet.refuse = errors.Unavailable("not yet", reason="Starting")
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_a_socket_swept_away_while_registering_is_served_again_at_once(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        kubelet.sweeps_late = True
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_a_socket_swept_away_while_it_is_made_is_made_again_without_a_warning(
    folder: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path.replace
    swept: list[Path] = []

    def replace(path: Path, target: Path) -> Path:
        if path.suffix == ".new" and len(swept) < 1:
            swept.append(path)
            path.unlink()
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with capture_logs() as logged:
        async with Kubelet(folder) as kubelet:
            node.serve(NVIDIA)
            await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
    assert len(swept) == 1
    assert [one for one in logged if one["log_level"] == "warning"] == []


async def test_a_dead_kubelets_socket_does_not_stop_the_search_for_a_living_one(folder: Path, node: Node) -> None:
    leftover = folder / wire.KUBELET_SOCKET
    async with Kubelet(folder):
        leftover.rename(folder / "kept")
    (folder / "kept").rename(leftover)
    node.serve(NVIDIA)
    while not node.endpoints[NVIDIA].is_present():
        await node.watch.ticks.wait(node.watch.ticks.version)
    async with Kubelet(folder) as kubelet:
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_a_kubelet_that_hangs_up_and_stays_is_registered_with_again(folder: Path, node: Node) -> None:
    """A real one does where another plugin of the resource ends: it closes the newer one's connection."""
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        for times in (2, 3):
            kubelet.lists.clear()
            await kubelet.channels[NVIDIA].close()
            await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
            assert len(kubelet.registered) == times


async def test_a_kubelet_that_never_comes_for_the_list_is_registered_with_again(
    folder: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "POLL_S", 0.2)
    async with Kubelet(folder) as kubelet:
        kubelet.is_deaf = True
        node.serve(NVIDIA)
        await kubelet.until(lambda: len(kubelet.registered) == 2)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_of_two_agents_the_newer_serves_and_the_older_returns_once_it_is_gone(folder: Path, node: Node) -> None:
    async with asyncio.TaskGroup() as tasks, Kubelet(folder) as kubelet:
        node.serve(NVIDIA, 1)
        await kubelet.until_list(NVIDIA, {"GPU-0": "Healthy"})
        newer = Node(folder, tasks)
        newer.serve(NVIDIA, 2)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        await node.until_standing_by()
        assert (newer.endpoints[NVIDIA].is_present(), node.returns) == (True, 0)

        await newer.stop()
        await kubelet.until_list(NVIDIA, {"GPU-0": "Healthy"})
        assert (node.endpoints[NVIDIA].is_present(), node.returns) == (True, 1)


async def test_an_older_agent_that_ends_leaves_the_newer_ones_socket_alone(folder: Path, node: Node) -> None:
    async with asyncio.TaskGroup() as tasks, Kubelet(folder) as kubelet:
        older = Node(folder, tasks)
        older.serve(NVIDIA, 1)
        await kubelet.until_list(NVIDIA, {"GPU-0": "Healthy"})
        node.serve(NVIDIA, 2)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        await older.until_standing_by()
        await older.stop()
        assert node.endpoints[NVIDIA].is_present()
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            assert (await stub.options()).get_preferred_allocation_available


async def test_health_goes_and_comes_back_for_one_device_only(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        plugin = node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        offer(plugin, 2, broken=(1,))
        await kubelet.until_list(NVIDIA, {"GPU-0": "Healthy", "GPU-1": "Unhealthy"})
        offer(plugin, 2)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        assert len(kubelet.lists[NVIDIA]) == 3


async def test_an_unchanged_list_is_not_sent_again(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        plugin = node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        assert not offer(plugin, 2)
        assert offer(plugin, 3)
        await kubelet.until_list(NVIDIA, {**BOTH_HEALTHY, "GPU-2": "Healthy"})
        assert len(kubelet.lists[NVIDIA]) == 2


async def test_two_resources_are_served_side_by_side(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA, 2)
        node.serve("amd.com/gpu", 1)
        await kubelet.until(lambda: set(kubelet.lists) == {NVIDIA, "amd.com/gpu"})
        assert kubelet.lists["amd.com/gpu"] == [{"GPU-0": "Healthy"}]
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["GPU-0"])])
        async with kubelet.stub(node.endpoints["amd.com/gpu"].path) as stub:
            answer = await stub.allocate(request)
        assert answer.container_responses[0].cdi_devices[0].name == "amd.fairlead.dev/gpu=GPU-0"


async def test_a_reader_that_stalls_gets_the_newest_list_and_holds_up_nobody(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        plugin = node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            stalled = stub.list_and_watch()
            await anext(stalled)
            for count in (*range(3, 40), 2):
                offer(plugin, count, broken=(0,))
            await kubelet.until_list(NVIDIA, {"GPU-0": "Unhealthy", "GPU-1": "Healthy"})
            assert len(kubelet.lists[NVIDIA]) < 10
            async with asyncio.timeout(PATIENCE_S):
                while len((last := await anext(stalled)).devices) != 2:
                    pass
            assert [device.health for device in last.devices] == ["Unhealthy", "Healthy"]
            await stalled.aclose()


async def test_streams_that_end_leave_nothing_behind(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        plugin = node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        before = asyncio.all_tasks()
        for _ in range(20):
            async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
                stream = stub.list_and_watch()
                await anext(stream)
                await stream.aclose()
        offer(plugin, 3)
        await kubelet.until(lambda: len(kubelet.lists[NVIDIA]) == 2)
        # grpc keeps one task that waits for the next call; every other new task belonged to a stream.
        if leftovers := {task for task in asyncio.all_tasks() - before if "_request_call" not in repr(task)}:
            _, pending = await asyncio.wait(leftovers, timeout=PATIENCE_S)
            assert not pending


async def allocate(kubelet: Kubelet, node: Node, *containers: list[str]) -> list[list[str]]:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=c) for c in containers])
    async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
        answer = await stub.allocate(request)
    return [[device.name for device in item.cdi_devices] for item in answer.container_responses]


async def test_allocate_names_cdi_devices_and_repeats_itself(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA, 3)
        await kubelet.until(lambda: bool(kubelet.lists))
        first = await allocate(kubelet, node, ["GPU-2", "GPU-0"], ["GPU-1"], [])
        assert first == [["fairlead.dev/gpu=GPU-0", "fairlead.dev/gpu=GPU-2"], ["fairlead.dev/gpu=GPU-1"], []]
        assert await allocate(kubelet, node, ["GPU-0", "GPU-2"], ["GPU-1"], []) == first


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("cdi-cri", {"cdi_devices": 2}),
        ("cdi-annotations", {"annotations": 1}),
        ("envvar", {"envs": 1}),
        ("volume-mounts", {"envs": 1, "mounts": 2}),
        ("envvar,cdi-annotations,cdi-cri", {"envs": 1, "annotations": 1, "cdi_devices": 2}),
    ],
)
async def test_each_device_list_strategy_travels_and_repeats_itself(
    folder: Path, node: Node, text: str, answered: dict[str, int]
) -> None:
    way = answer.AllocateOptions(strategies=answer.parse_strategies(text), ids="index")
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["GPU-2", "GPU-0"])])
    async with Kubelet(folder) as kubelet:
        plugin = node.serve(NVIDIA, 3, way=way)
        await kubelet.until(lambda: bool(kubelet.lists))
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            first = await stub.allocate(request)
            offer(plugin, 3, broken=(1,))
            assert await stub.allocate(request) == first
        (given,) = first.container_responses
        assert {field.name: len(value) for field, value in given.ListFields()} == answered
        assert "0,2" in given.envs.values() or "envvar" not in text


async def test_device_nodes_are_listed_where_they_are_wanted(folder: Path, node: Node) -> None:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["GPU-1"])])
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA, 3, way=answer.AllocateOptions(passes_device_specs=True))
        await kubelet.until(lambda: bool(kubelet.lists))
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            given = (await stub.allocate(request)).container_responses[0]
        assert [(spec.container_path, spec.host_path, spec.permissions) for spec in given.devices] == [
            ("/dev/nvidiactl", "/root/dev/nvidiactl", "rw"),
            ("/dev/nvidia1", "/root/dev/nvidia1", "rw"),
        ]


@pytest.mark.parametrize(
    ("device", "kind", "reason", "words"),
    [
        ("GPU-9", errors.NotFound, "DeviceUnknown", "GPU-9"),
        ("GPU-1", errors.DeviceFault, "DeviceUnhealthy", "XID79"),
    ],
)
async def test_unknown_and_unhealthy_devices_are_refused_by_name(
    folder: Path, node: Node, device: str, kind: type[errors.FairleadError], reason: str, words: str
) -> None:
    async with Kubelet(folder) as kubelet:
        offer(node.serve(NVIDIA), 2, broken=(1,))
        await kubelet.until(lambda: bool(kubelet.lists))
        with pytest.raises(kind, match=words) as caught:
            await allocate(kubelet, node, ["GPU-0", device])
        assert caught.value.reason == reason


async def test_preferred_allocation_travels(folder: Path, node: Node) -> None:
    ask = pb.ContainerPreferredAllocationRequest
    request = pb.PreferredAllocationRequest(
        container_requests=[
            ask(available_deviceIDs=["GPU-3", "GPU-1", "GPU-2"], must_include_deviceIDs=["GPU-3"], allocation_size=2),
            ask(available_deviceIDs=["GPU-0"], allocation_size=1),
        ]
    )
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA, 4)
        await kubelet.until(lambda: bool(kubelet.lists))
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            answer = await stub.preferred_allocation(request)
            await stub.pre_start_container(pb.PreStartContainerRequest(devices_ids=["GPU-0"]))
        assert [list(item.deviceIDs) for item in answer.container_responses] == [["GPU-2", "GPU-3"], ["GPU-0"]]


async def test_asking_for_more_than_is_available_says_so(folder: Path, node: Node) -> None:
    ask = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["GPU-0"], allocation_size=2)
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until(lambda: bool(kubelet.lists))
        async with kubelet.stub(node.endpoints[NVIDIA].path) as stub:
            with pytest.raises(errors.Insufficient, match="2 devices asked for, 1 available"):
                await stub.preferred_allocation(pb.PreferredAllocationRequest(container_requests=[ask]))


async def test_a_plugin_that_stops_ends_its_streams_at_once(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
        await node.stop()
        await kubelet.until_list(NVIDIA, {})
        assert not node.endpoints[NVIDIA].path.exists()


async def test_a_folder_that_is_removed_is_made_again(folder: Path, node: Node) -> None:
    async with Kubelet(folder) as kubelet:
        node.serve(NVIDIA)
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)
    node.endpoints[NVIDIA].path.unlink()
    folder.rename(folder.with_name("old"))
    while not folder.exists() or not node.endpoints[NVIDIA].is_present():
        await node.watch.ticks.wait(node.watch.ticks.version)
    async with Kubelet(folder) as kubelet:
        await kubelet.until_list(NVIDIA, BOTH_HEALTHY)


async def test_a_mount_of_a_folder_that_was_deleted_ends_the_plugin(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    # What a container's mount goes on showing once the node's folder is deleted: a folder without a name.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    folder.rmdir()
    try:
        dead = Path(f"/proc/self/fd/{handle}")
        endpoint = deviceplugin.Endpoint(deviceplugin.Plugin(NVIDIA), dead)
        monitor = foldermonitor.FolderMonitor(dead)
        with pytest.raises(errors.Unavailable, match="was deleted on the node") as caught:
            async with asyncio.timeout(PATIENCE_S):
                await registration.Registrar(endpoint, monitor, first_wait_s=0.05).run()
        assert caught.value.reason == deviceplugin.FOLDER_GONE
    finally:
        os.close(handle)


async def test_a_socket_path_that_is_too_long_is_refused_with_the_settings_that_shorten_it(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    endpoint = deviceplugin.Endpoint(deviceplugin.Plugin(NVIDIA), folder)
    with pytest.raises(errors.Unavailable, match="107 are allowed") as caught:
        await endpoint.start()
    assert caught.value.reason == "SocketPathTooLong"
    assert "--node-kubelet-folder" in (caught.value.hint or "")
