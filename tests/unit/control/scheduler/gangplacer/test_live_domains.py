"""Groups go into one rack or block, over a store: required, preferred, grown later, refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.schedule.group import domain
from fairlead.wire.kubernetes import core
from tests.unit.control.scheduler.plane import Plane

_BLOCK, _RACK = "example.com/block", "example.com/rack"
_LEVELS = f"{_BLOCK},{_RACK}"
_REQUIRED = {domain.REQUIRED[0]: _RACK}
_PREFERRED = {domain.PREFERRED[0]: _RACK}


@pytest.fixture(params=["node by node", "by array"])
def plane(request: pytest.FixtureRequest) -> Plane:
    one = Plane(topology_levels=_LEVELS)
    if request.param == "by array":
        one.choose("packed", topology_levels=_LEVELS)
    return one


async def _add_racks(plane: Plane, **free: int) -> None:
    """Add racks of two nodes each, all in one block per letter: a0 and a1 are in block a."""
    for rack, gpus in free.items():
        for number in range(2):
            await plane.add_node(f"{rack}-{number}", gpus, {_BLOCK: rack[0], _RACK: rack})


async def _racks(plane: Plane, *names: str) -> set[str]:
    bound = await plane.until_bound(names)
    return {bound[name].partition("-")[0] for name in names}


async def test_a_group_that_requires_a_rack_goes_into_the_tightest_that_takes_all_of_it(plane: Plane) -> None:
    await _add_racks(plane, a0=1, a1=2, b0=4)
    await plane.add_gang("train", 4, annotations=_REQUIRED)
    async with plane.running():
        assert await _racks(plane, *(f"train-{number}" for number in range(4))) == {"a1"}
        async for _ in plane.store.watch(core.Event):
            if said := await plane.messages("Scheduled"):
                break
        assert said[0].endswith(": its group is placed in a1")


async def test_a_group_that_no_rack_takes_binds_none_says_so_and_goes_once_there_is_room(plane: Plane) -> None:
    await _add_racks(plane, a0=2, a1=2)
    await plane.add_pod("holder", 2)
    async with plane.running():
        held = (await plane.until_bound(["holder"]))["holder"]
        await plane.add_gang("train", 5, annotations=_REQUIRED)
        said = await plane.until_said("train-0", "whole")
        best = "a1" if held.startswith("a0") else "a0"
        assert said == (
            f'group "train" is placed as a whole in one {_RACK}, and none takes all 5: '
            f"the best, {best}, has room for 4: "
            "0/4 nodes are available: 4 node(s) in no topology domain with room for the group."
        )
        assert set(await plane.bound()) == {"holder"}
        for number in range(2):
            await plane.add_node(f"a9-{number}", 3, {_BLOCK: "a", _RACK: "a9"})
        assert await _racks(plane, *(f"train-{number}" for number in range(5))) == {"a9"}


async def test_a_group_that_prefers_a_rack_goes_into_one_block_where_no_rack_takes_it_else_anywhere(
    plane: Plane,
) -> None:
    await _add_racks(plane, a0=1, a1=1, b0=2)
    await plane.add_gang("rack", 4, annotations=_PREFERRED)
    await plane.add_gang("block", 3, annotations=_PREFERRED, priority=-1)
    await plane.add_gang("none", 1, gpus=1, annotations=_PREFERRED, priority=-2)
    async with plane.running():
        assert await _racks(plane, *(f"rack-{number}" for number in range(4))) == {"b0"}
        assert await _racks(plane, *(f"block-{number}" for number in range(3))) == {"a0", "a1"}
        await plane.until_bound(["none-0"])


async def test_pods_that_come_later_join_the_rack_of_their_group_or_wait(plane: Plane) -> None:
    await _add_racks(plane, a0=2, b0=8)
    await plane.add_gang("train", 3, annotations=_REQUIRED)
    async with plane.running():
        assert await _racks(plane, *(f"train-{number}" for number in range(3))) == {"a0"}
        await plane.add_member("train", 3, 3, annotations=_REQUIRED)
        assert await _racks(plane, "train-3") == {"a0"}
        await plane.add_member("train", 4, 3, annotations=_REQUIRED)
        said = await plane.until_said("train-4", "outside")
        assert f"2 node(s) outside the topology domain of the pod's group ({_RACK})" in said
        assert "2 Insufficient" in said


async def test_a_node_without_the_label_is_in_no_rack(plane: Plane) -> None:
    await plane.add_node("bare", 8)
    await plane.add_gang("train", 2, annotations=_REQUIRED)
    async with plane.running():
        assert f"no node has {_BLOCK} and {_RACK}" in await plane.until_said("train-0", "whole")


async def test_pods_of_lower_priority_end_in_one_rack_alone_for_a_group_that_requires_one(plane: Plane) -> None:
    await _add_racks(plane, a0=2, a1=2)
    for rack in ("a0", "a1"):
        for number in range(2):
            more: dict[str, Any] = {"node_selector": {_RACK: rack}, "priority": 0}
            await plane.add_pod(f"{rack}-{number}", 2 if number else 1, **more)
    async with plane.running():
        await plane.until_bound([f"{rack}-{number}" for rack in ("a0", "a1") for number in range(2)])
        await plane.add_gang("train", 4, annotations=_REQUIRED, priority=10)
        racks = await _racks(plane, *(f"train-{number}" for number in range(4)))
    assert len(racks) == 1
    assert {name.partition("-")[0] for name in plane.placement.ended} == racks


async def test_an_unlisted_level_counts_by_itself() -> None:
    plane = Plane()
    await plane.add_node("a", 2, {"zone": "z"})
    await plane.add_node("b", 2, {"zone": "z"})
    await plane.add_gang("train", 4, annotations={"kai.scheduler/topology-required-placement": "zone"})
    async with plane.running():
        await plane.until_bound(f"train-{number}" for number in range(4))
    assert len({pod.spec.node_name for pod in (await plane.store.list(core.Pod)).items}) == 2
