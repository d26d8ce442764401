"""A small machine for tests of the API and the command line: memory store, fake engine, a node that plays along.

The node's part is a few lines here and not the embedded kubelet: what is under test is the door, and a door must not
need the house behind it. It binds what fits, starts it in the fake engine, reports its end, and honours stop and
deletion, as the contract between the API and the kubelet says.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import litestar
import msgspec
from litestar import types

from fairlead import errors
from fairlead.engine.fake import engine
from fairlead.engine.port import ContainerPhase, ContainerSpec, ContainerState
from fairlead.model.container.step import TraceStep
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory, Link, LinkKind
from fairlead.model.sample import Sample
from fairlead.plan.pod import podstate
from fairlead.serve.api import app as base
from fairlead.serve.backend import local
from fairlead.serve.backend.reservations import LocalReservations
from fairlead.serve.v1 import app as v1
from fairlead.serve.v1 import dependencies, permissions
from fairlead.settings import ReserveSettings
from fairlead.store import tracerecorder
from fairlead.store.embedded import memory
from fairlead.store.port import ChangeKind, Selector
from fairlead.wire.kubernetes import core, meta
from tests import gpus

NODE = "one"
GPU_COUNT = 4
RESOURCE = "nvidia.com/gpu"


def inventory() -> Inventory:
    found = tuple(
        gpus.gpu(
            index,
            name="NVIDIA H100 80GB HBM3",
            memory_bytes=80 << 30,
            numa_node=index // 2,
            mig_capable=True,
            device_nodes=(f"/dev/nvidia{index}",),
        )
        for index in range(GPU_COUNT)
    )
    links = tuple(
        Link(a=a.uuid, b=b.uuid, kind=LinkKind.NVLINK, lanes=18)
        for position, a in enumerate(found)
        for b in found[position + 1 :]
    )
    return Inventory(gpus=found, links=links, is_simulated=True)


_SERVICES = "tests.services"


@functools.cache
def _routed() -> litestar.Litestar:
    async def given(scope: types.Scope) -> Any:
        return await dependencies.for_request(cast("Any", scope)[_SERVICES], scope)

    return base.create_app(v1.ROUTES, given, guard=permissions.judge)


def application(services: dependencies.Services) -> types.ASGIApp:
    """Return the API over these services. Its routes are built once a process, for they take 60 ms."""

    async def called(scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        cast("Any", scope)[_SERVICES] = services
        await _routed()(scope, receive, send)

    return called


def in_process(app: types.ASGIApp, *, raises: bool = True) -> httpx.ASGITransport:
    """Call the application in the caller's own loop; httpx and Litestar type ASGI differently."""
    return httpx.ASGITransport(cast("Any", app), raise_app_exceptions=raises)


class Faulty:
    """`silicon.port.Faults` that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None, str | None]] = []

    def inject(self, fault: str, *, gpu: int | None, value: str | None) -> str:
        if fault not in {"xid", "lost"}:
            message = f'unknown fault "{fault}" (offered: lost, xid)'
            raise errors.Invalid(message, reason="FaultUnknown")
        self.asked.append((fault, gpu, value))
        return f"{fault} injected"


class World:
    """The machine: its doors, and a node loop to be run in a task."""

    def __init__(self, folder: Path) -> None:
        self.inventory = inventory()
        self.samples: tuple[Sample, ...] = ()
        self.drivers: tuple[DriverFiles, ...] = ()
        self.store = memory.MemoryStore()
        self.engine = engine.FakeEngine()
        self.engine.add_image("demo", command=("echo", "hello"))
        self.faults = Faulty()
        self.backend = local.backend(
            store=self.store,
            engine=self.engine,
            node=NODE,
            readings=local.Readings(scan=lambda: self.inventory, drivers=lambda: self.drivers, sampler=self),
            faults=self.faults,
            state_folder=folder,
            dial=self.engine.dial,
        )
        self.backend = dataclasses.replace(
            self.backend,
            reservations=LocalReservations(store=self.store, settings=ReserveSettings(), resource=RESOURCE, zone="UTC"),
        )
        self.services = dependencies.Services(
            callers=None,
            store=self.store,
            backend=self.backend,
            info=dependencies.ServiceInfo(
                version="0.0.0",
                node=NODE,
                started_at=time.time(),
                scheduler_name="fairlead",
                resource=RESOURCE,
                socket=folder / "api.sock",
                state_folder=folder,
                cdi_folder=folder / "cdi",
                profile="h100x4",
            ),
        )
        self.may_start = asyncio.Event()
        """Cleared: the node takes its time."""
        self.may_start.set()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._granted: dict[str, list[str]] = {}
        """By pod."""

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Be the machine's `silicon.port.Sampler`."""
        assert within_s > 0
        return self.samples

    async def pod(self, name: str, namespace: str = "default") -> core.Pod:
        return await self.store.get(core.Pod, name, namespace)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node beside the block."""
        async with self.engine, asyncio.TaskGroup() as group:
            await self.store.create(_node())
            about = core.ObjectReference(api_version="v1", kind="Node", name=NODE)
            for layer, reason in (("silicon", "GPUsFound"), ("deviceplugin", "DevicesAdvertised")):
                await tracerecorder.record(self.store, about, _step(layer, reason, f"{GPU_COUNT} GPUs"))
            tasks = (group.create_task(self._pods(group)), group.create_task(self._ends()))
            try:
                yield
            finally:
                for task in (*tasks, *self._starting.values()):
                    task.cancel()

    async def _pods(self, group: asyncio.TaskGroup) -> None:
        async for change in self.store.watch(core.Pod):
            pod = change.object
            uid = pod.metadata.uid
            with contextlib.suppress(errors.Conflict, errors.NotFound):
                if change.kind is ChangeKind.DELETED:
                    await self._place_waiting()
                elif pod.metadata.deletion_timestamp is not None:
                    await self._stop(pod)
                    await self.store.delete(core.Pod, pod.metadata.name, pod.metadata.namespace, grace_s=0)
                elif pod.status.stop_request is not None and not podstate.is_final(pod):
                    await self._stop(pod)
                elif not pod.spec.node_name and not podstate.is_final(pod):
                    await self._place(pod)
                elif pod.spec.node_name and uid not in self._starting:
                    self._starting[uid] = group.create_task(self._start(pod))
                for item in pod.spec.ephemeral_containers:
                    if f"{uid}/{item.name}" not in self._starting and not podstate.is_final(pod):
                        self._starting[f"{uid}/{item.name}"] = group.create_task(self._join(pod, item))

    async def _place_waiting(self) -> None:
        for pod in (await self.store.list(core.Pod)).items:
            if not pod.spec.node_name and not podstate.is_final(pod):
                await self._place(pod)

    async def _free(self) -> list[str]:
        pods = (await self.store.list(core.Pod)).items
        taken = {
            device for pod in pods if not podstate.is_final(pod) for device in self._granted.get(pod.metadata.uid, ())
        }
        return [f"GPU-{index}" for index in range(GPU_COUNT) if f"GPU-{index}" not in taken]

    async def _place(self, pod: core.Pod) -> None:
        wanted = podstate.asked_devices(pod).get(RESOURCE, 0)
        free = await self._free()
        about = tracerecorder.reference(pod)
        if wanted > len(free):
            if not pod.status.conditions:
                why = f"0/1 nodes are available: {wanted} {RESOURCE} wanted, {len(free)} free"
                facts = {"nodes": 1, "refused": [{"why": f"{len(free)} free", "nodes": 1, "example": NODE}]}
                await tracerecorder.record(
                    self.store, about, _step("scheduler", "FailedScheduling", why, facts, warns=True)
                )
                condition = meta.Condition(type="PodScheduled", status="False", reason="Unschedulable", message=why)
                status = msgspec.structs.replace(pod.status, conditions=(condition,))
                await self.store.update_status(msgspec.structs.replace(pod, status=status))
            return
        self._granted[pod.metadata.uid] = free[:wanted]
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=NODE))
        await self.store.update(bound)
        facts = {"nodes": 1, "fitting": 1, "best": [{"name": NODE, "score": 10}]}
        await tracerecorder.record(self.store, about, _step("scheduler", "Scheduled", f"placed on {NODE}", facts))

    async def _start(self, pod: core.Pod) -> None:
        item = pod.spec.containers[0]
        name = f"{pod.metadata.name}-{item.name}-{pod.metadata.uid[:8]}"
        labels = {
            "io.kubernetes.pod.uid": pod.metadata.uid,
            "io.kubernetes.pod.name": pod.metadata.name,
            "io.kubernetes.pod.namespace": pod.metadata.namespace,
            "io.kubernetes.container.name": item.name,
            "fairlead.dev/attempt": "0",
        }
        spec = ContainerSpec(
            name=name,
            image=item.image,
            command=item.command,
            args=item.args,
            env={entry.name: entry.value for entry in item.env},
            labels=labels,
            tty=item.tty,
            stdin=item.stdin,
        )
        about = tracerecorder.reference(pod)
        await self.may_start.wait()
        try:
            await self.engine.create(spec)
        except errors.FairleadError as error:
            await tracerecorder.record(self.store, about, _step("engine", error.reason, error.message, warns=True))
            await self._status(pod, core.PodStatus(phase="Failed", reason=error.reason, message=error.message))
            return
        await tracerecorder.record(self.store, about, _step("engine", "ContainerCreated", f"{name} created"))
        await self.engine.start(name)
        await tracerecorder.record(self.store, about, _step("engine", "ContainerStarted", f"{name} started"))
        running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.now()))
        await self._status(
            pod,
            core.PodStatus(
                phase="Running",
                container_statuses=(
                    core.ContainerStatus(
                        name=item.name, state=running, image=item.image, container_id=f"fake://{name}"
                    ),
                ),
            ),
            only_before="Running",
        )

    async def _join(self, pod: core.Pod, item: core.EphemeralContainer) -> None:
        labels = {
            "io.kubernetes.pod.uid": pod.metadata.uid,
            "io.kubernetes.pod.name": pod.metadata.name,
            "io.kubernetes.pod.namespace": pod.metadata.namespace,
            "io.kubernetes.container.name": item.name,
        }
        name = f"{pod.metadata.name}-{item.name}-{pod.metadata.uid[:8]}"
        spec = ContainerSpec(name=name, image=item.image, command=item.command, labels=labels, stdin=item.stdin)
        state = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.now()))
        try:
            await self.engine.create(spec)
            await self.engine.start(name)
        except errors.FairleadError as error:
            waiting = core.ContainerStateWaiting(reason=error.reason, message=error.message)
            state = core.ContainerStateUnion(waiting=waiting)
        await self._joined(pod, item.name, state, name)

    async def _joined(self, pod: core.Pod, name: str, state: core.ContainerStateUnion, engine_name: str) -> None:
        for _ in range(9):
            with contextlib.suppress(errors.Conflict):
                fresh = await self.pod(pod.metadata.name, pod.metadata.namespace)
                told = core.ContainerStatus(name=name, state=state, container_id=f"fake://{engine_name}")
                others = (one for one in fresh.status.ephemeral_container_statuses if one.name != name)
                status = msgspec.structs.replace(fresh.status, ephemeral_container_statuses=(*others, told))
                await self.store.update_status(msgspec.structs.replace(fresh, status=status))
                return

    async def _ends(self) -> None:
        async for name in self.engine.watch_changes():
            found = [state for state in await self.engine.list_containers({}) if state.name == name]
            if found and found[0].phase is ContainerPhase.EXITED:
                await self._end(found[0])

    async def _end(self, state: ContainerState) -> None:
        labels = state.labels
        with contextlib.suppress(errors.NotFound):
            pod = await self.pod(labels["io.kubernetes.pod.name"], labels["io.kubernetes.pod.namespace"])
            await self._starting[pod.metadata.uid]
            named = labels["io.kubernetes.container.name"]
            if any(item.name == named for item in pod.spec.ephemeral_containers):
                await self._starting[f"{pod.metadata.uid}/{named}"]
                over = core.ContainerStateTerminated(exit_code=state.exit_code or 0, finished_at=meta.now())
                await self._joined(pod, named, core.ContainerStateUnion(terminated=over), state.name)
                return
            if podstate.is_final(await self.pod(pod.metadata.name, pod.metadata.namespace)):
                return
            code = state.exit_code or 0
            step = _step("process", "ContainerEnded", f"exited with {code}", {"exit_code": code, "ran_s": 0.1})
            await tracerecorder.record(self.store, tracerecorder.reference(pod), step)
            ended = core.ContainerStateTerminated(
                exit_code=code,
                reason="Error" if code else "Completed",
                started_at=meta.now(),
                finished_at=meta.now(),
            )
            is_stopped = (await self.pod(pod.metadata.name, pod.metadata.namespace)).status.stop_request is not None
            status = core.PodStatus(
                phase="Failed" if code else "Succeeded",
                reason="Stopped" if is_stopped else "",
                container_statuses=(
                    core.ContainerStatus(
                        name=labels["io.kubernetes.container.name"],
                        state=core.ContainerStateUnion(terminated=ended),
                        container_id=f"fake://{state.name}",
                    ),
                ),
            )
            await self._status(pod, status)
            await self._place_waiting()

    async def _status(self, pod: core.Pod, status: core.PodStatus, *, only_before: str = "") -> None:
        for _ in range(9):
            with contextlib.suppress(errors.Conflict):
                fresh = await self.pod(pod.metadata.name, pod.metadata.namespace)
                if fresh.metadata.uid != pod.metadata.uid or (only_before and podstate.is_final(fresh)):
                    return
                granted = {RESOURCE: self._granted.get(pod.metadata.uid, [])}
                held = {one.name: granted for one in status.container_statuses}
                told = podstate.with_devices(status, fresh.status, held)
                await self.store.update_status(msgspec.structs.replace(fresh, status=told))
                return

    async def _stop(self, pod: core.Pod) -> None:
        for state in await self.engine.list_containers({"io.kubernetes.pod.uid": pod.metadata.uid}):
            await self.engine.stop(state.name, grace_s=0)

    async def events_of(self, pod: core.Pod) -> list[str]:
        listing = await self.store.list(core.Event, Selector(fields={"involvedObject.uid": pod.metadata.uid}))
        return [event.reason for event in listing.items]


def _step(
    layer: str, reason: str, message: str, facts: Mapping[str, object] | None = None, *, warns: bool = False
) -> TraceStep:
    return TraceStep(
        layer=layer,
        reason=reason,
        message=message,
        at=time.time(),
        duration_s=0.001,
        facts=facts or {},
        is_warning=warns,
    )


def _node() -> core.Node:
    have = {RESOURCE: str(GPU_COUNT), "cpu": "8", "memory": "33554432Ki", "pods": "110"}
    ready = meta.Condition(type="Ready", status="True", reason="KubeletReady")
    return core.Node(
        metadata=meta.ObjectMeta(name=NODE),
        status=core.NodeStatus(capacity=have, allocatable=have, conditions=(ready,)),
    )
