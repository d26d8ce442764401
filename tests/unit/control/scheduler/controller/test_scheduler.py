"""The scheduler over a store: what it binds, in which order, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.control import manager
from fairlead.control.scheduler.controller import RETRY_S, UNRECORDED_S, Scheduler
from fairlead.plan.schedule.cache import cache
from fairlead.plan.schedule.queue import overlooked
from fairlead.plan.schedule.queue.queue import FIRST_WAIT_S
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def _pod(name: str, gpus: int | str = 1, **spec: Any) -> core.Pod:
    wanted = core.ResourceRequirements(limits={_GPU: gpus}, requests={_GPU: gpus})
    body = core.PodSpec(
        containers=(core.Container(name="main", image="i", resources=wanted),), scheduler_name="fairlead"
    )
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="default"), spec=msgspec.structs.replace(body, **spec)
    )


def _node(name: str, gpus: int) -> core.Node:
    ready = meta.Condition(type="Ready", status="True")
    status = core.NodeStatus(allocatable={_GPU: str(gpus), "pods": "110"}, conditions=(ready,))
    return core.Node(metadata=meta.ObjectMeta(name=name), status=status)


async def _add_node(store: MemoryStore, name: str, gpus: int) -> None:
    node = _node(name, gpus)
    created = await store.create(node)
    await store.update_status(msgspec.structs.replace(created, status=node.status))


async def _set_gpus(store: MemoryStore, name: str, gpus: int) -> None:
    node = await store.get(core.Node, name)
    await store.update_status(msgspec.structs.replace(node, status=_node(name, gpus).status))


class Clock:
    """A clock that stands until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _scheduler(store: MemoryStore, clock: Clock | None = None) -> Scheduler:
    settings = ControlSettings()
    placement = EmbeddedPlacement(store)
    return Scheduler(store, placement, settings, clock=clock) if clock else Scheduler(store, placement, settings)


@contextlib.asynccontextmanager
async def _running(store: MemoryStore) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        scheduler = _scheduler(store)
        task = tasks.create_task(manager.run_controllers(store, (scheduler,)))
        yield
        task.cancel()


async def _until(store: MemoryStore, name: str, holds: Callable[[core.Pod], bool]) -> core.Pod:
    async with asyncio.timeout(50):
        async for change in store.watch(core.Pod):
            if change.object.metadata.name == name and holds(change.object):
                return change.object
    raise AssertionError(name)


def _is_bound(pod: core.Pod) -> bool:
    return bool(pod.spec.node_name)


def _is_refused(pod: core.Pod) -> bool:
    return any(item.type == "PodScheduled" and item.status == "False" for item in pod.status.conditions)


async def test_a_pod_is_bound_and_the_decision_recorded_with_the_best_nodes(
    store: MemoryStore,
) -> None:
    await _add_node(store, "big", 8)
    await _add_node(store, "small", 1)
    pod = await store.create(_pod("train", 2))
    async with _running(store):
        assert (await _until(store, "train", _is_bound)).spec.node_name == "big"
        await _until_event(store, "Scheduled")
    (step,) = await tracerecorder.list_steps(store, tracerecorder.reference(pod))
    assert (step.layer, step.reason, step.message) == (
        "scheduler",
        "Scheduled",
        "Successfully assigned default/train to big",
    )
    assert (step.facts["nodes"], step.facts["fitting"]) == (2, 1)
    assert step.facts["best"] == [{"name": "big", "score": 32.5}]
    assert step.facts["refused"] == [{"why": f"Insufficient {_GPU}", "nodes": 1, "example": "small"}]


async def _until_event(store: MemoryStore, reason: str) -> None:
    async with asyncio.timeout(50):
        async for change in store.watch(core.Event):
            if change.object.reason == reason:
                return


async def test_a_pod_that_fits_nowhere_waits_with_the_reason_and_is_bound_when_capacity_comes(
    store: MemoryStore,
) -> None:
    await _add_node(store, "node", 8)
    await store.create(_pod("train", 9))
    async with _running(store):
        refused = await _until(store, "train", _is_refused)
        condition = refused.status.conditions[0]
        assert condition.message == f"0/1 nodes are available: 1 Insufficient {_GPU}."
        assert (condition.reason, refused.status.phase) == ("Unschedulable", "Pending")
        await _set_gpus(store, "node", 16)
        assert (await _until(store, "train", _is_bound)).spec.node_name == "node"


async def test_the_same_refusal_is_written_once(store: MemoryStore) -> None:
    await _add_node(store, "node", 8)
    await store.create(_pod("train", 9))
    async with _running(store):
        refused = await _until(store, "train", _is_refused)
        for gpus in (7, 6):
            await _set_gpus(store, "node", gpus)
        await store.create(_pod("other", 1))
        await _until(store, "other", _is_bound)
        now = await store.get(core.Pod, "train", "default")
    assert now.metadata.resource_version == refused.metadata.resource_version
    events = await store.list(core.Event)
    assert [item.reason for item in events.items].count("FailedScheduling") == 1


async def test_a_node_is_never_given_more_than_it_has(store: MemoryStore) -> None:
    await _add_node(store, "node", 8)
    for number in range(12):
        await store.create(_pod(f"pod-{number:02}", 1))
    async with _running(store):
        await _until(store, "pod-11", _is_refused)
    pods = (await store.list(core.Pod)).items
    assert [pod.metadata.name for pod in pods if _is_bound(pod)] == [f"pod-{number:02}" for number in range(8)]


async def test_an_ended_pod_makes_room(store: MemoryStore) -> None:
    await _add_node(store, "node", 1)
    await store.create(_pod("one"))
    async with _running(store):
        one = await _until(store, "one", _is_bound)
        await store.create(_pod("two"))
        await _until(store, "two", _is_refused)
        await store.update_status(msgspec.structs.replace(one, status=core.PodStatus(phase="Succeeded")))
        await _until(store, "two", _is_bound)


async def test_higher_priority_goes_first(store: MemoryStore) -> None:
    await _add_node(store, "node", 1)
    await store.create(_pod("low", priority=1))
    await store.create(_pod("high", priority=5))
    async with _running(store):
        assert (await _until(store, "high", _is_bound)).spec.node_name == "node"
        await _until(store, "low", _is_refused)


async def test_pods_of_other_schedulers_deleted_and_ended_pods_are_left_alone(store: MemoryStore) -> None:
    await _add_node(store, "node", 8)
    await store.create(_pod("other", scheduler_name="default-scheduler"))
    ended = await store.create(_pod("ended"))
    await store.update_status(msgspec.structs.replace(ended, status=core.PodStatus(phase="Failed")))
    held = _pod("leaving")
    about = msgspec.structs.replace(held.metadata, finalizers=("example.com/hold",))
    await store.create(msgspec.structs.replace(held, metadata=about))
    await store.delete(core.Pod, "leaving", "default")
    await store.create(_pod("ours"))
    async with _running(store):
        await _until(store, "ours", _is_bound)
    assert [pod.metadata.name for pod in (await store.list(core.Pod)).items if _is_bound(pod)] == ["ours"]


async def test_a_pod_with_nonsense_in_it_does_not_hold_up_the_pods_behind_it(store: MemoryStore) -> None:
    await _add_node(store, "node", 8)
    await store.create(_pod("bad", "two", priority=9))
    await store.create(_pod("good"))
    async with _running(store):
        await _until(store, "good", _is_bound)


def _feed(scheduler: Scheduler, kind: ChangeKind, item: core.Pod | core.Node) -> None:
    watch = next(one for one in scheduler.watches() if one.kind is type(item))
    assert tuple(watch.keys(Change(kind=kind, object=item)))


async def test_a_late_echo_from_before_a_binding_does_not_free_what_the_binding_took(store: MemoryStore) -> None:
    scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    one, two = await store.create(_pod("one")), await store.create(_pod("two"))
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    _feed(scheduler, ChangeKind.ADDED, one)
    await scheduler.reconcile("")
    _feed(scheduler, ChangeKind.MODIFIED, one)
    _feed(scheduler, ChangeKind.ADDED, two)
    await scheduler.reconcile("")
    assert _is_bound(await store.get(core.Pod, "one", "default"))
    assert not _is_bound(await store.get(core.Pod, "two", "default"))


class LateAnswers(MemoryStore):
    """A store whose answer to a binding comes after the pod was deleted and its watchers know."""

    scheduler: Scheduler

    async def update(self, item: Any) -> Any:
        written = await super().update(item)
        _feed(self.scheduler, ChangeKind.DELETED, written)
        return written


async def test_a_pod_deleted_while_it_is_bound_is_not_brought_back_by_the_late_answer() -> None:
    store = LateAnswers()
    store.scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    _feed(store.scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    for name in ("one", "two"):
        _feed(store.scheduler, ChangeKind.ADDED, await store.create(_pod(name)))
        await store.scheduler.reconcile("")
    assert _is_bound(await store.get(core.Pod, "two", "default"))


async def test_whoever_changed_the_pod_first_wins_and_the_pod_is_bound_at_the_next_look(store: MemoryStore) -> None:
    clock = Clock()
    scheduler = _scheduler(store, clock)
    await _add_node(store, "node", 1)
    stale = await store.create(_pod("one"))
    labelled = msgspec.structs.replace(stale, metadata=msgspec.structs.replace(stale.metadata, labels={"a": "b"}))
    fresh = await store.update(labelled)
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    _feed(scheduler, ChangeKind.ADDED, stale)
    await scheduler.reconcile("")
    assert not _is_bound(await store.get(core.Pod, "one", "default"))
    _feed(scheduler, ChangeKind.MODIFIED, fresh)
    clock.now += FIRST_WAIT_S
    await scheduler.reconcile("")
    bound = await store.get(core.Pod, "one", "default")
    assert (bound.spec.node_name, bound.metadata.labels) == ("node", {"a": "b"})


class Treacherous(MemoryStore):
    """A store over a bad line: some bindings are carried out and not confirmed, or refused."""

    def __init__(self, *failures: errors.FairleadError, carries_out: bool) -> None:
        super().__init__()
        self.failures = list(failures)
        self._carries_out = carries_out

    async def update(self, item: Any) -> Any:
        if not self.failures:
            return await super().update(item)
        if self._carries_out:
            await super().update(item)
        raise self.failures.pop(0)


_CUT = errors.Unavailable("cut", reason="APIServerUnreachable")


@pytest.mark.parametrize("carries_out", [True, False])
async def test_nothing_is_given_twice_while_a_binding_is_in_doubt(carries_out: bool) -> None:
    store = Treacherous(_CUT, carries_out=carries_out)
    scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    for name in ("one", "two"):
        _feed(scheduler, ChangeKind.ADDED, await store.create(_pod(name)))
    with pytest.raises(errors.Unavailable):
        await scheduler.reconcile("")
    await scheduler.reconcile("")
    assert _is_bound(await store.get(core.Pod, "one", "default"))
    assert _is_refused(await store.get(core.Pod, "two", "default"))


async def test_a_pod_that_went_while_its_binding_was_in_doubt_takes_nothing() -> None:
    store = Treacherous(_CUT, carries_out=True)
    scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    for name in ("one", "two"):
        _feed(scheduler, ChangeKind.ADDED, await store.create(_pod(name)))
    with pytest.raises(errors.Unavailable):
        await scheduler.reconcile("")
    await store.delete(core.Pod, "one", "default", grace_s=0)
    await scheduler.reconcile("")
    assert _is_bound(await store.get(core.Pod, "two", "default"))


async def test_a_refused_binding_is_said_on_the_pod_tried_later_and_holds_nobody_up() -> None:
    store = Treacherous(errors.Denied("a webhook says no", reason="Forbidden"), carries_out=False)
    clock = Clock()
    scheduler = _scheduler(store, clock)
    await _add_node(store, "node", 2)
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    for name in ("one", "two"):
        _feed(scheduler, ChangeKind.ADDED, await store.create(_pod(name)))
    assert await scheduler.reconcile("") == overlooked.EVERY_S
    one = await store.get(core.Pod, "one", "default")
    assert [(item.reason, item.message) for item in one.status.conditions] == [("SchedulerError", "a webhook says no")]
    two = await store.get(core.Pod, "two", "default")
    assert _is_bound(two)
    _feed(scheduler, ChangeKind.MODIFIED, two)
    await scheduler.reconcile("")
    assert not _is_bound(await store.get(core.Pod, "one", "default"))
    clock.now += RETRY_S
    assert await scheduler.reconcile("") == cache.ECHO_S
    assert _is_bound(await store.get(core.Pod, "one", "default"))


class Deaf(MemoryStore):
    """A store that takes no events until it is let."""

    hears = False

    async def create(self, item: Any) -> Any:
        if isinstance(item, core.Event) and not self.hears:
            raise errors.Unavailable("away", reason="Away")
        return await super().create(item)


async def test_steps_that_the_store_did_not_take_are_told_later_in_order_and_hold_no_binding_up() -> None:
    store = Deaf()
    scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    _feed(scheduler, ChangeKind.ADDED, await store.get(core.Node, "node"))
    for name in ("one", "two"):
        _feed(scheduler, ChangeKind.ADDED, await store.create(_pod(name)))
    assert await scheduler.reconcile("") == UNRECORDED_S
    assert _is_bound(await store.get(core.Pod, "one", "default"))
    store.hears = True
    assert await scheduler.reconcile("") != UNRECORDED_S
    told = sorted((await store.list(core.Event)).items, key=lambda event: int(event.metadata.resource_version))
    assert [event.reason for event in told] == ["Scheduled", "FailedScheduling"]


async def test_a_pod_behind_a_gate_waits_for_its_keeper(store: MemoryStore) -> None:
    await _add_node(store, "node", 1)
    gated = await store.create(_pod("gated", scheduling_gates=(core.SchedulingGate(name="example.com/wait"),)))
    await store.create(_pod("free"))
    async with _running(store):
        await _until(store, "free", _is_bound)
        await store.delete(core.Pod, "free", "default", grace_s=0)
        assert not (await store.get(core.Pod, "gated", "default")).status.conditions
        spec = msgspec.structs.replace(gated.spec, scheduling_gates=())
        await store.update(msgspec.structs.replace(gated, spec=spec))
        await _until(store, "gated", _is_bound)


async def test_a_node_that_goes_is_not_chosen(store: MemoryStore) -> None:
    scheduler = _scheduler(store)
    await _add_node(store, "node", 1)
    node, pod = await store.get(core.Node, "node"), await store.create(_pod("one"))
    for kind in (ChangeKind.ADDED, ChangeKind.DELETED):
        _feed(scheduler, kind, node)
    _feed(scheduler, ChangeKind.ADDED, pod)
    await scheduler.reconcile("")
    found = await store.get(core.Pod, "one", "default")
    assert found.status.conditions[0].message == "0/0 nodes are available: no nodes are known."
