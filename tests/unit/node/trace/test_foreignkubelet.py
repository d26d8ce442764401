"""Steps of a foreign kubelet, observed: from its list, its statuses and the plugin's memory to events of the pod."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.model.gpu import Vendor
from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, pods
from fairlead.node.trace import foreignkubelet, starts, watchclient
from fairlead.plan import trace
from fairlead.plan.gpu.attribution import Call, Grant, Holding, Preference
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sandbox.machinestart import MachineTimes
from fairlead.plan.supply import Supply
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead_cdi import emit, spec

GPU = "nvidia.com/gpu"
NAMES = ("nvidia.com/gpu=GPU-a",)
PATIENCE_S = 50.0
START = ["DevicesChosen", "DevicesAllocated", "EditsResolved", "ContainerCreated", "IsolationRead", "ContainerStarted"]


@dataclass
class Node:
    """One node beside a kubelet that a test plays."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        device = spec.Device(
            name="GPU-a",
            edits=spec.ContainerEdits(
                device_nodes=(spec.DeviceNode(path="/dev/nvidia0", type="c", major=195, minor=0),)
            ),
        )
        other = spec.Device(
            name="GPU-b",
            edits=spec.ContainerEdits(
                device_nodes=(spec.DeviceNode(path="/dev/nvidia1", type="c", major=195, minor=1),)
            ),
        )
        content = emit.emit_json(spec.Spec(cdi_version="0.5.0", kind=GPU, devices=(device, other)))
        (self.folder / "fairlead-test.json").write_bytes(content)

    @contextlib.asynccontextmanager
    async def agent(
        self, *, recalls: bool = True, meter: telemetry.Meter = telemetry.UNMETERED
    ) -> AsyncIterator[Agent]:
        holdings = podresources.Holdings(self.folder / "no.sock")
        followed = pods.Pods("node-1", self.store)

        def recall(_: Grant) -> pb.ContainerAllocateResponse | None:
            return answer() if recalls else None

        part = foreignkubelet.ForeignKubelet(
            node="node-1",
            store=self.store,
            pods=followed,
            holdings=holdings,
            supply=latest.Latest(
                Supply(resources=(advertise.Advertisement(resource=GPU, vendor=Vendor.NVIDIA, devices=()),))
            ),
            recall=recall,
            cdi_folder=self.folder,
            watch=watchclient.Program(),
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part.run(meter)), tasks.create_task(followed.run())]
            yield Agent(part, holdings)
            for task in running:
                task.cancel()

    async def place(self, *, devices: int = 1, runtime_class: str = "") -> core.Pod:
        limits = {GPU: devices} if devices else {}
        container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
        spec = {"nodeName": "node-1", "containers": [container]}
        spec |= {"runtimeClassName": runtime_class} if runtime_class else {}
        one = core.Pod(
            metadata=meta.ObjectMeta(name="train", namespace="team"),
            spec=msgspec.convert(spec, core.PodSpec),
        )
        return await self.store.create(one)

    async def tell(self, pod: core.Pod, *, phase: str = "Running", **status: Any) -> core.Pod:
        """Play the kubelet: write a container's status."""
        found = await self.store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
        one = msgspec.convert({"name": "main", "image": "cuda", **status}, core.ContainerStatus)
        told = msgspec.structs.replace(found.status, phase=phase, container_statuses=(one,))
        return await self.store.update_status(msgspec.structs.replace(found, status=told))

    async def until(self, uid: str, check: Callable[[list[str]], bool]) -> list[TraceStep]:
        """Wait until the pod's steps are as wanted; return them in order."""
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(core.Event):
                assert change.kind is ChangeKind.ADDED
                steps = await tracerecorder.list_steps(self.store, change.object.involved_object)
                steps = steps if change.object.involved_object.uid == uid else ()
                if check([step.reason for step in steps]):
                    return in_order(steps)
        raise AssertionError("a watch does not end")


@dataclass
class Agent:
    part: foreignkubelet.ForeignKubelet
    holdings: podresources.Holdings

    def hold(self, *ids: str) -> None:
        """Play the kubelet: say who holds what."""
        held = Holding(namespace="team", pod="train", container="main", resource=GPU, ids=tuple(map(DeviceID, ids)))
        self.holdings.latest.set((held,) if ids else ())


def answer() -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name) for name in NAMES])


def call() -> Call:
    now = time.time()
    asked = Preference(available=("GPU-a", "GPU-b"), preferred=("GPU-a",), at=now - 0.001, duration_s=0.0002)
    ids = (DeviceID("GPU-a"),)
    return Call(resource=GPU, ids=ids, answer=answer(), at=now, duration_s=0.0003, preference=asked)


def second(before_s: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - before_s))


def ended(container: str, code: int = 0) -> dict[str, Any]:
    times = {"startedAt": second(), "finishedAt": second()}
    return {"terminated": {"exitCode": code, "containerID": f"containerd://{container}", **times}}


def in_order(steps: Sequence[TraceStep]) -> list[TraceStep]:
    told = trace.order_trace(steps, [], is_final=False, resources=("nvidia.com/gpu",))
    return [entry.step for entry in told.entries if entry.step is not None]


def has(*reasons: str) -> Callable[[Sequence[str]], bool]:
    return lambda found: set(reasons) <= set(found)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_short_containers_way_is_told_and_its_isolation_is_not_made_up(node: Node) -> None:
    async with node.agent() as agent:
        pod = await node.place()
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.tell(pod, phase="Running", containerID="containerd://c0", state=ended("c0"))
        steps = await node.until(pod.metadata.uid, has("ContainerEnded"))
    assert [step.reason for step in steps] == [*START, "ContainerEnded"]
    chosen, allocated, edits, _, isolation, *_ = steps
    assert chosen.facts["available"] == ["GPU-a", "GPU-b"]
    assert chosen.duration_s == 0.0002
    assert allocated.facts["answer"]["cdi_devices"] == list(NAMES)  # type: ignore[index]
    assert edits.facts["device_nodes"] == ["/dev/nvidia0 (195:0)"]
    assert isolation.facts == {"container": "main", "unread": ["the container had ended before it could be read"]}


async def test_every_attempt_has_its_own_steps_and_devices_are_chosen_once(node: Node) -> None:
    async with node.agent() as agent:
        pod = await node.place()
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.tell(pod, containerID="containerd://c0", state=ended("c0", 1))
        await node.until(pod.metadata.uid, has("ContainerEnded"))
        running = {"running": {"startedAt": second()}}
        await node.tell(pod, containerID="containerd://c1", restartCount=1, state=running, lastState=ended("c0", 1))
        steps = await node.until(pod.metadata.uid, lambda found: found.count("ContainerStarted") == 2)
    reasons = [step.reason for step in steps]
    assert reasons.count("DevicesChosen") == 1
    assert reasons.count("ContainerEnded") == 1
    assert [step.facts["attempt"] for step in steps if step.reason == "ContainerCreated"] == [0, 1]


async def test_an_agent_that_starts_anew_records_nothing_twice(node: Node) -> None:
    running = {"running": {"startedAt": second()}}
    async with node.agent() as agent:
        pod = await node.place()
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.tell(pod, containerID="containerd://c0", state=running)
        before = await node.until(pod.metadata.uid, has(*START))
    async with node.agent() as agent:
        agent.hold("GPU-a")
        await node.tell(pod, phase="Succeeded", containerID="containerd://c0", state=ended("c0"))
        after = await node.until(pod.metadata.uid, has("ContainerEnded"))
    assert after[: len(before)] == before
    assert [step.reason for step in after[len(before) :]] == ["ContainerEnded"]


async def test_what_the_plugin_does_not_remember_is_not_recorded(node: Node) -> None:
    async with node.agent(recalls=False) as agent:
        pod = await node.place()
        agent.hold("GPU-a")
        await node.tell(pod, containerID="containerd://c0", state={"running": {"startedAt": second(100)}})
        steps = await node.until(pod.metadata.uid, has("ContainerStarted"))
    reasons = [step.reason for step in steps]
    assert "DevicesChosen" in reasons
    assert not {"DevicesAllocated", "EditsResolved"} & set(reasons)
    assert "available" not in next(step for step in steps if step.reason == "DevicesChosen").facts


async def test_what_is_found_late_has_the_kubelets_time(node: Node) -> None:
    begun = time.time() - 100
    async with node.agent() as agent:
        pod = await node.place()
        agent.hold("GPU-a")
        await node.tell(pod, containerID="containerd://c0", state={"running": {"startedAt": second(100)}})
        steps = await node.until(pod.metadata.uid, has("ContainerStarted"))
    started = next(step for step in steps if step.reason == "ContainerStarted")
    assert abs(started.at - begun) < 2


async def test_devices_are_free_when_the_kubelet_lists_them_no_more(node: Node) -> None:
    async with node.agent() as agent:
        pod = await node.place()
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.tell(pod, phase="Succeeded", containerID="containerd://c0", state=ended("c0"))
        told = await node.until(pod.metadata.uid, has("ContainerEnded"))
        assert "DevicesFreed" not in [step.reason for step in told]
        agent.hold()
        steps = await node.until(pod.metadata.uid, has("DevicesFreed"))
    assert steps[-1].reason == "DevicesFreed"


async def test_pods_without_our_devices_are_none_of_its_business(node: Node) -> None:
    async with node.agent() as agent:
        other = core.Pod(
            metadata=meta.ObjectMeta(name="web", namespace="team"),
            spec=core.PodSpec(node_name="node-1", containers=(core.Container(name="main", image="web"),)),
        )
        web = await node.store.create(other)
        await node.tell(web, containerID="containerd://w0", state={"running": {"startedAt": second()}})
        pod = await node.place()
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.until(pod.metadata.uid, has("DevicesAllocated"))
    assert await tracerecorder.list_steps(node.store, tracerecorder.reference(web)) == ()


class Refusing(MemoryStore):
    """A store that takes no event while a test says so."""

    is_away = False

    async def create(self, item: Any) -> Any:
        if self.is_away and isinstance(item, core.Event):
            raise errors.Unavailable("the server is away", reason="ServerAway")
        return await super().create(item)


class Figures:
    """A meter that keeps what it is given."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], float] = {}
        self.has_parts = asyncio.Event()

    def add(self, metric: telemetry.Metric, *labels: str) -> None: ...

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None:
        assert (metric.name, *labels) not in self.found, "one start is counted once"
        self.found[metric.name, *labels] = seconds
        if labels[0] == "container":
            self.has_parts.set()


@pytest.mark.parametrize("is_slow", [True, False])
async def test_the_start_of_a_machine_is_recorded_counted_and_held_to_its_objective(node: Node, is_slow: bool) -> None:
    figures = Figures()
    counting = starts.Starts(node.store, "node-1", objectives="0=1s" if is_slow else "0=1h,1=1s")
    async with node.agent(meter=figures) as agent:
        agent.part.count_start = counting.count
        begun = time.time()
        pod = await node.place(devices=0, runtime_class="kata-qemu-nvidia-gpu-x1")
        times = MachineTimes(began_at=begun + 1, kernel_at=begun + 1.5, agent_at=begun + 2)
        await asyncio.sleep(2.5)
        await node.tell(pod, containerID="containerd://c0", state={"running": {"startedAt": second()}})
        await node.until(pod.metadata.uid, has("ContainerStarted"))
        agent.part.seen_machine(pod.metadata.uid, times)
        last = "StartSlow" if is_slow else "MachineStarted"
        steps = await node.until(pod.metadata.uid, has("MachineStarted", last))
        async with asyncio.timeout(PATIENCE_S):
            await figures.has_parts.wait()
        await node.tell(pod, containerID="containerd://c0", state=ended("c0"))
        steps = await node.until(pod.metadata.uid, has("ContainerEnded"))
    (machine,) = (step for step in steps if step.reason == "MachineStarted")
    assert machine.facts == times.facts()
    parts = {name[1]: spent for name, spent in figures.found.items() if name[0] == "fairlead_machine_start_seconds"}
    assert list(parts) == ["engine", "firmware", "kernel and init", "container"]
    assert figures.found["fairlead_start_phase_seconds", "sandbox", "0"] == pytest.approx(sum(parts.values()))
    slow = [step for step in steps if step.reason == "StartSlow"]
    assert bool(slow) == is_slow
    if slow:
        assert slow[0].facts["phase"] in parts
        assert slow[0].facts["parts"] == {name: round(spent, 3) for name, spent in parts.items()}


async def test_steps_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    store = Refusing()
    node = Node(tmp_path, store=store)
    async with node.agent() as agent:
        pod = await node.place()
        store.is_away = True
        agent.part.told(call())
        agent.hold("GPU-a")
        await node.tell(pod, containerID="containerd://c0", state=ended("c0"))
        assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()
        store.is_away = False
        steps = await node.until(pod.metadata.uid, has("ContainerEnded"))
    assert [step.reason for step in steps] == [*START, "ContainerEnded"]
