"""Policies by class of pod and by queue, in the live scheduler."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.wire.kubernetes.scheduling import queue
from tests.unit.control.scheduler.plane import Plane


@pytest.fixture(params=["node by node", "by array"])
def plane(request: pytest.FixtureRequest) -> Plane:
    found = Plane(pod_policies="app=serve:spread")
    if request.param == "by array":
        found.choose("packed", pod_policies="app=serve:spread")
    return found


async def _nodes(plane: Plane) -> None:
    for name in ("a", "b", "c"):
        await plane.add_node(name, 8)


async def test_a_class_is_spread_while_others_are_packed(plane: Plane) -> None:
    await _nodes(plane)
    async with plane.running():
        for number in range(3):
            await plane.add_pod(f"train-{number}")
            await plane.until_bound([f"train-{number}"])
            await plane.add_pod(f"serve-{number}", labels={"app": "serve"})
            bound = await plane.until_bound([f"serve-{number}"])
    assert {bound[f"train-{at}"] for at in range(3)} == {"a"}
    assert {bound[f"serve-{at}"] for at in range(3)} == {"b", "c"}


async def test_a_queues_pods_go_by_its_policy_and_by_another_once_it_changes(plane: Plane) -> None:
    await _nodes(plane)
    await plane.add_queue("serving", namespaces=("red",), policy="spread")
    async with plane.running():
        for number in range(3):
            await plane.add_pod(f"red-{number}", namespace="red")
            await plane.until_bound([f"red-{number}"])
        item = await plane.store.get(queue.Queue, "serving")
        await plane.store.update(_packed(item))
        for number in range(3):
            await plane.add_pod(f"late-{number}", namespace="red")
            bound = await plane.until_bound([f"late-{number}"])
    assert sorted(bound[f"red-{at}"] for at in range(3)) == ["a", "b", "c"]
    assert len({bound[f"late-{at}"] for at in range(3)}) == 1


def _packed(item: queue.Queue) -> queue.Queue:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, policy="packed"))
