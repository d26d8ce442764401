"""No pod waits beside room for it: scenarios that were seen on clusters, with a clock that the test moves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.schedule.queue import overlooked, queue
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import GPU
from tests.unit.control.scheduler.simulated import Simulated

HEAD_S = 600.0


async def _full(plane: Simulated, nodes: int = 4, gpus: int = 8, **spec: Any) -> list[str]:
    """Fill nodes with pods of one GPU."""
    for number in range(nodes):
        await plane.add_node(f"n{number}", gpus)
    names = [f"small-{number}" for number in range(nodes * gpus)]
    for name in names:
        await plane.add_pod(name, 1, **spec)
    await plane.run(1)
    for name in names:
        await plane.start(name)
    assert len(await plane.bound()) == nodes * gpus
    return names


@pytest.mark.parametrize("limit_s", [None, 40])
@pytest.mark.parametrize("wait_s", [5.0, HEAD_S + 30])
async def test_pods_of_a_whole_node_go_in_once_all_the_small_ones_are_gone(wait_s: float, limit_s: int | None) -> None:
    plane = Simulated(head_wait_s=HEAD_S)
    small = await _full(plane, active_deadline_seconds=limit_s)
    big = [f"big-{number}" for number in range(4)]
    for name in big:
        await plane.add_pod(name, 8)
    await plane.run(wait_s)
    for name in small:
        await plane.end(name)
        await plane.settle()
    await plane.run(queue.LAST_WAIT_S)
    assert set(await plane.bound()) == set(big)


async def test_with_two_queues_none_waits_once_the_small_ones_are_gone() -> None:
    plane = Simulated(head_wait_s=20)
    for name in ("red", "blue"):
        await plane.add_queue(name, namespaces=(name,), deserved={GPU: "16"}, limit={GPU: "24"})
    small = await _full(plane)
    for number in range(15):
        await plane.add_pod(f"red-{number}", (8, 4, 1)[number % 3], namespace="red")
        await plane.add_pod(f"blue-{number}", (1, 2, 8)[number % 3], namespace="blue")
    await plane.run(60)
    for name in small:
        if name in await plane.bound():
            await plane.end(name)
            await plane.run(1)
    while bound := await plane.bound():
        held = {one.pod.metadata.name for one in plane.scheduler._cache.held.values()}
        for name in await plane.beside_room():
            reason, words = await plane.words(name, name.partition("-")[0])
            assert reason == "QueueHolds" or name in held, (name, words)
        name = next(iter(bound))
        await plane.end(name, name.partition("-")[0])
        await plane.run(queue.LAST_WAIT_S + 0.1)
    assert (await plane.store.list(core.Pod)).items == ()


async def test_a_gang_goes_in_beside_a_stream_of_small_pods_within_the_bound_of_its_wait() -> None:
    plane = Simulated(head_wait_s=120)
    small = dict.fromkeys(await _full(plane), plane.now)
    begun_at, number = plane.now, 0
    await plane.add_gang("gang", 12)
    while "gang-0" not in await plane.bound():
        assert plane.now - begun_at < 120 + 60 + queue.LAST_WAIT_S, await plane.words("gang-0")
        # Pods of one GPU that run for a minute, and two that wait for each that ends.
        for name in [name for name, at in small.items() if plane.now - at >= 60][:3]:
            del small[name]
            await plane.end(name)
            for _ in range(2):
                number += 1
                await plane.add_pod(f"late-{number}", 1)
        for name in await plane.bound():
            small.setdefault(name, plane.now)
        await plane.run(1)
    assert plane.now - begun_at > 100  # it was passed by as long as it may be
    assert {f"gang-{number}" for number in range(12)} <= (await plane.bound()).keys()


async def test_a_gang_in_a_required_domain_gets_its_room_in_one() -> None:
    rack = "example.com/rack"
    plane = Simulated(head_wait_s=60, topology_levels=rack)
    for number in range(4):
        await plane.add_node(f"n{number}", 4, {rack: f"r{number // 2}"})
    for number in range(16):
        await plane.add_pod(f"small-{number}", 1)
    await plane.run(1)
    await plane.add_gang("gang", 6, annotations={"kueue.x-k8s.io/podset-required-topology": rack})
    await plane.run(61)
    assert "room is held for all 6 pods on n0, n1" in (await plane.words("gang-0"))[1].lower()
    where = await plane.bound()
    for name in [name for name, node in where.items() if node in ("n0", "n1")]:
        await plane.add_pod(f"late-{name}", 1)
        await plane.end(name)
        await plane.run(1)
    assert {f"gang-{number}" for number in range(6)} <= (await plane.bound()).keys()


async def test_a_head_that_no_node_ever_takes_leaves_the_bound_to_the_next() -> None:
    plane = Simulated(head_wait_s=30)
    small = await _full(plane, nodes=1)
    await plane.add_pod("a-never", 9)
    await plane.add_pod("b-big", 8)
    await plane.run(30 + overlooked.EVERY_S + 1)
    for name in small:
        await plane.add_pod(f"late-{name}", 1)
        await plane.end(name)
        await plane.run(1)
    assert set(await plane.bound()) == {"b-big"}


async def test_a_binding_that_is_refused_for_ever_keeps_nobody_else_waiting() -> None:
    plane = Simulated(head_wait_s=30)
    await plane.add_node("n0", 8)
    bind = plane.placement.bind
    tries = list[str]()

    async def refuse(pod: core.Pod, node: str) -> None:
        if pod.metadata.labels.get("refused"):
            tries.append(pod.metadata.name)
            raise errors.Denied("an admission policy says no", reason="Forbidden")
        await bind(pod, node)

    plane.placement.bind = refuse  # type: ignore[method-assign]  # as a webhook does
    await plane.add_pod("a-refused", 8, labels={"refused": "1"}, priority=1000)
    for number in range(4):
        await plane.add_pod(f"b-{number}", 8)
    for number in range(4):
        await plane.run(40)
        assert f"b-{number}" in await plane.bound()
        assert plane.placement.ended == []  # none ends for one that would not be bound then
        await plane.end(f"b-{number}")
    await plane.run(7200)
    assert 5 <= len(tries) < 20  # tried, at growing intervals


async def test_a_gang_below_its_minimum_goes_in_when_its_node_is_back() -> None:
    plane = Simulated()
    for name in ("a", "b"):
        await plane.add_node(name, 4)
    await plane.add_gang("gang", 8)
    await plane.run(1)
    assert len(await plane.bound()) == 8
    gone = [name for name, node in (await plane.bound()).items() if node == "b"]
    await plane.store.delete(core.Node, "b", "", grace_s=0)
    for name in gone:
        await plane.end(name)
    await plane.run(1)
    for name in gone:
        await plane.add_member("gang", 10 + int(name.partition("-")[2]), 8)
    await plane.run(120)
    assert len(await plane.bound()) == 4
    await plane.add_node("b", 4)
    await plane.run(11)
    assert len(await plane.bound()) == 8


async def test_a_gang_whose_first_pod_goes_is_tried_with_the_others() -> None:
    plane = Simulated()
    await plane.add_node("a", 4)
    await plane.add_member("gang", 0, 2, 8)
    for number in (1, 2):
        await plane.add_member("gang", number, 2, 1)
    await plane.run(60)
    assert not await plane.bound()
    await plane.end("gang-0")
    await plane.run(1)
    assert set(await plane.bound()) == {"gang-1", "gang-2"}


@pytest.mark.parametrize("gpus", [2, 3, 4])
async def test_a_quota_of_pods_with_several_parts_of_several_gpus_is_used_to_the_last(gpus: int) -> None:
    """Pods that ask for whole GPUs and for parts, and gangs of several GPUs each, within one limit."""
    part = "nvidia.com/mig-1g.10gb"
    plane = Simulated(head_wait_s=30)
    for number in range(2):
        await plane.add_node(f"n{number}", 8)
        node = await plane.store.get(core.Node, f"n{number}", "")
        status = msgspec.structs.replace(node.status, allocatable={**node.status.allocatable, part: "14"})
        await plane.store.update_status(msgspec.structs.replace(node, status=status))
    await plane.add_queue("team", namespaces=("team",), limit={GPU: "12", part: "14"})

    def asks(whole: int, parts: int) -> tuple[core.Container, ...]:
        made = core.ResourceRequirements(limits={GPU: whole, part: parts}, requests={GPU: whole, part: parts})
        return (core.Container(name="main", image="i", resources=made),)

    names = [f"p{number}" for number in range(9)]
    for name in names:
        await plane.add_pod(name, namespace="team", containers=asks(gpus, 3))
    most, done = min(12 // gpus, 14 // 3), 0
    await plane.run(60)
    while left := [name for name in await plane.bound()]:
        assert len(left) == min(most, len(names) - done)
        await plane.end(left[0], "team")
        done += 1
        await plane.run(11)
    assert done == len(names)


async def test_room_that_is_held_within_a_quota_counts_once() -> None:
    plane = Simulated(head_wait_s=30)
    await plane.add_queue("team", namespaces=("team",), limit={GPU: "8"})
    small = await _full(plane, nodes=1)
    await plane.add_pod("big", 8, namespace="team")
    await plane.run(31)
    assert "Room is held" in (await plane.words("big", "team"))[1]
    for name in small:
        await plane.end(name)
    await plane.run(1)
    assert set(await plane.bound()) == {"big"}


async def test_of_pods_parked_alike_the_second_goes_where_the_first_has_no_room() -> None:
    plane = Simulated()
    await plane.add_queue("team", namespaces=("team",), limit={GPU: "4"})
    await plane.add_node("a", 4, {"zone": "a"})
    await plane.add_node("b", 4, {"zone": "b"})
    await plane.add_pod("holder", 4, namespace="team", node_selector={"zone": "a"})
    await plane.add_pod("other", 4, node_selector={"zone": "b"})
    await plane.run(1)
    await plane.add_pod("p0", 4, namespace="team", node_selector={"zone": "b"})
    await plane.add_pod("p1", 4, namespace="team", node_selector={"zone": "a"})
    await plane.run(1)
    assert set(await plane.bound()) == {"holder", "other"}
    await plane.end("holder", "team")
    await plane.run(1)
    assert set(await plane.bound()) == {"other", "p1"}


async def test_a_leader_that_starts_anew_goes_on_where_the_other_was() -> None:
    plane = Simulated(head_wait_s=30)
    small = await _full(plane)
    for number in range(4):
        await plane.add_pod(f"big-{number}", 8)
    await plane.run(40)
    plane.restart()
    await plane.run(1)
    for name in small:
        await plane.end(name)
    await plane.run(11)
    assert set(await plane.bound()) == {f"big-{number}" for number in range(4)}


async def test_a_label_or_a_condition_of_a_pod_wakes_nobody_and_loses_nobody() -> None:
    plane = Simulated()
    await _full(plane, nodes=1)
    for number in range(3):
        await plane.add_pod(f"big-{number}", 8)
    await plane.run(1)
    pod = await plane.store.get(core.Pod, "big-1", "default")
    about = msgspec.structs.replace(pod.metadata, labels={"a": "b"})
    await plane.store.update(msgspec.structs.replace(pod, metadata=about))
    await plane.run(1)
    assert plane.scheduler._queue.problems() == {}
    assert meta.find_condition((await plane.store.get(core.Pod, "big-1", "default")).status.conditions, "PodScheduled")
