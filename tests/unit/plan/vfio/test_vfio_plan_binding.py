"""Plans of binding and release: what they touch, in which order, and that a half-done one can be put back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairlead.model.vfio import Function, FunctionKind, Holder, PassthroughHost, Snapshot, VariantDriver
from fairlead.plan.vfio import binding, unit, variant, verdict
from fairlead.plan.vfio.step import Act
from tests.unit.plan.vfio import vfioworld
from tests.unit.plan.vfio.vfioworld import function, snapshot

GPU, AUDIO, OTHER = "0000:0f:00.0", "0000:0f:00.1", "0000:10:00.0"
QEMU = Holder(pid=4242, name="qemu-system-x86", what="/dev/vfio/15")


def audio(driver: str = "snd_hda_intel", **more: Any) -> Function:
    return function(AUDIO, kind=FunctionKind.AUXILIARY, driver=driver, board=GPU, **more)


def test_a_gpu_is_bound_with_its_siblings_in_one_order() -> None:
    (plan,) = binding.plan_bind(snapshot(function(GPU), audio(), function(OTHER)), [GPU])
    assert [(one.act, one.address, one.text) for one in plan.steps] == [
        (Act.OVERRIDE, AUDIO, "vfio-pci"),
        (Act.OVERRIDE, GPU, "vfio-pci"),
        (Act.UNBIND, AUDIO, AUDIO),
        (Act.UNBIND, GPU, GPU),
        (Act.PROBE, AUDIO, AUDIO),
        (Act.PROBE, GPU, GPU),
        (Act.VERIFY, AUDIO, "vfio-pci"),
        (Act.VERIFY, GPU, "vfio-pci"),
    ]
    assert plan.steps[0].shown == f"echo vfio-pci > /sys/bus/pci/devices/{AUDIO}/driver_override"


def test_naming_the_sibling_binds_the_same() -> None:
    machine = snapshot(function(GPU), audio())
    assert binding.plan_bind(machine, [AUDIO]) == binding.plan_bind(machine, [GPU, AUDIO])


def test_the_whole_group_goes_together() -> None:
    machine = snapshot(function(GPU), function(OTHER, group="15"))
    (plan,) = binding.plan_bind(machine, [GPU])
    assert plan.addresses == (GPU, OTHER)


def test_what_is_bound_needs_no_step() -> None:
    (plan,) = binding.plan_bind(snapshot(function(GPU, driver="vfio-pci"), audio("vfio-pci")), [GPU])
    assert (plan.steps, plan.refusals) == ((), ())


def test_what_is_bound_already_is_left_alone_while_its_sibling_is_bound() -> None:
    (plan,) = binding.plan_bind(snapshot(function(GPU, driver="vfio-pci"), audio()), [GPU])
    assert {one.address for one in plan.steps} == {AUDIO}


@pytest.mark.parametrize(
    ("changes", "host", "why"),
    [
        ({}, PassthroughHost(), verdict.Why.IOMMU_OFF),
        ({"group": None}, vfioworld.HOST, verdict.Why.NO_GROUP),
        ({"virtual_functions": 4}, vfioworld.HOST, verdict.Why.VIRTUAL_FUNCTIONS),
        ({"answers": False}, vfioworld.HOST, verdict.Why.SILENT),
        ({}, PassthroughHost(iommu_groups=1), verdict.Why.MODULE_MISSING),
    ],
)
def test_what_must_be_mended_first_refuses_the_binding(
    changes: dict[str, Any], host: PassthroughHost, why: verdict.Why
) -> None:
    (plan,) = binding.plan_bind(snapshot(function(GPU, **changes), host=host), [GPU])
    assert plan.steps == ()
    assert why in {one.why for one in plan.refusals}


def test_a_stranger_in_the_group_is_not_taken_from_the_machine() -> None:
    machine = snapshot(function(GPU), strangers=[("15", "0000:20:00.0", "nvme"), ("15", "0000:0e:01.0", "pcieport")])
    (plan,) = binding.plan_bind(machine, [GPU])
    (refusal,) = plan.refusals
    assert refusal.message == "its IOMMU group is not viable while 0000:20:00.0 is bound to nvme"
    assert "/sys/bus/pci/devices/0000:20:00.0/driver/unbind" in refusal.mend


@pytest.mark.parametrize("where", [GPU, AUDIO])
def test_what_is_open_is_neither_bound_nor_released(where: str) -> None:
    for driver, plan in (("nvidia", binding.plan_bind), ("vfio-pci", binding.plan_release)):
        (one,) = plan(snapshot(function(GPU, driver=driver), audio(driver)), [GPU], {where: (QEMU,)})
        assert one.steps == ()
        assert "process 4242 (qemu-system-x86) has /dev/vfio/15 open" in one.refusals[0].message


def test_the_persistence_daemon_is_named_with_what_ends_it() -> None:
    daemon = Holder(pid=9, name="nvidia-persistenced"[:15], what="/dev/nvidia0")
    (plan,) = binding.plan_bind(snapshot(function(GPU)), [GPU], {GPU: (daemon,)})
    assert (plan.refusals[0].why, plan.refusals[0].mend) == (verdict.Why.PERSISTENCE, f"nvidia-smi -i {GPU} -pm 0")


def test_a_release_is_a_binding_backwards() -> None:
    machine = snapshot(function(GPU, driver="vfio-pci", override="vfio-pci"), audio("vfio-pci", override="vfio-pci"))
    (plan,) = binding.plan_release(machine, [GPU])
    assert [(one.act, one.address) for one in plan.steps] == [
        (act, at) for act in (Act.OVERRIDE, Act.UNBIND, Act.PROBE, Act.VERIFY) for at in (GPU, AUDIO)
    ]
    assert plan.steps[0].shown == f"echo > /sys/bus/pci/devices/{GPU}/driver_override"


def test_a_stale_override_is_taken_away_by_a_release() -> None:
    (plan,) = binding.plan_release(snapshot(function(GPU, driver="nvidia", override="vfio-pci")), [GPU])
    assert [(one.act, one.text) for one in plan.steps] == [(Act.OVERRIDE, "")]
    (plan,) = binding.plan_release(snapshot(function(GPU, driver="nvidia", override="nvidia")), [GPU])
    assert plan.steps == ()


def test_one_unit_that_is_refused_does_not_hold_up_another() -> None:
    plans = binding.plan_bind(snapshot(function(GPU), function(OTHER)), [GPU, OTHER], {GPU: (QEMU,)})
    assert [bool(one.steps) for one in plans] == [False, True]


# --- any machine


@given(machine=vfioworld.machines(), data=st.data())
def test_any_binding_ends_with_all_of_it_on_vfio_and_touches_nothing_else(
    machine: Snapshot, data: st.DataObject
) -> None:
    addresses = [one.address for one in machine.functions]
    chosen = data.draw(st.lists(st.sampled_from(addresses), unique=True, min_size=1))
    kernel = vfioworld.Kernel(machine)
    before = dict(kernel.drivers)
    plans = binding.plan_bind(machine, chosen)
    bound = set[str]()
    for plan in plans:
        assert not (plan.steps and plan.refusals)
        for one in plan.steps:
            kernel.write(one)
        if not plan.refusals:
            bound |= set(plan.addresses)
    assert set(chosen) <= {address for plan in plans for address in plan.addresses}
    for address, driver in kernel.drivers.items():
        assert driver == ("vfio-pci" if address in bound else before[address])


@given(machine=vfioworld.machines(), data=st.data())
def test_any_release_after_a_binding_gives_all_of_it_back(machine: Snapshot, data: st.DataObject) -> None:
    chosen = [data.draw(st.sampled_from([one.address for one in machine.functions]))]
    kernel = vfioworld.Kernel(machine)
    plans = binding.plan_bind(machine, chosen)
    assume(not any(plan.refusals for plan in plans))
    for one in (step for plan in plans for step in plan.steps):
        kernel.write(one)
    now = [
        dataclasses.replace(one, driver=kernel.drivers[one.address], override=kernel.overrides[one.address])
        for one in machine.functions
    ]
    for plan in binding.plan_release(dataclasses.replace(machine, functions=tuple(now)), chosen):
        for one in plan.steps:
            kernel.write(one)
        for address in plan.addresses:
            assert kernel.drivers[address] == kernel.native[address]
            assert not kernel.overrides[address].endswith("vfio-pci")


@given(machine=vfioworld.machines(), data=st.data())
def test_a_binding_that_ends_anywhere_can_be_undone(machine: Snapshot, data: st.DataObject) -> None:
    chosen = [data.draw(st.sampled_from([one.address for one in machine.functions]))]
    (plan,) = binding.plan_bind(machine, chosen)
    kernel = vfioworld.Kernel(machine)
    before = dict(kernel.drivers), dict(kernel.overrides)
    for one in plan.steps[: data.draw(st.integers(0, len(plan.steps)))]:
        kernel.write(one)
    now = [
        dataclasses.replace(one, driver=kernel.drivers[one.address], override=kernel.overrides[one.address])
        for one in plan.functions
    ]
    for one in binding.plan_undo(plan.functions, now):
        kernel.write(one)
    assert (kernel.drivers, kernel.overrides) == before


def test_an_override_that_contradicts_the_driver_does_not_lead_an_undo_astray() -> None:
    was = function(GPU, override="vfio-pci")
    now = dataclasses.replace(was, driver="vfio-pci")
    steps = binding.plan_undo([was], [now])
    assert [(one.act, one.text) for one in steps] == [
        (Act.OVERRIDE, "nvidia"),
        (Act.UNBIND, GPU),
        (Act.PROBE, GPU),
        (Act.OVERRIDE, "vfio-pci"),
        (Act.VERIFY, "nvidia"),
    ]


@given(machine=vfioworld.machines(), data=st.data())
def test_nothing_that_is_open_is_ever_in_a_step(machine: Snapshot, data: st.DataObject) -> None:
    addresses = [one.address for one in machine.functions]
    held = data.draw(st.sets(st.sampled_from(addresses), min_size=1))
    holders = {address: (QEMU,) for address in held}
    for plan in (*binding.plan_bind(machine, addresses, holders), *binding.plan_release(machine, addresses, holders)):
        assert not {one.address for one in plan.steps if one.act is not Act.OVERRIDE} & held


@given(machine=vfioworld.machines())
def test_units_part_the_machine(machine: Snapshot) -> None:
    units = unit.list_units(machine, [one.address for one in machine.functions])
    listed = [one.address for whole in units for one in whole]
    assert sorted(listed) == sorted(one.address for one in machine.functions)
    place = {one.address: number for number, whole in enumerate(units) for one in whole}
    for one in machine.functions:
        assert {place[other.address] for other in one.members if other.address in place} <= {place[one.address]}
        assert place.get(one.board, place[one.address]) == place[one.address]


# --- variants

GRACE = VariantDriver(pattern="v000010DEd00002342sv*sd*bc*sc*i*", module="nvgrace_gpu_vfio_pci")
ANY = VariantDriver(pattern="v*d*sv*sd*bc*sc*i*", module="vfio_pci")
VENDOR = VariantDriver(pattern="v000010DEd*sv*sd*bc*sc*i*", module="nv_any_vfio_pci")


@pytest.mark.parametrize(
    ("device", "variants", "registered", "expected"),
    [
        (0x2342, (ANY, GRACE), ("vfio-pci", "nvgrace-gpu-vfio-pci"), ("nvgrace-gpu-vfio-pci", True)),
        (0x2342, (GRACE, ANY, VENDOR), ("vfio-pci",), ("nvgrace_gpu_vfio_pci", False)),
        (0x2330, (ANY, GRACE), ("vfio-pci",), ("vfio-pci", True)),
        (0x2330, (ANY, VENDOR, GRACE), ("nv_any_vfio_pci",), ("nv_any_vfio_pci", True)),
        (0x2330, (), ("vfio-pci",), ("vfio-pci", True)),
        (0x2330, None, (), ("vfio-pci", False)),
    ],
)
def test_the_driver_with_the_fewest_wildcards_is_chosen(
    device: int, variants: tuple[VariantDriver, ...] | None, registered: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    host = PassthroughHost(drivers=registered, variants=variants)
    choice = variant.choose_driver(function(GPU, device=device), host)
    assert (choice.driver, choice.is_registered) == expected


@given(pattern=st.text(max_size=80), module=st.text(max_size=80))
def test_a_line_that_is_none_is_no_driver(pattern: str, module: str) -> None:
    host = PassthroughHost(variants=(VariantDriver(pattern=pattern, module=module),))
    assert variant.choose_driver(function(GPU), host).driver == "vfio-pci"
