"""Other amounts of CPU and memory for pods that run: who may ask for what, and what counts meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.podman import args
from fairlead.plan.pod import admission
from fairlead.plan.pod.running import resize
from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core, meta

_GPU = {"nvidia.com/gpu": "1"}
_WHOLE = {"cpu": "1", "memory": "1Gi"}
_HERE = {"cpu": "8", "memory": "16Gi"}


def _sized(limits: dict[str, Any], requests: dict[str, Any] | None = None) -> core.ResourceRequirements:
    return core.ResourceRequirements(limits=limits, requests=limits if requests is None else requests)


def _pod(
    limits: dict[str, Any], requests: dict[str, Any] | None = None, *, has: dict[str, Any] | None = None, **spec: Any
) -> core.Pod:
    """Return a pod that runs. Args: has: limits and requests that its status has."""
    found = _sized(limits, requests)
    main = core.Container(name="main", image="i", resources=found)
    running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at="2027-01-01T00:00:00Z"))
    own = resize.resizable(found) if has is None else _sized(has)
    status = core.ContainerStatus(name="main", state=running, resources=own)
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="default", uid="p"),
        spec=core.PodSpec(containers=(main,), node_name="a", restart_policy="Never", **spec),
        status=core.PodStatus(phase="Running", container_statuses=(status,)),
    )


def _asked(pod: core.Pod, **limits: str) -> core.Pod | None:
    return resize.resized(pod, {"main": resize.limited(pod.spec.containers[0], limits)})


def test_limits_change_and_requests_that_were_as_large_follow() -> None:
    changed = _asked(_pod({"cpu": "1", "memory": "1Gi", **_GPU}), cpu="2")
    assert changed is not None
    found = changed.spec.containers[0].resources
    assert (found.limits, found.requests) == ({"cpu": "2", "memory": "1Gi", **_GPU},) * 2


def test_a_request_below_its_limit_stays_unless_it_would_be_above() -> None:
    pod = _pod({"cpu": "4"}, {"cpu": "2"})
    assert resize.limited(pod.spec.containers[0], {"cpu": "8"}).requests == {"cpu": "2"}
    assert resize.limited(pod.spec.containers[0], {"cpu": "1"}).requests == {"cpu": "1"}


def test_the_same_amount_in_other_words_is_no_change() -> None:
    assert _asked(_pod({"cpu": "1", "memory": "1Gi"}), cpu="1000m", memory=str(1 << 30)) is None


def test_a_limit_that_is_new_reserves_nothing_and_keeps_the_class() -> None:
    changed = _asked(_pod({"memory": "1Gi"}), cpu="2")
    assert changed is not None
    assert changed.spec.containers[0].resources.requests == {"memory": "1Gi", "cpu": "0"}
    assert resize.qos(changed.spec) == "Burstable"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (_sized({"cpu": "1", **_GPU}), _sized({"cpu": "1", "nvidia.com/gpu": "2"}), "only cpu and memory"),
        (_sized({"cpu": "1", "memory": "1Gi"}, {}), _sized({"cpu": "1"}, {}), "cannot be removed"),
        (_sized(_GPU), _sized({"cpu": "1", **_GPU}), "QOS Class may not change"),
        (_sized(_WHOLE), _sized({"cpu": "2", "memory": "1Gi"}, _WHOLE), "QOS"),
        (_sized({"cpu": "1"}), _sized({"cpu": "-1"}), "invalid"),
    ],
)  # fmt: skip
def test_what_upstream_refuses_is_refused(
    before: core.ResourceRequirements, after: core.ResourceRequirements, words: str
) -> None:
    pod = _pod(dict(before.limits), dict(before.requests))
    with pytest.raises(errors.Invalid, match=words):
        resize.resized(pod, {"main": after})


def test_what_has_ended_or_is_not_known_is_not_resized() -> None:
    pod = _pod({"cpu": "1"})
    with pytest.raises(errors.Invalid, match="no container"):
        resize.resized(pod, {"other\x1b": _sized({"cpu": "2"})})
    ended = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded"))
    with pytest.raises(errors.Conflict) as caught:
        _asked(ended, cpu="2")
    assert caught.value.reason == "ContainerNotRunning"
    silent = (msgspec.structs.replace(pod.status.container_statuses[0], resources=None),)
    unsaid = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=silent))
    with pytest.raises(errors.Conflict) as caught:
        _asked(unsaid, cpu="2")
    assert caught.value.reason == "ResizeNotReady"


def test_a_node_takes_up_what_fits_and_says_why_it_does_not() -> None:
    other = _pod({"cpu": "6"})
    assert resize.decide(_pod({"cpu": "2"}, has={"cpu": "1"}), [other], _HERE).reason == ""
    deferred = resize.decide(_pod({"cpu": "4"}, has={"cpu": "1"}), [other], _HERE)
    assert (deferred.reason, deferred.pod.spec.containers[0].resources.limits) == ("Deferred", {"cpu": "1"})
    assert deferred.message.endswith("cpu, requested: 4, used: 6, capacity: 8")
    never = resize.decide(_pod({"memory": "32Gi"}, has={"memory": "1Gi"}), [], _HERE)
    assert (never.reason, never.pod.spec.containers[0].resources.limits) == ("Infeasible", {"memory": "1Gi"})
    less = resize.decide(_pod({"cpu": "4"}, has={"cpu": "7"}), [other], _HERE)
    assert less.reason == ""


def test_all_of_a_change_is_taken_up_or_nothing() -> None:
    found = resize.decide(_pod({"cpu": "2", "memory": "32Gi"}, has={"cpu": "1", "memory": "1Gi"}), [], _HERE)
    assert found.pod.spec.containers[0].resources.limits == {"cpu": "1", "memory": "1Gi"}


def test_a_scheduler_does_not_count_what_a_node_can_never_give() -> None:
    pod = _pod({"cpu": "32"}, has={"cpu": "1"})
    assert reference.pod_info(pod).requests["cpu"] == 32 * reference.UNIT
    condition = meta.Condition(type=resize.PENDING, status="True", reason=resize.INFEASIBLE)
    status = msgspec.structs.replace(pod.status, conditions=(condition,))
    assert reference.pod_info(msgspec.structs.replace(pod, status=status)).requests["cpu"] == reference.UNIT


def test_a_scheduler_counts_what_is_not_given_back_yet() -> None:
    pod = _pod({"cpu": "1", "memory": "1Gi"}, has={"cpu": "4", "memory": "1Gi"})
    condition = meta.Condition(type=resize.IN_PROGRESS, status="True", reason=resize.ERROR)
    held = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(condition,)))
    assert reference.pod_info(held).requests["cpu"] == 4 * reference.UNIT
    assert reference.pod_info(held).requests["memory"] == (1 << 30) * reference.UNIT


def test_what_was_said_of_an_earlier_change_is_not_said_of_the_next() -> None:
    pod = _pod({"cpu": "32"}, has={"cpu": "1"})
    decision = resize.decide(pod, [], _HERE)
    has = {name: resize.resizable(one) for name, one in resize.held(pod).items()}
    told = resize.told(pod, pod.status, decision, resize.Progress(has=has), at="2027-01-01T00:00:01Z")
    after = msgspec.structs.replace(pod, status=told)
    assert resize.words(after).startswith("Infeasible")
    newer = msgspec.structs.replace(after, metadata=msgspec.structs.replace(pod.metadata, generation=7))
    assert resize.words(newer) == "its node has not taken it up yet"
    back = resize.with_amounts(newer, {"main": _sized({"cpu": "1"})})
    assert resize.words(back) == ""


def test_no_limit_is_beyond_what_a_kernel_takes() -> None:
    assert resize.cpu_limit(_sized({"cpu": "1e300"})) == resize.MOST_CPUS
    assert float(args.cpus(1e300)) == resize.MOST_CPUS


def test_what_is_below_zero_is_called_so() -> None:
    with pytest.raises(errors.Invalid, match="must be greater than or equal to 0"):
        _asked(_pod({"cpu": "1", "memory": "1Gi"}), cpu="-1")


def test_a_report_that_is_reported_stays_as_it_is() -> None:
    pod = _pod({"cpu": "4"}, has={"cpu": "1"})
    decision = resize.decide(pod, [_pod({"cpu": "6"})], _HERE)
    has = {name: resize.resizable(one) for name, one in resize.held(pod).items()}
    first = resize.told(pod, pod.status, decision, resize.Progress(has=has), at="2027-01-01T00:00:01Z")
    (pending,) = first.conditions
    assert (pending.type, pending.reason) == (resize.PENDING, resize.DEFERRED)
    again = msgspec.structs.replace(pod, status=first)
    assert resize.words(again).startswith("Deferred: Node didn't have enough resource")
    second = resize.told(again, first, decision, resize.Progress(has=has), at="2027-01-01T00:09:00Z")
    assert second == first


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"resourceName": "cpu", "restartPolicy": "RestartContainer"}, "never restarted"),
        ({"resourceName": "nvidia.com/gpu", "restartPolicy": "NotRequired"}, "Unsupported value"),
        ({"resourceName": "cpu", "restartPolicy": "Perhaps"}, "Unsupported value"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(policy: dict[str, str], words: str) -> None:
    one = msgspec.convert(policy, core.ContainerResizePolicy)
    pod = _pod({"cpu": "1"})
    main = msgspec.structs.replace(pod.spec.containers[0], resize_policy=(one,))
    with pytest.raises(errors.Invalid, match=words):
        admission.admit(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=(main,))))


def test_a_policy_is_about_its_own_resource() -> None:
    one = core.ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer")
    item = core.Container(name="main", resources=_sized({"cpu": "2", "memory": "1Gi"}), resize_policy=(one,))
    assert not resize.restarts(item, _sized({"cpu": "1", "memory": "1Gi"}))
    assert resize.restarts(item, _sized({"cpu": "2", "memory": "2Gi"}))


def test_containers_in_one_sandbox_of_gvisor_keep_their_limits() -> None:
    alone = _pod({"cpu": "2"}, has={"cpu": "1"}, runtime_class_name="gvisor")
    assert resize.decide(alone, [], _HERE).reason == ""
    beside = core.Container(name="side", image="i")
    both = msgspec.structs.replace(alone, spec=msgspec.structs.replace(alone.spec, init_containers=(beside,)))
    refused = resize.decide(both, [], _HERE)
    assert (refused.reason, "one sandbox" in refused.message) == ("Infeasible", True)
    assert refused.pod.spec.containers[0].resources.limits == {"cpu": "1"}
