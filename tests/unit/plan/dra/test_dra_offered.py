"""What a node offers to claims: names, attributes and capacities, in NVIDIA's words."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.claim import gate
from fairlead.plan.claim.validate import door
from fairlead.plan.dra import attribute, offered, share
from fairlead.plan.dra.offered import Choice, Kind, plan_devices, plan_offer
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from tests.unit.plan.dra import draworld

_UUID = "GPU-00000000-0000-0000-0000-000000000000"
_BOARD = {
    "productName": {"string": "NVIDIA H100 80GB HBM3"},
    "brand": {"string": "Nvidia"},
    "architecture": {"string": "Hopper"},
    "addressingMode": {"string": "HMM"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:0f"},
    "cudaComputeCapability": {"version": "9.0.0"},
    "driverVersion": {"version": "580.126.20"},
    "cudaDriverVersion": {"version": "13.0.0"},
    "index": {"int": 0},
    "minor": {"int": 0},
    "resource.kubernetes.io/numaNode": {"int": 0},
}
_SMALL = {
    "multiprocessors": {"value": "16"},
    "copyEngines": {"value": "1"},
    "decoders": {"value": "1"},
    "encoders": {"value": "0"},
    "jpegEngines": {"value": "1"},
    "ofaEngines": {"value": "0"},
    "memory": {"value": "9984Mi"},
}


def _only(gpu: GPU, choice: Choice = offered.EVERY) -> Device:
    (device,) = plan_devices(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], choice)
    return device.device


def test_a_gpu_is_described_in_nvidias_words() -> None:
    assert msgspec.to_builtins(_only(draworld.h100())) == {
        "name": "gpu-0",
        "attributes": {"type": {"string": "gpu"}, "uuid": {"string": _UUID}, **_BOARD},
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def test_a_gpu_is_described_as_nvidias_driver_describes_it() -> None:
    """What dra-driver-nvidia-gpu 0.4.1 published of a Tesla T4 on Azure, and nothing else but `index` and `minor`."""
    gpu = draworld.h100(
        name="Tesla T4",
        compute_capability=(7, 5),
        pci_bus_id="0001:00:00.0",
        memory_bytes=16384 << 20,
        numa_node=None,
        pcie_root="",
        mig_capable=False,
    )
    (found,) = plan_devices(draworld.snapshot_of(gpu, version="580.159.04"))
    assert msgspec.to_builtins(found.device) == {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": _UUID},
            "productName": {"string": "Tesla T4"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Turing"},
            "cudaComputeCapability": {"version": "7.5.0"},
            "driverVersion": {"version": "580.159.4"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "addressingMode": {"string": "HMM"},
            "resource.kubernetes.io/pciBusID": {"string": "0001:00:00.0"},
            "index": {"int": 0},
            "minor": {"int": 0},
        },
        "capacity": {"memory": {"value": "16Gi"}},
    }


def test_a_mig_device_that_exists_is_described_in_nvidias_words() -> None:
    assert msgspec.to_builtins(_only(draworld.h100(mig_enabled=True, mig_devices=(draworld.mig(),)))) == {
        "name": "gpu-0-mig-1g10gb-19-4",
        "attributes": {
            "type": {"string": "mig"},
            "parentUUID": {"string": _UUID},
            "profile": {"string": "1g.10gb"},
            "uuid": {"string": "MIG-1"},
            **_BOARD,
        },
        "capacity": {**_SMALL, "memorySlice4": {"value": "1"}},
    }


def test_a_partition_is_described_in_nvidias_words_and_consumes_its_counters() -> None:
    gpu = draworld.h100()
    found = {one.name: one for one in _partitioned(gpu)}
    one = found["gpu-0-mig-1g10gb-19-6"]
    consumed = {
        **{"multiprocessors": "16", "copy-engines": "1", "decoders": "1", "encoders": "0", "jpeg-engines": "1"},
        **{"ofa-engines": "0", "memory": "9984Mi", "memory-slice-6": "1"},
    }
    assert (one.kind, one.placement, one.instance, one.profile) == (
        Kind.PARTITION,
        offered.Placement(start=6, size=1),
        None,
        "1g.10gb",
    )
    assert msgspec.to_builtins(one.device) == {
        "name": "gpu-0-mig-1g10gb-19-6",
        "attributes": {
            "type": {"string": "mig"},
            "parentUUID": {"string": _UUID},
            "profile": {"string": "1g.10gb"},
            **_BOARD,
        },
        "capacity": _SMALL,
        "consumesCounters": (
            {"counterSet": "gpu-0-counter-set", "counters": {name: {"value": one} for name, one in consumed.items()}},
        ),
    }


def _partitioned(gpu: GPU, **choice: Any) -> tuple[offered.OfferedDevice, ...]:
    chosen = dataclasses.replace(Choice(partitioned={gpu.uuid}), **choice)
    return plan_devices(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], chosen)


def test_a_divisible_gpu_is_every_placement_and_the_whole() -> None:
    found = _partitioned(draworld.h100())
    kinds = [one.kind for one in found]
    assert kinds == [Kind.PARTITION] * 25 + [Kind.GPU]
    assert found[-1].counters == found[0].counters is not None


def test_the_whole_of_a_divisible_gpu_has_the_engines_of_its_largest_profile_and_its_own_memory() -> None:
    whole = _partitioned(draworld.h100())[-1].device
    assert {name: one.value for name, one in whole.capacity.items()} == {
        **{"multiprocessors": "132", "copyEngines": "8", "decoders": "7", "encoders": "0"},
        **{"jpegEngines": "7", "ofaEngines": "1", "memory": "81559Mi"},
    }


def test_names_with_endings_are_dns_labels() -> None:
    names = {one.name for one in _partitioned(draworld.h100())}
    assert "gpu-0-mig-1g10gb-me-20-0" in names


def test_a_mig_device_that_no_claim_made_keeps_its_room() -> None:
    gpu = draworld.h100(mig_enabled=True, mig_devices=(draworld.mig(start=4, profile="3g.40gb", size=4),))
    found = _partitioned(gpu)
    assert [one.name for one in found if one.kind is not Kind.PARTITION] == ["gpu-0-mig-3g40gb-9-4"]
    ends = {one.placement.start + one.placement.size for one in found if one.kind is Kind.PARTITION and one.placement}
    assert max(ends) <= 4


def test_a_mig_device_made_for_a_claim_changes_nothing_of_what_is_published() -> None:
    gpu = draworld.h100(mig_enabled=True, mig_devices=(draworld.mig(),))
    assert _partitioned(gpu, made={MIGUUID("MIG-1")}) == _partitioned(draworld.h100())


def test_a_gpu_that_leaves_mig_mode_by_a_reset_alone_is_not_offered_whole() -> None:
    ampere = draworld.h100(compute_capability=(8, 0), mig_enabled=True)
    found = plan_offer(draworld.snapshot_of(ampere), [draworld.partition_of(ampere)], Choice(partitioned={ampere.uuid}))
    assert {one.kind for one in found.devices} == {Kind.PARTITION}
    assert "leaves MIG mode only by a reset" in "".join(found.unpublished)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compute_capability": (8, 0)}, "counts only after a reset"),
        ({"is_virtual": True}, "a hypervisor divides"),
    ],
)
def test_a_gpu_that_cannot_be_divided_is_offered_whole_and_said(changed: dict[str, Any], said: str) -> None:
    gpu = draworld.h100(**changed)
    found = plan_offer(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], Choice(partitioned={gpu.uuid}))
    assert [one.name for one in found.devices] == ["gpu-0"]
    assert said in "".join(found.unpublished)


def test_mig_devices_that_have_no_name_of_their_own_are_said() -> None:
    parts = tuple(draworld.mig(uuid=f"MIG-{at}", profile="1c.3g.40gb") for at in range(2))
    unplaced = dataclasses.replace(draworld.mig(uuid="MIG-9"), placement_start=None)
    gpu = draworld.h100(mig_enabled=True, mig_devices=(*parts, unplaced))
    found = plan_offer(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)])
    assert found.devices == ()
    assert sorted(one.split(" is ")[0] for one in found.unpublished) == [
        f"GPU 0: MIG device MIG-{at}" for at in (0, 1, 9)
    ]


def test_two_devices_with_one_name_are_both_left_out() -> None:
    twins = tuple(draworld.h100(at, minor=0) for at in range(2))
    found = plan_offer(draworld.snapshot_of(*twins, draworld.h100(2)))
    assert [one.name for one in found.devices] == ["gpu-2"]
    assert "gpu-0: several devices have this name" in found.unpublished[0]


def test_gpus_of_other_vendors_are_left_to_their_drivers() -> None:
    amd = draworld.h100(1, vendor=Vendor.AMD, name="Instinct MI300X")
    found = plan_offer(draworld.snapshot_of(draworld.h100(), amd))
    assert [one.name for one in found.devices] == ["gpu-0"]
    assert "gpu.amd.com" in found.unpublished[0]


def test_a_gpu_of_another_door_is_not_a_matter_of_this_one() -> None:
    gpus = draworld.h100(0), draworld.h100(1)
    found = plan_offer(draworld.snapshot_of(*gpus), (), Choice(gpus={gpus[1].uuid}))
    assert ([one.name for one in found.devices], found.unpublished) == (["gpu-1"], ())


def test_what_is_not_known_is_left_out() -> None:
    bare = draworld.h100(
        compute_capability=None, brand=None, numa_node=None, pcie_root="", addressing_mode=None, memory_bytes=0
    )
    device = _only(bare)
    assert set(device.attributes) == {
        *("type", "uuid", "productName", "driverVersion", "cudaDriverVersion", "index", "minor"),
        "resource.kubernetes.io/pciBusID",
    }
    assert device.capacity == {}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("580.126.20", "580.126.20"),
        ("550.163.01", "550.163.1"),
        ("9.0", "9.0.0"),
        ("13", "13.0.0"),
        ("535.104.05.01", "535.104.5"),
        ("", ""),
        ("580.x", ""),
        ("٣.0", ""),
        ("1" * 400, ""),
    ],
)
def test_versions_are_made_semantic(version: str, expected: str) -> None:
    assert attribute.semver(version) == expected


@pytest.mark.parametrize(
    ("capability", "name"),
    [("7.0", "Volta"), ("7.5", "Turing"), ("8.0", "Ampere"), ("8.9", "Ada Lovelace"), ("9.0", "Hopper"), ("", "")],
)
def test_architectures_are_nvidias_words(capability: str, name: str) -> None:
    assert attribute.architecture(capability) == name


def test_a_text_is_cut_to_what_a_slice_may_have() -> None:
    assert attribute.text("ä" * 60) == DeviceAttribute(string="ä" * 32)


@pytest.mark.parametrize(
    ("setting", "default", "least"), [("unlimited", "0", "0"), ("memory", "81559Mi", "1Mi"), ("3", "0", "0")]
)
def test_a_shared_gpu_gives_amounts_of_memory(setting: str, default: str, least: str) -> None:
    device = _shared(setting, memory_bytes=(81559 << 20) + 5)
    policy = device.capacity["memory"].request_policy
    assert device.allow_multiple_allocations is True
    assert device.capacity["memory"].value == "81559Mi"
    assert msgspec.to_builtins(policy) == {
        "default": default,
        "validRange": {"min": least, "max": "81559Mi", "step": "1Mi"},
    }


def _shared(setting: str, enforced_by: share.Enforcement = share.Enforcement.NOTHING, **changed: Any) -> Device:
    gpu = draworld.h100(**changed)
    shares = share.parse_shares(setting, enforced_by)
    assert shares is not None
    return _only(gpu, Choice(shares={gpu.uuid: shares}))


def test_devices_with_counters_are_not_shared_and_that_is_said() -> None:
    gpu = draworld.h100()
    choice = Choice(partitioned={gpu.uuid}, shares={gpu.uuid: share.Shares(count=2)})
    found = plan_offer(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], choice)
    assert found.devices == _partitioned(gpu)
    assert "for one claim each" in found.unpublished[0]


def test_a_number_of_shares_is_a_capacity_of_which_a_claim_takes_one() -> None:
    assert msgspec.to_builtins(_shared("3").capacity["shares"]) == {
        "value": "3",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "3", "step": "1"}},
    }


@pytest.mark.parametrize("enforced_by", list(share.Enforcement))
def test_a_shared_device_says_what_holds_containers_to_their_amount(enforced_by: share.Enforcement) -> None:
    assert _shared("memory", enforced_by).attributes[share.ENFORCED_BY].string == enforced_by.value


def test_a_mig_device_says_that_no_daemon_holds_containers_to_their_share() -> None:
    gpu = draworld.h100(mig_enabled=True, mig_devices=(draworld.mig(),))
    choice = Choice(shares={gpu.uuid: share.Shares(count=2, enforced_by=share.Enforcement.MPS)})
    (found,) = plan_devices(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], choice)
    assert found.device.attributes[share.ENFORCED_BY].string == "nothing"
    assert found.shares is None


@pytest.mark.parametrize(
    ("setting", "consumed", "memory_mib", "percentage"),
    [
        ("unlimited", {"memory": "0"}, 80 << 10, None),
        ("memory", {"gpu.nvidia.com/memory": "10Gi"}, 10 << 10, None),
        ("4", {"shares": "1", "memory": "0"}, 20 << 10, 25),
        ("4", {"gpu.nvidia.com/shares": "3"}, 60 << 10, 75),
        ("4", {"shares": "9"}, 80 << 10, 100),
        ("4", {}, 20 << 10, 25),
        ("4", {"shares": "2", "memory": "1Gi"}, 1 << 10, 50),
        ("1000", {"shares": "1"}, 81, 1),
    ],
)
def test_a_share_is_worth_what_was_consumed(
    setting: str, consumed: dict[str, str], memory_mib: int, percentage: int | None
) -> None:
    shares = share.parse_shares(setting, share.Enforcement.MPS)
    assert shares is not None
    found = share.limits_of(consumed, shares, memory_bytes=80 << 30)
    assert (found.memory_mib, found.percentage) == (memory_mib, percentage)


@pytest.mark.parametrize("setting", ["0", "-1", "1.5", "lots", "99999", "٣", "1" * 5000])
def test_a_wrong_number_of_shares_is_refused_with_the_words_that_are_right(setting: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        share.parse_shares(setting)
    assert "unlimited, memory, or a number" in (caught.value.hint or "")


def test_no_setting_shares_nothing() -> None:
    assert share.parse_shares(" ") is None


def _slice(devices: list[Device], **changed: Any) -> ResourceSlice:
    pool = ResourcePool(name="node-1", generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=offered.DRIVER, pool=pool, node_name="node-1", devices=tuple(devices))
    return ResourceSlice(metadata=ObjectMeta(name="x"), spec=msgspec.structs.replace(spec, **changed))


@pytest.mark.parametrize("setting", ["", "unlimited", "memory", "7"])
@pytest.mark.parametrize("mode", ["whole", "static", "partitions"])
def test_everything_that_is_planned_is_admitted(setting: str, mode: str) -> None:
    gpu = draworld.h100(mig_enabled=mode == "static", mig_devices=(draworld.mig(),) if mode == "static" else ())
    shares = share.parse_shares(setting)
    choice = Choice(
        partitioned={gpu.uuid} if mode == "partitions" else set(), shares={gpu.uuid: shares} if shares else {}
    )
    devices = plan_devices(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], choice)
    counters = {one.counters.name: one.counters for one in devices if one.counters}
    slices = [_slice([one.device for one in devices])]
    slices += [_slice([], shared_counters=tuple(counters.values()))] if counters else []
    for item in slices:
        assert door.admit_slice(item, gate.DEFAULTS, "2026-11-28T12:00:00Z").dropped == ()


def test_a_hostile_name_of_a_product_does_not_make_a_slice_that_is_refused() -> None:
    gpu = draworld.h100(name="x" * 5000 + "\x00", uuid=GPUUUID("GPU-" + "é" * 900), pci_bus_id="../../etc")
    item = _slice([_only(gpu)])
    assert door.admit_slice(item, gate.DEFAULTS, "2026-11-28T12:00:00Z").item.spec.devices


def test_a_gpu_that_is_as_before_is_not_planned_again() -> None:
    gpus = [draworld.h100(at) for at in range(3)]
    partitions = [draworld.partition_of(one) for one in gpus]
    choice = Choice(partitioned=frozenset(one.uuid for one in gpus))
    before = {one.name: one for one in plan_devices(draworld.snapshot_of(*gpus), partitions, choice)}
    warm = dataclasses.replace(gpus[0], health=dataclasses.replace(gpus[0].health, temperature_c=61))
    moved = dataclasses.replace(gpus[1], numa_node=7)
    after = {one.name: one for one in plan_devices(draworld.snapshot_of(warm, moved, gpus[2]), partitions, choice)}
    assert before.keys() == after.keys()
    assert {one.minor for name, one in after.items() if one is not before[name]} == {1}
    assert after["gpu-1"].device.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_=7)
