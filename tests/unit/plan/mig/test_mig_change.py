"""Changes of one GPU's partition: minimal, sparing what is in use, and never more than the silicon holds."""

from __future__ import annotations

import dataclasses
from collections import Counter

import hypothesis
import pytest
from hypothesis import strategies

from fairlead import errors
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import ComputeInstance, GPUInstance, Partition, Slot
from fairlead.plan.mig import change, packing, table, wanted

H100 = table.MODELS["h100-80"].profiles
SIZES = {one.name: one.slices for one in H100}


def device(slot: Slot) -> MIGUUID:
    return MIGUUID(f"MIG-{slot}")


def partition(*slots: Slot, busy: tuple[Slot, ...] = (), is_enabled: bool = True) -> Partition:
    return Partition(
        gpu=GPUUUID("GPU-0"),
        index=0,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id="0000:19:00.0",
        device_filter="0x233010DE",
        profiles=H100,
        is_enabled=is_enabled,
        is_pending=is_enabled,
        instances=tuple(
            GPUInstance(
                id=number,
                profile=slot.profile,
                start=slot.start,
                computes=(ComputeInstance(id=0, slices=SIZES[slot.profile], uuid=device(slot), is_busy=slot in busy),),
            )
            for number, slot in enumerate(slots, 1)
        ),
    )


def slot(text: str) -> Slot:
    profile, _, start = text.partition("@")
    return Slot(profile=profile, start=int(start))


def want(*names: str) -> wanted.WantedGPU:
    return wanted.WantedGPU(is_enabled=True, devices=dict(Counter(names)))


def acts(found: change.Change) -> list[str]:
    return [f"{step.act.name} {step.slot or ''}".strip() for step in found.steps]


def test_what_is_there_already_needs_no_step() -> None:
    found = change.plan_change(partition(slot("3g.40gb@0"), slot("1g.10gb@5")), want("3g.40gb", "1g.10gb"))
    assert found.steps == ()


def test_only_what_is_missing_is_created_and_only_the_surplus_destroyed() -> None:
    gpu = partition(slot("3g.40gb@0"), slot("1g.10gb@5"), slot("1g.10gb@6"))
    found = change.plan_change(gpu, want("3g.40gb", "1g.10gb", "2g.20gb"))
    assert [step.slot for step in found.steps if step.act is change.Act.DESTROY_INSTANCE] == [slot("1g.10gb@5")]
    assert found.kept == (slot("3g.40gb@0"), slot("1g.10gb@6"))
    assert Counter(item.profile for item in found.layout) == Counter(["3g.40gb", "1g.10gb", "2g.20gb"])


def test_devices_in_use_keep_their_place_though_others_move_more() -> None:
    gpu = partition(slot("1g.10gb@0"), slot("1g.10gb@4"), slot("1g.10gb@5"), busy=(slot("1g.10gb@0"),))
    found = change.plan_change(gpu, want("1g.10gb", "3g.40gb"))
    assert slot("1g.10gb@0") in found.kept
    assert slot("3g.40gb@4") in found.layout


def test_a_change_that_ends_a_device_in_use_is_refused_unless_it_may_drain() -> None:
    gpu = partition(slot("1g.10gb@0"), busy=(slot("1g.10gb@0"),))
    with pytest.raises(errors.Conflict, match=r"MIG-1g.10gb@0") as caught:
        change.plan_change(gpu, want("7g.80gb"))
    assert caught.value.reason == "MIGInUse"
    found = change.plan_change(gpu, want("7g.80gb"), may_drain=True)
    assert found.drained == (device(slot("1g.10gb@0")),)


def test_a_holder_known_to_the_kubelet_counts_as_in_use() -> None:
    gpu = partition(slot("4g.40gb@0"))
    with pytest.raises(errors.Conflict):
        change.plan_change(gpu, want("7g.80gb"), in_use={device(slot("4g.40gb@0"))})


def test_mode_goes_off_only_after_everything_is_destroyed() -> None:
    found = change.plan_change(partition(slot("1g.10gb@0")), wanted.WantedGPU(is_enabled=False))
    assert acts(found) == ["DESTROY_COMPUTE 1g.10gb@0", "DESTROY_INSTANCE 1g.10gb@0", "SET_MODE"]


def test_mode_goes_on_before_anything_is_created_and_not_under_a_held_gpu() -> None:
    gpu = partition(is_enabled=False)
    found = change.plan_change(gpu, want("7g.80gb"))
    assert acts(found) == ["SET_MODE", "CREATE_INSTANCE 7g.80gb@0", "CREATE_COMPUTE 7g.80gb@0"]
    with pytest.raises(errors.Conflict):
        change.plan_change(gpu, want("7g.80gb"), in_use={"GPU-0"})


def test_the_list_of_changes_says_each_step_in_words() -> None:
    off = change.plan_change(partition(slot("3g.40gb@4")), wanted.WantedGPU(is_enabled=False))
    assert [str(step) for step in off.steps] == [
        "- MIG device 3g.40gb (MIG-3g.40gb@4) at 4",
        "- GPU instance 3g.40gb at 4",
        "switch MIG off (and reset the GPU, if its driver asks for it)",
    ]
    on = change.plan_change(partition(is_enabled=False), want("7g.80gb"))
    assert [str(step) for step in on.steps] == [
        "switch MIG on (and reset the GPU, if its driver asks for it)",
        "+ GPU instance 7g.80gb at 0",
        "+ MIG device 7g.80gb at 0",
    ]


def test_a_mode_that_only_waits_for_a_reset_is_reset_and_not_set_again() -> None:
    gpu = dataclasses.replace(partition(is_enabled=False), is_pending=True)
    assert [step.act for step in change.plan_change(gpu, want()).steps] == [change.Act.RESET]
    assert change.plan_change(partition(is_enabled=False), wanted.WantedGPU(is_enabled=False)).steps == ()


def test_parts_of_an_instance_share_it() -> None:
    found = change.plan_change(partition(), want("1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb", "3g.40gb"))
    made = [step.slices for step in found.steps if step.act is change.Act.CREATE_COMPUTE]
    assert sorted(made) == [1, 1, 1, 3]
    assert Counter(item.profile for item in found.layout) == Counter({"3g.40gb": 2})


def test_an_instance_left_empty_by_a_crash_is_filled_not_made_anew() -> None:
    gpu = partition(slot("2g.20gb@2"))
    half = GPUInstance(id=1, profile="2g.20gb", start=2)
    gpu = Partition(**{**{f: getattr(gpu, f) for f in gpu.__dataclass_fields__}, "instances": (half,)})
    assert acts(change.plan_change(gpu, want("2g.20gb"))) == ["CREATE_COMPUTE 2g.20gb@2"]


def test_what_no_layout_holds_is_refused_with_what_would_fit() -> None:
    with pytest.raises(errors.Invalid, match=r"cannot hold 3 x 3g\.40gb") as caught:
        change.plan_change(partition(), want("3g.40gb", "3g.40gb", "3g.40gb"))
    assert "2 x 3g.40gb" in (caught.value.hint or "")


def test_unknown_profiles_are_named_with_those_offered() -> None:
    with pytest.raises(errors.Invalid, match=r'"2c\.1g\.10gb"') as caught:
        change.plan_change(partition(), want("2c.1g.10gb"))
    assert "7g.80gb" in (caught.value.hint or "")


@strategies.composite
def scenes(draw: strategies.DrawFn) -> tuple[Partition, wanted.WantedGPU]:
    names = sorted(SIZES)
    have = draw(strategies.lists(strategies.sampled_from(names), max_size=5))
    layout = packing.pack(H100, Counter(have)) or ()
    busy = tuple(item for item in layout if draw(strategies.booleans()))
    return partition(*layout, busy=busy), want(*draw(strategies.lists(strategies.sampled_from(names), max_size=5)))


@hypothesis.given(scenes())
@hypothesis.settings(deadline=None, max_examples=100)
def test_steps_lead_to_the_wanted_devices_and_never_end_what_is_in_use(
    scene: tuple[Partition, wanted.WantedGPU],
) -> None:
    gpu, aim = scene
    try:
        found = change.plan_change(gpu, aim)
    except (errors.Conflict, errors.Invalid):
        return
    standing = {item.slot: [one.slices for one in item.computes] for item in gpu.instances}
    taken = packing.occupied(H100, standing)
    for step in found.steps:
        assert step.slot is not None
        if step.act is change.Act.DESTROY_COMPUTE:
            standing[step.slot].remove(step.slices)
            assert not next(one for one in gpu.instances if one.slot == step.slot).computes[0].is_busy
        elif step.act is change.Act.DESTROY_INSTANCE:
            assert standing.pop(step.slot) == []
            taken = packing.occupied(H100, standing)
        elif step.act is change.Act.CREATE_INSTANCE:
            assert not taken & packing.occupied(H100, [step.slot])
            standing[step.slot] = []
            taken = packing.occupied(H100, standing)
        else:
            standing[step.slot].append(step.slices)
    assert Counter(item.profile for item in standing) == +Counter(aim.devices)
    assert all(slices == [SIZES[item.profile]] for item, slices in standing.items())
    assert 0 <= found.fragmentation <= 1
