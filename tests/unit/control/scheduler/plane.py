"""A scheduler over a store in memory, with nodes and pods made in a line each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from fairlead import errors
from fairlead.control import manager
from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import queue

GPU = "nvidia.com/gpu"


class Evicting(EmbeddedPlacement):
    """Deletes what is evicted, as an API server does whose kubelets are quick."""

    def __init__(self, store: MemoryStore | SQLiteStore) -> None:
        super().__init__(store)
        self.store, self.ended = store, list[str]()
        self.is_quick = True
        self.raced = set[str]()
        """Names of pods whose first binding finds that they changed."""

    async def bind(self, pod: core.Pod, node: str) -> None:
        if pod.metadata.name in self.raced:
            self.raced.remove(pod.metadata.name)
            raise errors.Conflict("the pod changed", reason="StaleVersion")
        await super().bind(pod, node)

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        self.ended.append(pod.metadata.name)
        about = pod.metadata
        await self.store.delete(core.Pod, about.name, about.namespace, grace_s=0 if self.is_quick else grace_s)


class Plane:
    """The store and what may be done to it."""

    def __init__(self, *, store: MemoryStore | SQLiteStore | None = None, **settings: Any) -> None:
        self.store = MemoryStore() if store is None else store
        self.placement = Evicting(self.store)
        self.scheduler = Scheduler(self.store, self.placement, ControlSettings(**settings))

    def choose(self, policy: str, **settings_: Any) -> None:
        """Judge by arrays with a policy from now on; before the scheduler runs."""
        settings, judges = ControlSettings(policy=policy, **settings_), EngineRankings(policy)
        self.scheduler = Scheduler(self.store, self.placement, settings, rankings=judges)

    async def add_node(self, name: str, gpus: int, labels: Mapping[str, str] | None = None) -> None:
        ready = meta.Condition(type="Ready", status="True")
        status = core.NodeStatus(allocatable={GPU: str(gpus), "pods": "110"}, conditions=(ready,))
        created = await self.store.create(core.Node(metadata=meta.ObjectMeta(name=name, labels=labels or {})))
        await self.store.update_status(msgspec.structs.replace(created, status=status))

    async def add_pod(
        self,
        name: str,
        gpus: int = 1,
        *,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> core.Pod:
        wanted = core.ResourceRequirements(limits={GPU: gpus}, requests={GPU: gpus})
        main = core.Container(name="main", image="i", resources=wanted)
        body = core.PodSpec(containers=(main,), scheduler_name="fairlead", termination_grace_period_seconds=1)
        about = meta.ObjectMeta(name=name, namespace=namespace, labels=labels or {}, annotations=annotations or {})
        return await self.store.create(core.Pod(metadata=about, spec=msgspec.structs.replace(body, **spec)))

    async def add_gang(self, name: str, count: int, gpus: int = 1, *, minimum: int | None = None, **more: Any) -> None:
        for number in range(count):
            await self.add_member(name, number, count if minimum is None else minimum, gpus, **more)

    async def add_member(
        self,
        gang: str,
        number: int,
        minimum: int,
        gpus: int = 1,
        *,
        annotations: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        labels = {"kueue.x-k8s.io/pod-group-name": gang}
        told = {"kueue.x-k8s.io/pod-group-total-count": str(minimum), **(annotations or {})}
        await self.add_pod(f"{gang}-{number}", gpus, labels=labels, annotations=told, **more)

    async def add_queue(self, name: str, **spec: Any) -> None:
        await self.store.create(queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec)))

    async def end(self, name: str, namespace: str = "default") -> None:
        """Remove a pod at once."""
        await self.store.delete(core.Pod, name, namespace, grace_s=0)

    async def bound(self) -> dict[str, str]:
        """Return the nodes of pods that have one."""
        found = await self.store.list(core.Pod)
        return {pod.metadata.name: pod.spec.node_name for pod in found.items if pod.spec.node_name}

    async def words(self, name: str, namespace: str = "default") -> tuple[str, str]:
        """Return why a pod waits: reason and message of its condition."""
        pod = await self.store.get(core.Pod, name, namespace)
        found = meta.find_condition(pod.status.conditions, "PodScheduled")
        return (found.reason, found.message) if found is not None else ("", "")

    async def messages(self, reason: str) -> list[str]:
        """Return the messages of events."""
        found = await self.store.list(core.Event)
        return sorted(event.message for event in found.items if event.reason == reason)

    async def until(self, holds: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until something holds, asked again after each change of a pod; returns what it is."""
        async with asyncio.timeout(20):
            async for _ in self.store.watch(core.Pod):
                if found := await holds():
                    return found
        raise AssertionError("a watch never ends")

    async def until_bound(self, names: Iterable[str]) -> dict[str, str]:
        """Wait until pods have a node."""
        wanted = set(names)

        async def bound() -> dict[str, str] | None:
            found = await self.bound()
            return found if wanted <= found.keys() else None

        return dict(await self.until(bound))

    async def until_said(self, name: str, part: str, namespace: str = "default") -> str:
        """Wait until a pod's condition has some words; returns all of them."""

        async def said() -> str | None:
            found = (await self.words(name, namespace))[1]
            return found if part in found else None

        return str(await self.until(said))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the scheduler."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(manager.run_controllers(self.store, (self.scheduler,)))
            yield
            task.cancel()
