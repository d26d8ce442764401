"""Plans of resets: nothing is hit that was not named, nothing that is open, and what cannot be done is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.vfio import Function, Holder, Snapshot
from fairlead.plan.vfio import resetting, unit, verdict
from fairlead.plan.vfio.step import Act
from tests.unit.plan.vfio import vfioworld
from tests.unit.plan.vfio.vfioworld import function, snapshot

GPU, OTHER = "0000:0f:00.0", "0000:10:00.0"
PORT = "0000:0e:01.0"
QEMU = Holder(pid=4242, name="qemu-system-x86", what="/dev/vfio/15")


def bound(address: str = GPU, **more: Any) -> Function:
    return function(address, **{"driver": "vfio-pci", "bridge": PORT, **more})


def test_a_gpu_alone_on_its_bus_is_reset_by_itself_then_by_its_bus_then_waited_for() -> None:
    plan = resetting.plan_reset(snapshot(bound()), [GPU], scrub_s=3)
    assert [(one.act, one.address, one.text, one.limit_s) for one in plan.steps] == [
        (Act.CHOOSE_RESET, GPU, "flr bus", 0),
        (Act.RESET, GPU, "1", 0),
        (Act.CHOOSE_RESET, GPU, "flr bus", 0),
        (Act.CHOOSE_RESET, GPU, "bus", 0),
        (Act.RESET, GPU, "1", 0),
        (Act.CHOOSE_RESET, GPU, "flr bus", 0),
        (Act.ANSWERS, GPU, "", resetting.ANSWER_S),
        (Act.SCRUBBED, GPU, "", 3),
    ]
    assert plan.is_whole


def test_a_bus_that_others_are_on_is_reset_only_with_all_of_them() -> None:
    machine = snapshot(
        bound(neighbours=(OTHER,), bridge_resets=True, reset_methods=("flr",)),
        bound(OTHER, neighbours=(GPU,), bridge_resets=True, reset_methods=("flr",)),
    )
    alone = resetting.plan_reset(machine, [GPU])
    assert alone.reasons == (f"a bus reset by {PORT} would hit {OTHER} too, which was not named",)
    assert PORT not in {one.address for one in alone.steps}
    both = resetting.plan_reset(machine, [GPU, OTHER])
    assert [one.path for one in both.steps if one.address == PORT] == [f"sys/bus/pci/devices/{PORT}/reset_subordinate"]
    assert both.is_whole


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"reset_methods": ("pm", "bus")}, f"{GPU} has no function level reset (it has: pm, bus)"),
        ({"reset_methods": ("flr",)}, f"no bus reset by {PORT}: the kernel offers none for it, and it has no "),
        ({"reset_methods": None, "has_flr": False}, f"{GPU} has no function level reset"),
        ({"bridge": ""}, f"{GPU} has no bridge of its own to reset it by"),
        ({"vendor": 0x1002}, f"{GPU} has no flag that says that its memory is erased"),
    ],
)
def test_what_cannot_be_done_is_a_reason(more: dict[str, Any], reason: str) -> None:
    plan = resetting.plan_reset(snapshot(bound(**more)), [GPU])
    assert not plan.is_whole
    assert plan.reasons[0].startswith(reason)
    assert plan.steps


@pytest.mark.parametrize(
    ("more", "holders", "why"),
    [
        ({}, {GPU: (QEMU,)}, verdict.Why.HELD),
        ({"driver": "nvidia"}, {}, verdict.Why.OTHER_DRIVER),
        ({"virtual_functions": 1}, {}, verdict.Why.VIRTUAL_FUNCTIONS),
    ],
)
def test_what_is_used_or_on_another_driver_is_not_reset(
    more: dict[str, Any], holders: verdict.Holders, why: verdict.Why
) -> None:
    plan = resetting.plan_reset(snapshot(bound(**more)), [GPU], holders)
    assert (plan.steps, [one.why for one in plan.refusals], plan.is_whole) == ((), [why], False)


@given(machine=vfioworld.machines(), data=st.data())
def test_no_reset_hits_what_was_not_named_or_is_open(machine: Snapshot, data: st.DataObject) -> None:
    addresses = [one.address for one in machine.functions]
    chosen = data.draw(st.lists(st.sampled_from(addresses), unique=True, min_size=1))
    held = data.draw(st.sets(st.sampled_from(addresses)))
    plan = resetting.plan_reset(machine, chosen, {address: (QEMU,) for address in held})
    allowed = {one.address for whole in unit.list_units(machine, chosen) for one in whole} - held
    by_address = {one.address: one for one in machine.functions}
    for one in plan.steps:
        hit = {one.address}
        if one.path.endswith("reset_subordinate") or one.text == "bus":
            below = [each for each in machine.functions if one.address in {each.bridge, each.address}]
            hit = {other for each in below for other in (each.address, *each.neighbours)}
        assert hit <= allowed
        if one.text == "bus":
            assert by_address[one.address].neighbours == ()


@given(machine=vfioworld.machines(), data=st.data())
def test_a_whole_plan_resets_each_gpu_both_ways_and_waits_for_its_memory(
    machine: Snapshot, data: st.DataObject
) -> None:
    chosen = [data.draw(st.sampled_from([one.address for one in machine.functions]))]
    plan = resetting.plan_reset(machine, chosen)
    if not plan.is_whole:
        assert plan.refusals or plan.reasons
        return
    done = {(one.act, one.address) for one in plan.steps}
    for gpu in (one for one in plan.functions if one in machine.gpus):
        assert {(Act.RESET, gpu.address), (Act.ANSWERS, gpu.address), (Act.SCRUBBED, gpu.address)} <= done
        assert sum(one.act is Act.RESET and one.address in {gpu.address, gpu.bridge} for one in plan.steps) >= 2


@given(machine=vfioworld.machines(), data=st.data())
def test_the_kernels_choice_of_resets_is_as_before(machine: Snapshot, data: st.DataObject) -> None:
    chosen = [data.draw(st.sampled_from([one.address for one in machine.functions]))]
    plan = resetting.plan_reset(machine, chosen)
    last = {one.address: one.text for one in plan.steps if one.act is Act.CHOOSE_RESET}
    for address, text in last.items():
        assert tuple(text.split()) == next(one for one in machine.functions if one.address == address).reset_methods
