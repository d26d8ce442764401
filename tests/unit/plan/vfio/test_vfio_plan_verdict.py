"""Verdicts: what is said of a GPU, in which order, and what mends it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from fairlead.model.gpu import Vendor
from fairlead.model.vfio import FunctionKind, Holder, Identity, PassthroughHost, PCILink, Snapshot
from fairlead.plan.vfio import binding, verdict
from fairlead.plan.vfio.verdict import Stage, Why
from tests.unit.plan.vfio import vfioworld
from tests.unit.plan.vfio.vfioworld import HOST, function, snapshot

GPU = "0000:0f:00.0"


def judge(host: PassthroughHost = HOST, holders: verdict.Holders = verdict.NOBODY, **more: Any) -> verdict.Verdict:
    (found,) = verdict.judge_gpus(snapshot(function(GPU, **more), host=host), holders)
    return found


def test_a_bound_gpu_that_nobody_has_is_ready() -> None:
    found = judge(driver="vfio-pci")
    assert (found.is_ready, found.can_be_bound, found.first, found.obstacles) == (True, True, None, ())


def test_a_gpu_with_a_driver_lacks_only_its_binding() -> None:
    found = judge()
    assert (found.is_ready, found.can_be_bound) == (False, True)
    assert found.first is not None
    assert found.first.sentence == f"{GPU} is bound to nvidia; fairlead vfio bind {GPU}"


@pytest.mark.parametrize(
    ("processor", "words"),
    [(Vendor.INTEL, "intel_iommu=on"), (Vendor.AMD, "AMD-Vi"), (None, "firmware"), (Vendor.NVIDIA, "firmware")],
)
def test_an_iommu_that_is_off_is_said_first_with_this_processors_remedy(processor: Vendor | None, words: str) -> None:
    found = judge(PassthroughHost(processor=processor), group=None)
    assert found.first is not None
    assert (found.first.why, words in found.first.mend) == (Why.IOMMU_OFF, True)


@pytest.mark.parametrize(
    ("more", "why", "stage", "words"),
    [
        ({"driver": ""}, Why.UNBOUND, Stage.USE, "fairlead vfio bind"),
        ({"driver": "vfio-pci", "device_node": None}, Why.NODE_MISSING, Stage.USE, "/dev/vfio"),
        ({"group": None}, Why.NO_GROUP, Stage.BIND, "slot"),
        ({"virtual_functions": 2}, Why.VIRTUAL_FUNCTIONS, Stage.BIND, f"echo 0 > /sys/bus/pci/devices/{GPU}/sriov_num"),
        ({"answers": False}, Why.SILENT, Stage.BIND, "rescan"),
        ({"is_console": True}, Why.CONSOLE, Stage.NOTE, ""),
        ({"reset_methods": ()}, Why.NO_RESET, Stage.NOTE, ""),
        ({"link": PCILink(width=8, max_width=16)}, Why.LINK_NARROW, Stage.NOTE, "reseat"),
        ({"identity": Identity(serial="1", is_shared=True)}, Why.SERIAL_SHARED, Stage.NOTE, ""),
    ],
)
def test_each_obstacle_has_its_stage_and_its_remedy(more: dict[str, Any], why: Why, stage: Stage, words: str) -> None:
    found = {one.why: one for one in judge(**more).obstacles}
    assert found[why].stage is stage
    assert words in found[why].mend
    assert GPU in found[why].message


def test_a_missing_module_is_named() -> None:
    found = {one.why: one for one in judge(PassthroughHost(iommu_groups=1)).obstacles}
    assert found[Why.MODULE_MISSING].mend == "modprobe vfio-pci"


def test_a_bound_gpu_whose_sibling_in_the_group_has_a_driver_is_not_ready() -> None:
    sibling = function("0000:0f:00.1", kind=FunctionKind.AUXILIARY, driver="snd_hda_intel", board=GPU)
    found = verdict.judge(snapshot(function(GPU, driver="vfio-pci"), sibling), function(GPU, driver="vfio-pci"))
    assert [one.why for one in found.obstacles] == [Why.SIBLING_NOT_BOUND]
    assert not found.is_ready


def test_two_gpus_of_one_group_can_be_bound_and_neither_is_ready() -> None:
    one, two = (function(address, driver="vfio-pci", group="15") for address in (GPU, "0000:10:00.0"))
    for found, other in zip(verdict.judge_gpus(snapshot(one, two)), (two, one), strict=True):
        assert [(each.why, each.stage) for each in found.obstacles] == [(Why.GROUP_SHARED, Stage.USE)]
        assert (found.is_ready, found.can_be_bound) == (False, True)
        assert f"with {other.address}" in found.obstacles[0].message
        assert f"fairlead vfio release {other.address}" in found.obstacles[0].mend


def test_a_switch_in_a_group_with_others_is_ready_as_they_are() -> None:
    switches = [function(f"0000:0{at}:00.0", kind=FunctionKind.NVSWITCH, driver="vfio-pci", group="9") for at in (5, 6)]
    assert [verdict.judge(snapshot(*switches), one).obstacles for one in switches] == [(), ()]


def test_a_doubt_is_in_the_way_too_and_reads_as_one() -> None:
    holder = Holder(pid=7, name="qemu", what="a VFIO device that the kernel does not name", is_doubt=True)
    found = judge(driver="vfio-pci", holders={GPU: (holder,)})
    assert found.first is not None
    assert "process 7 (qemu) may have 0000:0f:00.0 open" in found.first.message
    assert not found.is_ready


@given(machine=vfioworld.machines())
def test_what_can_be_bound_is_bound_and_what_is_ready_needs_nothing(machine: Snapshot) -> None:
    for found in verdict.judge_gpus(machine):
        (plan,) = binding.plan_bind(machine, [found.function.address])
        if found.is_ready:
            assert found.function.is_bound_to_vfio
        if plan.steps:
            assert found.can_be_bound
        assert all(one.mend or one.stage is Stage.NOTE for one in found.obstacles)
