"""Shared devices are offered as replicas, each under the name that the configuration gives it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlead import settings
from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health, nodeconfig
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sharing import replicate
from fairlead.wire.nvidia import pluginreader

NAMES = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "Tesla T4", "AMD Instinct MI300X")


def gpu(index: int) -> GPU:
    vendor = Vendor.AMD if NAMES[index].startswith("AMD") else Vendor.NVIDIA
    return GPU(
        uuid=GPUUUID(f"GPU-{index}"),
        vendor=vendor,
        index=index,
        minor=index,
        pci_bus_id=f"0000:0{index}:00.0",
        name=NAMES[index],
        memory_bytes=1,
        numa_node=index % 2,
    )


def offers(text: str, *, ill: str = "", lost: int | None = None) -> dict[str, advertise.Advertisement]:
    config = nodeconfig.plan_config(settings.Settings(), pluginreader.parse(text, source="f"))
    gpus = tuple(gpu(index) for index in range(4))
    verdict = health.Verdict(state=health.State.FAULTY, reason="XID79")
    gone = tuple(
        UnreadableGPU(index=one.index, pci_bus_id=None, uuid=one.uuid, reason="Lost", message="")
        for one in gpus
        if one.index == lost
    )
    whole = advertise.plan_advertisements(
        Inventory(gpus=tuple(one for one in gpus if one.index != lost), unreadable=gone),
        nvidia_resource="nvidia.com/gpu",
        verdicts={GPUUUID(ill): verdict},
        known={one.uuid: one for one in gpus},
        names=advertise.Names(gpus=config.document.gpus, mig=config.document.mig),
    )
    return {ad.resource: ad for ad in replicate.plan_shared(whole, config)}


def counts(ads: dict[str, advertise.Advertisement]) -> dict[str, int]:
    return {name: len(ad.devices) for name, ad in ads.items()}


def test_without_sharing_devices_are_offered_as_they_are() -> None:
    assert counts(offers("version: v1")) == {"nvidia.com/gpu": 3, "amd.com/gpu": 1}


def test_replicas_stay_under_the_resources_name() -> None:
    ads = offers("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}")
    assert counts(ads) == {"nvidia.com/gpu": 30, "amd.com/gpu": 1}
    assert ads["nvidia.com/gpu"].devices[9].id == "GPU-0::9"
    assert ads["nvidia.com/gpu"].rule.means == "time-slicing"
    assert ads["amd.com/gpu"].rule == advertise.UNSHARED


def test_shared_resources_end_in_shared_where_asked() -> None:
    ads = offers("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}")
    assert counts(ads) == {"nvidia.com/gpu.shared": 12, "amd.com/gpu": 1}


def test_a_rename_wins_over_shared() -> None:
    ads = offers("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2, rename: half}]}}")
    assert counts(ads) == {"nvidia.com/half": 6, "amd.com/gpu": 1}


def test_models_have_resources_and_replica_counts_of_their_own() -> None:
    text = """
resources: {gpus: [{pattern: "*A100*", name: a100}, {pattern: "Tesla T4", name: t4}]}
sharing: {timeSlicing: {resources: [{name: a100, replicas: 3}]}}
"""
    assert counts(offers(text)) == {"nvidia.com/a100": 6, "nvidia.com/t4": 1, "amd.com/gpu": 1}


def test_only_the_devices_that_are_named_are_shared() -> None:
    text = """
sharing:
  timeSlicing:
    resources:
    - {name: gpu, replicas: 2, devices: [GPU-1]}
    - {name: gpu, replicas: 5, devices: [2], rename: five}
"""
    ads = offers(text)
    assert [str(device.id) for device in ads["nvidia.com/gpu"].devices] == ["GPU-0", "GPU-1::0", "GPU-1::1"]
    assert counts(ads) == {"nvidia.com/gpu": 3, "nvidia.com/five": 5, "amd.com/gpu": 1}


def test_a_count_shares_the_first_few() -> None:
    ads = offers("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2, devices: 2}]}}")
    assert counts(ads) == {"nvidia.com/gpu.shared": 4, "nvidia.com/gpu": 1, "amd.com/gpu": 1}


def test_a_fault_of_a_gpu_is_a_fault_of_ten_of_ten_replicas_and_of_no_other() -> None:
    ads = offers("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 10}]}}", ill="GPU-1")
    found = Counter((device.gpu, device.is_healthy, device.reason) for device in ads["nvidia.com/gpu"].devices)
    assert found == {("GPU-0", True, ""): 10, ("GPU-1", False, "XID79"): 10, ("GPU-2", True, ""): 10}


def test_a_lost_gpu_keeps_its_replicas_under_its_models_name() -> None:
    text = """
resources: {gpus: [{pattern: "*A100*", name: a100}]}
sharing: {timeSlicing: {resources: [{name: a100, replicas: 3}]}}
"""
    ads = offers(text, lost=1)
    assert [device.is_healthy for device in ads["nvidia.com/a100"].devices] == [True] * 3 + [False] * 3


def test_time_slicing_shares_another_vendors_gpus_too() -> None:
    ads = offers("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: amd.com/gpu, replicas: 3}]}}")
    assert counts(ads) == {"nvidia.com/gpu": 3, "amd.com/gpu.shared": 3}
    assert ads["amd.com/gpu.shared"].vendor is Vendor.AMD


SIXTY = offers("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 10}]}}")["nvidia.com/gpu"]


def chosen(size: int, taken: dict[int, int], rule: advertise.SharingRule) -> Counter[str]:
    devices = {device.id: device for device in SIXTY.devices}
    free = [name for name in devices if int(name.partition("::")[2]) >= taken.get(int(name[4]), 0)]
    found = choose.choose_devices(tuple(free), (), size, devices=devices, topology=choose.Topology(), rule=rule)
    return Counter(str(devices[name].gpu) for name in found)


def test_distributed_takes_the_gpu_with_fewest_in_use_and_packed_the_one_with_most() -> None:
    taken = {0: 1, 1: 4, 2: 2}
    assert chosen(1, taken, advertise.UNSHARED) == {"GPU-0": 1}
    assert chosen(1, taken, advertise.SharingRule(packs=True)) == {"GPU-1": 1}
    assert chosen(3, taken, advertise.SharingRule(packs=True)) == {"GPU-1": 3}


def test_packed_fills_a_gpu_before_the_next() -> None:
    assert chosen(8, {1: 4}, advertise.SharingRule(packs=True)) == {"GPU-1": 6, "GPU-0": 2}


def test_different_gpus_wins_over_packing() -> None:
    rule = advertise.SharingRule(packs=True, needs_different_gpus=True)
    assert chosen(3, {1: 4}, rule) == {"GPU-0": 1, "GPU-1": 1, "GPU-2": 1}


@given(
    st.integers(1, 3),
    st.fixed_dictionaries({0: st.integers(0, 9), 1: st.integers(0, 9), 2: st.integers(0, 9)}),
    st.booleans(),
)
def test_different_gpus_are_found_wherever_there_are_enough(size: int, taken: dict[int, int], packs: bool) -> None:
    rule = advertise.SharingRule(packs=packs, needs_different_gpus=True)
    assert max(chosen(size, taken, rule).values()) == 1
