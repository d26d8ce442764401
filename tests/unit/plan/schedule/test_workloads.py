"""Pods of groups and queues: what counts for a queue, and what is chosen to end for others."""

from __future__ import annotations

import pytest

from fairlead.plan.schedule import workloads
from fairlead.plan.schedule.fairshare import tree
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup, queue

_GPU = "nvidia.com/gpu"
_TEAM = queue.Queue(metadata=meta.ObjectMeta(name="default"), spec=queue.QueueSpec(deserved={_GPU: "4"}))


def pod(uid: str, *, node: str = "", gpus: str = "1", gates: tuple[str, ...] = ()) -> core.Pod:
    wanted = core.ResourceRequirements(limits={_GPU: gpus}, requests={_GPU: gpus})
    return core.Pod(
        metadata=meta.ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=core.PodSpec(
            containers=(core.Container(name="main", resources=wanted),),
            node_name=node,
            scheduling_gates=tuple(core.SchedulingGate(name=one) for one in gates),
        ),
    )


@pytest.fixture
def known() -> workloads.Workloads:
    made = workloads.Workloads()
    made.note_queue(_TEAM)
    return made


def test_a_queue_that_says_the_same_again_changes_nothing(known: workloads.Workloads) -> None:
    assert not known.note_queue(_TEAM)
    assert known.note_queue(_TEAM, is_gone=True)
    assert not known.has_queues


def test_a_queue_that_cannot_be_meant_is_named_and_the_others_stand(known: workloads.Workloads) -> None:
    known.note_queue(queue.Queue(metadata=meta.ObjectMeta(name="bad"), spec=queue.QueueSpec(limit={_GPU: "-1"})))
    assert list(known.invalid) == ["bad"]
    assert set(known.queues()) == {"default", "bad"}
    assert known.has_queues


def test_a_pod_being_ended_is_not_chosen_again_until_it_is_spared(known: workloads.Workloads) -> None:
    running = pod("1", node="a")
    known.put(running)
    known.end("1")
    assert known.is_ending(running)
    known.spare("1")
    assert not known.is_ending(running)
    known.spare("gone")  # a pod that has been deleted meanwhile
    assert not known.is_ending(pod("gone"))


def test_a_group_that_no_pod_is_of_wakes_none(known: workloads.Workloads) -> None:
    known.put(pod("1"))
    group = podgroup.PodGroup(metadata=meta.ObjectMeta(name="train", namespace="default"))
    assert known.note_group(group) == ()


def test_a_pod_that_asks_for_nonsense_or_is_gated_counts_for_no_queue(known: workloads.Workloads) -> None:
    known.put(pod("odd", gpus="many"))
    known.put(pod("gated", gates=("wait",)))
    known.put(pod("plain"))
    assert known.ledger.counts()[tree.DEFAULT] == (0, 1)
