"""What a pod says of its GPUs' health, and a GPU of its holders."""

from __future__ import annotations

import msgspec

from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import deviceids, health, podcondition
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import Holder
from tests import devices

SICK = health.Verdict(state=health.State.FAULTY, reason="XID79", message="XID 79: fell off the bus")
TABLE = deviceids.make_table((), (devices.gpu("GPU-a"), devices.mig("MIG-1", on="GPU-b"), devices.gpu("GPU-c")))


def pod(*conditions: meta.Condition, name: str = "train", uid: str = "u1", deleted: str | None = None) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="team", uid=uid, deletion_timestamp=deleted),
        status=core.PodStatus(phase="Running", conditions=conditions),
    )


def held(*ids: str, pod: str = "train", container: str = "main") -> Holding:
    names = tuple(map(DeviceID, ids))
    return Holding(namespace="team", pod=pod, container=container, resource="nvidia.com/gpu", ids=names)


def holder(*ids: str, pod: str = "train", container: str = "main", pod_uid: str = "", mig: str = "") -> Holder:
    return Holder(
        namespace="team",
        pod=pod,
        container=container,
        pod_uid=pod_uid,
        resource="nvidia.com/gpu",
        devices=ids,
        mig_devices=(mig,) if mig else (),
    )


def ill(*ids: str, sick: str) -> tuple[podcondition.UnhealthyGPU, ...]:
    return podcondition.find_unhealthy(pod(), [held(*ids)], table=TABLE, verdicts={GPUUUID(sick): SICK})


def test_a_pod_is_concerned_by_its_own_gpus_only_and_by_what_they_carry() -> None:
    assert [one.gpu for one in ill("GPU-a", "MIG-1", sick="GPU-b")] == ["GPU-b"]
    assert ill("GPU-a", sick="GPU-b") == ()
    assert [one.gpu for one in ill("GPU-c::1", "GPU-c::2", sick="GPU-c")] == ["GPU-c"]
    other = [held("GPU-b", pod="other")]
    assert podcondition.find_unhealthy(pod(), other, table=TABLE, verdicts={GPUUUID("GPU-b"): SICK}) == ()


def test_a_mig_device_and_its_replicas_share_the_fate_of_their_gpu() -> None:
    assert [one.gpu for one in ill("MIG-1::3", sick="GPU-b")] == ["GPU-b"]
    assert ill("MIG-1", sick="GPU-a") == ()


def test_a_device_of_another_plugin_is_on_none_of_our_gpus() -> None:
    assert ill("vendor-device", sick="GPU-a") == ()
    assert podcondition.plan_holders([held("vendor-device")], table=TABLE, pods=[pod()]) == {}


def test_a_healthy_pod_that_was_never_marked_is_left_alone() -> None:
    assert podcondition.plan_condition(pod(), (), now="now") is None


def test_the_mark_names_gpu_and_reason_once() -> None:
    sick = ill("GPU-a", sick="GPU-a")
    made = podcondition.plan_condition(pod(), sick, now="t1")
    assert made == meta.Condition(
        type=podcondition.CONDITION,
        status="False",
        reason="XID79",
        message="GPU-a: XID 79: fell off the bus",
        last_transition_time="t1",
    )
    assert podcondition.plan_condition(pod(made), sick, now="t2") is None


def test_another_fault_changes_the_words_and_not_the_time_since_when() -> None:
    made = podcondition.plan_condition(pod(), ill("GPU-a", sick="GPU-a"), now="t1")
    assert made is not None
    both = (*ill("GPU-a", sick="GPU-a"), *ill("MIG-1", sick="GPU-b"))
    again = podcondition.plan_condition(pod(made), both, now="t2")
    assert again is not None
    (kept,) = meta.with_condition((made,), again)
    assert (kept.status, kept.last_transition_time) == ("False", "t1")
    assert "GPU-b" in again.message


def test_recovery_makes_the_mark_true_and_then_rests() -> None:
    made = podcondition.plan_condition(pod(), ill("GPU-a", sick="GPU-a"), now="t1")
    assert made is not None
    well = podcondition.plan_condition(pod(made), (), now="t2")
    assert well is not None
    assert (well.status, well.reason, well.last_transition_time) == ("True", podcondition.RECOVERED, "t2")
    assert podcondition.plan_condition(pod(well), (), now="t3") is None


def test_holders_are_named_by_gpu_each_once_in_order() -> None:
    holdings = [held("MIG-1", pod="z"), held("GPU-a", container="two"), held("GPU-a", "MIG-1", container="one")]
    found = podcondition.plan_holders(holdings, table=TABLE, pods=[pod()])
    assert found[GPUUUID("GPU-a")] == (
        holder("GPU-a", container="one", pod_uid="u1"),
        holder("GPU-a", container="two", pod_uid="u1"),
    )
    assert found[GPUUUID("GPU-b")] == (
        holder("MIG-1", container="one", pod_uid="u1", mig="MIG-1"),
        holder("MIG-1", pod="z", mig="MIG-1"),
    )


def test_a_pod_that_has_ended_holds_nothing_whatever_the_kubelet_lists() -> None:
    ended = msgspec.structs.replace(pod(), status=core.PodStatus(phase="Failed"))
    assert podcondition.plan_holders([held("GPU-a")], table=TABLE, pods=[ended]) == {}
    assert podcondition.plan_holders([held("GPU-a")], table=TABLE, pods=[ended, pod(uid="u2")]) != {}


def test_of_two_pods_with_one_name_the_living_one_holds() -> None:
    going, coming = pod(uid="old", deleted="2026-01-01T00:00:00Z"), pod(uid="new")
    for pods in ([going, coming], [coming, going]):
        found = podcondition.plan_holders([held("GPU-a")], table=TABLE, pods=pods)
        assert [one.pod_uid for one in found[GPUUUID("GPU-a")]] == ["new"]
