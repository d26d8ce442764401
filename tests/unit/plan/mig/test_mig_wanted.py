"""Named configurations: whose GPUs they speak for, what is refused, what is generated for a node without a file."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import ComputeInstance, GPUInstance, Partition
from fairlead.plan.mig import table, wanted
from fairlead.wire.nvidia import migparted


def gpu(index: int, model: str = "h100-80", **facts: object) -> Partition:
    found = table.MODELS.get(model)
    return Partition(
        gpu=GPUUUID(f"GPU-{index}"),
        index=index,
        name=found.title if found else "Tesla T4",
        pci_bus_id=f"0000:{index:02x}:00.0",
        device_filter=f"0x{found.device_ids[0] if found else 0x1EB8:04X}10DE",
        profiles=found.profiles if found else (),
        **facts,  # type: ignore[arg-type]  # any field of the value
    )


def config(*entries: migparted.Entry) -> migparted.Config:
    return migparted.Config(configs={"c": entries})


def test_entries_choose_by_model_and_index() -> None:
    file = config(
        migparted.Entry(filters=("0x233010DE",), is_enabled=True, devices={"3g.40gb": 2}),
        migparted.Entry(filters=("0x20B010DE",), indexes=(1,), is_enabled=False),
    )
    found = wanted.plan_wanted("c", file, [gpu(0), gpu(1, "a100-40"), gpu(2, "a100-40")])
    assert found == {
        "GPU-0": wanted.WantedGPU(is_enabled=True, devices={"3g.40gb": 2}),
        "GPU-1": wanted.WantedGPU(is_enabled=False),
    }


@pytest.mark.parametrize(
    ("name", "entries", "reason"),
    [
        ("d", (), "MIGConfigUnknown"),
        (
            "c",
            (migparted.Entry(is_enabled=True), migparted.Entry(indexes=(0,), is_enabled=False)),
            "MIGConfigAmbiguous",
        ),
        ("c", (migparted.Entry(indexes=(7,), is_enabled=False),), "MIGDeviceUnknown"),
        ("c", (migparted.Entry(indexes=(1,), is_enabled=True),), "MIGNotSupported"),
        ("c", (migparted.Entry(indexes=(0,), is_enabled=True, devices={"9g.1gb": 1}),), "MIGProfileUnknown"),
    ],
)
def test_what_a_machine_cannot_be_is_refused(name: str, entries: tuple[migparted.Entry, ...], reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        wanted.plan_wanted(name, config(*entries), [gpu(0), gpu(1, "t4")])
    assert caught.value.reason == reason


def test_a_gpu_without_mig_may_be_disabled() -> None:
    found = wanted.plan_wanted("c", config(migparted.Entry(is_enabled=False)), [gpu(0), gpu(1, "t4")])
    assert wanted.differences([gpu(0), gpu(1, "t4")], found) == []


@pytest.mark.parametrize("model", sorted(name for name, one in table.MODELS.items() if one.device_ids))
def test_generated_configurations_suit_every_model(model: str) -> None:
    gpus = [gpu(0, model), gpu(1, model)]
    file = wanted.generate(gpus)
    assert {"all-disabled", "all-enabled"} <= file.configs.keys()
    for profile in table.MODELS[model].profiles:
        assert f"all-{profile.name.replace('+', '.')}" in file.configs
    for name in file.configs:
        assert wanted.plan_wanted(name, file, gpus).keys() == {"GPU-0", "GPU-1"}


def test_balanced_is_one_of_each_size() -> None:
    file = wanted.generate([gpu(0), gpu(1, "a30-24")])
    found = wanted.plan_wanted("all-balanced", file, [gpu(0), gpu(1, "a30-24")])
    assert found[GPUUUID("GPU-0")].devices == {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    assert found[GPUUUID("GPU-1")].devices == {"1g.6gb": 2, "2g.12gb": 1}


def test_what_is_exported_is_what_stands_and_asserts_clean() -> None:
    computes = (ComputeInstance(id=0, slices=3, uuid=MIGUUID("MIG-1")),)
    standing = gpu(
        1,
        is_enabled=True,
        is_pending=True,
        instances=(GPUInstance(id=1, profile="3g.40gb", start=4, computes=computes),),
    )
    file = wanted.export([gpu(0), standing], "now")
    found = wanted.plan_wanted("now", file, [gpu(0), standing])
    assert wanted.differences([gpu(0), standing], found) == []
    moved = dataclasses.replace(standing, instances=())
    assert wanted.differences([gpu(0), moved], found) == ["GPU 1: has no MIG devices, should have 1 x 3g.40gb"]
    assert wanted.differences([gpu(0), moved], found, mode_only=True) == []


@pytest.mark.parametrize(
    ("facts", "should", "said"),
    [
        ({"problem": "fell off the bus"}, True, "GPU 0 does not answer: fell off the bus"),
        ({}, True, "GPU 0: MIG is off, should be on"),
        ({"is_enabled": True, "is_pending": True}, False, "GPU 0: MIG is on, should be off"),
        ({"is_enabled": True}, True, "GPU 0: MIG becomes off at the next reset"),
    ],
)
def test_each_difference_is_said_in_a_line(facts: dict[str, object], should: bool, said: str) -> None:
    goals = {GPUUUID("GPU-0"): wanted.WantedGPU(is_enabled=should)}
    found = dataclasses.replace(gpu(0), **facts)  # type: ignore[arg-type]  # any field of the value
    assert wanted.differences([found, gpu(1)], goals) == [said]


def test_a_goal_for_the_mode_alone_keeps_the_devices_that_stand() -> None:
    computes = (ComputeInstance(id=0, slices=3, uuid=MIGUUID("MIG-1")),)
    standing = gpu(0, is_enabled=True, instances=(GPUInstance(id=1, profile="3g.40gb", start=4, computes=computes),))
    uuid = GPUUUID("GPU-0")
    on, off = (wanted.WantedGPU(is_enabled=state, devices={"1g.10gb": 1}) for state in (True, False))
    assert wanted.modes_only([standing], {uuid: on})[uuid].devices == {"3g.40gb": 1}
    assert wanted.modes_only([standing], {uuid: off})[uuid].devices == {}


def test_rtx_pro_6000_has_the_drivers_profiles_and_numbers() -> None:
    """As `nvidia-smi mig -lgip` lists them."""
    found = {one.name: (one.id, one.limit, one.takes_media) for one in table.MODELS["rtxpro6000-96"].profiles}
    assert found == {
        "1g.24gb": (14, 4, False),
        "1g.24gb+me": (21, 1, True),
        "1g.24gb+gfx": (47, 4, False),
        "1g.24gb+me.all": (65, 1, True),
        "1g.24gb-me": (67, 4, False),
        "2g.48gb": (5, 2, False),
        "2g.48gb+gfx": (35, 2, False),
        "2g.48gb+me.all": (64, 1, True),
        "2g.48gb-me": (66, 2, False),
        "4g.96gb": (0, 1, False),
        "4g.96gb+gfx": (32, 1, False),
    }


@pytest.mark.parametrize(
    ("device", "model"), [(0x2348, "gh200-144"), (0x2342, "gh200-96"), (0x233D, "h100-96"), (0x2BB1, "rtxpro6000-96")]
)
def test_each_board_that_has_mig_is_known_by_its_id(device: int, model: str) -> None:
    assert table.find_model(device) is table.MODELS[model]
    every = [number for one in table.MODELS.values() for number in one.device_ids]
    assert len(every) == len(set(every))
    assert all(one.device_ids for one in table.MODELS.values())


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((migparted.Entry(filters=("0x2BB410DE",), is_enabled=True, devices={"1g.24gb": 4}),), "0x2BB410DE"),
        ((), "it has no entries"),
        ((migparted.Entry(indexes=(), is_enabled=False),), "its lists of devices are empty"),
    ],
)
def test_a_configuration_that_concerns_no_gpu_here_is_not_a_success(
    entries: tuple[migparted.Entry, ...], words: str
) -> None:
    with pytest.raises(errors.Invalid, match=words) as caught:
        wanted.plan_wanted("c", config(*entries), [gpu(0)])
    assert caught.value.reason == "MIGConfigConcernsNone"
    assert "0x233010DE" in (caught.value.hint or "")
    beside = (*entries, migparted.Entry(filters=("0x233010DE",), is_enabled=False))
    assert wanted.plan_wanted("c", config(*beside), [gpu(0)]).keys() == {"GPU-0"}
    assert wanted.plan_wanted("c", config(*entries), []) == {}
