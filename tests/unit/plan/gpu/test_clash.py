"""GPUs that another resource has: kept back as long as it lasts, and never for what shares on purpose."""

from __future__ import annotations

from fairlead.model.device import Device
from fairlead.model.gpu import Vendor
from fairlead.model.ids import DeviceID
from fairlead.plan.gpu import clash, deviceids
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import Holder
from tests import devices

OURS, OTHER = "fairlead.dev/gpu", "nvidia.com/gpu"
GPUS = (devices.gpu("GPU-a"), devices.gpu("GPU-b"))
MIGS = (devices.mig("MIG-1", on="GPU-a"), devices.mig("MIG-2", on="GPU-a"))
TABLE = deviceids.make_table((), (*GPUS, *MIGS))


def offered(*items: Device, resource: str = OURS) -> advertise.Advertisement:
    return advertise.Advertisement(resource=resource, vendor=Vendor.NVIDIA, devices=items)


def held(*ids: str, resource: str = OTHER, pod: str = "keep") -> Holding:
    return Holding(namespace="team", pod=pod, container="main", resource=resource, ids=tuple(map(DeviceID, ids)))


def pod(name: str = "keep", phase: str = "Running", uid: str = "u1") -> core.Pod:
    about = meta.ObjectMeta(name=name, namespace="team", uid=uid)
    return core.Pod(metadata=about, status=core.PodStatus(phase=phase))


def clashing(ads: advertise.Advertisement, *holdings: Holding) -> list[str]:
    return [str(device) for _, device in clash.find_clashes([ads], holdings, TABLE)]


def test_a_gpu_held_by_another_name_is_kept_back_with_who_has_it() -> None:
    found = clash.find_clashes([offered(*GPUS)], [held("GPU-a")], TABLE)
    assert list(found) == [(OURS, "GPU-a")]
    message = found[OURS, DeviceID("GPU-a")].message
    assert "team/keep (container main) has it as nvidia.com/gpu" in message
    assert "given to no pod until that pod has ended" in message


def test_our_own_holdings_and_replicas_are_not_a_clash() -> None:
    replicas = [devices.replicated(GPUS[0], number) for number in range(2)]
    assert clashing(offered(*replicas), held("GPU-a::0", resource=OURS)) == []
    assert clashing(offered(*GPUS), held("GPU-a", resource=OURS)) == []
    assert clashing(offered(*replicas), held("GPU-a")) == ["GPU-a::0", "GPU-a::1"]


def test_mig_devices_clash_with_their_gpu_and_not_with_each_other() -> None:
    small = offered(*MIGS, resource="nvidia.com/mig-1g.10gb")
    assert clashing(small, held("MIG-2", resource="nvidia.com/mig-2g.20gb")) == ["MIG-2"]
    assert clashing(small, held("GPU-a")) == ["MIG-1", "MIG-2"]
    assert clashing(offered(*GPUS), held("MIG-1", resource="nvidia.com/mig-1g.10gb")) == ["GPU-a"]


def test_an_ended_pod_holds_nothing_and_an_unknown_one_does() -> None:
    listed = (held("GPU-a"), held("GPU-b", pod="static"))
    assert clash.without_ended(listed, [pod(phase="Failed")]) == (listed[1],)
    assert clash.without_ended(listed, [pod()]) == listed
    assert clash.without_ended(listed, [pod(phase="Failed"), pod()]) == listed  # a new one has its name


def test_a_kubelet_that_lists_nobody_for_a_moment_frees_nothing() -> None:
    before = clash.find_clashes([offered(*GPUS)], [held("GPU-a")], TABLE)
    assert clash.plan_kept({}, before, [pod()]) == before
    assert clash.plan_kept({}, before, [pod(phase="Succeeded")]) == {}
    assert clash.plan_kept({}, before, []) == {}
    assert clash.plan_kept({}, before, None) == {}


def test_a_new_pod_with_the_name_of_the_one_that_held_it_keeps_nothing_back() -> None:
    before = clash.find_clashes([offered(*GPUS)], [held("GPU-a")], TABLE, [pod()])
    assert clash.plan_kept({}, before, [pod(uid="u2")]) == {}
    assert clash.plan_kept({}, before, [pod(uid="u2"), pod()]) == before


def holder(pod: str, resource: str, *ids: str, mig: str = "", container: str = "main") -> Holder:
    return Holder(
        namespace="team",
        pod=pod,
        container=container,
        resource=resource,
        devices=ids,
        mig_devices=(mig,) if mig else (),
    )


def test_two_pods_on_one_gpu_are_rivals_unless_a_plugin_shares_it() -> None:
    first = holder("a", OTHER, "GPU-a")
    assert clash.find_rivals([first, holder("b", OURS, "GPU-a")]) is not None
    assert clash.find_rivals([first, holder("b", OTHER, "GPU-a")]) is not None
    assert clash.find_rivals([first, holder("a", OTHER, "GPU-a", container="side")]) is None
    assert clash.find_rivals([holder("a", OTHER, "GPU-a::0"), holder("b", OTHER, "GPU-a::1")]) is None
    assert clash.find_rivals([holder("a", OTHER, "GPU-a::0"), holder("b", OURS, "GPU-a::1")]) is not None


def test_two_pods_on_mig_devices_of_one_gpu_are_rivals_on_the_same_one_only() -> None:
    first = holder("a", "nvidia.com/mig-1g.10gb", "MIG-1", mig="MIG-1")
    assert clash.find_rivals([first, holder("b", "nvidia.com/mig-2g.20gb", "MIG-2", mig="MIG-2")]) is None
    assert clash.find_rivals([first, holder("b", "x/y", "MIG-1", mig="MIG-1")]) is not None
    assert clash.find_rivals([first, holder("b", OTHER, "GPU-a")]) is not None


def test_two_pods_of_one_dra_claim_share_it() -> None:
    assert clash.find_rivals([holder("a", "gpu.nvidia.com", "gpu-0"), holder("b", "gpu.nvidia.com", "gpu-0")]) is None


def test_holders_that_an_older_agent_wrote_may_have_all_of_it() -> None:
    assert clash.find_rivals([holder("a", ""), holder("b", "")]) is not None


def test_a_gpu_held_whole_is_not_shared_under_the_same_name_and_the_other_way_round() -> None:
    replicas = [devices.replicated(GPUS[0], number) for number in range(2)]
    assert clashing(offered(*replicas), held("GPU-a", resource=OURS)) == ["GPU-a::0", "GPU-a::1"]
    assert clashing(offered(*GPUS), held("GPU-a::1", resource=OURS)) == ["GPU-a"]
    assert clashing(offered(*replicas), held("GPU-a::7", resource=OURS)) == []


def test_a_gpu_held_whole_is_not_given_as_mig_devices_of_the_same_name() -> None:
    assert clashing(offered(*MIGS), held("GPU-a", resource=OURS)) == ["MIG-1", "MIG-2"]
    assert clashing(offered(*MIGS), held("MIG-1", resource=OURS)) == []
