"""How MIG devices are offered: the three strategies, fan-out of faults, and what a device brings into a container."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.model.gpu import GPU, Inventory, UnreadableGPU
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.offer import advertise, migoffer
from tests import gpus

FAULTY = health.Verdict(state=health.State.FAULTY, reason="XID79")
MINORS = {
    f"gpu{g}/gi{i}{end}": 100 * g + 10 * i + place
    for g in (0, 1)
    for i in (1, 2)
    for place, end in enumerate(("/access", "/ci0/access"))
}


def gpu(index: int, *profiles: str, is_mig: bool = True) -> GPU:
    parts = (
        gpus.part(place, profile, uuid=MIGUUID(f"MIG-{index}-{place}"), gpu_instance=place + 1)
        for place, profile in enumerate(profiles)
    )
    node = f"/dev/nvidia{index}"
    return gpus.gpu(index, mig_enabled=is_mig, mig_capable=True, device_nodes=(node,), mig_devices=tuple(parts))


def plan(
    strategy: str,
    *gpus: GPU,
    verdicts: dict[GPUUUID, health.Verdict] | None = None,
    own: dict[MIGUUID, health.Verdict] | None = None,
    gone: tuple[GPU, ...] = (),
) -> dict[str, list[tuple[str, str]]]:
    lost = tuple(
        UnreadableGPU(index=one.index, pci_bus_id=None, uuid=one.uuid, reason="Lost", message="") for one in gone
    )
    offered = advertise.plan_advertisements(
        Inventory(gpus=gpus, unreadable=lost),
        nvidia_resource="nvidia.com/gpu",
        verdicts=verdicts or {},
        known={one.uuid: one for one in (*gpus, *gone)},
        mig=migoffer.MIGOffer(strategy=strategy, verdicts=own or {}, minors=MINORS),
    )
    return {ad.resource: [(device.id, device.reason) for device in ad.devices] for ad in offered}


def test_none_offers_whole_gpus_only() -> None:
    assert plan("none", gpu(0, "1g.10gb"), gpu(1, is_mig=False)) == {"nvidia.com/gpu": [("GPU-1", "")]}


def test_mixed_names_each_profile_and_keeps_whole_gpus() -> None:
    assert plan("mixed", gpu(0, "1g.10gb", "1g.10gb+me"), gpu(1, is_mig=False)) == {
        "nvidia.com/gpu": [("GPU-1", "")],
        "nvidia.com/mig-1g.10gb": [("MIG-0-0", "")],
        "nvidia.com/mig-1g.10gb.me": [("MIG-0-1", "")],
    }


def test_single_offers_alike_devices_as_gpus_in_order() -> None:
    assert plan("single", gpu(0, "3g.40gb", "3g.40gb"), gpu(1, "3g.40gb")) == {
        "nvidia.com/gpu": [("MIG-0-0", ""), ("MIG-0-1", ""), ("MIG-1-0", "")]
    }


def test_single_without_mig_offers_gpus() -> None:
    assert plan("single", gpu(0, is_mig=False)) == {"nvidia.com/gpu": [("GPU-0", "")]}


@pytest.mark.parametrize(
    "other", [gpu(1, "1g.10gb"), gpu(1, is_mig=False), gpu(1)], ids=["another profile", "no mig", "no devices"]
)
def test_single_keeps_everything_back_where_gpus_differ(other: GPU) -> None:
    [devices] = plan("single", gpu(0, "3g.40gb"), other).values()
    assert devices
    assert {reason for _, reason in devices} == {migoffer.NOT_UNIFORM}


def test_a_gpus_fault_is_every_devices_and_no_other_gpus() -> None:
    found = plan("mixed", gpu(0, "3g.40gb", "3g.40gb"), gpu(1, "3g.40gb"), verdicts={GPUUUID("GPU-0"): FAULTY})
    assert found == {"nvidia.com/mig-3g.40gb": [("MIG-0-0", "XID79"), ("MIG-0-1", "XID79"), ("MIG-1-0", "")]}


def test_a_devices_own_fault_is_its_alone() -> None:
    found = plan("mixed", gpu(0, "3g.40gb", "3g.40gb"), own={MIGUUID("MIG-0-1"): FAULTY})
    assert found == {"nvidia.com/mig-3g.40gb": [("MIG-0-0", ""), ("MIG-0-1", "XID79")]}


def test_devices_of_a_gpu_that_does_not_answer_stay_listed() -> None:
    found = plan("mixed", gpu(1, "3g.40gb"), gone=(gpu(0, "3g.40gb"),))
    assert found == {"nvidia.com/mig-3g.40gb": [("MIG-0-0", "Lost"), ("MIG-1-0", "")]}


def test_a_device_brings_its_gpus_node_and_its_own_capabilities() -> None:
    one = gpu(0, "3g.40gb", "3g.40gb")
    offer = migoffer.MIGOffer(strategy="mixed", minors=MINORS)
    [(_, first), (_, second)] = migoffer.plan_devices(one, offer, health.Verdict())
    assert first.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap10", "/dev/nvidia-caps/nvidia-cap11")
    assert set(first.nodes) & set(second.nodes) == {"/dev/nvidia0"}
    assert (first.index, first.cdi_name) == ("0:0", "fairlead.dev/gpu=MIG-0-0")


def test_equal_machines_are_offered_alike() -> None:
    one = gpu(0, "3g.40gb")
    assert plan("single", one) == plan("single", dataclasses.replace(one))
