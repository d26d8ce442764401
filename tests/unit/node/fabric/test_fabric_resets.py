"""GPUs of NVLink 5 are reset after the Manager began, and another Service VM has nothing active."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.fabric import ManagerIdentity
from fairlead.node.fabric import caller, keeper, memory, resets
from fairlead.plan.lease import overlap
from fairlead.plan.lease.row import State
from fairlead.silicon.fabric import agentclient, connection
from fairlead.silicon.fabric.agentserver import Whereabouts
from fairlead.silicon.fabric.reached import Reached
from tests.fabricstub.lattice import B200
from tests.unit.node.fabric import test_fabric_killed
from tests.unit.node.fabric.fabricnode import MODULES, FabricNode, gpu, library

Make = Callable[..., FabricNode]


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


@pytest.fixture
def make(tmp_path: Path, stub: Path) -> Iterator[Make]:
    made = list[FabricNode]()

    def one(**options: object) -> FabricNode:
        node = FabricNode(folder=tmp_path, stub=stub, **options)  # type: ignore[arg-type]  # its own
        node.start_manager()
        made.append(node)
        return node

    yield one
    for node in made:
        node.manager.stop()
        if node.beside is not None:
            node.beside.close()
        assert node.violations == []


class Service:
    """The machine that a Manager runs in, as the agent beside it tells it."""

    def __init__(self) -> None:
        self.boot, self.version = "a1", ""

    @property
    def whereabouts(self) -> Whereabouts:
        return Whereabouts(machine=lambda: self.boot, version=lambda: self.version)


async def ready(node: FabricNode) -> None:
    await node.until_known()
    await node.until_free()


async def fresh(node: FabricNode) -> None:
    """Wait until every GPU was reset since the Manager began, and is free."""
    await node.until_known()
    await node.until(lambda: not node.keeper.resets.due_modules)
    await node.until_free()


async def test_every_gpu_of_nvlink_5_is_reset_after_the_manager_began_and_before_an_activation(make: Make) -> None:
    node = make(lattice=B200, is_nvlink5=True)
    node.manager.faults["not ready"] = ""
    async with node.agent():
        await node.until(lambda: node.keeper.problem.startswith("the Fabric Manager's state is not known"))
        assert node.resets == [], "what a reset does not outlast is done after the Manager began"
        node.manager.faults.clear()
        await fresh(node)
        assert Counter(node.resets) == Counter(MODULES)
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager()
        await fresh(node)
        assert Counter(node.resets) == Counter(2 * MODULES)
        await node.give("x2-1.2")
        await node.until(lambda: node.is_shown("x2-1.2"))
        assert node.manager.journal[-1] == "activate 4"


async def test_gpus_of_earlier_nvlinks_are_not_reset_for_a_manager(make: Make) -> None:
    node = make()
    async with node.agent():
        await ready(node)
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager(is_restarted=True)
        await ready(node)
        assert Counter(node.resets) == Counter(MODULES)


async def test_one_that_a_tenant_has_is_reset_at_its_return_and_no_activation_has_it_before(make: Make) -> None:
    node = make(lattice=B200, is_nvlink5=True)
    async with node.agent():
        await fresh(node)
        await node.give("x1-1", pod="single")
        await node.give("x2-3.4", pod="pair")
        await node.until(lambda: node.is_shown("x2-3.4") and node.is_shown("x1-1"))
        assert node.start("x2-3.4")
        held = Counter(node.resets)
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager()  # it kept no list, and its switches are as they were
        await node.until_known()
        await node.until_free(2, 5, 6, 7, 8)
        await node.until(lambda: set(node.keeper.resets.due_modules) == {1, 3, 4})
        assert Counter(node.resets) - held == Counter([2, 5, 6, 7, 8])
        assert node.is_shown("x1-1"), "a GPU alone needs no NVLink"
        assert "activate 5" not in node.manager.journal
        node.stop("x2-3.4")
        node.listed.clear()
        await fresh(node)
        assert Counter(node.resets) - held == Counter(MODULES)


async def test_a_slot_that_was_given_before_the_new_manager_was_seen_waits_with_the_reason(make: Make) -> None:
    node = make(lattice=B200, is_nvlink5=True)
    async with node.agent():
        await fresh(node)
        before = len(node.manager.journal)
        seen, asked = asyncio.Event(), asyncio.Event()

        async def late(*, is_fresh: bool) -> ManagerIdentity:
            asked.set()
            await seen.wait()
            return ManagerIdentity(start="another")

        node.keeper._caller.identify = late  # type: ignore[method-assign]  # it began, and nobody has looked yet
        await asked.wait()
        await node.give("x2-1.2")
        seen.set()
        await node.until(lambda: node.keeper.waiting)
        assert "not reset since the Fabric Manager began" in node.keeper.waiting[4]
        assert not node.is_shown("x2-1.2")
        assert node.manager.journal[before:] == []
        await node.until(lambda: all(claim.pod for claim in node.gate.rows.value["pcie-1"].claims))
        node.listed.clear()
        await fresh(node)
        await node.give("x2-1.2")
        await node.until(lambda: node.is_shown("x2-1.2"))


@pytest.mark.parametrize("what", ["lost", "lost and found", "another", "nothing"])
async def test_a_reset_counts_only_while_one_manager_is_there(tmp_path: Path, what: str) -> None:
    kept, one = memory.FabricMemory(tmp_path, "b1"), gpu(1, is_nvlink5=True)
    known = resets.Resets(kept, lambda: [one])
    await known.meet("first")

    async def reset(_: object) -> None:
        if what != "nothing":
            known.lose()
        if what in {"lost and found", "another"}:
            await known.meet("first" if what == "lost and found" else "second")

    await known.counting(reset)(one)
    await known.meet(kept.start)
    assert known.is_due(str(one.key)) is (what != "nothing")


async def test_an_agent_that_begins_again_beside_the_same_manager_resets_nothing(make: Make) -> None:
    service = Service()
    node = make(lattice=B200, is_nvlink5=True, service=service.whereabouts)
    async with node.agent():
        await fresh(node)
        await node.give("x2-1.2")
        await node.until(lambda: node.is_shown("x2-1.2"))
        before = len(node.resets)
    async with node.agent():
        await node.until_known()
        await node.until(lambda: node.is_shown("x2-1.2"))
        await node.until_free(3, 4, 5, 6, 7, 8)
        assert len(node.resets) == before
    node.manager.stop()
    node.start_manager()
    async with node.agent():
        await node.until_known()
        await node.until(lambda: set(node.keeper.resets.due_modules) == {1, 2})
        assert len(node.resets) == before + 6


@pytest.mark.parametrize("is_behind_agent", [False, True])
async def test_a_manager_that_was_only_reached_anew_resets_no_gpu_and_switches_nothing(
    make: Make, is_behind_agent: bool
) -> None:
    node = make(lattice=B200, is_nvlink5=True, service=Service().whereabouts if is_behind_agent else None)
    async with node.agent():
        await fresh(node)
        await node.give("x2-1.2")
        await node.until(lambda: node.is_shown("x2-1.2"))
        start, resets_before, done = node.keeper._memory.start, list(node.resets), list(node.manager.journal)
        for _ in range(3):
            node.manager.hang_up()
            await node.until(lambda: node.keeper.problem)
            await node.until_known()
        assert node.keeper._memory.start == start
        assert node.keeper.resets.due_modules == {}
        assert (node.resets, node.manager.journal) == (resets_before, done)
        assert node.is_shown("x2-1.2")
    async with node.agent():  # another agent's first connection is no start either
        await node.until_known()
        await node.until_free(3, 4, 5, 6, 7, 8)
        assert (node.resets, node.manager.journal) == (resets_before, done)
    node.manager.stop()
    node.start_manager()
    async with node.agent():
        await node.until_known()
        await node.until(lambda: set(node.keeper.resets.due_modules) == {1, 2})
        assert len(node.resets) == len(resets_before) + 6, "one that began anew is seen as such"


async def test_another_service_vm_has_nothing_active_and_its_slots_are_lost_until_their_pods_end(make: Make) -> None:
    service = Service()
    node = make(service=service.whereabouts)
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3", pod="landon")
        await node.until(lambda: node.is_shown("x2-1.3"))
        assert node.start("x2-1.3")
        await node.until(lambda: any(claim.pod for claim in node.gate.rows.value["pcie-1"].claims))
        assert "x2-1.3" not in node.overlaps()
        node.manager.stop()
        service.boot = "b2"
        (node.folder / "switches").unlink()  # a machine that starts resets the switches that it gets
        node.start_manager(is_restarted=True, abort_s=10)
        await node.until(lambda: node.overlaps().get("x2-1.3", ("",))[0] == overlap.LOST)
        await node.until_known()
        await node.until(lambda: node.manager.journal)
        assert node.manager.journal[0] == "set []", "it believes nothing to be active that its switches lost"
        await node.until(lambda: node.active == [3])
        assert node.overlaps()["x2-1.3"][0] == overlap.LOST, "the machine that runs has no NVLink all the same"
        assert "end its pod" in node.overlaps()["x2-1.3"][1]
    before, node.gpus = node.gpus, ()  # the next agent has not scanned them yet
    async with node.agent():
        await node.until_known()
        await asyncio.sleep(0.2)
        node.gpus = before
        node.keeper.offered()
        await node.until(lambda: node.overlaps().get("x2-1.3", ("",))[0] == overlap.LOST)
        node.stop("x2-1.3")
        node.listed.clear()
        await node.until_free()
        await node.until(lambda: not node.keeper.lost_slots())
        await node.give("x2-1.3")
        await node.until(lambda: node.is_shown("x2-1.3"))
        assert "x2-1.3" not in node.overlaps()
    assert not node.manager.has_aborted


async def test_a_manager_that_was_started_again_in_its_machine_keeps_what_is_active(make: Make) -> None:
    service = Service()
    node = make(service=service.whereabouts)
    async with node.agent():
        await ready(node)
        await node.give("x2-1.3")
        await node.until(lambda: node.is_shown("x2-1.3"))
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        node.start_manager(is_restarted=True, abort_s=10)
        await node.until_known()
        assert node.manager.journal == ["set [3]"]
        assert not node.keeper.lost_slots()
    kept = memory.FabricMemory(node.folder / "agent", node.boot)
    assert (kept.machine, set(kept.lost), set(kept.active)) == ("a1", set(), {3})


async def test_a_slot_of_several_is_refused_while_manager_and_guests_differ_with_both_versions(make: Make) -> None:
    service = Service()
    service.version = "580.95.05"
    node = make(service=service.whereabouts, versions=keeper.Versions(manager="1.2", guests="570.10"))
    async with node.agent():
        await node.until(lambda: node.keeper.mismatch.value)
        await node.until_free()
        reason, message = node.overlaps()["x4-1.2.3.4"]
        assert reason == keeper.MISMATCH
        assert "580.95.05" in message
        assert "570.10" in message
        assert "fabric.guest_driver" in message
        assert node.keeper.version.value == "580.95.05"
        with pytest.raises(errors.Unavailable) as caught:
            await node.give("x4-1.2.3.4")
        assert caught.value.reason == keeper.MISMATCH
        await node.give("x1-1")
        service.version = "570.10"
        await node.until(lambda: not node.keeper.mismatch.value)
        await node.give("x2-2.4")
        await node.until(lambda: node.is_shown("x2-2.4"))


@pytest.mark.parametrize(
    ("manager", "guests", "fits"),
    [("", "", True), ("580.1", "", True), ("", "580.1", True), ("580.1", "580.1", True), ("580.1", "580.2", False)],
)
async def test_versions_are_compared_where_both_are_known(make: Make, manager: str, guests: str, fits: bool) -> None:
    node = make(versions=keeper.Versions(manager=manager, guests=guests))
    async with node.agent():
        await node.until_known()
        assert (not node.keeper.mismatch.value) is fits
        assert node.keeper.version.value == manager


async def test_an_agent_of_an_earlier_version_is_asked_three_times_and_then_each_connection_is_a_start() -> None:
    asked = list[str]()

    class Old:
        def identify(self) -> None:
            asked.append("identify")
            raise errors.Unavailable("it ended the connection", reason=agentclient.LOST, code=-9)

        def list_partitions(self) -> tuple[()]:
            return ()

        def close(self) -> None:
            pass

    line = connection.Connection("old", Old)  # type: ignore[arg-type]  # half a Manager
    one = caller.Caller(Reached(name="old", is_agent=True, connection=line, timeout_s=5))
    for _ in range(3):
        with pytest.raises(errors.Unavailable):
            await one.identify(is_fresh=True)
    first = await one.identify(is_fresh=True)
    assert (await one.identify(is_fresh=False)).start == first.start
    assert (await one.identify(is_fresh=True)).start != first.start
    assert len(asked) == 3
    line.close()


def test_resets_and_lost_partitions_are_of_one_start_and_one_boot(tmp_path: Path) -> None:
    one = memory.FabricMemory(tmp_path, "b1")
    one.note_start("s1")
    one.note_reset("s1", "gpu-1")
    one.note_reset("s0", "gpu-2")
    one.note({3, 7})
    one.note_machine("m1", (), is_other=False)
    assert memory.FabricMemory(tmp_path, "b1").active == {3, 7}
    one.note_machine("m2", {3}, is_other=True)
    again = memory.FabricMemory(tmp_path, "b1")
    assert (again.start, again.machine, set(again.reset), set(again.lost)) == ("s1", "m2", {"gpu-1"}, {3})
    assert again.active == frozenset()
    again.note_ended({3})
    again.note_start("s2")
    assert (again.reset, again.lost) == (frozenset(), frozenset())
    other = memory.FabricMemory(tmp_path, "b2")
    assert (other.start, other.machine, other.reset) == ("", "", frozenset())


async def test_a_free_gpu_stays_free_and_is_given_away_alone_while_no_manager_is_there(make: Make) -> None:
    node = make(lattice=B200, is_nvlink5=True)
    async with node.agent():
        await fresh(node)
        node.manager.stop()
        await node.until(lambda: node.keeper.problem)
        before = len(node.resets)
        for _ in range(20):
            node.gate.poke()
            await asyncio.sleep(0.01)
        assert len(node.resets) == before
        await node.give("x1-5")
        await node.until(lambda: node.is_shown("x1-5"))
        assert node.state(5) is State.HELD


@pytest.mark.parametrize("turns", [40, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_turns_of_tenants_and_managers_activate_nothing_that_was_not_reset(make: Make, turns: int) -> None:
    node = make(lattice=B200, is_nvlink5=True, timeout_s=1.0)
    walk = test_fabric_killed.Walk(node, seed=turns)
    done = 0
    while done < turns:
        async with node.agent():
            if not done:
                await fresh(node)
            while done < turns:
                done += 1
                if await walk.turn():
                    break
    async with node.agent():
        await node.until_known()
        await walk.end()
        await fresh(node)
        await node.until(lambda: node.active == [])
        await node.give("x4-1.2.3.4")
        await node.until(lambda: node.is_shown("x4-1.2.3.4"))
    assert walk.given > turns // 20
