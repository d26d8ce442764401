"""Queues over a store: limits, guarantees, whose turn it is, borrowing and taking back; and preemption by priority."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead.control.scheduler import preemption
from fairlead.store import retry
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import policy
from tests.unit.control.scheduler.plane import GPU, Plane

T = TypeVar("T", bound=meta.Object)


@pytest.fixture
def plane() -> Plane:
    return Plane()


async def test_a_queue_at_its_limit_keeps_its_pods_waiting_and_says_so(plane: Plane) -> None:
    await plane.add_node("a", 8)
    await plane.add_queue("team", namespaces=("red",), limit={GPU: "2"})
    for number in range(3):
        await plane.add_pod(f"red-{number}", namespace="red")
    await plane.add_pod("free", 6)
    async with plane.running():
        await plane.until_bound(["red-0", "red-1", "free"])
        said = await plane.until_said("red-2", "queue", "red")
        assert said == f'queue "team" is at its limit: 1 {GPU} asked, 2 of 2 taken'
        assert (await plane.words("red-2", "red"))[0] == "QueueHolds"
        await plane.end("red-0", "red")
        await plane.until_bound(["red-2"])


async def test_a_guarantee_is_kept_for_its_queue_while_it_is_idle(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await plane.add_queue("team", namespaces=("red",), guarantee={GPU: "3"})
    await plane.add_pod("one")
    await plane.add_pod("two")
    async with plane.running():
        await plane.until_bound(["one"])
        said = await plane.until_said("two", "kept")
        assert said == f'what is free of {GPU} is kept for queue "team", whose guarantee it is'
        await plane.add_pod("mine", 3, namespace="red")
        await plane.until_bound(["mine"])


async def test_idle_share_is_lent_and_taken_back_from_the_borrower(plane: Plane) -> None:
    await plane.add_node("a", 4)
    await plane.add_queue("red", namespaces=("red",), deserved={GPU: "2"})
    await plane.add_queue("blue", namespaces=("blue",), deserved={GPU: "2"})
    for number in range(4):
        await plane.add_pod(f"red-{number}", namespace="red", priority=100)
    async with plane.running():
        await plane.until_bound(f"red-{number}" for number in range(4))
        for number in range(3):
            await plane.add_pod(f"blue-{number}", namespace="blue", priority=-100)
        await plane.until_bound(["blue-0", "blue-1"])
        await plane.until_said("blue-2", "Insufficient", "blue")
        await plane.add_pod("red-4", namespace="red", priority=100)  # nobody is beyond his share now
        await plane.until_said("red-4", "Insufficient", "red")
        assert len(plane.placement.ended) == 2
        await plane.add_pod("red-5", namespace="red", priority=1000)  # takes from its own queue, not from the other
        await plane.until_bound(["red-5"])
    assert len(plane.placement.ended) == 3
    assert all(name.startswith("red-") for name in plane.placement.ended)
    first, *_ = await plane.messages("Preempted")
    assert first == 'ended to make room for 1 pod of blue (queue "red" is beyond its share, "blue" is within)'


def test_an_owner_reads_no_name_of_another_namespaces_pod() -> None:
    pods = [core.Pod(metadata=meta.ObjectMeta(name=f"p{at}", namespace=place)) for at, place in enumerate("aabbc")]
    assert preemption.named(pods, pods[0]) == ["a/p0", "a/p1", "2 pods of b", "1 pod of c"]


async def test_queues_take_turns_by_their_shares(plane: Plane) -> None:
    await plane.add_queue("red", namespaces=("red",), weight=3)
    await plane.add_queue("blue", namespaces=("blue",), weight=1)
    for number in range(8):
        await plane.add_pod(f"red-{number}", namespace="red")
    for number in range(8):
        await plane.add_pod(f"blue-{number}", namespace="blue")
    await plane.add_node("a", 8)
    async with plane.running():

        async def full() -> dict[str, str] | None:
            return found if len(found := await plane.bound()) == 8 else None

        found = await plane.until(full)
    assert sum(name.startswith("red") for name in found) == 6


async def test_a_pod_may_not_name_a_queue_of_others(plane: Plane) -> None:
    await plane.add_node("a", 8)
    await plane.add_queue("team", namespaces=("red",))
    label = {"kueue.x-k8s.io/queue-name": "team"}
    await plane.add_pod("sly", labels=label)
    await plane.add_pod("lost", labels={"kueue.x-k8s.io/queue-name": "nosuch"})
    async with plane.running():
        assert await plane.until_said("sly", "queue") == 'queue "team" is not for namespace "default"'
        assert await plane.until_said("lost", "queue") == 'queue "nosuch" is not there (queues: team)'
    assert await plane.bound() == {}


async def test_a_pod_of_higher_priority_ends_the_cheapest_that_makes_room(plane: Plane) -> None:
    await plane.add_node("a", 2)
    await plane.add_node("b", 2)
    for name, gpus, priority in (("two", 2, 0), ("one", 1, 1), ("other", 1, 1)):
        await plane.add_pod(name, gpus, priority=priority)
    async with plane.running():
        await plane.until_bound(["two", "one", "other"])
        await plane.add_pod("urgent", 1, priority=10)
        await plane.until_bound(["urgent"])
    assert plane.placement.ended == ["two"]
    assert await plane.messages("Preempted") == ["ended to make room for default/urgent (priority 10 before 0)"]


async def test_a_pod_of_higher_priority_gets_room_although_its_like_waits_already(plane: Plane) -> None:
    await plane.add_node("a", 1)
    await plane.add_pod("low", priority=-5)
    async with plane.running():
        await plane.until_bound(["low"])
        await plane.add_pod("meek", priority=10, preemption_policy="Never")
        await plane.add_pod("lower", priority=-9)
        await plane.until_said("meek", "Insufficient")
        await plane.until_said("lower", "Insufficient")
        await plane.add_pod("urgent", priority=10)
        await plane.until_bound(["urgent"])
    assert plane.placement.ended == ["low"]


class _Interfered(MemoryStore):
    """A store in which somebody else writes a pod's status just before the first writes of DisruptionTarget."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    async def update_status(self, item: T) -> T:
        target = meta.find_condition(item.status.conditions, "DisruptionTarget") if isinstance(item, core.Pod) else None
        if isinstance(item, core.Pod) and target is not None and self.left:
            self.left -= 1
            fresh = await self.get(core.Pod, item.metadata.name, item.metadata.namespace)
            status = msgspec.structs.replace(fresh.status, message=f"{self.left} to come")
            await super().update_status(msgspec.structs.replace(fresh, status=status))
        return await super().update_status(item)


@pytest.mark.parametrize(
    ("times", "ended", "logged"), [(1, ["low"], []), (retry.ROUNDS, [], [("low", "StaleVersion")])]
)
async def test_a_pod_is_ended_although_others_write_its_status_and_logged_where_it_is_spared(
    times: int, ended: list[str], logged: list[tuple[str, str]]
) -> None:
    plane = Plane(store=_Interfered(times))
    pod = await plane.add_pod("low")
    with capture_logs() as lines:
        await plane.scheduler._preemptor.end(preemption.Ending(pod=pod, why="for another"))
    assert plane.placement.ended == ended
    assert [(line["pod"], line["reason"]) for line in lines if line["event"] == "pod not ended"] == logged


async def test_room_is_held_for_the_one_it_is_made_for_while_others_end(plane: Plane) -> None:
    plane.placement.is_quick = False
    await plane.add_node("a", 1)
    await plane.add_pod("low", priority=0, preemption_policy="Never")
    async with plane.running():
        await plane.until_bound(["low"])
        await plane.add_pod("urgent", priority=10)
        said = await plane.until_said("urgent", "Room is being made")
        assert said.endswith("Room is being made on a: default/low must end.")
        pod = await plane.store.get(core.Pod, "low", "default")
        target = meta.find_condition(pod.status.conditions, "DisruptionTarget")
        assert target is not None
        assert target.reason == "PreemptionByScheduler"
        await plane.add_pod("thief", priority=5)
        await plane.until_said("thief", "Insufficient")
        await plane.end("low")
        await plane.until_bound(["urgent"])
        assert "thief" not in await plane.bound()
    assert plane.placement.ended == ["low"]


async def test_a_disruption_budget_is_never_broken(plane: Plane) -> None:
    await plane.add_node("a", 1)
    await plane.add_pod("low", labels={"app": "kept"})
    about = meta.ObjectMeta(name="kept", namespace="default")
    chosen = meta.LabelSelector(match_labels={"app": "kept"})
    budget = policy.PodDisruptionBudget(metadata=about, spec=policy.BudgetSpec(selector=chosen))
    await plane.store.create(budget)
    async with plane.running():
        await plane.until_bound(["low"])
        await plane.add_pod("urgent", priority=10)
        await plane.until_said("urgent", "Insufficient")
        assert plane.placement.ended == []


async def test_a_pod_whose_policy_is_never_ends_nobody(plane: Plane) -> None:
    await plane.add_node("a", 1)
    await plane.add_pod("low")
    async with plane.running():
        await plane.until_bound(["low"])
        await plane.add_pod("meek", priority=10, preemption_policy="Never")
        await plane.until_said("meek", "Insufficient")
    assert plane.placement.ended == []


async def test_without_preemption_nobody_is_ended() -> None:
    plane = Plane(preemption=False)
    await plane.add_node("a", 1)
    await plane.add_pod("low")
    async with plane.running():
        await plane.until_bound(["low"])
        await plane.add_pod("urgent", priority=10)
        await plane.until_said("urgent", "Insufficient")
    assert plane.placement.ended == []


async def test_a_gang_is_ended_whole_or_by_what_it_has_beyond_its_minimum(plane: Plane) -> None:
    await plane.add_node("a", 2)
    await plane.add_node("b", 2)
    await plane.add_gang("train", 3, minimum=2)
    await plane.add_pod("single", priority=1)
    async with plane.running():
        await plane.until_bound(["train-0", "train-1", "train-2", "single"])
        await plane.add_pod("urgent", priority=10)
        await plane.until_bound(["urgent"])
        assert len(plane.placement.ended) == 1
        await plane.add_pod("second", priority=10)
        await plane.until_bound(["second"])
    assert sorted(plane.placement.ended)[-3:] == ["train-0", "train-1", "train-2"]


async def test_equal_pods_each_get_room_of_their_own(plane: Plane) -> None:
    await plane.add_node("a", 4)
    for number in range(4):
        await plane.add_pod(f"low-{number}")
    async with plane.running():
        await plane.until_bound(f"low-{number}" for number in range(4))
        for number in range(5):
            await plane.add_pod(f"high-{number}", priority=10)
        await plane.until_bound(f"high-{number}" for number in range(4))
        await plane.until_said("high-4", "Insufficient")
    assert sorted(plane.placement.ended) == [f"low-{number}" for number in range(4)]
