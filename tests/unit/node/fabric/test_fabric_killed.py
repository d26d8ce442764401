"""Agent and Manager killed at every step, and a thousand turns: no GPU in two partitions, none active for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.plan.lease.row import State
from tests import partitionchecker
from tests.fabricstub.lattice import B200, H100, Lattice
from tests.unit.node.fabric.fabricnode import FabricNode, library, modules

SLOT = "x2-1.3"
DYING = """
import asyncio, sys
from pathlib import Path
from fairlead import telemetry
from tests.unit.node.fabric.fabricnode import FabricNode

async def main(folder, stub, point, is_ending):
    node = FabricNode(folder=Path(folder), stub=Path(stub))
    async with node.agent():
        await node.until_known()
        await node.until_free()
        if is_ending == "ending":
            await node.give("x2-1.3")
            await node.until(lambda: node.is_shown("x2-1.3"))
            telemetry.arm_crash_point(point)
            node.listed.clear()
            node.gate.poke()
        else:
            telemetry.arm_crash_point(point)
            await node.give("x2-1.3")
        await node.until(lambda: False)

asyncio.run(main(*sys.argv[1:]))
"""
POINTS = [
    ("ledger.before-commit", "beginning"),
    ("ledger.after-commit", "beginning"),
    ("fabric.activate-begun", "beginning"),
    ("fabric.activate-done", "beginning"),
    ("ledger.after-commit", "ending"),
    ("fabric.deactivate-begun", "ending"),
    ("fabric.deactivate-done", "ending"),
]
QUICK = ("fabric.activate-done", "fabric.deactivate-begun")


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


def assert_true(node: FabricNode) -> None:
    """Hold the switches against the ledger: an active partition is one held slot's, whole, or a machine's that ends."""
    held = dict[str, set[int]]()
    for row in node.gate.rows.value.values():
        for claim in row.claims if row.state is State.HELD else ():
            held.setdefault(claim.device, set()).add(int(row.key.removeprefix("pcie-")))
    assert all(set(modules(name)) == members for name, members in held.items()), held
    wanted = {one for one, gpus in node.lattice.partitions.items() if set(gpus) in held.values()}
    lingering = {
        one
        for one in node.active
        if any(node.openers.get(f"/dev/vfio/{gpu}") != "agent" for gpu in node.lattice.partitions[one])
    }
    assert wanted <= set(node.active) <= wanted | lingering
    assert node.violations == []


@pytest.mark.parametrize(
    ("point", "when", "restarts"),
    [
        pytest.param(*one, restarts, marks=[] if restarts and one[0] in QUICK else pytest.mark.slow)
        for one in POINTS
        for restarts in (False, True)
    ],
)
async def test_an_agent_killed_at_a_step_leaves_nothing_that_the_next_does_not_mend(
    stub: Path, tmp_path: Path, point: str, when: str, restarts: bool
) -> None:
    node = FabricNode(folder=tmp_path, stub=stub)
    node.start_manager()
    argv = [sys.executable, "-c", DYING, str(tmp_path), str(stub), point, when]
    done = await asyncio.to_thread(
        subprocess.run, argv, cwd=Path(__file__).parents[4], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    if restarts:
        node.manager.stop()
        node.start_manager(is_restarted=True, abort_s=10)
    if when == "beginning" and point != "ledger.before-commit":
        node.listed[SLOT] = "a"
    async with node.agent():
        await node.until_known()
        if node.listed:
            await node.until(lambda: node.is_shown(SLOT))
            assert node.start(SLOT)
            node.stop(SLOT)
            assert_true(node)
            node.listed.clear()
        await node.until_free()
        await node.until(lambda: node.active == [])
        assert_true(node)
    assert not node.manager.has_aborted
    node.manager.stop()


class Walk:
    """Tenants that come and go, and a Manager and an agent that end at any moment."""

    def __init__(self, node: FabricNode, seed: int) -> None:
        self.node, self.dice = node, random.Random(seed)
        self.held: dict[str, str] = {}
        """Phase by slot: given, running, lingering (its pod is gone, its machine is not)."""
        self.given = 0

    async def turn(self) -> bool:
        """Do one thing that may happen; returns whether the agent ends after it."""
        steps = {
            self.give: 30,
            self.start: 20,
            self.forget: 15,
            self.stop: 15,
            self.lose: 4,
            self.begin_anew: 6,
            self.lie: 6,
            self.die: 4,
        }
        step = self.dice.choices(list(steps), list(steps.values()))[0]
        await step()
        await asyncio.sleep(self.dice.random() * 0.002)
        return step == self.die

    async def start(self) -> None:
        for name in [name for name, phase in self.held.items() if phase == "given" and self.node.is_shown(name)][:1]:
            if self.node.start(name):
                self.held[name] = "running"

    async def forget(self) -> None:
        """The kubelet forgets a pod; its machine may run on."""
        known = sorted(filter(self.is_named, self.node.listed))
        for name in self.dice.sample(known, min(1, len(known))):
            del self.node.listed[name]
            self.held[name] = "lingering" if self.held[name] == "running" else "forgotten"
            if self.held[name] == "forgotten":
                del self.held[name]

    def is_named(self, name: str) -> bool:
        """Say whether the ledger knows whose a slot is: a pod that it never saw is waited for, for two minutes."""
        rows = self.node.gate.rows.value.values()
        return all(claim.pod for row in rows for claim in row.claims if claim.device == name)

    async def stop(self) -> None:
        for name in [name for name, phase in self.held.items() if phase in {"running", "lingering"}][:1]:
            self.node.stop(name)
            if self.held.pop(name) == "running":
                self.held[name] = "given"

    async def lose(self) -> None:
        self.node.manager.stop()
        await asyncio.sleep(self.dice.random() * 0.02)
        self.node.start_manager()

    async def begin_anew(self) -> None:
        self.node.manager.stop()
        self.node.start_manager(is_restarted=True, abort_s=30)

    async def lie(self) -> None:
        fault = self.dice.choice(("answer lost", "slow", "activate fails", "not ready"))
        self.node.manager.faults[fault] = {"slow": "0.02", "activate fails": "-15"}.get(fault, "")
        await asyncio.sleep(self.dice.random() * 0.01)
        self.node.manager.faults.clear()
        if fault == "answer lost":
            self.node.manager.stop()
            self.node.start_manager(is_restarted=self.dice.random() < 0.5, abort_s=30)

    async def die(self) -> None:
        """The agent ends, as its caller sees."""

    async def give(self) -> None:
        node = self.node
        names = [f"x{len(one)}-{'.'.join(map(str, sorted(one)))}" for one in node.lattice.partitions.values()]
        name = self.dice.choice([one for one in names if len(modules(one)) <= 8])
        if name in self.held or name in node.listed:
            return
        with contextlib.suppress(errors.FairleadError, StopIteration):
            await node.give(name)
            self.held[name] = "given"
            self.given += 1

    async def end(self) -> None:
        """Let everyone go, and hold what is left against the switches."""
        self.node.manager.faults.clear()
        await self.node.until(lambda: all(map(self.is_named, self.node.listed)))
        self.node.listed.clear()
        for name in list(self.held):
            self.node.stop(name)
        self.held.clear()


@pytest.mark.parametrize(
    ("turns", "lattice"),
    [
        pytest.param(1000, H100, id="1000 h100", marks=[pytest.mark.timeout(120)]),
        pytest.param(300, B200, id="300 b200", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
async def test_turns_of_tenants_crashes_and_lies_leave_no_partition_without_its_slot(
    stub: Path, tmp_path: Path, turns: int, lattice: Lattice
) -> None:
    """A checker that shares no rule with the product looks at switches, ledger, specs and machines all the while."""
    node = FabricNode(folder=tmp_path, stub=stub, lattice=lattice, timeout_s=1.0)
    node.start_manager()
    walk = Walk(node, seed=turns)
    with partitionchecker.Watch(place(node)) as watch:
        await take(walk, turns)
    assert node.violations == []
    assert watch.violations == []
    assert watch.looks > turns // 10
    assert walk.given > turns // 20
    node.manager.stop()


def place(node: FabricNode) -> partitionchecker.Place:
    return partitionchecker.Place(
        switches=node.folder / "switches",
        ledger=node.folder / "lease/ledger.db",
        cdi=node.folder / "cdi",
        partitions=node.lattice.partitions,
        modules={f"pcie-{one.module}": one.module for one in node.gpus if one.module is not None},
        machines=lambda: {int(path[10:]): who for path, who in dict(node.openers).items() if who != "agent"},
    )


async def take(walk: Walk, turns: int) -> None:
    """Take so many turns, then let everyone go."""
    node, done = walk.node, 0
    while done < turns:
        async with node.agent():
            if not done:
                await node.until_known()
                await node.until_free()
            while done < turns:
                done += 1
                if await walk.turn():
                    break
                if not done % 50:
                    await settled(node)
    async with node.agent():
        await settled(node)
        await walk.end()
        await node.until_free()
        await node.until(lambda: node.active == [])


async def settled(node: FabricNode) -> None:
    """Wait until the switches are as the ledger says: seconds, where a minute is promised."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(AssertionError):
                    assert_true(node)
                    if not node.keeper.problem:
                        return
                node.gate.poke()
                await asyncio.sleep(0.01)
    assert node.keeper.problem == ""
    assert_true(node)
