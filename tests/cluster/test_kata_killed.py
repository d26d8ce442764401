"""What runs a pod in a machine is killed at every step of its start and its end, under the real containerd.

After each kill: no GPU is in two active partitions, none stays active for nobody, none is free that was not cleaned and
read, nothing of the pod is left, and its end has a reason. `tests/partitionchecker.py`, which imports nothing of
Fairlead, looks all the while, and so does each machine's emulator. See `slothost` for what is real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead import errors
from tests import partitionchecker, slotnode
from tests.cluster import enginehost, slothost
from tests.katastandin import stops

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SLOT = "x4-1.2.3.4"
END = stops.STEPS[stops.STEPS.index("killing") :]
LATE = ("started",)
"""Steps at which the pod's container has begun, so that a kill is its end."""
OUTLIVED = ("agent", "engine", "Manager", "Service VM")
"""Whose end is not a container's."""
SHOWN = "shown without its partition"
WITHOUT_EMULATOR = ("asked", "ended", "deleting")


@pytest.fixture(scope="module")
def booted() -> Iterator[tuple[enginehost.Host, slotnode.SlotNode]]:
    with slothost.booted() as both:
        yield both


@pytest.mark.parametrize("step", stops.STEPS)
async def test_a_kill_at_a_step_leaves_no_gpu_doubled_none_active_for_nobody_and_none_unread(
    booted: tuple[enginehost.Host, slotnode.SlotNode], step: str
) -> None:
    async with slothost.opened(*booted) as world:
        for victim in slothost.VICTIMS:
            if victim == "emulator" and step in WITHOUT_EMULATOR:
                continue
            with partitionchecker.Watch(world.node.place()) as watch:
                await live(world, step, victim)
            # Between the loss of the switches and the agent's next look the slot's name is still shown.
            found = [one for one in watch.violations if victim != "Service VM" or SHOWN not in one]
            assert found == [], (step, victim)
            assert world.node.violations == [], (step, victim)
            assert watch.looks > 10


HOLD = (
    "ledger.before-commit",
    "ledger.after-commit",
    "vfio.before-let-go",
    "lease.before-show",
    "fabric.activate-begun",
    "fabric.activate-done",
)
RELEASE = (
    "lease.after-withdraw",
    "vfio.after-take",
    "fabric.deactivate-begun",
    "fabric.deactivate-done",
    "reports.after-append",
    "lease.after-clean",
)


@pytest.mark.parametrize("point", [*HOLD, *RELEASE])
async def test_an_agent_killed_at_a_step_of_its_own_gives_the_next_pod_a_clean_slot(
    booted: tuple[enginehost.Host, slotnode.SlotNode], point: str
) -> None:
    async with slothost.opened(*booted) as world:
        node = world.node
        with partitionchecker.Watch(node.place()) as watch:
            life = slothost.Life(world, f"agent-{point.replace('.', '-')}", SLOT)
            if point in HOLD:
                assert node.ask("arm", point) == "ok"
                if node.ask("hold", SLOT) == "ok":
                    life.list()
                node.await_death()
                node.start_agent()
            if not node.pods:
                await life.admit()
            await life.run()
            await life.end()
            if point in RELEASE:
                await life.named()
                assert node.ask("arm", point) == "ok"
            await life.forget()
            if point in RELEASE:
                node.ask("poke")
                node.await_death()
                node.start_agent()
            assert world.left() == []
            await node.until_free()
        assert watch.violations == []
        assert node.violations == []


class Moment(NamedTuple):
    """When the Fabric Manager dies: by faults of its stub, or under a pod that runs."""

    at_start: str = ""
    while_held: bool = False
    at_return: str = ""
    """The fault of the next one, beside a pod that runs."""
    at_end: str = ""


MOMENTS = {
    "activation": Moment(at_start="die=activate"),
    "activation whose answer is lost": Moment(at_start="answer lost="),
    "possession": Moment(while_held=True),
    "possession, and again as it takes the list": Moment(while_held=True, at_return="die=set"),
    "deactivation": Moment(at_end="die=deactivate"),
    "deactivation whose answer is lost": Moment(at_end="answer lost="),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_manager_killed_at_a_step_of_its_own_doubles_no_gpu_and_the_pod_lives_on(
    booted: tuple[enginehost.Host, slotnode.SlotNode], moment: str
) -> None:
    when = MOMENTS[moment]
    async with slothost.opened(*booted) as world:
        node = world.node
        with partitionchecker.Watch(node.place()) as watch:
            life = slothost.Life(world, f"manager-{list(MOMENTS).index(moment)}", SLOT)
            if when.at_start:
                node.fail_manager(when.at_start)
            await life.admit()
            if when.at_start:
                await asyncio.to_thread(node.await_managers_death)
                with pytest.raises(errors.FairleadError):
                    await life.start()
                await world.remove_all()
                assert not node.is_shown(SLOT), "no machine starts before its partition is known to be active"
                node.start_manager()
            await life.run()
            if when.while_held:
                await kill_and_start_again(node, life, when.at_return)
            assert node.active == [1]
            assert await life.fate(0) == "", "it runs"
            if when.at_end:
                node.fail_manager(when.at_end)
            await life.end()
            await life.forget()
            if when.at_end:
                await asyncio.to_thread(node.await_managers_death)
                assert {node.states()[one] for one in (1, 2, 3, 4)} == {"Releasing"}, "none is cleaned in a partition"
                node.start_manager()
            assert world.left() == []
            await node.until_free()
        assert watch.violations == []
        assert node.violations == []


async def kill_and_start_again(node: slotnode.SlotNode, life: slothost.Life, fault: str) -> None:
    """Kill the Manager under a pod that runs, and start it again; with a fault the next one dies first."""
    node.kill_manager()
    await until(lambda: not node.knows_partitions())
    assert node.ask("hold", "x4-5.6.7.8") == "FabricUnknown", "which partitions are active is not known"
    assert await life.fate(0) == "", "its NVLink goes on"
    if fault:
        node.start_manager(fault)
        await asyncio.to_thread(node.await_managers_death)
    node.start_manager()
    await until(node.knows_partitions)


async def test_a_manager_that_comes_back_without_its_partitions_gets_them_again_and_the_log_names_the_pod(
    booted: tuple[enginehost.Host, slotnode.SlotNode],
) -> None:
    """It takes no list, and its switches have nothing active: the pod's machine has lost its NVLink, and is told of."""
    async with slothost.opened(*booted) as world:
        node = world.node
        with partitionchecker.Watch(node.place()) as watch:
            life = slothost.Life(world, "lost", SLOT)
            await life.admit()
            await life.run()
            await life.named()
            node.kill_manager()
            (node.root / "switches-lost").touch()
            (node.root / "switches").write_text("[]")
            node.start_manager("set fails=-3", waits=False)
            await until(lambda: node.active == [1])
            (node.root / "switches-lost").unlink()
            lost = [line for line in node.log().splitlines() if "fabric lost partitions" in line]
            assert any("team/lost (x4-1.2.3.4)" in line for line in lost), lost
            assert await life.fate(0) == ""
            await life.end()
            await life.forget()
            await node.until_free()
        assert [one for one in watch.violations if SHOWN not in one] == []
        assert node.violations == []


@pytest.mark.parametrize("victim", ["verifier", "agent"])
@pytest.mark.parametrize("step", stops.VERIFYING)
async def test_a_verifier_killed_at_its_steps_leaves_no_gpu_free_that_was_not_read(
    booted: tuple[enginehost.Host, slotnode.SlotNode], step: str, victim: str
) -> None:
    async with slothost.opened(*booted) as world:
        node = world.node
        with partitionchecker.Watch(node.place()) as watch:
            life = slothost.Life(world, f"{step}-{victim}", SLOT)
            await life.admit()
            await life.run()
            await life.end()
            halt = slothost.Halt(node, step)
            halt.ask()
            await life.forget()
            node.ask("poke")
            pid = await halt.reached()
            assert "Free" not in {node.states()[module] for module in (1, 2, 3, 4)}
            if victim == "agent":
                node.kill_agent()
            else:
                os.kill(pid, signal.SIGKILL)
            halt.let_go()
            if victim == "agent":
                node.start_agent()
                assert not holds(node, pid), "its machine ended with the agent"
            await node.until_free()
            assert all(node.is_clean(module) for module in (1, 2, 3, 4))
            again = slothost.Life(world, f"{step}-{victim}-next", SLOT)
            await again.admit()
            await again.run()
            await again.end()
            await again.forget()
            await node.until_free()
        assert watch.violations == []
        assert node.violations == []


def holds(node: slotnode.SlotNode, pid: int) -> bool:
    """Return whether a process has a VFIO node of the node open."""
    try:
        opened = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(one.startswith(str(node.root / "dev/vfio")) for one in opened)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def live(world: slothost.World, step: str, victim: str) -> None:
    """Have a pod live, kill a process at one step of that, and hold what is left to what must be."""
    life = slothost.Life(world, f"{step}-{victim.replace(' ', '-').replace(chr(39), '')}", SLOT)
    halt = slothost.Halt(world.node, step)
    await life.admit()
    is_end = step in END
    if is_end:
        await life.run()
    halt.ask()
    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(life.end() if is_end else life.run())
        at = await halt.reached(work)
        assert slothost.VICTIMS[victim](world, at), f"{victim} is not there at {step}"
        halt.let_go()
        await slothost.start_again(world, victim)
    how = ""
    if not is_end:
        # A start that the engine says has failed is tried again; else the kill was the container's end.
        is_its_end = step in LATE and victim not in OUTLIVED and not life.refused
        how = await life.fate(30 if is_its_end else 0)
        assert bool(how) is is_its_end, how
        await life.end()
    assert life.ended, "the engine says how it ended"
    assert world.left() == []
    assert world.node.active == [1], "the pod is the kubelet's still"
    await life.forget()
    await world.node.until_free()
    sys.stdout.write(f"{step}, {victim}: {time.monotonic() - begun:.1f} s; {life.ended}; {life.refused}\n")
