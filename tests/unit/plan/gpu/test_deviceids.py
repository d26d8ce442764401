"""Words of other plugins for a GPU: each is found, and nothing that is somebody else's device."""

from __future__ import annotations

import pytest

from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import deviceids
from tests import gpus

A, B = "GPU-88535201-a939-5bdc-9b47-965acd172221", "GPU-ea3e5842-1111-2222-3333-444455556666"
MIG = "MIG-0c9a1ab5-7777-5c3a-8a91-0d7a3d1a2b3c"
AMD = "0000:83:00.0"

PART = gpus.part(2, uuid=MIGUUID(MIG), gpu_instance=9)
TABLE = deviceids.make_table(
    (
        # The minor is not the index, as on machines with a GPU that was replaced.
        gpus.gpu(0, uuid=GPUUUID(A), minor=5, pci_bus_id="0000:1b:00.0"),
        gpus.gpu(1, uuid=GPUUUID(B), minor=0, pci_bus_id="0000:2b:00.0", mig_devices=(PART,)),
        gpus.gpu(0, uuid=GPUUUID(AMD), minor=128, pci_bus_id=AMD, vendor=Vendor.AMD),
    )
)


def found(resource: str, device_id: str) -> list[str]:
    return [part.mig or part.gpu for part in deviceids.find_parts(resource, device_id, TABLE)]


@pytest.mark.parametrize(
    ("resource", "device_id", "wanted"),
    [
        ("nvidia.com/gpu", A, A),
        ("nvidia.com/gpu.shared", f"{A}::3", A),
        ("nvidia.com/gpu", f"{A}-3", A),  # HAMi, Volcano
        ("aliyun.com/gpu-mem", f"{A}-_-11", A),
        ("example.com/whatever", A.upper(), A),
        ("nvidia.com/mig-1g.10gb", MIG, MIG),
        ("nvidia.com/mig-1g.10gb.shared", f"{MIG}::0", MIG),
        ("nvidia.com/gpu", f"MIG-{A}/7/0", A),  # drivers before 470
        ("nvidia.com/gpu", "nvidia5", A),  # GKE: the minor
        ("nvidia.com/gpu", "nvidia0/vgpu1", B),
        ("nvidia.com/gpu", "nvidia0/gi9", MIG),
        ("nvidia.com/gpu", "/dev/nvidia5", A),
        ("nvidia.com/gpu", "0", A),
        ("nvidia.com/gpu", "1:2", MIG),
        ("nvidia.com/gpu", "1::4", B),
        ("fairlead.dev/gpu", "1", B),
        ("x.example/y", "nvidia.com/gpu=0", A),
        ("x.example/y", "nvidia.com/gpu=gpu1", B),
        ("x.example/y", "nvidia.com/gpu=mig1:2", MIG),
        ("x.example/y", f"nvidia.com/gpu={A}", A),
        ("x.example/y", f"management.nvidia.com/gpu={B}", B),
        ("gpu.nvidia.com", "gpu-5", A),
        ("gpu.nvidia.com", "k8s.gpu.nvidia.com/device=gpu-0", B),
        ("gpu.nvidia.com", "k8s.gpu.nvidia.com/claim=7d0f-4c-gpu-5", A),
        ("amd.com/gpu", AMD, AMD),
        ("amd.com/gpu", "0", AMD),
        ("devices.kubevirt.io/h100", "0000:1b:00.0", A),
        ("nvidia.com/pgpu", "00000000:2B:00.0", B),
    ],
)
def test_a_word_of_another_plugin_names_its_gpu(resource: str, device_id: str, wanted: str) -> None:
    assert found(resource, device_id) == [wanted]


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("rdma/hca_shared", "0"),  # network cards and /dev/fuse are counted as well
        ("github.com/fuse", "1"),
        ("nvidia.com/hostdev", "0"),
        ("nvidia.com/GH100_H100_PCIE", "1"),  # KubeVirt: an IOMMU group
        ("example.com/gpu", "0"),
        ("notnvidia.com/gpu", "0"),
        ("intel.com/sriov", "0000:1b:00.1"),
        ("nvidia.com/gpu", "2"),
        ("nvidia.com/gpu", "GPU-00000000-0000-0000-0000-000000000000"),
        ("nvidia.com/gpu", "nvidiactl"),
        ("nvidia.com/gpu", "nvidia1"),
        ("gpu.example.com", "gpu-0"),
        ("nvidia.com/gpu", ""),
        ("nvidia.com/gpu", "="),
        ("nvidia.com/gpu", "\u0660"),  # a digit of another script
        ("intel.com/gpu", "0"),
        ("", "0"),
    ],
)
def test_what_is_not_a_gpu_of_ours_is_none(resource: str, device_id: str) -> None:
    assert found(resource, device_id) == []


def test_all_of_a_vendor_are_all_of_its_gpus() -> None:
    assert found("x.example/y", "nvidia.com/gpu=all") == [A, B]
    assert found("nvidia.com/gpu", "all") == []


def test_mig_devices_of_one_gpu_lie_apart_and_each_overlaps_its_gpu() -> None:
    one, two = (deviceids.Part(gpu=GPUUUID(A), mig=MIGUUID(name)) for name in ("MIG-1", "MIG-2"))
    whole, other = deviceids.Part(gpu=GPUUUID(A)), deviceids.Part(gpu=GPUUUID(B))
    assert not one.overlaps(two)
    assert one.overlaps(one)
    assert one.overlaps(whole)
    assert whole.overlaps(two)
    assert not whole.overlaps(other)
