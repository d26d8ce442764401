"""GPUs that are passed through as claims see them: NVIDIA's names to the letter, and nothing that nobody knows."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.model.driver import DriverFiles, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.claim import gate
from fairlead.plan.claim.validate import door
from fairlead.plan.dra import deviceclass, offered, passthrough, taints
from fairlead.plan.dra.offered import Choice, Kind, plan_offer
from fairlead.plan.dra.passthrough import Backend
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from fairlead.wire.nvidia.claimconfig import VFIOConfig
from tests.unit.node.dra.claimnode import passed
from tests.unit.plan.claim import claimworld
from tests.unit.plan.dra import draworld
from tests.unit.plan.vfio import test_switchoffer

PARTITIONS = ((0, (1, 2, 3, 4, 5, 6, 7, 8)), (1, (1, 3)), (2, (2, 4)), (3, (1,)), (4, (2,)))


def snapshot(*gpus: PassthroughGPU, partitions: tuple[tuple[int, tuple[int, ...]], ...] = ()) -> Snapshot:
    files = DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=gpus, partition_ids=partitions)
    return dataclasses.replace(draworld.snapshot_of(), drivers=(files,))


def test_a_gpu_for_a_machine_is_described_in_nvidias_words() -> None:
    (one,) = plan_offer(snapshot(passed(1), partitions=PARTITIONS)).devices
    assert (one.kind, one.gpu, one.minor, one.backends) == (Kind.VFIO, "pcie-1", None, frozenset(Backend))
    assert msgspec.to_builtins(one.device) == {
        "name": "gpu-vfio-1",
        "attributes": {
            "type": {"string": "vfio"},
            "uuid": {"string": str(uuid.uuid5(uuid.NAMESPACE_DNS, "0000:81:00.0"))},
            "vendorID": {"string": "0x10de"},
            "deviceID": {"string": "0x2330"},
            "productName": {"string": "GH100 [H100 SXM5 80GB]"},
            "iommuFDEnabled": {"bool": True},
            "resource.kubernetes.io/pciBusID": {"string": "0000:81:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:80"},
            "resource.kubernetes.io/numaNode": {"int": 1},
            "gpuModuleId": {"int": 1},
            "partition8": {"int": 0},
            "partition2": {"int": 1},
            "partition1": {"int": 3},
        },
        "capacity": {"addressableMemory": {"value": "256Gi"}},
    }


def test_what_nobody_knows_of_a_gpu_is_left_out() -> None:
    bare = PassthroughGPU(key=GPUUUID("path-1"), vendor=Vendor.NVIDIA, address="10000:81:00.0", number=0)
    (one,) = plan_offer(snapshot(bare)).devices
    assert msgspec.to_builtins(one.device) == {
        "name": "gpu-vfio-0",
        "attributes": {
            "type": {"string": "vfio"},
            "uuid": {"string": str(uuid.uuid5(uuid.NAMESPACE_DNS, "10000:81:00.0"))},
            "iommuFDEnabled": {"bool": False},
        },
    }


def test_a_gpu_that_is_in_two_partitions_of_a_size_names_neither() -> None:
    odd = ((0, (1, 2)), (1, (1, 3)), (2, (1, 2, 3, 4)))
    (one,) = plan_offer(snapshot(passed(1), partitions=odd)).devices
    assert sorted(name for name in one.device.attributes if name.startswith("partition")) == ["partition4"]


def test_gpus_with_and_without_a_driver_stand_beside_each_other() -> None:
    mixed = dataclasses.replace(
        draworld.snapshot_of(draworld.h100(0), draworld.h100(1)), drivers=snapshot(passed(2), passed(1)).drivers
    )
    assert [one.name for one in plan_offer(mixed).devices] == ["gpu-0", "gpu-1", "gpu-vfio-1", "gpu-vfio-2"]
    chosen = Choice(gpus={passed(2).key, draworld.h100(1).uuid})
    assert [one.name for one in plan_offer(mixed, choice=chosen).devices] == ["gpu-1", "gpu-vfio-2"]


def test_what_is_not_offered_is_said() -> None:
    other = dataclasses.replace(passed(1), vendor=Vendor.AMD, model="Navi 31")
    unnamed = dataclasses.replace(passed(2), number=None)
    found = plan_offer(snapshot(other, unnamed))
    assert found.devices == ()
    assert [word for word in ("gpu.amd.com", "could not be kept") if word in " ".join(found.unpublished)] == [
        "gpu.amd.com",
        "could not be kept",
    ]


@pytest.mark.parametrize("changed", [{}, {"model": "x" * 5000 + "\x00"}, {"pcie_root": "é" * 99, "address": "../.."}])
def test_an_api_server_takes_what_is_published(changed: dict[str, Any]) -> None:
    devices = plan_offer(snapshot(passed(1, **changed), partitions=PARTITIONS)).devices
    pool = ResourcePool(name="node-1", generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(
        driver=offered.DRIVER, pool=pool, node_name="node-1", devices=tuple(one.device for one in devices)
    )
    item = ResourceSlice(metadata=ObjectMeta(name="x"), spec=spec)
    assert door.admit_slice(item, gate.DEFAULTS, "2026-11-28T12:00:00Z").dropped == ()


def test_the_class_of_machines_gpus_is_nvidias() -> None:
    by_name = {one.metadata.name: one.spec for one in deviceclass.classes("nvidia.com/gpu")}
    (selector,) = by_name["vfio.gpu.nvidia.com"].selectors
    assert selector.cel is not None
    assert selector.cel.expression == (
        "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'vfio'"
    )
    assert by_name["vfio.gpu.nvidia.com"].extended_resource_name is None


@pytest.mark.parametrize(
    ("policy", "ways", "chosen"),
    [
        ("", {Backend.GROUP, Backend.IOMMUFD}, Backend.GROUP),
        ("", {Backend.IOMMUFD}, Backend.IOMMUFD),
        ("LegacyOnly", {Backend.GROUP, Backend.IOMMUFD}, Backend.GROUP),
        ("PreferIommuFD", {Backend.GROUP, Backend.IOMMUFD}, Backend.IOMMUFD),
        ("PreferIommuFD", {Backend.GROUP}, Backend.GROUP),
    ],
)
def test_a_policy_chooses_among_the_ways_that_are_there(policy: str, ways: set[Backend], chosen: Backend) -> None:
    assert passthrough.choose_backend(VFIOConfig(backend_policy=policy), ways, "gpu-vfio-0") is chosen


@pytest.mark.parametrize(("policy", "ways"), [("LegacyOnly", {Backend.IOMMUFD}), ("", set()), ("PreferIommuFD", set())])
def test_a_way_that_is_not_there_is_refused_by_name(policy: str, ways: set[Backend]) -> None:
    with pytest.raises(errors.DeviceFault, match="gpu-vfio-0") as caught:
        passthrough.choose_backend(VFIOConfig(backend_policy=policy), ways, "gpu-vfio-0")
    assert (caught.value.reason, bool(caught.value.hint)) == ("VFIONodeMissing", True)


@pytest.mark.parametrize(
    ("changed", "key", "value"),
    [
        ({"problem": "not viable"}, "fairlead.dev/gpu-unhealthy", "PassthroughUnusable"),
        ({"problem": "off the bus", "is_lost": True}, "gpu.nvidia.com/gpu-lost", "Lost"),
    ],
)
def test_what_keeps_a_gpu_from_machines_taints_it_and_is_its_health(
    changed: dict[str, Any], key: str, value: str
) -> None:
    gpu = passed(1, **changed)
    held = passthrough.verdict(gpu)
    assert held is not None
    against = taints.Against(verdicts={gpu.key: held})
    devices = plan_offer(snapshot(gpu, passed(2))).devices
    ((name, (taint,)),) = taints.plan_taints(devices, against).items()
    assert (name, taint.key, taint.value, taint.effect) == ("gpu-vfio-1", key, value, "NoSchedule")
    assert [taints.find_illness(one, against) for one in devices] == [gpu.problem, ""]


def test_a_gpu_in_quarantine_is_tainted_by_its_state() -> None:
    against = taints.Against(unverified={passed(1).key: "Quarantined"})
    ((_, (taint,)),) = taints.plan_taints(plan_offer(snapshot(passed(1))).devices, against).items()
    assert (taint.key, taint.value) == ("fairlead.dev/gpu-unverified", "Quarantined")


def _allocated(request: dict[str, Any], *, tainted: frozenset[str] = frozenset(), **devices: Any) -> Any:
    """Have our own allocator choose among four modules and a GPU that has a driver; returns names, or the refusal."""
    gpus = tuple(passed(module) for module in (1, 2, 3, 4))
    mixed = dataclasses.replace(
        draworld.snapshot_of(draworld.h100()), drivers=snapshot(*gpus, partitions=BOARD).drivers
    )
    published = [msgspec.to_builtins(one.device) for one in plan_offer(mixed).devices]
    for one in published:
        if one["name"] in tainted:
            one["taints"] = [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}]
    classes = {one.metadata.name: one for one in deviceclass.classes("nvidia.com/gpu")}
    slices = [claimworld.published(published, driver=offered.DRIVER)]
    wanted = claimworld.claim(claimworld.request(deviceClassName="vfio.gpu.nvidia.com", **request), **devices)
    return claimworld.run(wanted, slices, classes=classes)


BOARD = ((0, (1, 2, 3, 4)), (1, (1, 3)), (2, (2, 4)))


def test_a_claim_of_the_class_gets_a_machines_gpu_and_no_other() -> None:
    assert claimworld.names(_allocated({})) == ["gpu-vfio-1"]
    assert len(claimworld.names(_allocated({"count": 4}))) == 4
    assert claimworld.refused(_allocated({"count": 5}))


def test_a_constraint_on_partitions_gets_gpus_that_nvlink_joins() -> None:
    joined = [{"matchAttribute": "gpu.nvidia.com/partition2"}]
    assert claimworld.names(_allocated({"count": 2}, constraints=joined)) == ["gpu-vfio-1", "gpu-vfio-3"]
    assert claimworld.names(_allocated({"count": 2}, constraints=joined, tainted=frozenset({"gpu-vfio-3"}))) == [
        "gpu-vfio-2",
        "gpu-vfio-4",
    ]
    assert claimworld.refused(_allocated({"count": 3}, constraints=joined))


def test_a_gpu_that_is_lost_is_allocated_to_nobody() -> None:
    found = claimworld.refused(_allocated({"count": 4}, tainted=frozenset({"gpu-vfio-2"})))
    assert "gpu-lost" in str(found)


def test_claims_get_no_nvswitch_whatever_class_names_it() -> None:
    """A switch routes every tenant's NVLink: the Service VM's pod has them by the device plugin alone."""
    found = snapshot(passed(1), partitions=PARTITIONS)
    files = dataclasses.replace(found.drivers[0], switches=test_switchoffer.BOARD)
    with_switches = dataclasses.replace(found, drivers=(files,))
    assert with_switches.switches == test_switchoffer.BOARD
    assert plan_offer(with_switches) == plan_offer(found)
