"""Pod garbage collection: the newest ended pods stay, running ones always, and events go with their pod."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator

import msgspec

from fairlead.control import manager
from fairlead.control.node.podgc import PodGC
from fairlead.model.container.step import TraceStep
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import ChangeKind, Selector
from fairlead.wire.kubernetes import core, meta


class _Clock:
    """A clock that moves a second with every look at it, so that creation times differ."""

    def __init__(self) -> None:
        self._now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        self._now += dt.timedelta(seconds=1)
        return self._now


def _store() -> MemoryStore:
    return MemoryStore(now=_Clock())


async def _ended(
    store: MemoryStore, name: str, phase: str = "Succeeded", *, node: str = "", ttl_s: int | None = None
) -> core.Pod:
    machine = None if ttl_s is None else core.MachineOptions(ttl_seconds_after_finished=ttl_s)
    spec = core.PodSpec(containers=(core.Container(name="main", image="i"),), node_name=node, machine=machine)
    pod = await store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace="default"), spec=spec))
    await tracerecorder.record(
        store, tracerecorder.reference(pod), TraceStep(layer="test", reason="Made", message="made", at=0.0, facts={})
    )
    return await store.update_status(msgspec.structs.replace(pod, status=core.PodStatus(phase=phase)))


@contextlib.asynccontextmanager
async def _running(store: MemoryStore, keep: int, node: str = "") -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        collector = PodGC(store, ControlSettings(finished_pods=keep), node=node)
        task = tasks.create_task(manager.run_controllers(store, (collector,)))
        yield
        task.cancel()


async def _until_gone(store: MemoryStore, kind: type[core.Pod | core.Event], count: int) -> None:
    gone = 0
    async with asyncio.timeout(50):
        async for change in store.watch(kind, since="0"):
            gone += change.kind is ChangeKind.DELETED
            if gone == count:
                return


async def _until_ended(store: MemoryStore, name: str) -> None:
    async with asyncio.timeout(50):
        async for change in store.watch(core.Pod, since="0"):
            if change.object.metadata.name == name and change.object.status.phase == "Failed":
                return


async def _names(store: MemoryStore) -> list[str]:
    return [pod.metadata.name for pod in (await store.list(core.Pod)).items]


async def test_the_oldest_ended_pods_beyond_the_limit_go_with_their_events() -> None:
    store = _store()
    pods = [await _ended(store, name, phase) for name, phase in (("c", "Failed"), ("b", "Succeeded"), ("a", "Failed"))]
    running = await _ended(store, "running", "Running")
    async with _running(store, keep=1):
        await _until_gone(store, core.Event, 2)
    assert await _names(store) == ["a", "running"]
    for pod, count in ((pods[0], 0), (pods[1], 0), (pods[2], 1), (running, 1)):
        events = await store.list(core.Event, Selector(fields={"involvedObject.uid": pod.metadata.uid}))
        assert len(events.items) == count


async def test_pods_within_the_limit_and_their_events_stay() -> None:
    store = _store()
    await _ended(store, "a")
    async with _running(store, keep=1):
        await _ended(store, "b")
        await _until_gone(store, core.Pod, 1)
        await _ended(store, "c", "Running")
    assert await _names(store) == ["b", "c"]


async def test_an_ended_pod_bound_to_a_node_goes_too() -> None:
    store = _store()
    await _ended(store, "a", node="node")
    async with _running(store, keep=0):
        await _until_gone(store, core.Pod, 1)
    assert await _names(store) == []


async def test_a_pod_deleted_by_hand_takes_its_events_along() -> None:
    store = _store()
    await _ended(store, "a", "Running")
    await _ended(store, "b")
    async with _running(store, keep=0):
        await _until_gone(store, core.Event, 1)
        await store.delete(core.Pod, "a", "default", grace_s=0)
        await _until_gone(store, core.Event, 2)
    assert (await store.list(core.Event)).items == ()


async def test_events_of_a_pod_with_another_name_stay() -> None:
    store = _store()
    await _ended(store, "oldest")
    pod = await _ended(store, "old")
    await _ended(store, "running", "Running")
    async with _running(store, keep=1):
        await _until_gone(store, core.Event, 1)
        renamed = await store.rename(pod, "new", lambda _seen: None)
        await store.delete(core.Pod, "running", "default", grace_s=0)
        await _until_gone(store, core.Event, 2)
    (left,) = (await store.list(core.Event)).items
    assert left.involved_object.uid == renamed.metadata.uid


async def test_a_pod_that_goes_with_its_end_is_removed_and_no_other() -> None:
    store = _store()
    await _ended(store, "kept")
    about = meta.ObjectMeta(name="going", namespace="default")
    spec = core.PodSpec(
        containers=(core.Container(name="main", image="i"),), machine=core.MachineOptions(ttl_seconds_after_finished=0)
    )
    pod = await store.create(core.Pod(metadata=about, spec=spec))
    async with _running(store, keep=10):
        await store.update_status(msgspec.structs.replace(pod, status=core.PodStatus(phase="Succeeded")))
        await _until_gone(store, core.Pod, 1)
    assert [one.metadata.name for one in (await store.list(core.Pod)).items] == ["kept"]


async def test_ended_pods_that_would_go_by_themselves_later_count_towards_the_limit() -> None:
    store = _store()
    for name in ("a", "b", "c", "d"):
        await _ended(store, name, ttl_s=3600)
    async with _running(store, keep=1):
        await _until_gone(store, core.Pod, 3)
    assert await _names(store) == ["d"]


async def test_a_pod_of_a_node_that_is_not_here_ends_and_can_be_removed() -> None:
    store = _store()
    for name in ("kept", "removed"):
        await _ended(store, name, "Pending", node="gone")
    await _ended(store, "ours", "Pending", node="here")
    await store.delete(core.Pod, "removed", "default", grace_s=30)
    async with _running(store, keep=9, node="here"):
        await _until_gone(store, core.Pod, 1)
        await _until_ended(store, "kept")
    kept = await store.get(core.Pod, "kept", "default")
    assert sorted(await _names(store)) == ["kept", "ours"]
    assert kept.status.reason == "NodeNotHere"
    assert '"gone" is not here' in kept.status.message
    assert (await store.get(core.Pod, "ours", "default")).status.phase == "Pending"
    await store.delete(core.Pod, "kept", "default", grace_s=10)
    assert await _names(store) == ["ours"]
