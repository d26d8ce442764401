"""What a node offers: resources by vendor, health by GPU, and the lost ones still there."""

from __future__ import annotations

import dataclasses

from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.offer import advertise
from tests import devices


def gpu(name: str, index: int = 0, *, vendor: Vendor = Vendor.NVIDIA, mig: bool = False) -> GPU:
    return GPU(
        uuid=GPUUUID(name),
        vendor=vendor,
        index=index,
        minor=index,
        pci_bus_id="0000:01:00.0",
        name="X",
        memory_bytes=1,
        numa_node=index // 2,
        mig_enabled=mig,
    )


def gone(name: str | None, index: int = 0) -> UnreadableGPU:
    uuid = GPUUUID(name) if name else None
    return UnreadableGPU(index=index, pci_bus_id=None, uuid=uuid, reason="Lost", message="gone")


def plan(
    inventory: Inventory, *, verdicts: dict[GPUUUID, health.Verdict] | None = None, known: tuple[GPU, ...] = ()
) -> tuple[advertise.Advertisement, ...]:
    by_uuid = {item.uuid: item for item in known}
    return advertise.plan_advertisements(
        inventory, nvidia_resource="example.com/gpu", verdicts=verdicts or {}, known=by_uuid
    )


def test_each_vendor_has_its_resource_and_cdi_kind() -> None:
    inventory = Inventory(
        gpus=(gpu("GPU-a"), gpu("0000:c1:00.0", vendor=Vendor.AMD), gpu("intel", vendor=Vendor.INTEL))
    )
    assert [(ad.resource, ad.vendor, [d.cdi_name for d in ad.devices]) for ad in plan(inventory)] == [
        ("example.com/gpu", Vendor.NVIDIA, ["fairlead.dev/gpu=GPU-a"]),
        ("amd.com/gpu", Vendor.AMD, ["amd.fairlead.dev/gpu=0000:c1:00.0"]),
    ]


def test_intels_gpus_are_offered_by_driver_where_they_have_memory_of_their_own() -> None:
    new, old = (dataclasses.replace(gpu(name, vendor=Vendor.INTEL), kernel_driver=name) for name in ("xe", "i915"))
    inside = dataclasses.replace(gpu("screen", vendor=Vendor.INTEL), kernel_driver="i915", memory_bytes=0)
    found = plan(Inventory(gpus=(new, old, inside)))
    assert [(ad.resource, [device.cdi_name for device in ad.devices]) for ad in found] == [
        ("gpu.intel.com/i915", ["intel.fairlead.dev/gpu=i915"]),
        ("gpu.intel.com/xe", ["intel.fairlead.dev/gpu=xe"]),
    ]


def test_a_lost_gpu_of_intels_stays_in_its_resource() -> None:
    known = dataclasses.replace(gpu("xe", vendor=Vendor.INTEL), kernel_driver="xe")
    [offered] = plan(Inventory(unreadable=(gone("xe"),)), known=(known,))
    assert (offered.resource, [device.reason for device in offered.devices]) == ("gpu.intel.com/xe", ["Lost"])


def test_no_gpus_no_resource() -> None:
    assert plan(Inventory()) == ()


def test_devices_carry_numa_and_index_order() -> None:
    [offered] = plan(Inventory(gpus=(gpu("GPU-b", 2), gpu("GPU-a", 1))))
    assert offered.devices == (
        devices.gpu("GPU-a", numa_node=0, index="1"),
        devices.gpu("GPU-b", numa_node=1, index="2"),
    )


def test_a_gpu_in_mig_mode_is_not_offered_whole() -> None:
    assert plan(Inventory(gpus=(gpu("GPU-a", mig=True),))) == ()


def test_a_verdict_marks_its_gpu_only() -> None:
    faulty = health.Verdict(state=health.State.FAULTY, reason="XID79")
    [offered] = plan(Inventory(gpus=(gpu("GPU-a"), gpu("GPU-b", 1))), verdicts={GPUUUID("GPU-a"): faulty})
    assert [(item.is_healthy, item.reason) for item in offered.devices] == [(False, "XID79"), (True, "")]


def test_a_suspect_gpu_is_offered_without_a_reason() -> None:
    suspect = health.Verdict(state=health.State.SUSPECT, reason="TemperatureHigh")
    [offered] = plan(Inventory(gpus=(gpu("GPU-a"),)), verdicts={GPUUUID("GPU-a"): suspect})
    assert offered.devices == (devices.gpu("GPU-a", numa_node=0, index="0"),)


def test_a_lost_gpu_stays_in_its_place_with_its_reason_and_numa_node() -> None:
    inventory = Inventory(gpus=(gpu("GPU-a"), gpu("GPU-c", 3)), unreadable=(gone("GPU-b", 2),))
    [offered] = plan(inventory, known=(gpu("GPU-b", 2),))
    lost = devices.gpu("GPU-b", is_healthy=False, reason="Lost", numa_node=1, index="2")
    assert offered.devices[1] == lost


def test_a_lost_gpu_shows_the_root_cause_where_one_is_held() -> None:
    faulty = health.Verdict(state=health.State.FAULTY, reason="XID79")
    [offered] = plan(Inventory(unreadable=(gone("GPU-a"),)), verdicts={GPUUUID("GPU-a"): faulty})
    assert [item.reason for item in offered.devices] == ["XID79"]


def test_a_lost_gpu_without_an_id_and_one_that_was_in_mig_mode_are_not_listed() -> None:
    inventory = Inventory(unreadable=(gone(None), gone("GPU-m", 1)))
    assert plan(inventory, known=(gpu("GPU-m", 1, mig=True),)) == ()


def test_a_lost_amd_gpu_stays_with_its_own_resource() -> None:
    [offered] = plan(Inventory(unreadable=(gone("0000:c1:00.0"),)), known=(gpu("0000:c1:00.0", vendor=Vendor.AMD),))
    assert offered.resource == "amd.com/gpu"
