"""Pod states: the one word, the reason, the runs and the devices that a pod's many fields mean together."""

from __future__ import annotations

import pytest

from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core, meta


def container(
    name: str = "main",
    *,
    waiting: tuple[str, str] | None = None,
    ended: tuple[int, str] | None = None,
    is_running: bool = False,
    run: str = "",
    before: str | None = None,
) -> core.ContainerStatus:
    state = core.ContainerStateUnion(
        waiting=core.ContainerStateWaiting(reason=waiting[0], message=waiting[1]) if waiting else None,
        terminated=core.ContainerStateTerminated(exit_code=ended[0], reason=ended[1], message="said")
        if ended
        else None,
        running=core.ContainerStateRunning() if is_running else None,
    )
    last = core.ContainerStateUnion(
        terminated=core.ContainerStateTerminated(container_id=before) if before is not None else None
    )
    return core.ContainerStatus(name=name, state=state, last_state=last, container_id=run)


def pod(
    *statuses: core.ContainerStatus,
    phase: str = "Pending",
    node: str = "",
    reason: str = "",
    deleted: str | None = None,
    conditions: tuple[meta.Condition, ...] = (),
) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", deletion_timestamp=deleted),
        spec=core.PodSpec(node_name=node),
        status=core.PodStatus(phase=phase, reason=reason, container_statuses=statuses, conditions=conditions),
    )


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (pod(), "pending"),
        (pod(node="n"), "creating"),
        (pod(container(is_running=True), node="n", phase="Running"), "running"),
        (pod(container(waiting=("CrashLoopBackOff", "")), node="n", phase="Running"), "crashed"),
        (pod(node="n", phase="Running", deleted="2026-01-01T00:00:00Z"), "stopping"),
        (pod(phase="Succeeded"), "succeeded"),
        (pod(phase="Failed"), "failed"),
        (pod(phase="Failed", reason="Stopped"), "stopped"),
        (pod(phase="Failed", deleted="2026-01-01T00:00:00Z"), "failed"),
    ],
)
def test_a_pod_is_somewhere_in_one_word(one: core.Pod, word: str) -> None:
    assert podstate.state_of(one) == word


_REFUSED = meta.Condition(type="PodScheduled", status="False", reason="Unschedulable", message="0/1 nodes")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (pod(reason="Evicted"), ("Evicted", "")),
        (pod(container(waiting=("ErrImagePull", "no such")), node="n"), ("ErrImagePull", "no such")),
        (pod(container(ended=(1, "Error")), node="n", phase="Running"), ("Error", "said")),
        (pod(container(ended=(0, "Completed")), node="n", phase="Running"), ("", "")),
        (pod(container(ended=(0, "Completed")), node="n", phase="Succeeded"), ("Completed", "said")),
        (pod(container(is_running=True), node="n", phase="Running"), ("", "")),
        (pod(conditions=(_REFUSED,)), ("Unschedulable", "0/1 nodes")),
        (pod(node="n", conditions=(_REFUSED,)), ("", "")),
        (pod(), ("", "")),
    ],
)
def test_the_nearest_cause_is_the_reason(one: core.Pod, said: tuple[str, str]) -> None:
    assert podstate.why(one) == said


def test_runs_are_the_newest_that_has_begun_and_the_one_before_it() -> None:
    running = container(is_running=True, run="second", before="first")
    waiting = container("other", waiting=("CrashLoopBackOff", ""), run="third", before="third")
    assert podstate.runs(pod(waiting, running), "main") == ("first", "second")
    assert podstate.runs(pod(waiting), "other") == ("third", "")
    assert podstate.runs(pod(container(is_running=True, run="only")), "main") == ("", "only")
    assert podstate.runs(pod(), "main") == ("", "")


def test_devices_are_asked_for_by_the_pod_or_by_one_container() -> None:
    def asking(name: str, count: str) -> core.Container:
        amounts = {"nvidia.com/gpu": count, "cpu": "1"}
        return core.Container(name=name, resources=core.ResourceRequirements(requests=amounts, limits=amounts))

    one = core.Pod(spec=core.PodSpec(containers=(asking("a", "2"), asking("b", "1"), asking("none", "0"))))
    assert podstate.asked_devices(one) == {"nvidia.com/gpu": 3}
    assert podstate.asked_devices(one, "b") == {"nvidia.com/gpu": 1}
    assert podstate.asked_devices(one, "none") == {}


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "0"),
        ({"nvidia.com/gpu": 4}, "4"),
        ({"nvidia.com/gpu": 0, "amd.com/gpu": 2}, "2"),
        (
            {"nvidia.com/mps-core": 30, "nvidia.com/mps-memory": 3000, "rdma/hca": 1},
            "30 mps-core + 3000 mps-memory + 1 hca",
        ),
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 2}, "1 nvidia.com/gpu + 2 amd.com/gpu"),
    ],
)
def test_devices_of_unlike_resources_are_said_each_by_its_name(counts: dict[str, int], said: str) -> None:
    assert podstate.say_devices(counts) == said
