"""The scheduler under many pods and nodes: the event loop gets its turn, equal needs are judged once, hints wake pods.

What is counted are judgements (calls of the first filter) and turns of the loop, never seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.control import manager
from fairlead.control.scheduler.controller import BINDERS, Scheduler
from fairlead.plan.schedule import ranking, reference
from fairlead.plan.schedule.queue import overlooked, queue
from fairlead.settings import ControlSettings
from fairlead.store import lease, tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import coordination, core, meta

_GPU = "nvidia.com/gpu"


def _pod(name: str, gpus: int = 9, cpu: int = 1, **spec: Any) -> core.Pod:
    wanted = core.ResourceRequirements(requests={_GPU: gpus, "cpu": cpu})
    main = core.Container(name="main", image="i", resources=wanted)
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="default"),
        spec=core.PodSpec(containers=(main,), scheduler_name="fairlead", **spec),
    )


def _node(number: int, gpus: int = 8, **spec: Any) -> core.Node:
    ready = meta.Condition(type="Ready", status="True")
    status = core.NodeStatus(allocatable={_GPU: str(gpus), "cpu": "999", "pods": "110"}, conditions=(ready,))
    about = meta.ObjectMeta(name=f"n{number:04}", uid=f"n{number:04}")
    return core.Node(metadata=about, spec=core.NodeSpec(**spec), status=status)


def _scheduler(store: MemoryStore) -> Scheduler:
    return Scheduler(store, EmbeddedPlacement(store), ControlSettings())


def _feed(scheduler: Scheduler, item: core.Pod | core.Node, kind: ChangeKind = ChangeKind.ADDED) -> None:
    watch = next(one for one in scheduler.watches() if one.kind is type(item))
    assert tuple(watch.keys(Change(kind=kind, object=item)))


class Counter:
    """Counts judgements, in all and between two turns of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = self.since_turn = self.most = 0
        self._real = reference.FILTERS["NodeReady"]
        monkeypatch.setitem(reference.FILTERS, "NodeReady", self._count)

    def _count(self, need: reference.PodInfo, node: reference.NodeInfo) -> tuple[str, ...]:
        self.all += 1
        self.since_turn += 1
        self.most = max(self.most, self.since_turn)
        return self._real(need, node)

    async def turn(self) -> None:
        """Take every turn that the loop gives."""
        while True:
            self.since_turn = 0
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def turning(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.turn())
            yield
            task.cancel()


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.fixture
async def crowded() -> tuple[MemoryStore, Scheduler]:
    """A thousand nodes of 8 GPUs."""
    store = MemoryStore()
    scheduler = _scheduler(store)
    for number in range(1000):
        _feed(scheduler, _node(number))
    return store, scheduler


async def _fill(store: MemoryStore, scheduler: Scheduler, pods: Iterable[core.Pod]) -> None:
    """Create pods, and feed them to the scheduler."""
    for pod in pods:
        _feed(scheduler, await store.create(pod))


async def test_four_hundred_pods_that_fit_nowhere_do_not_keep_the_loop_from_turning(
    crowded: tuple[MemoryStore, Scheduler], counter: Counter
) -> None:
    store, scheduler = crowded
    await _fill(store, scheduler, (_pod(f"p{number}", cpu=1 + number % 20) for number in range(400)))
    async with counter.turning():
        await scheduler.reconcile("")
    assert counter.most <= 2 * ranking.SLICE
    pods = (await store.list(core.Pod)).items
    said = {meta.find_condition(pod.status.conditions, "PodScheduled").message for pod in pods}  # type: ignore[union-attr]  # each has one
    assert said == {f"0/1000 nodes are available: 1000 Insufficient {_GPU}."}
    # Twenty different needs: each judged once, on each node once.
    assert counter.all == 20 * 1000


async def test_a_leader_with_four_hundred_pods_that_fit_nowhere_keeps_its_lease(
    crowded: tuple[MemoryStore, Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, scheduler = crowded
    await _fill(store, scheduler, (_pod(f"p{number}", cpu=1 + number % 20) for number in range(400)))
    turns = 0
    real = store.update

    async def count(item: Any) -> Any:
        nonlocal turns
        turns += isinstance(item, coordination.Lease)
        return await real(item)

    monkeypatch.setattr(store, "update", count)
    terms = lease.Terms(lease_s=3600, renew_within_s=3000, retry_s=0)  # renews whenever the loop turns

    async def work(_leading: lease.Leadership) -> None:
        await scheduler.reconcile("")

    await lease.Election(store, name="scheduler", namespace="default", identity="one", terms=terms).run(work)
    assert turns >= 20 * 1000 // ranking.SLICE


async def test_a_change_that_helps_nobody_wakes_nobody(
    crowded: tuple[MemoryStore, Scheduler], counter: Counter
) -> None:
    store, scheduler = crowded
    await _fill(store, scheduler, (_pod(f"p{number}", cpu=1 + number % 4) for number in range(40)))
    await scheduler.reconcile("")
    before = counter.all
    heartbeat = msgspec.structs.replace(_node(0), metadata=meta.ObjectMeta(name="n0000", annotations={"a": "b"}))
    _feed(scheduler, heartbeat, ChangeKind.MODIFIED)
    _feed(scheduler, _node(1, unschedulable=True), ChangeKind.MODIFIED)
    _feed(scheduler, _node(2, taints=(core.Taint(key="red"),)), ChangeKind.MODIFIED)
    _feed(scheduler, _pod("other", gpus=1, node_name="n0003"))
    _feed(scheduler, _node(4), ChangeKind.DELETED)
    await scheduler.reconcile("")
    assert counter.all == before


async def test_a_change_that_may_help_has_only_that_node_judged_again(
    crowded: tuple[MemoryStore, Scheduler], counter: Counter
) -> None:
    store, scheduler = crowded
    await _fill(store, scheduler, (_pod(f"p{number}", cpu=1 + number % 4) for number in range(40)))
    await scheduler.reconcile("")
    before = counter.all
    _feed(scheduler, _node(7, gpus=9), ChangeKind.MODIFIED)
    await scheduler.reconcile("")
    pods = (await store.list(core.Pod)).items
    assert [pod.spec.node_name for pod in pods if pod.spec.node_name] == ["n0007"]
    # Four needs compared with it, each judged on it before and after the binding, at most.
    assert counter.all - before <= 12


async def test_a_thousand_pods_are_placed_with_the_changed_node_judged_alone(
    crowded: tuple[MemoryStore, Scheduler], counter: Counter
) -> None:
    store, scheduler = crowded
    await _fill(store, scheduler, (_pod(f"p{number}", gpus=1) for number in range(300)))
    async with counter.turning():
        await scheduler.reconcile("")
    assert all(pod.spec.node_name for pod in (await store.list(core.Pod)).items)
    assert counter.all <= 1000 + 300
    assert counter.most <= 2 * ranking.SLICE


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not holds():  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(0)


class Slow:
    """Bindings that take their time: each waits until it is let go."""

    def __init__(self, store: MemoryStore) -> None:
        self._inner = EmbeddedPlacement(store)
        self.in_flight: list[str] = []
        self.go = asyncio.Event()
        self.most = 0

    async def bind(self, pod: core.Pod, node: str) -> None:
        self.in_flight.append(pod.metadata.name)
        self.most = max(self.most, len(self.in_flight))
        await self.go.wait()
        self.in_flight.remove(pod.metadata.name)
        await self._inner.bind(pod, node)

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        raise NotImplementedError


async def test_the_next_pod_is_judged_while_bindings_are_in_flight_and_no_more_than_so_many_are() -> None:
    store = MemoryStore()
    placement = Slow(store)
    scheduler = Scheduler(store, placement, ControlSettings())
    _feed(scheduler, _node(0, gpus=BINDERS + 4))
    await _fill(store, scheduler, (_pod(f"p{number:02}", gpus=1) for number in range(BINDERS + 8)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(scheduler.reconcile(""))
        await _until(lambda: len(placement.in_flight) == BINDERS)
        placement.go.set()
    assert placement.most == BINDERS
    bound = [pod.metadata.name for pod in (await store.list(core.Pod)).items if pod.spec.node_name]
    assert len(bound) == BINDERS + 4


async def test_news_are_heeded_while_bindings_are_in_flight() -> None:
    store = MemoryStore()
    placement = Slow(store)
    scheduler = Scheduler(store, placement, ControlSettings())
    _feed(scheduler, _node(0, gpus=2))
    _feed(scheduler, await store.create(_pod("first", gpus=1)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(scheduler.reconcile(""))
        await _until(lambda: placement.in_flight == ["first"])
        _feed(scheduler, await store.create(_pod("second", gpus=1)))
        await _until(lambda: placement.in_flight == ["first", "second"])
        placement.go.set()


class Refusing(EmbeddedPlacement):
    """Refuses the first bindings: somebody was faster."""

    left = 1

    async def bind(self, pod: core.Pod, node: str) -> None:
        if self.left:
            self.left -= 1
            raise errors.Conflict("changed", reason="StaleVersion")
        await super().bind(pod, node)


async def test_a_binding_that_fails_gives_back_what_was_assumed() -> None:
    store = MemoryStore()
    scheduler = Scheduler(store, Refusing(store), ControlSettings())
    _feed(scheduler, _node(0, gpus=1))
    for name in ("a", "b"):
        _feed(scheduler, await store.create(_pod(name, gpus=1)))
    await scheduler.reconcile("")
    # The GPU that "a" was not bound to is free again for "b", in the same round.
    assert [pod.spec.node_name for pod in (await store.list(core.Pod)).items] == ["", "n0000"]


@pytest.mark.parametrize("field", ["podAffinity", "podAntiAffinity"])
async def test_a_pod_with_a_rule_that_is_not_known_is_told_so_and_never_bound(field: str) -> None:
    store = MemoryStore()
    team = {"matchLabels": {"team": "red"}}
    term = {"topologyKey": "kubernetes.io/hostname", "namespaceSelector": team}
    rule = {field: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for number in range(2):
        await store.create(_node(number))
        node = await store.get(core.Node, f"n{number:04}")
        await store.update_status(msgspec.structs.replace(node, status=_node(number).status))
    await store.create(_pod("rule", gpus=1, affinity=msgspec.convert(rule, core.Affinity)))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (_scheduler(store),)))
        events = [await anext(aiter(store.watch(core.Event)))]
        await store.create(_pod("plain", gpus=1))
        async for change in store.watch(core.Pod):
            if change.object.spec.node_name:
                break
        task.cancel()
    pod = await store.get(core.Pod, "rule", "default")
    (condition,) = pod.status.conditions
    assert (pod.spec.node_name, condition.status, condition.reason) == ("", "False", "UnknownRule")
    assert f"spec.affinity.{field}" in condition.message
    assert "leave spec.schedulerName out" in condition.message
    assert (events[0].object.reason, events[0].object.message) == ("FailedScheduling", condition.message)


async def test_a_pod_that_came_before_any_node_is_bound_when_one_comes() -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    _feed(scheduler, await store.create(_pod("early", gpus=1)))
    await scheduler.reconcile("")
    _feed(scheduler, await store.get(core.Pod, "early", "default"), ChangeKind.MODIFIED)
    for node in (_node(0, gpus=0), _node(0)):  # as agents make them: first the node, then its GPUs
        _feed(scheduler, node)
        await scheduler.reconcile("")
    assert (await store.get(core.Pod, "early", "default")).spec.node_name == "n0000"


async def test_a_refusal_does_not_speak_for_long_of_nodes_that_were() -> None:
    now = 1000.0
    store = MemoryStore()
    scheduler = Scheduler(store, EmbeddedPlacement(store), ControlSettings(), clock=lambda: now)
    _feed(scheduler, await store.create(_pod("early", gpus=9)))
    assert await scheduler.reconcile("") == overlooked.EVERY_S
    _feed(scheduler, await store.get(core.Pod, "early", "default"), ChangeKind.MODIFIED)
    _feed(scheduler, _node(0))
    assert await scheduler.reconcile("") == queue.AGED_S
    now += queue.AGED_S
    await scheduler.reconcile("")
    condition = meta.find_condition((await store.get(core.Pod, "early", "default")).status.conditions, "PodScheduled")
    assert condition is not None
    assert "Insufficient nvidia.com/gpu" in condition.message


@pytest.mark.parametrize("gpus", [1, 9])
async def test_an_event_of_five_thousand_nodes_stays_far_below_what_an_api_server_takes(gpus: int) -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    for number in range(5000):
        own = core.Taint(key=f"{'k' * 200}{number}", value="v" * 63, effect="NoSchedule")
        _feed(scheduler, _node(number, taints=(own,) * (number % 2)))
    _feed(scheduler, await store.create(_pod("one", gpus=gpus)))
    await scheduler.reconcile("")
    (event,) = (await store.list(core.Event)).items
    assert event.reason == ("Scheduled" if gpus == 1 else "FailedScheduling")
    # A server refuses annotations of more than 256 KiB in all, and etcd requests of more than 1.5 MiB.
    assert len(msgspec.json.encode(event)) < 16 << 10


@pytest.mark.parametrize(("policy", "nodes"), [("packed", ["n0000", "n0000"]), ("spread", ["n0000", "n0001"])])
async def test_the_policy_is_a_setting(policy: str, nodes: list[str]) -> None:
    store = MemoryStore()
    scheduler = Scheduler(store, EmbeddedPlacement(store), ControlSettings(policy=policy))
    for number in range(2):
        _feed(scheduler, _node(number))
    for name in ("a", "b"):
        _feed(scheduler, await store.create(_pod(name, gpus=1)))
    await scheduler.reconcile("")
    assert [pod.spec.node_name for pod in (await store.list(core.Pod)).items] == nodes
    steps = [tracerecorder.parse_step(event) for event in (await store.list(core.Event)).items]
    assert {step.facts["policy"] for step in steps if step} == {policy}


_HOSTS = "kubernetes.io/hostname"


def _hosted(number: int) -> core.Node:
    node = _node(number)
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, labels={_HOSTS: node.metadata.name})
    )


def _labelled(name: str, app: str, gpus: int = 1, **rules: Any) -> core.Pod:
    pod = _pod(name, gpus=gpus, **{key: msgspec.convert(value, _FIELDS[key]) for key, value in rules.items()})
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels={"app": app}))


_FIELDS = {"affinity": core.Affinity, "topology_spread_constraints": tuple[core.TopologySpreadConstraint, ...]}
_WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": _HOSTS}
_APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_WEB]}}


async def _places(store: MemoryStore) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.node_name for pod in (await store.list(core.Pod)).items}


async def test_pods_that_are_to_be_apart_get_a_node_each_and_the_last_waits_until_one_goes() -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    for number in range(3):
        _feed(scheduler, _hosted(number))
    made = [await store.create(_labelled(f"p{number}", "web", affinity=_APART)) for number in range(4)]
    for pod in made:
        _feed(scheduler, pod)
    await scheduler.reconcile("")
    places = await _places(store)
    assert sorted(places.values()) == ["", "n0000", "n0001", "n0002"]
    last = next(name for name, node in places.items() if not node)
    (condition,) = (await store.get(core.Pod, last, "default")).status.conditions
    assert condition.message == "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    gone = next(name for name, node in places.items() if node == "n0001")
    _feed(scheduler, await store.get(core.Pod, gone, "default"), ChangeKind.DELETED)
    await scheduler.reconcile("")
    assert (await _places(store))[last] == "n0001"


async def test_a_pod_without_rules_is_kept_away_by_one_that_was_bound_a_moment_before() -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    _feed(scheduler, _hosted(0))
    _feed(scheduler, await store.create(_labelled("early", "web")))
    await scheduler.reconcile("")
    _feed(scheduler, await store.create(_labelled("alone", "db", gpus=3, affinity=_APART)))
    _feed(scheduler, _hosted(1))
    await scheduler.reconcile("")
    for app in ("web", "other"):
        _feed(scheduler, await store.create(_labelled(app, app)))
    await scheduler.reconcile("")
    places = await _places(store)
    assert (places["early"], places["alone"], places["web"]) == ("n0000", "n0001", "n0000")
    assert places["other"] == "n0001"  # packed, where the rule is not about it


async def test_a_pod_that_is_to_be_near_another_waits_until_that_one_is_bound() -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    for number in range(2):
        _feed(scheduler, _hosted(number))
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_WEB]}}
    _feed(scheduler, await store.create(_labelled("follower", "db", affinity=near)))
    await scheduler.reconcile("")
    assert (await _places(store))["follower"] == ""
    leader = await store.create(_labelled("leader", "web"))
    _feed(scheduler, leader)
    await scheduler.reconcile("")
    places = await _places(store)
    assert places["follower"] == places["leader"] != ""


async def test_pods_are_spread_over_hosts_though_the_policy_packs() -> None:
    store = MemoryStore()
    scheduler = _scheduler(store)
    for number in range(3):
        _feed(scheduler, _hosted(number))
    for number in range(6):
        rules = [{**_WEB, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
        _feed(scheduler, await store.create(_labelled(f"p{number}", "web", topology_spread_constraints=rules)))
    await scheduler.reconcile("")
    assert sorted((await _places(store)).values()) == ["n0000", "n0000", "n0001", "n0001", "n0002", "n0002"]
