"""Who holds a GPU, from the kubelet's list: whole GPUs, replicas, MIG devices, DRA claims, other plugins."""

from __future__ import annotations

from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.metrics import holder
from tests import gpus

ONE = "GPU-00000000-0000-0000-0000-000000000001"
TWO = "GPU-00000000-0000-0000-0000-000000000002"
MIG = "MIG-00000000-0000-0000-0000-000000000003"


TABLE = deviceids.make_table(
    [
        gpus.gpu(0, uuid=GPUUUID(ONE)),
        gpus.gpu(1, uuid=GPUUUID(TWO), mig_enabled=True, mig_devices=(gpus.part(0, uuid=MIGUUID(MIG)),)),
    ]
)


def held(pod: str, *ids: str, resource: str = "nvidia.com/gpu") -> Holding:
    return Holding(namespace="default", pod=pod, container="main", resource=resource, ids=tuple(map(DeviceID, ids)))


def names(*holdings: Holding) -> dict[str, list[tuple[str, str]]]:
    found = holder.find_holders(holdings, TABLE)
    return {uuid: [(one.pod, one.replica) for one in holders] for uuid, holders in found.items()}


def test_a_whole_gpu_has_one_holder() -> None:
    assert names(held("a", ONE)) == {ONE: [("a", "")]}


def test_every_sharer_of_a_gpu_is_a_holder() -> None:
    assert names(held("a", f"{ONE}::0"), held("b", f"{ONE}::3")) == {ONE: [("a", "0"), ("b", "3")]}


def test_two_replicas_in_one_container_are_two_rows() -> None:
    assert names(held("a", f"{ONE}::0", f"{ONE}::1")) == {ONE: [("a", "0"), ("a", "1")]}


def test_a_mig_device_is_not_held_as_its_gpu() -> None:
    assert names(held("a", MIG, resource="nvidia.com/mig-1g.10gb")) == {MIG: [("a", "")]}


def test_a_claim_that_names_a_device_twice_holds_it_once() -> None:
    claim = held("a", "gpu-0", "k8s.gpu.nvidia.com/device=gpu-0", resource="gpu.nvidia.com")
    assert names(claim) == {ONE: [("a", "")]}


def test_devices_that_are_no_gpus_of_ours_have_no_row() -> None:
    assert names(held("a", "0", "fuse-1", resource="example.com/fuse")) == {}
