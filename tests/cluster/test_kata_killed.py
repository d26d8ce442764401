"""What runs a pod in a machine is killed at every step of its start and its end, under the real containerd.

After each kill: no GPU is in two active partitions, none stays active for nobody, none is free that was not cleaned and
read, nothing of the pod is left, and its end has a reason. `tests/partitionchecker.py`, which imports nothing of
Fairlead, looks all the while, and so does each machine's emulator. See `slothost` for what is real.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import pytest

from tests import partitionchecker, slotnode
from tests.cluster import enginehost, slothost
from tests.katastandin import stops

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SLOT = "x4-1.2.3.4"
END = stops.STEPS[stops.STEPS.index("killing") :]
LATE = ("started",)
"""Steps at which the pod's container has begun, so that a kill is its end."""
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
            assert watch.violations == [], (step, victim)
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
        if victim == "agent":
            await asyncio.sleep(0.2)
            world.node.start_agent()
    how = ""
    if not is_end:
        # A start that the engine says has failed is tried again; else the kill was the container's end.
        is_its_end = step in LATE and victim != "agent" and not life.refused
        how = await life.fate(30 if is_its_end else 0)
        assert bool(how) is is_its_end, how
        await life.end()
    assert life.ended, "the engine says how it ended"
    assert world.left() == []
    assert world.node.active == [1], "the pod is the kubelet's still"
    await life.forget()
    await world.node.until_free()
    sys.stdout.write(f"{step}, {victim}: {time.monotonic() - begun:.1f} s; {life.ended}; {life.refused}\n")
