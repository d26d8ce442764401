"""Sub-groups over a store: all of each is bound and all that its group needs, or nothing; each in its own rack."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.schedule.group import subgroup
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup
from tests.unit.control.scheduler.plane import Plane

_RACK = "example.com/rack"
_GROUP = {"pod-group-name": "train"}


@pytest.fixture
def plane() -> Plane:
    return Plane(topology_levels=_RACK)


async def _add_group(plane: Plane, kind: type[podgroup.PodGroup] = podgroup.KAIPodGroup, **spec: Any) -> None:
    about = meta.ObjectMeta(name="train", namespace="default")
    await plane.store.create(kind(metadata=about, spec=podgroup.PodGroupSpec(**spec)))


async def _add(plane: Plane, part: str, count: int, gpus: int = 1, **more: Any) -> list[str]:
    names = [f"{part}-{number}" for number in range(count)]
    for name in names:
        await plane.add_pod(name, gpus, labels={subgroup.KAI_NAME: part}, annotations=_GROUP, **more)
    return names


def _subs(**minimum: int) -> tuple[podgroup.SubGroup, ...]:
    return tuple(podgroup.SubGroup(name=name, min_member=count) for name, count in minimum.items())


async def test_all_of_each_sub_group_is_bound_and_the_group_waits_for_the_last_of_them(plane: Plane) -> None:
    await plane.add_node("a", 8)
    await _add_group(plane, sub_groups=_subs(leader=1, workers=3))
    async with plane.running():
        workers = await _add(plane, "workers", 3)
        said = await plane.until_said("workers-0", "group")
        assert said == 'sub-group "leader" of group "train" is placed as a whole: 0 of 1 pods are there'
        leader = await _add(plane, "leader", 1)
        await plane.until_bound([*workers, *leader])


async def test_where_one_sub_group_finds_no_room_nothing_of_the_others_is_bound(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await _add_group(plane, sub_groups=_subs(leader=1, workers=4))
    names = [*await _add(plane, "leader", 1), *await _add(plane, "workers", 4)]
    async with plane.running():
        said = await plane.until_said("workers-0", "the next does not")
        assert said.startswith(
            'beside 1 of 5 pods that fit, sub-group "workers" of group "train" is placed as a whole: '
            "3 of 4 pods fit, the next does not: "
        )
        await plane.add_pod("single", 4)
        await plane.until_bound(["single"])  # nothing was held for the group
        assert set(await plane.bound()) == {"single"}
        await plane.end("single")
        await plane.add_node("b", 1)
        await plane.until_bound(names)


async def test_pods_beyond_a_sub_groups_minimum_go_by_themselves(plane: Plane) -> None:
    await plane.add_node("a", 3)
    await _add_group(plane, sub_groups=_subs(one=1, two=1))
    names = [*await _add(plane, "one", 2), *await _add(plane, "two", 2)]
    async with plane.running():
        await plane.until_bound(["one-0", "two-0"])
        await plane.add_node("b", 1)
        await plane.until_bound(names)


async def test_as_many_sub_groups_as_asked_for_start_and_each_further_one_comes_whole(plane: Plane) -> None:
    await plane.add_node("a", 5)
    subs = tuple(
        podgroup.SubGroup(name=name, parent=parent, min_member=count, min_sub_group=least)
        for name, parent, count, least in (
            ("replicas", None, None, 1),
            ("r0", "replicas", 2, None),
            ("r1", "replicas", 2, None),
            ("router", None, 1, None),
        )
    )
    await _add_group(plane, sub_groups=subs)
    async with plane.running():
        names = [*await _add(plane, "router", 1), *await _add(plane, "r1", 2, gpus=2)]
        await plane.until_bound(names)
        await _add(plane, "r0", 2, gpus=2)
        await plane.add_node("b", 3)
        said = await plane.until_said("r0-0", "1 of 2 pods fit")
        assert said.startswith('sub-group "r0" of group "train" is placed as a whole: 1 of 2 pods fit')
        assert not {"r0-0", "r0-1"} & set(await plane.bound())
        await plane.add_node("c", 2)
        await plane.until_bound(["r0-0", "r0-1"])


async def test_volcanos_policy_makes_a_sub_group_of_pods_with_the_same_labels(plane: Plane) -> None:
    await plane.add_node("a", 4)
    rings = podgroup.SubGroupPolicy(name="rings", match_label_keys=("ring",), sub_group_size=2, min_sub_groups=2)
    await _add_group(plane, podgroup.VolcanoPodGroup, min_member=4, sub_group_policy=(rings,))
    told = {"scheduling.k8s.io/group-name": "train"}

    async def add(ring: str, *numbers: int) -> list[str]:
        names = [f"{ring}-{number}" for number in numbers]
        for name in names:
            await plane.add_pod(name, labels={"ring": ring}, annotations=told)
        return names

    async with plane.running():
        names = await add("x", 0, 1)
        said = await plane.until_said("x-0", "group")
        assert said == 'group "train" is placed as a whole: 1 of 2 sub-groups of "rings" are there'
        names += await add("y", 0)
        await plane.until_said(
            "y-0", 'sub-group "rings-y" of group "train" is placed as a whole: 1 of 2 pods are there'
        )
        await plane.until_bound(names + await add("y", 1))


async def test_volcanos_tasks_have_a_minimum_each(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await _add_group(plane, podgroup.VolcanoPodGroup, min_member=2, min_task_member={"ps": 1, "worker": 1})
    async with plane.running():
        for number in range(2):
            told = {"scheduling.k8s.io/group-name": "train", subgroup.VOLCANO_TASK: "worker"}
            await plane.add_pod(f"w-{number}", annotations=told)
        await plane.until_said("w-0", 'sub-group "ps" of group "train" is placed as a whole: 0 of 1 pods are there')
        await plane.add_pod("ps", annotations={**told, subgroup.VOLCANO_TASK: "ps"})
        await plane.until_bound(["w-0", "w-1", "ps"])


async def _add_racks(plane: Plane, **free: int) -> None:
    for rack, gpus in free.items():
        await plane.add_node(rack, gpus, {_RACK: rack})


def _racked(**minimum: int) -> tuple[podgroup.SubGroup, ...]:
    place = podgroup.TopologyConstraint(required_topology_level=_RACK)
    return tuple(
        podgroup.SubGroup(name=name, min_member=count, topology_constraint=place) for name, count in minimum.items()
    )


async def test_each_sub_group_goes_into_a_rack_of_its_own_where_it_requires_one(plane: Plane) -> None:
    await _add_racks(plane, r0=3, r1=3, r2=2)
    await _add_group(plane, sub_groups=_racked(p=3, q=3))
    names = [*await _add(plane, "p", 3), *await _add(plane, "q", 3)]
    async with plane.running():
        bound = await plane.until_bound(names)
        p, q = ({bound[name] for name in names if name.startswith(part)} for part in "pq")
        assert sorted([*p, *q]) == ["r0", "r1"]
        await plane.add_pod("p-3", labels={subgroup.KAI_NAME: "p"}, annotations=_GROUP)
        said = await plane.until_said("p-3", "topology domain")
        assert said.startswith("0/3 nodes are available: ")  # not in r2, where there is room


async def test_pods_end_in_a_rack_for_each_sub_group_only_where_all_of_them_fit_then(plane: Plane) -> None:
    await _add_racks(plane, r0=2, r1=2, r2=2)
    for number in range(6):
        await plane.add_pod(f"low-{number}", priority=5 if number == 5 else -1)
    async with plane.running():
        low = await plane.until_bound(f"low-{number}" for number in range(6))
        await _add_group(plane, sub_groups=_racked(p=2, q=2))
        names = [*await _add(plane, "p", 2, priority=1), *await _add(plane, "q", 2, priority=1)]
        bound = await plane.until_bound(names)
    kept = {low[name] for name in low if name not in plane.placement.ended}
    assert kept == {low["low-5"]}
    assert len(plane.placement.ended) == 4
    assert bound["p-0"] == bound["p-1"] != bound["q-0"] == bound["q-1"]


async def test_a_sub_group_that_its_group_can_spare_ends_alone_and_one_that_it_needs_ends_all(plane: Plane) -> None:
    await plane.add_node("a", 4)
    subs = _subs(r0=2, r1=2)
    await _add_group(plane, min_sub_group=1, sub_groups=subs)
    for part in ("r0", "r1"):
        await _add(plane, part, 2, priority=-1)
    async with plane.running():
        await plane.until_bound(["r0-0", "r0-1", "r1-0", "r1-1"])
        await plane.add_pod("one", 1, priority=1)
        await plane.until_bound(["one"])
        spared = set(plane.placement.ended)
        assert spared in ({"r0-0", "r0-1"}, {"r1-0", "r1-1"})
        await plane.add_pod("two", 2, priority=1)
        await plane.until_bound(["two"])
        assert set(plane.placement.ended) == {"r0-0", "r0-1", "r1-0", "r1-1"}


async def test_a_pod_beyond_the_minimum_is_not_forgotten_while_its_group_finds_no_room(plane: Plane) -> None:
    await plane.add_node("a", 1)
    await plane.add_gang("train", 3, minimum=2)
    async with plane.running():
        await plane.until_said("train-1", "1 of 2 pods fit")
        await plane.add_node("b", 4)
        await plane.until_bound(["train-0", "train-1", "train-2"])


def test_parents_in_a_circle_end_where_they_close() -> None:
    subs = (podgroup.SubGroup(name="a", parent="b"), podgroup.SubGroup(name="b", parent="a", min_member=2))
    group = podgroup.PodGroup(spec=podgroup.PodGroupSpec(sub_groups=subs))
    pod = core.Pod(metadata=meta.ObjectMeta(name="p", labels={subgroup.KAI_NAME: "b"}))
    assert [one.name for one in subgroup.layout(group).of(pod)] == ["a", "b"]
