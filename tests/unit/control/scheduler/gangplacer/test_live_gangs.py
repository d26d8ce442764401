"""Groups of pods over a store: all of a gang is bound, or none of it, and it says why."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup
from tests.unit.control.scheduler.plane import GPU, Plane


@pytest.fixture
def plane() -> Plane:
    return Plane()


async def test_a_gang_that_fits_is_bound_whole(plane: Plane) -> None:
    await plane.add_node("a", 2)
    await plane.add_node("b", 2)
    await plane.add_gang("train", 4)
    async with plane.running():
        found = await plane.until_bound(f"train-{number}" for number in range(4))
    assert sorted(found.values()) == ["a", "a", "b", "b"]


async def test_a_gang_that_does_not_fit_binds_none_and_says_how_many_do(plane: Plane) -> None:
    await plane.add_node("a", 3)
    await plane.add_gang("train", 4)
    async with plane.running():
        said = await plane.until_said("train-3", "group")
        await plane.add_pod("single", 3)
        await plane.until_bound(["single"])  # nothing was held for the gang
    assert said == (
        'group "train" is placed as a whole: 3 of 4 pods fit, the next does not: '
        f"0/1 nodes are available: 1 Insufficient {GPU}."
    )
    assert set(await plane.bound()) == {"single"}


async def test_a_gang_waits_until_its_pods_are_there(plane: Plane) -> None:
    await plane.add_node("a", 8)
    for number in range(3):
        await plane.add_member("train", number, 4)
    async with plane.running():
        said = await plane.until_said("train-0", "group")
        assert (await plane.words("train-0"))[0] == "GroupIncomplete"
        await plane.add_pod("other")
        await plane.until_bound(["other"])
        assert set(await plane.bound()) == {"other"}
        await plane.add_member("train", 3, 4)
        await plane.until_bound(f"train-{number}" for number in range(4))
    assert said == 'group "train" is placed as a whole: 3 of 4 pods are there'


async def test_two_gangs_that_would_wait_for_each_other_do_not(plane: Plane) -> None:
    await plane.add_node("a", 4)
    for number in range(4):  # pod by pod each would get two GPUs and wait for ever
        await plane.add_member("amber", number, 4)
        await plane.add_member("blue", number, 4)
    async with plane.running():
        await plane.until_bound(f"amber-{number}" for number in range(4))
        await plane.until_said("blue-0", "0 of 4 pods fit")
        assert not any(name.startswith("blue") for name in await plane.bound())
        for number in range(4):
            await plane.end(f"amber-{number}")
        await plane.until_bound(f"blue-{number}" for number in range(4))


async def test_pods_beyond_the_minimum_go_by_themselves_as_there_is_room(plane: Plane) -> None:
    await plane.add_node("a", 3)
    await plane.add_gang("train", 5, minimum=2)
    async with plane.running():
        await plane.until_bound(["train-0", "train-1", "train-2"])
        await plane.until_said("train-4", "0/1 nodes are available")
        assert len(await plane.bound()) == 3
        await plane.end("train-0")
        await plane.until_bound(["train-3"])


async def test_a_pod_made_anew_for_one_that_ended_joins_the_others(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await plane.add_gang("train", 4)
    async with plane.running():
        await plane.until_bound(f"train-{number}" for number in range(4))
        await plane.end("train-2")
        await plane.add_member("train", 7, 4)
        await plane.until_bound(["train-7"])


async def test_the_minimum_of_a_podgroup_counts_and_is_waited_for(plane: Plane) -> None:
    await plane.add_node("a", 2)
    group = core.SchedulingGroup(pod_group_name="train")
    for number in range(2):
        await plane.add_pod(f"train-{number}", scheduling_group=group)
    async with plane.running():
        said = await plane.until_said("train-1", "group")
        assert said == 'group "train" waits for its PodGroup (Kubernetes)'
        gang = podgroup.SchedulingPolicy(gang=podgroup.GangPolicy(min_count=2))
        about = meta.ObjectMeta(name="train", namespace="default")
        await plane.store.create(podgroup.PodGroup(metadata=about, spec=podgroup.PodGroupSpec(scheduling_policy=gang)))
        await plane.until_bound(["train-0", "train-1"])


async def test_a_gang_gets_room_by_ending_pods_of_lower_priority_only_if_all_of_it_fits_then(plane: Plane) -> None:
    await plane.add_node("a", 2)
    await plane.add_node("b", 2)
    for number in range(4):
        await plane.add_pod(f"low-{number}", priority=-1 if number else 5)
    async with plane.running():
        await plane.until_bound(f"low-{number}" for number in range(4))
        await plane.add_gang("big", 4, priority=1)
        await plane.until_said("big-0", "0 of 4")
        assert plane.placement.ended == []  # low-0 stays, so ending the others would not help
        await plane.add_gang("fits", 3, priority=1)
        await plane.until_bound(f"fits-{number}" for number in range(3))
    assert sorted(plane.placement.ended) == ["low-1", "low-2", "low-3"]


async def test_a_gang_with_an_unreadable_quantity_is_refused_and_others_go_on(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await plane.add_gang("bad", 2, gpus="two")  # type: ignore[arg-type]
    await plane.add_pod("good")
    async with plane.running():
        await plane.until_bound(["good"])
        await plane.until_said("bad-0", "quantities must match")


async def test_the_place_of_a_member_that_changed_while_it_was_bound_is_kept_for_it(plane: Plane) -> None:
    await plane.add_node("a", 2)
    plane.placement.raced.add("train-1")
    await plane.add_gang("train", 2)
    await plane.add_pod("urgent", priority=100, scheduling_gates=(core.SchedulingGate(name="x/y"),))
    async with plane.running():
        await plane.until_bound(["train-0"])
        pod = await plane.store.get(core.Pod, "urgent", "default")
        free = msgspec.structs.replace(pod.spec, scheduling_gates=(), preemption_policy="Never")
        await plane.store.update(msgspec.structs.replace(pod, spec=free))
        await plane.until_bound(["train-1"])
        await plane.until_said("urgent", "Insufficient")
