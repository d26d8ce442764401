"""The whole node agent over real sockets and files: silicon below, the embedded kubelet's device manager above."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncinotify
import grpc.aio
import msgspec
import pytest

from fairlead import errors, settings, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.model.driver import DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Driver, EventKind, GPUEvent, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.model.sample import Sample
from fairlead.node import agent, enginegate
from fairlead.node.engines import charlinks
from fairlead.node.inventory import latest
from fairlead.node.kubelet.devices import checkpoint, devicemanager
from fairlead.node.kubelet.devices import podresources as served
from fairlead.node.kubelet.devices import registration as kubelet_registration
from fairlead.node.metrics import exporter
from fairlead.node.publish import nodeevents
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.sqlite import store
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb

PATIENCE_S = 50.0
NVIDIA = "nvidia.com/gpu"


@pytest.fixture
def home_folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes, and pytest's own folders nearly fill them."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


class BenchSilicon:
    """Hardware whose answers a test sets."""

    def __init__(self, count: int) -> None:
        self.events: asyncio.Queue[GPUEvent | Exception] = asyncio.Queue()
        self.missing: set[int] = set()
        self.count = count

    async def scan(self) -> Inventory:
        gpus = tuple(
            GPU(uuid=GPUUUID(f"GPU-{i}"), index=i, minor=i, pci_bus_id=f"0000:0{i}:00.0", name="X", memory_bytes=1)
            for i in range(self.count)
            if i not in self.missing
        )
        gone = tuple(
            UnreadableGPU(index=i, pci_bus_id=None, uuid=GPUUUID(f"GPU-{i}"), reason="Lost", message="gone")
            for i in sorted(self.missing)
        )
        drivers = (Driver(vendor=Vendor.NVIDIA, version="550.163.01", cuda_version=(12, 4)),) if self.count else ()
        return Inventory(gpus=gpus, unreadable=gone, drivers=drivers)

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        return ()

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        nodes = tuple(
            DeviceNode(path=f"/dev/nvidia{i}", host_path=f"/dev/nvidia{i}", major=195, minor=i, mode=0o666)
            for i in range(self.count)
        )
        return (DriverFiles(vendor=Vendor.NVIDIA, version="550.163.01", nodes=nodes),) if self.count else ()

    async def watch_events(self) -> AsyncIterator[GPUEvent]:
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event

    async def close(self) -> None:
        return


@pytest.fixture(autouse=True, params=["on", pytest.param("off", marks=pytest.mark.slow)])
def ledger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test of an agent twice: without the ledger, and with it below Allocate."""
    monkeypatch.setattr(Home, "ledger", request.param)
    return str(request.param)


class Home:
    """One machine: folders, store, silicon and the kubelet's checkpoint."""

    ledger = "on"
    """Whether its agent keeps a ledger of who has which GPU."""

    def __init__(self, root: Path, count: int) -> None:
        self.pods: list[core.Pod] = []
        """What the kubelet has admitted, as its list says."""
        self.settings = settings.Settings(
            lease=settings.LeaseSettings(ledger=self.ledger),
            state=settings.StateSettings(folder=root, run=root / "run"),
            node=settings.NodeSettings(
                name="node-1", cdi_folder=root / "cdi", reregister_s=0.05, engine="containerd://2.2.1", host_mount=root
            ),
            silicon=settings.SiliconSettings(root=root, rescan_s=0.2),
        )
        self.spec = root / "cdi" / "fairlead.dev-gpu.json"
        self.silicon = BenchSilicon(count)
        self.store: MemoryStore | store.SQLiteStore = MemoryStore()
        self.has_store = True
        self.changes: latest.Latest[int] = latest.Latest(0)
        self.devices = devicemanager.DeviceManager(checkpoint.Checkpoint(root), grace_s=60, changed=self.tick)
        self.reports: list[agent.AgentReport] = []
        self.parts = agent.PARTS
        self.is_kubelet_foreign = False
        self.has_list = True
        """Whether the kubelet serves PodResources from its start."""

    def tick(self) -> None:
        self.changes.set(self.changes.value + 1)

    @contextlib.asynccontextmanager
    async def kubelet(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            devices = tasks.create_task(self.devices.run())
            async with contextlib.AsyncExitStack() as served_for:
                await served_for.enter_async_context(
                    kubelet_registration.serve_registration(self.devices, self.settings.kubelet_folder)
                )
                if self.has_list:
                    await served_for.enter_async_context(
                        served.serve_pod_resources(self.devices, lambda: self.pods, self.settings.pod_resources)
                    )
                yield
            devices.cancel()

    @property
    def shows_idle(self) -> bool:
        """Whether specs show devices that no container has."""
        return self.ledger == "off"

    async def start(self, name: str, count: int) -> tuple[str, ...]:
        """Admit a pod as the kubelet does; returns the ids it was given."""
        limits = {NVIDIA: str(count)}
        pod = core.Pod(
            metadata=meta.ObjectMeta(name=name, namespace="team", uid=name),
            spec=core.PodSpec(
                containers=(core.Container(name="main", resources=core.ResourceRequirements(limits=limits)),)
            ),
            status=core.PodStatus(phase="Running"),
        )

        async def forget(_: str, __: devicemanager.Choice) -> None:
            return

        grants = await self.devices.allocate(pod, forget)
        self.pods.append(pod)
        return tuple(item for grant in grants for item in grant.device_ids)

    async def end(self, name: str) -> None:
        """End a pod as the kubelet does."""
        self.pods = [pod for pod in self.pods if pod.metadata.name != name]
        await self.devices.free(name)

    @contextlib.asynccontextmanager
    async def agent(self, meter: telemetry.Meter = telemetry.UNMETERED) -> AsyncIterator[agent.AgentReport]:
        ready = asyncio.Event()

        def note(report: agent.AgentReport) -> None:
            self.reports.append(report)
            ready.set()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(
                agent.run_agent(
                    self.settings,
                    self.silicon,
                    self.store if self.has_store else None,
                    ready=note,
                    around=agent.Surroundings(is_kubelet_foreign=self.is_kubelet_foreign),
                    parts=self.parts,
                    meter=meter,
                )
            )
            async with asyncio.timeout(PATIENCE_S):
                await ready.wait()
            yield self.reports[-1]
            task.cancel()

    async def until_capacity(self, capacity: int, allocatable: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.devices.capacity().get(NVIDIA) != (capacity, allocatable):
                await self.changes.wait(self.changes.version)

    async def until_devices(self, healths: dict[int, str]) -> None:
        found: dict[int, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(gpudevice.GPUDevice):
                found[change.object.spec.index] = change.object.status.health
                if found == healths:
                    return

    async def until_step(self, condition: Callable[[TraceStep], bool]) -> TraceStep:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                steps = await tracerecorder.list_steps(self.store, core.ObjectReference(kind="Node", name="node-1"))
                if found := [step for step in steps if condition(step)]:
                    return found[-1]
                await asyncio.sleep(0.01)


def reason(name: str) -> Callable[[TraceStep], bool]:
    return lambda step: step.reason == name


async def test_gpus_travel_from_silicon_to_the_kubelets_checkpoint_and_leave_their_record(home_folder: Path) -> None:
    home = Home(home_folder, 8)
    async with home.kubelet(), home.agent() as report:
        assert "fairlead.dev/gpu=GPU-7" in report.cdi_names
        assert home.spec.exists() is home.shows_idle
        await home.until_capacity(8, 8)
        found = await home.until_step(reason("GPUsFound"))
        offered = await home.until_step(reason("DevicesAdvertised"))
        assert (found.layer, found.facts["count"], found.facts["cuda"]) == ("silicon", 8, {"nvidia": "12.4"})
        assert (offered.layer, offered.facts["count"], offered.facts["resource"]) == ("deviceplugin", 8, NVIDIA)
        assert [ad.resource for ad in report.supply.value.resources] == [NVIDIA]
        assert len(report.snapshots.value.inventory.gpus) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
@pytest.mark.parametrize("is_wanted", [True, False])
async def test_the_agent_keeps_the_links_of_dev_char_where_it_may(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool
) -> None:
    home = Home(home_folder, 1)
    home.settings = dataclasses.replace(
        home.settings, node=dataclasses.replace(home.settings.node, char_links=is_wanted)
    )
    asked: list[Path] = []

    def find_place(root: Path) -> Path:
        asked.append(root)
        return root

    monkeypatch.setattr(charlinks, "find_place", find_place)
    (home_folder / "dev" / "char").mkdir(parents=True)
    os.mknod(home_folder / "dev" / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    link = home_folder / "dev" / "char" / "195:0"
    with asyncinotify.Inotify() as inotify:
        inotify.add_watch(link.parent, asyncinotify.Mask.MOVED_TO)
        async with home.agent(), asyncio.timeout(60):
            while is_wanted and not link.is_symlink():
                await inotify.get()
    assert (asked, link.is_symlink()) == ([home_folder] if is_wanted else [], is_wanted)


async def test_an_orderly_stop_leaves_neither_socket_nor_spec(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
    assert list(home.settings.kubelet_folder.iterdir()) == []
    assert list((home_folder / "cdi").iterdir()) == []


async def test_an_orderly_stop_keeps_the_spec_while_a_pod_has_devices_of_it(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.kubelet():
        async with home.agent():
            await home.until_capacity(2, 2)
            await home.start("pod", 1)
        assert home.spec.exists()  # a container that crashes now is started again by it
        async with home.agent():
            await home.until_capacity(2, 2)
            await home.end("pod")
        assert not home.spec.exists()


async def test_agents_that_change_places_leave_the_specs_to_the_one_that_serves(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.kubelet(), contextlib.AsyncExitStack() as older:
        await older.enter_async_context(home.agent())
        await home.until_capacity(2, 2)
        async with home.agent():
            await home.until_capacity(2, 0)  # the older one has let go
            await home.until_capacity(2, 2)
        await home.until_capacity(2, 0)
        await home.until_capacity(2, 2)
        await home.start("pod", 1)
        assert home.spec.exists()
        await home.end("pod")
    assert not home.spec.exists()


async def test_a_fault_reaches_the_kubelet_and_the_events_and_so_does_the_way_back(
    home_folder: Path,
) -> None:
    home = Home(home_folder, 2)
    home.settings = settings.override(home.settings, {"health.hold_s": 0.01})
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        await home.silicon.events.put(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-1"), xid=79))
        await home.until_capacity(2, 1)
        bad = await home.until_step(reason("DeviceUnhealthy"))
        assert bad.is_warning
        assert "GPU-1 is not offered: XID 79" in bad.message
        await home.silicon.events.put(GPUEvent(kind=EventKind.RECOVERED, uuid=GPUUUID("GPU-1")))
        await home.until_capacity(2, 2)
        assert "after XID79" in (await home.until_step(reason("DeviceHealthy"))).message


async def test_a_lost_gpu_stays_listed_and_leaves_the_spec(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        await home.start("pod", 2)
        assert "GPU-1" in home.spec.read_text()
        home.silicon.missing.add(1)
        await home.silicon.events.put(GPUEvent(kind=EventKind.LOST, uuid=GPUUUID("GPU-1")))
        await home.until_capacity(2, 1)
        await home.until_step(lambda step: bool(step.facts.get("unreadable")))
        assert "GPU-1" not in home.spec.read_text()


async def test_a_machine_without_gpus_is_ready_and_offers_them_when_they_come(home_folder: Path) -> None:
    home = Home(home_folder, 0)
    async with home.kubelet(), home.agent() as report:
        assert report.supply.value.resources == ()
        assert not home.spec.exists()
        home.silicon.count = 1
        await home.silicon.events.put(GPUEvent(kind=EventKind.CHANGED, uuid=None))
        await home.until_capacity(1, 1)
        home.silicon.count = 3
        await home.until_capacity(3, 3)
        await home.until_step(lambda step: step.reason == "DevicesAdvertised" and step.facts["count"] == 3)


async def test_gpus_that_all_leave_are_withdrawn(home_folder: Path) -> None:
    home = Home(home_folder, 1)
    async with home.kubelet(), home.agent():
        await home.until_capacity(1, 1)
        home.silicon.count = 0
        await home.until_capacity(0, 0)
        assert not home.spec.exists()


async def test_devices_that_no_spec_names_are_not_handed_out_until_one_does(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "SPEC_RETRY_S", 0.02)
    home = Home(home_folder, 2)
    (home_folder / "cdi").write_text("a file is in the way of the folder")
    async with home.kubelet(), home.agent() as report:
        await home.until_capacity(2, 0)
        assert {device.reason for device in report.supply.value.resources[0].devices} == {"CDISpecMissing"}
        (home_folder / "cdi").unlink()
        await home.until_capacity(2, 2)


async def test_a_kubelet_that_comes_and_goes_is_followed(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.agent():
        for _ in range(2):
            async with home.kubelet():
                await home.until_capacity(2, 2)
            await home.until_capacity(2, 0)


async def test_a_core_part_that_breaks_takes_the_agent_down_with_its_error(home_folder: Path) -> None:
    home = Home(home_folder, 1)
    await home.silicon.events.put(errors.ProtocolError("event of no known kind", reason="EventUnknown"))
    with pytest.raises(ExceptionGroup) as caught:
        await agent.run_agent(home.settings, home.silicon, None, ready=None)
    assert caught.value.subgroup(errors.ProtocolError) is not None
    assert not home.spec.exists()


@dataclasses.dataclass
class Broken:
    """What an optional part does in place of its work."""

    begun: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    released: threading.Event = dataclasses.field(default_factory=threading.Event)

    async def raises(self, *_: object) -> None:
        self.begun.set()
        raise ValueError("a bug of this part")

    async def waits(self, *_: object) -> None:
        self.begun.set()
        await asyncio.get_running_loop().create_future()

    async def blocks(self, *_: object) -> None:
        """Hang in more threads than a loop has by default."""
        async with asyncio.TaskGroup() as tasks:
            for _number in range(64):
                tasks.create_task(asyncio.to_thread(self.released.wait))
            self.begun.set()


async def until_engine_known(stub: wire.DevicePluginStub) -> None:
    """Ask for no device until that is not refused for want of an engine."""
    nothing = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest()])
    while True:
        with contextlib.suppress(errors.Unavailable):
            await stub.allocate(nothing, timeout_s=PATIENCE_S)
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["raises", "waits", "blocks"])
@pytest.mark.parametrize("name", [row.name for row in agent.PARTS if not row.is_core])
async def test_the_kubelet_gets_its_devices_whatever_an_optional_part_does(
    home_folder: Path, name: str, how: str
) -> None:
    home, broken = Home(home_folder, 2), Broken()
    home.is_kubelet_foreign = True
    home.settings = settings.override(home.settings, {"node.engine": ""})  # the Node alone knows it
    info = core.NodeSystemInfo(container_runtime_version="containerd://2.2.1")
    await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1"), status=core.NodeStatus(node_info=info)))
    run = getattr(broken, how)
    home.parts = tuple(
        dataclasses.replace(row, run=run, is_wanted=lambda _: True) if row.name == name else row for row in agent.PARTS
    )
    try:
        async with home.kubelet(), home.agent(), asyncio.timeout(PATIENCE_S):
            await broken.begun.wait()
            await home.until_capacity(2, 2)
            path = wire.target(home.settings.kubelet_folder / "fairlead-nvidia.com_gpu.sock")
            async with grpc.aio.insecure_channel(path, options=wire.CHANNEL_OPTIONS) as channel:
                await until_engine_known(wire.DevicePluginStub(channel))
                for _ in range(20 if home.ledger == "off" else 3):  # with it, each is a release and a cleaning
                    asked = pb.ContainerAllocateRequest(devices_ids=["GPU-1"])
                    answer = await wire.DevicePluginStub(channel).allocate(
                        pb.AllocateRequest(container_requests=[asked]), timeout_s=PATIENCE_S
                    )
                    assert wire.cdi_names(answer.container_responses[0]) == ("fairlead.dev/gpu=GPU-1",)
            home.silicon.count = 3  # whose spec is written in a thread
            await home.until_capacity(3, 3)
            await home.silicon.events.put(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-0"), xid=79))
            await home.until_capacity(3, 2)
    finally:
        broken.released.set()


async def test_what_the_core_tells_an_optional_part_cannot_end_the_core(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: Inventory) -> dict[str, object]:
        raise ValueError("a bug of the events part")

    monkeypatch.setattr(nodeevents, "describe", describe)
    home = Home(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        home.silicon.count = 3
        await home.until_capacity(3, 3)


async def test_a_bug_of_the_metrics_cannot_end_the_core(home_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(_: exporter.XIDCounts, event: GPUEvent) -> None:
        raise ValueError(event)

    monkeypatch.setattr(exporter.XIDCounts, "note", note)
    home = Home(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        await home.silicon.events.put(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-0"), xid=79))
        await home.until_capacity(2, 1)


def test_the_node_is_named_as_kubernetes_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "My_Box")
    assert agent.node_name(settings.Settings()) == "my-box"
    assert agent.node_name(settings.Settings(node=settings.NodeSettings(name="n1"))) == "n1"
    for name in ("(none)", "a b", "-x", "a" * 254, "\x1b"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        with pytest.raises(errors.Invalid) as refused:
            agent.node_name(settings.Settings())
        assert refused.value.reason == "NodeNameInvalid"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_gpus_are_objects_and_labels_of_their_node_and_follow_their_health(home_folder: Path, kind: str) -> None:
    home = Home(home_folder, 2)
    home.settings = settings.override(home.settings, {"health.hold_s": 0.1})
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            home.store = stack.enter_context(store.SQLiteStore(home_folder / "state.db"))
        await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))
        async with home.agent():
            await home.until_devices({0: "Healthy", 1: "Healthy"})
            home.silicon.missing.add(1)
            await home.until_devices({0: "Healthy", 1: "Lost"})
            home.silicon.missing.clear()
            await home.until_devices({0: "Healthy", 1: "Healthy"})
        labels = (await home.store.get(core.Node, "node-1")).metadata.labels
        assert labels["nvidia.com/gpu.count"] == "2"


async def test_a_way_that_no_engine_here_reads_is_told(home_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "etc" / "containerd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("version = 3\n")
    home = Home(home_folder, 1)
    home.settings = settings.override(
        home.settings, {"node.device_list_strategy": "envvar", "silicon.root": tmp_path, "silicon.rescan_s": 0.2}
    )
    async with home.agent():
        told = await home.until_step(reason("RuntimeReadsNothing"))
    assert told.is_warning
    assert "handed over by envvar" in told.message


async def _set_engine(home: Home, runtime: str) -> None:
    node = await home.store.get(core.Node, "node-1")
    status = msgspec.structs.replace(node.status, node_info=core.NodeSystemInfo(container_runtime_version=runtime))
    await home.store.update_status(msgspec.structs.replace(node, status=status))


async def test_no_device_is_offered_on_a_node_whose_engine_would_ignore_it_until_it_is_replaced(
    home_folder: Path,
) -> None:
    home = Home(home_folder, 2)
    await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))
    await _set_engine(home, "containerd://1.6.36")
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 0)
        told = await home.until_step(reason("CDIUnsupported"))
        assert "containerd 1.6.36 does not inject CDI devices" in told.message
        await _set_engine(home, "containerd://2.2.1")
        await home.until_capacity(2, 2)
        assert (await home.until_step(reason("EngineAccepted"))).facts == {"runtime": "containerd://2.2.1"}


@contextlib.asynccontextmanager
async def _plugin(home: Home) -> AsyncIterator[wire.DevicePluginStub]:
    socket_path = home.settings.kubelet_folder / "fairlead-nvidia.com_gpu.sock"
    async with grpc.aio.insecure_channel(wire.target(socket_path), options=wire.CHANNEL_OPTIONS) as channel:
        yield wire.DevicePluginStub(channel)


_ONE = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["GPU-0"])])


async def test_nothing_is_allocated_until_somebody_says_which_engine_serves_the_kubelet(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enginegate, "ENGINE_PATIENCE_S", 0.1)
    home = Home(home_folder, 2)
    home.settings = settings.override(home.settings, {"node.engine": ""})
    await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))
    async with home.kubelet(), home.agent(), _plugin(home) as plugin:
        await home.until_capacity(2, 2)  # registered: what pods have already they keep
        with pytest.raises(errors.Unavailable, match="it is not known which container engine"):
            await plugin.allocate(_ONE)
        assert "FAIRLEAD_NODE_ENGINE" in (await home.until_step(reason("EngineUnknown"))).message
        await _set_engine(home, "containerd://2.2.1")
        await home.until_step(reason("EngineAccepted"))
        (given,) = (await plugin.allocate(_ONE)).container_responses
        assert wire.cdi_names(given) == ("fairlead.dev/gpu=GPU-0",)


@pytest.mark.parametrize(
    ("engine", "is_given"), [("containerd://2.2.1", True), ("containerd://1.6.36", False), ("containerd", False)]
)
async def test_without_an_api_server_the_operators_word_about_the_engine_counts(
    home_folder: Path, engine: str, *, is_given: bool
) -> None:
    home = Home(home_folder, 2)
    home.settings = settings.override(home.settings, {"node.engine": engine})
    home.has_store = False
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 0 if engine == "containerd://1.6.36" else 2)
        async with _plugin(home) as plugin:
            if is_given:
                await plugin.allocate(_ONE)
            else:
                with pytest.raises(errors.Unavailable):
                    await plugin.allocate(_ONE)


async def test_a_device_that_another_spec_defines_too_is_withdrawn_and_said_until_that_file_goes(
    home_folder: Path,
) -> None:
    home = Home(home_folder, 2)
    await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))
    other = home.spec.with_name("vendor.json")
    async with home.kubelet(), home.agent() as report:
        await home.until_capacity(2, 2)
        edits = {"env": ["X=1"]}
        devices = [{"name": "GPU-1", "containerEdits": edits}, {"name": "GPU-9", "containerEdits": edits}]
        other.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "fairlead.dev/gpu", "devices": devices}))
        await home.until_capacity(2, 1)
        assert [device.reason for device in report.supply.value.resources[0].devices] == ["", "CDIConflict"]
        told = await home.until_step(reason("CDIConflict"))
        assert told.is_warning
        assert f"is defined in {home.spec} and in {other}" in told.message
        assert "systemctl disable --now nvidia-cdi-refresh.path" in told.message
        assert f"mv {other} {other}.before" in told.message
        await home.until_devices({0: gpudevice.HEALTHY, 1: gpudevice.UNHEALTHY})
        other.unlink()
        await home.until_capacity(2, 2)
        await home.until_step(reason("CDIConflictEnded"))
        await home.until_devices({0: gpudevice.HEALTHY, 1: gpudevice.HEALTHY})


async def test_a_spec_that_somebody_removes_is_there_again_and_no_device_was_withdrawn(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        await home.start("pod", 2)
        before = home.spec.read_bytes()
        for _ in range(3):
            home.spec.unlink()
            async with asyncio.timeout(PATIENCE_S):
                while not home.spec.exists():  # noqa: ASYNC110 (a file tells nobody)
                    await asyncio.sleep(0.01)
            assert home.spec.read_bytes() == before
        assert home.devices.capacity()[NVIDIA] == (2, 2)
