"""Partitions follow the ledger: active before the CDI entry, inactive before the next tenant, and replayed."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from fairlead import errors, telemetry
from fairlead.model.driver import PassthroughGPU
from fairlead.model.ids import DeviceID
from fairlead.node.fabric import memory
from fairlead.plan.lease.row import State
from tests.unit.node.fabric.fabricnode import FabricNode, library


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


@pytest.fixture
def node(tmp_path: Path, stub: Path) -> Iterator[FabricNode]:
    made = FabricNode(folder=tmp_path, stub=stub)
    made.start_manager()
    yield made
    made.manager.stop()
    assert made.violations == []


async def ready(node: FabricNode) -> None:
    await node.until_known()
    await node.until_free()


async def test_a_slot_is_shown_once_its_partition_is_active_and_named_by_modules(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        node.manager.faults["slow"] = "0.1"
        before = time.time()
        await node.give("x2-1.3")
        assert not node.is_shown("x2-1.3"), "the Manager has not answered yet"
        await node.until(lambda: node.is_shown("x2-1.3"))
        at, took_s = node.keeper.activation("x2-1.3") or (0.0, 0.0)
        assert before + took_s <= at <= time.time()
        assert took_s >= 0.1
        assert node.keeper.activation("x2-2.4") is None
        assert node.manager.journal == ["activate 3"]
        assert [node.state(module) for module in (1, 3, 2)] == [State.HELD, State.HELD, State.FREE]
        assert node.start("x2-1.3")


async def test_a_slot_comes_back_when_its_machine_and_then_its_partition_are_gone(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x4-1.2.3.4")
        await node.until(lambda: node.is_shown("x4-1.2.3.4"))
        assert node.start("x4-1.2.3.4")
        node.listed.clear()
        await node.until(lambda: node.state(1) is State.RELEASING)
        assert not node.is_shown("x4-1.2.3.4")
        for module in (1, 2, 3):
            del node.openers[f"/dev/vfio/{module}"]
        await asyncio.sleep(0.1)
        assert node.manager.journal == ["activate 1"], "GPU 4 is still in the machine"
        assert node.state(1) is State.RELEASING
        del node.openers["/dev/vfio/4"]
        await node.until_free()
        assert node.manager.journal == ["activate 1", "deactivate 1"]


async def test_a_slot_whose_pod_has_ended_leaves_whole_when_one_of_its_gpus_is_asked_for(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x2-6.8")
        await node.until(lambda: node.is_shown("x2-6.8") and node.start("x2-6.8"))
        await node.until(lambda: all(one.pod for one in node.gate.rows.value["pcie-8"].claims))
        node.listed.clear()
        with pytest.raises(errors.FairleadError):
            await node.give("x1-8")
        assert (node.state(6), node.state(8)) == (State.RELEASING, State.RELEASING), "its entry names the nodes of both"
        assert not node.is_shown("x2-6.8")
        node.stop("x2-6.8")
        node.listed.clear()
        await node.until_free()


async def test_overlapping_slots_are_unhealthy_and_refused_and_the_own_one_stays(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        assert node.overlaps() == {}
        await node.give("x2-1.3", pod="landon")
        await node.until(lambda: node.is_shown("x2-1.3"))
        found = node.overlaps()
        assert {name for name in found if "SlotOverlapsHeld" in found[name][0]} == {
            "x1-1", "x1-3", "x4-1.2.3.4", "x8-1.2.3.4.5.6.7.8",
        }  # fmt: skip
        await node.until(lambda: "team/landon" in node.overlaps()["x4-1.2.3.4"][1])
        with pytest.raises(errors.Conflict):
            await node.give("x4-1.2.3.4")
        assert node.state(2) is State.FREE, "all of a slot, or none of it"
        await node.give("x2-2.4")
        await node.until(lambda: node.is_shown("x2-2.4"))


async def test_what_is_active_without_a_holder_is_switched_off_and_its_gpus_wait(node: FabricNode) -> None:
    node.manager.answer(3, 5, b"")  # somebody has activated it by hand
    async with node.agent():
        await node.until(lambda: "deactivate 5" in node.manager.journal)
        await ready(node)
    assert node.active == []


async def test_a_lost_manager_stops_slots_of_several_names_their_tenants_and_no_gpu_alone(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3", pod="landon")
        await node.until(lambda: node.is_shown("x2-1.3"))
        await node.until(lambda: any(claim.pod for claim in node.gate.rows.value["pcie-1"].claims))
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        assert "team/landon (x2-1.3)" in node.keeper.problem
        assert node.is_shown("x2-1.3"), "a machine that runs keeps its NVLink, and may be started again"
        assert node.overlaps()["x4-5.6.7.8"][0] == "FabricUnknown"
        assert "x1-5" not in node.overlaps()
        assert "x2-1.3" not in node.overlaps()
        with pytest.raises(errors.Unavailable) as caught:
            await node.give("x4-5.6.7.8")
        assert caught.value.reason == "FabricUnknown"
        await node.give("x1-5")
        await node.until(lambda: node.is_shown("x1-5"))
        del node.listed["x2-1.3"]
        await node.until(lambda: node.state(1) is State.RELEASING)
        await asyncio.sleep(0.1)
        assert node.state(1) is State.RELEASING, "its partition may still be active"
        node.start_manager()
        await node.until_free(1, 3)
        await node.until(lambda: node.manager.active == {11})


async def test_a_manager_that_begins_anew_is_given_the_list_before_it_ends_itself(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        for name in ("x2-1.3", "x4-5.6.7.8"):
            await node.give(name)
            await node.until(lambda name=name: node.is_shown(name))  # type: ignore[misc]
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager(is_restarted=True, abort_s=5)
        await node.until_known()
        assert node.manager.journal == ["set [2, 3]"]
        assert node.manager.active == {2, 3}
        assert node.is_shown("x2-1.3")


async def test_an_agent_that_begins_while_the_manager_waits_gives_the_list_too(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3")
        await node.until(lambda: node.is_shown("x2-1.3"))
    node.manager.stop()
    node.start_manager(is_restarted=True, abort_s=5)
    async with node.agent():
        await node.until_known()
        assert node.manager.journal == ["set [3]"]
        assert node.state(1) is State.HELD


async def test_after_a_reboot_nothing_is_replayed_and_the_held_slot_gets_its_partition_again(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3")
        await node.until(lambda: node.is_shown("x2-1.3"))
    node.manager.stop()
    (node.folder / "switches").unlink()
    node.start_manager()
    node.boot = "boot-2"
    async with node.agent():
        await node.until(lambda: node.manager.journal == ["activate 3"])
        await node.until(lambda: node.is_shown("x2-1.3"))


async def test_broken_links_keep_the_gpus_of_the_partition_back(node: FabricNode) -> None:
    node.manager.faults["activate fails"] = "-26"
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3")
        await node.until(lambda: node.gate.rows.value["pcie-3"].is_condemned)
        assert "INSUFFICIENT_TRUNKS" in node.gate.rows.value["pcie-1"].message
        assert not node.is_shown("x2-1.3")
        node.listed.clear()
        await node.until(lambda: node.state(1) is State.QUARANTINED and node.state(3) is State.QUARANTINED)


async def test_a_manager_that_hangs_holds_up_neither_ledger_nor_gpus_alone(node: FabricNode) -> None:
    node.timeout_s = 0.1
    async with node.agent():
        await ready(node)
        node.manager.faults["slow"] = "0.6"
        await node.until(lambda: node.keeper.problem)
        began = asyncio.get_running_loop().time()
        await node.give("x1-5")
        assert asyncio.get_running_loop().time() - began < 0.5
        await node.until(lambda: node.is_shown("x1-5"))
        node.manager.faults.clear()
        await node.until_known()


async def test_an_answer_that_was_lost_is_asked_for_again(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        node.manager.faults["answer lost"] = ""
        await node.give("x2-1.3")
        await node.until(lambda: node.keeper.problem)
        assert not node.is_shown("x2-1.3")
        node.start_manager()
        await node.until(lambda: node.is_shown("x2-1.3"))
        assert node.manager.active == {3}


async def test_without_a_memory_no_gpu_is_cleaned_before_the_manager_was_asked(node: FabricNode) -> None:
    node.manager.stop()
    async with node.agent():
        await node.until(lambda: node.gate.problems.value)
        await asyncio.sleep(0.1)
        assert {node.state(module) for module in range(1, 9)} <= {None, State.UNKNOWN}
        assert "none was ever listed here" in node.gate.problems.value["pcie-1"][1]
        node.start_manager()
        await ready(node)
    node.manager.stop()
    async with node.agent():
        await node.until_free()
        await node.give("x1-2")
        await node.until(lambda: node.is_shown("x1-2"))
    node.start_manager()


def cards(node: FabricNode) -> tuple[PassthroughGPU, ...]:
    """Return GPUs that can be no modules, as a node of the same pool has them."""
    return tuple(dataclasses.replace(one, module=None, is_card=True) for one in node.gpus[:2])


class Lines:
    """What is logged, at whatever level."""

    def __init__(self) -> None:
        self.events = list[str]()

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return lambda event, **_: self.events.append(event)


async def test_a_node_whose_gpus_can_have_no_fabric_asks_no_manager_and_gives_them_away(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are those of the pool: no Manager answers, and nothing waits for one."""
    node.manager.stop()
    board, node.gpus = node.gpus, cards(node)
    first, second = (str(one.key) for one in node.gpus)
    lines = Lines()
    monkeypatch.setattr(telemetry, "log", lines)
    async with node.agent():
        await node.until(lambda: all(node.row(key) is State.FREE for key in (first, second)))
        await node.give(f"x1-{first}")
        await node.until(lambda: node.is_shown(f"x1-{first}"))
        await node.until(lambda: node.gate.rows.value[first].claims[0].is_seen)
        node.listed.clear()
        await node.until(lambda: node.row(first) is State.FREE)
        assert "(GH100 [H100]): node.fabric=on does nothing" in node.keeper.problem
        assert node.keeper.version.value == ""
    assert [one for one in lines.events if one.startswith("fabric")] == ["fabric not used"]
    assert node.manager.journal == []
    node.gpus = board
    node.start_manager()


async def test_one_gpu_that_may_be_a_module_has_the_manager_asked_from_then_on(node: FabricNode) -> None:
    board, node.gpus = node.gpus, cards(node)
    async with node.agent():
        await node.until(lambda: node.keeper.problem.endswith("does nothing"))
        node.gpus = board
        node.gate.update(node.snapshot)
        await ready(node)
        node.gpus = cards(node)
        node.gate.update(node.snapshot)
        node.manager.stop()
        await node.until(lambda: "state is not known" in node.keeper.problem, "it is asked still")
    node.gpus = board
    node.start_manager()


async def test_what_a_manager_ever_listed_here_has_it_asked_whatever_the_gpus_are(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
    node.manager.stop()
    board, node.gpus = node.gpus, cards(node)
    async with node.agent():
        await node.until(lambda: "state is not known" in node.keeper.problem)
        assert not node.keeper.problem.endswith("does nothing")
    node.gpus = board
    node.start_manager()


def test_what_is_remembered_is_of_one_boot_and_damage_is_set_aside(tmp_path: Path) -> None:
    made = memory.FabricMemory(tmp_path, "b1")
    made.note({3, 1}, {2})
    again = memory.FabricMemory(tmp_path, "b1")
    assert (again.active, again.doubtful) == (frozenset({1, 3}), frozenset({2}))
    other = memory.FabricMemory(tmp_path, "b2")
    assert (other.active, other.doubtful) == (frozenset(), frozenset())
    for damage in (b"{", b'{"partitions": {"1": [99]}}', b'{"surprise": 1}', b"\xff"):
        (tmp_path / memory.FILE).write_bytes(damage)
        assert memory.FabricMemory(tmp_path, "b1").active == frozenset()
        assert not (tmp_path / memory.FILE).exists()


async def test_what_is_preferred_is_what_is_broken_already(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        ones = [DeviceID(f"x1-{module}") for module in range(2, 9)]
        await node.give("x1-1")
        prefer = node.keeper.prefer
        assert prefer(ones, (), 1) == ("x1-3",)
        assert prefer(ones, (DeviceID("x1-5"),), 2) == ("x1-5", "x1-3")
        assert prefer([DeviceID("x2-2.4"), DeviceID("x2-5.7")], (), 1) == ("x2-2.4",)
        assert prefer([DeviceID("x4-1.2.3.4")], (), 1) == (), "GPU 1 is held: the kubelet's count is behind"
        assert prefer([DeviceID("other")], (), 1) == ()


async def test_a_slot_that_came_back_while_its_activation_was_noted_is_not_activated(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        kept = node.keeper._memory
        note, noted, written = kept.note, threading.Event(), threading.Event()

        def slowly(active: Collection[int], doubtful: Collection[int] = ()) -> None:
            if 3 in doubtful:
                noted.wait(10)
            note(active, doubtful)
            written.set()

        kept.note = slowly  # type: ignore[method-assign]  # a disk that is slow
        await node.give("x2-1.3")
        await node.until(lambda: all(claim.pod for claim in node.gate.rows.value["pcie-3"].claims))
        node.listed.clear()
        await node.until_free()
        written.clear()
        noted.set()
        await node.until(written.is_set)
        await node.until(lambda: not kept.doubtful)
        assert node.manager.journal == []


async def test_what_a_manager_lists_before_it_is_ready_for_the_list_is_not_believed(node: FabricNode) -> None:
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3")
        await node.until(lambda: node.is_shown("x2-1.3"))
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager(is_restarted=True, abort_s=10).faults["set fails"] = "-22"
        await node.until(lambda: "still starting" in node.keeper.problem)
        await asyncio.sleep(0.2)
        assert node.keeper.active == {3}, "its switches are as they were"
        node.manager.faults.clear()
        await node.until_known()
        assert node.manager.journal == ["set [3]"]
