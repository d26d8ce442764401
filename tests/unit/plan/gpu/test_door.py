"""By which door each GPU is given away: one at a time, and kept while somebody has the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import door
from fairlead.wire.nvidia.pluginconfig import DeviceChoice

GPUS = tuple(
    GPU(uuid=GPUUUID(f"GPU-{i}"), index=i, minor=i, pci_bus_id=f"0000:0{i}:00.0", name="X", memory_bytes=1)
    for i in range(4)
)


def plan(
    wanted: DeviceChoice | str,
    *,
    before: Collection[int] = (),
    held: Mapping[int, str] | None = None,
    allocated: Collection[int] | None = None,
) -> tuple[set[int], set[int], set[int]]:
    """Return the numbers of the GPUs that are claimed, leaving and awaited."""
    facts = door.Facts(
        held={GPUS[number].uuid: which for number, which in (held or {}).items()},
        allocated=None if allocated is None else {GPUS[number].uuid for number in allocated},
    )
    doors = door.plan_doors(GPUS, wanted, facts, {GPUS[number].uuid for number in before})
    claimed, leaving, awaited = (
        {gpu.index for gpu in GPUS if gpu.uuid in part} for part in (doors.claimed, doors.leaving, doors.awaited)
    )
    return claimed, leaving, awaited


@pytest.mark.parametrize(
    ("wanted", "claimed"),
    [
        ("plugin", set()),
        ("claims", {0, 1, 2, 3}),
        (DeviceChoice(), {0, 1, 2, 3}),
        (DeviceChoice(count=2), {0, 1}),
        (DeviceChoice(names=("3", "GPU-1", "GPU-9")), {1, 3}),
    ],
)
def test_free_gpus_go_where_they_are_wanted(wanted: DeviceChoice | str, claimed: set[int]) -> None:
    assert plan(wanted) == (claimed, set(), set())


def test_a_gpu_in_somebodys_hands_keeps_its_door() -> None:
    assert plan("claims", held={0: "plugin", 1: "claims"}) == ({1, 2, 3}, set(), {0})
    assert plan("plugin", before={1, 2}, held={0: "plugin", 1: "claims"}, allocated=()) == ({1}, {1}, set())


def test_a_gpu_leaves_the_claims_once_the_api_server_has_it_allocated_to_none() -> None:
    assert plan("plugin", before={0, 1}) == ({0, 1}, {0, 1}, set())  # it has not said yet
    assert plan("plugin", before={0, 1}, allocated={1}) == ({1}, {1}, set())
    assert plan("plugin", before={0, 1}, allocated=()) == (set(), set(), set())


def _passed(number: int, vendor: Vendor = Vendor.NVIDIA) -> PassthroughGPU:
    return PassthroughGPU(key=GPUUUID(f"pcie-{number}"), vendor=vendor, address=f"0000:8{number}:00.0")


@pytest.mark.parametrize(
    ("wanted", "claimed"),
    [
        ("plugin", set()),
        ("claims", {*(one.uuid for one in GPUS), "pcie-0", "pcie-1"}),
        (DeviceChoice(count=5), {*(one.uuid for one in GPUS), "pcie-0"}),
        (DeviceChoice(names=("0000:81:00.0", "0")), {"GPU-0", "pcie-1"}),
        (DeviceChoice(names=("pcie-0",)), {"pcie-0"}),
    ],
)
def test_gpus_that_are_passed_through_have_a_door_too(wanted: DeviceChoice | str, claimed: set[str]) -> None:
    passed = (_passed(0), _passed(1), _passed(2, Vendor.AMD))
    assert door.plan_doors(GPUS, wanted, door.Facts(), (), passed).claimed == claimed


def test_a_gpu_that_a_machine_has_keeps_its_door() -> None:
    facts = door.Facts(held={_passed(0).key: "plugin", _passed(1).key: "claims"})
    doors = door.plan_doors((), "claims", facts, (), (_passed(0), _passed(1)))
    assert (set(doors.claimed), set(doors.awaited)) == ({_passed(1).key}, {_passed(0).key})
    doors = door.plan_doors((), "plugin", facts, {_passed(1).key}, (_passed(0), _passed(1)))
    assert (set(doors.claimed), set(doors.leaving)) == ({_passed(1).key}, {_passed(1).key})


def test_only_nvidias_gpus_have_a_choice() -> None:
    other = dataclasses.replace(GPUS[0], vendor=Vendor.AMD)
    assert door.plan_doors((other, GPUS[1]), "claims", door.Facts(), ()).claimed == {GPUS[1].uuid}


@given(
    st.sampled_from(["plugin", "claims"]),
    st.sets(st.integers(0, 3)),
    st.dictionaries(st.integers(0, 3), st.sampled_from(["plugin", "claims"])),
    st.none() | st.sets(st.integers(0, 3)),
)
def test_what_one_door_gave_is_never_at_the_other(
    wanted: str, before: set[int], held: dict[int, str], allocated: set[int] | None
) -> None:
    claimed, leaving, awaited = plan(wanted, before=before, held=held, allocated=allocated)
    assert all((number in claimed) is (which == "claims") for number, which in held.items())
    assert leaving <= claimed
    assert not awaited & claimed
