"""Which slots cannot be given away because of others, and of a fabric whose state is not known."""

from __future__ import annotations

import dataclasses

from fairlead.plan.lease import overlap
from fairlead.plan.lease.row import Claim, Row, State
from fairlead.plan.vfio import slot
from tests.unit.node.fabric.fabricnode import MODULES, gpu

SETS = ((1, 2, 3, 4), (1, 3), (2, 4))
SLOTS = slot.Naming().slots([gpu(module) for module in MODULES], SETS)
FREE = {f"pcie-{module}": Row(key=f"pcie-{module}", state=State.FREE) for module in MODULES}


def held(name: str, *modules: int, pod: str = "a") -> dict[str, Row]:
    resource = f"nvidia.com/h100-{name.partition('-')[0]}"
    claim = Claim(device=name, resource=resource, namespace="team", pod=pod)
    return {f"pcie-{one}": Row(key=f"pcie-{one}", state=State.HELD, claims=(claim,)) for one in modules}


def test_while_all_is_free_nothing_overlaps() -> None:
    assert overlap.plan_overlaps(SLOTS, FREE) == {}


def test_the_own_slot_stays_healthy_and_every_other_one_with_its_gpus_names_who_has_it() -> None:
    found = overlap.plan_overlaps(SLOTS, FREE | held("x2-1.3", 1, 3))
    assert set(found) == {"x1-1", "x1-3", "x4-1.2.3.4"}
    assert found["x4-1.2.3.4"] == (overlap.HELD, "team/a has 0000:04:00.0 by x2-1.3")


def test_a_slot_of_several_waits_for_each_of_its_gpus_and_a_gpu_alone_for_none() -> None:
    dirty = {"pcie-4": Row(key="pcie-4", state=State.DIRTY)}
    found = overlap.plan_overlaps(SLOTS, FREE | dirty)
    assert {name: why[0] for name, why in found.items()} == {
        "x4-1.2.3.4": overlap.NOT_FREE,
        "x2-2.4": overlap.NOT_FREE,
    }
    assert "is dirty" in found["x2-2.4"][1]
    del dirty["pcie-4"]
    unseen = {key: row for key, row in FREE.items() if key != "pcie-2"}
    assert "not looked at yet" in overlap.plan_overlaps(SLOTS, unseen)["x2-2.4"][1]


def test_while_the_fabric_is_not_known_only_gpus_alone_and_held_slots_are_given() -> None:
    found = overlap.plan_overlaps(SLOTS, FREE | held("x2-1.3", 1, 3), unusable=("FabricUnknown", "no answer"))
    assert found["x2-2.4"] == ("FabricUnknown", "no answer")
    assert not {"x2-1.3", "x1-2", "x1-5"} & set(found)


def test_half_of_a_slot_is_not_the_slot() -> None:
    found = overlap.plan_overlaps(SLOTS, FREE | held("x2-1.3", 1))
    assert found["x2-1.3"][0] == overlap.HELD
    other = {key: dataclasses.replace(row, claims=()) for key, row in held("x2-1.3", 1).items()}
    assert overlap.plan_overlaps(SLOTS, FREE | other)["x1-1"] == (overlap.HELD, "a pod has 0000:04:00.0")


def test_a_machine_without_partitions_is_left_to_the_rows_of_its_gpus() -> None:
    assert overlap.plan_overlaps(slot.Naming().slots([gpu(1)]), held("x1-9", 1)) == {}


def test_a_held_slot_whose_nvlink_is_gone_is_unhealthy_and_no_other_for_that() -> None:
    found = overlap.plan_overlaps(SLOTS, FREE | held("x2-1.3", 1, 3), lost={"x2-1.3": "end its pod", "x2-2.4": "no"})
    assert found["x2-1.3"] == (overlap.LOST, "end its pod")
    assert "x2-2.4" not in found, "it is not held any more"
