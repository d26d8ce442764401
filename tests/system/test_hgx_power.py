"""Power lost at the steps of bind, hold, release and scrub: the node's machine is killed, and booted again.

The agent's state lies on a disk without a volatile cache (`cache=writethrough`): what the kernel was told to flush is
there afterwards, what it had in memory alone is not. GPUs keep what is in their memory, as where a machine is reset and
its board keeps its power. The agent dies at a crash point and its machine within some milliseconds after it; what the
kernel does when it closes a dead process's files may have begun by then.

Steps go one after the other on one node, and each begins with a boot after the one before: nothing Free by the ledger
in a boot without a bus reset and clean memory in that boot, no GPU lost, no epoch fallen. A point that is missing here
is the same to a disk as its neighbour: between `…-done` and the next `…-begun` nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import test_hgx_agent
from hgx import image, layout
from hgx.function import Fault, Reset
from hgx.node import Node, NodeError
from hgx.shown import hgx_node, power_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RESOURCE = test_hgx_agent.RESOURCE
NAMES = ("gpu0", "gpu4")
"""Modules 5 and 1, each near a NUMA node."""
PAIR = layout.Layout(name="hgx-pair", slots=tuple(layout.HGX_H100.slots[at] for at in (0, 4, 8)))
LIMIT_S = 120.0
TENANT = b"what a tenant left"
_ASKS = 10
_UNVERIFIED = "not verified since its last tenant"
_AGENT = ("--state-folder", "/state/fairlead", "--node-vfio", "bind", "--node-engine", "containerd://2.2.1")

STEPS = (
    ("bind", "vfio.override-done"),
    ("hold", "ledger.before-commit"),
    ("bind", "vfio.probe-done"),
    ("release", "lease.after-withdraw"),
    ("scrub", "vfio.choose-reset-done"),
    ("unbind", "vfio.unbind-begun"),
    ("hold", "ledger.after-commit"),
    ("scrub", "vfio.reset-done"),
    ("release", "ledger.before-commit"),
    ("bind", "vfio.verify-done"),
    ("unbind", "vfio.unbind-done"),
    ("hold", "vfio.after-let-go"),
    ("scrub", "vfio.scrubbed-done"),
    ("release", "ledger.after-commit"),
    ("scrub", "lease.after-clean"),
    ("hold", "lease.after-show"),
    ("release", "vfio.after-take"),
)
"""When it is, and at which crash point; at `unbind` GPUs begin on another driver, from which the agent takes them."""
NATIVE = "pci-stub"
"""The driver that GPUs begin on, where they begin on one: the kernel's smallest. It takes the ids that it is given."""
NATIVE_IDS = "10de 2330"


class World(test_hgx_agent.World):
    """A node whose agent binds the GPUs itself, and whose power is lost."""

    def __init__(self, node: Node, names: Sequence[str]) -> None:
        super().__init__(node, names)
        self.is_on = True
        self.pods: tuple[str, ...] = ()
        """Pods that have the GPUs, of names that no earlier boot had."""
        self.boots = 0
        self.step = "the first boot"
        """At which step the agent died last."""
        self.boot_id = ""
        self.last: dict[str, dict[str, Any]] = {}
        """The ledger's rows when they were last looked at, in whichever boot."""
        self.counted: dict[str, int] = {}
        """Bus resets of each GPU before this boot's agent."""

    def boot(self, *, has_driver: bool = False) -> None:
        """Switch the machine on, and hold what is on its disk against what was there before.

        Args: has_driver: whether the GPUs have their driver when the agent starts, as on a node where it is loaded.
        """
        if not self.is_on:
            power_on(self.node)
        if has_driver:
            self.node.call("facts", "write_text", f"/sys/bus/pci/drivers/{NATIVE}/new_id", NATIVE_IDS)
            assert self.drivers() == [NATIVE] * len(self.names)
        self.is_on, self.boots = True, self.boots + 1
        gone = (*self.pods, *(f"unlucky-{self.boots - 1}-{number}" for number in range(_ASKS)))
        self.pods = (f"a-{self.boots}", f"b-{self.boots}")
        self.node.do("preload", test_hgx_agent.PRELOADED)
        self.boot_id = self.node.output("cat /proc/sys/kernel/random/boot_id").strip()
        self.counted = {name: self.node.board[name].resets(Reset.BUS) for name in self.names}
        before, found = self.last, self.rows()
        assert before.keys() <= found.keys(), (self.step, "a GPU is lost")
        for key, row in found.items():
            assert row["epoch"] >= before.get(key, row)["epoch"], (self.step, key, "an epoch fell")
            assert row["boot_id"] != self.boot_id, (self.step, row)
        self.node.call("kubelet", "start")
        for pod in gone:  # its checkpoint outlived the boot in which they ran, and has their GPUs still
            self.node.call("kubelet", "end", pod)

    def drivers(self) -> list[str]:
        """Return which driver has each GPU."""
        found = self.node.call("facts", "functions")
        return [found[self.node.address[name]]["driver"] for name in self.names]

    def start_agent(self, *, dying_at: str = "") -> None:
        self.agent = self.node.spawn_fairlead("agent", "agent", *_AGENT, env={"FAIRLEAD_DEBUG_CRASH_AT": dying_at})

    def look(self) -> dict[str, dict[str, Any]]:
        """Return the ledger's rows; an error if one is Free in this boot that was not reset and erased in it."""
        self.last = self.rows()  # before the board, whose counts only grow
        for key, row in self.last.items():
            if row["state"] != "Free" or row["boot_id"] != self.boot_id:
                continue
            (name,) = (one for one in self.names if f"{self.node.board[one].table.serial:016x}" in key.replace("-", ""))
            assert self.node.board[name].resets(Reset.BUS) > self.counted[name], (self.step, name, "Free, not reset")
            assert self.node.board[name].is_clean(), (self.step, name, "Free with a tenant's bytes")
        return self.last

    def until_free(self) -> None:
        """Wait until the ledger says of every GPU that it is free in this boot."""
        until = time.monotonic() + LIMIT_S
        while [(row["state"], row["boot_id"]) for row in self.look().values()] != [("Free", self.boot_id)] * 2:
            assert time.monotonic() < until, (self.step, self.last, self.node.log("agent.err")[-3000:])
        self.until(len(self.names))

    def ask_until_it_dies(self) -> None:
        """Have the kubelet ask for a GPU until the agent dies of it: right after a restart it may ask the old one."""
        for number in range(_ASKS):
            with pytest.raises(NodeError):
                self.admit(f"unlucky-{self.boots}-{number}")
            if self.node.wait(self.agent, limit_s=2) is not None:
                return

    def admit_at_last(self, pod: str) -> str:
        """Admit a pod once a GPU is clean: an Allocate waits ten seconds for a reset, and a busy node takes longer."""
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return self.admit(pod)
            except NodeError as refused:
                if _UNVERIFIED not in str(refused) or time.monotonic() > until:
                    raise

    def until_dead(self, step: str) -> None:
        """Wait until the agent dies at its point."""
        until = time.monotonic() + LIMIT_S
        while (code := self.node.wait(self.agent, limit_s=2)) is None:
            self.look()
            assert time.monotonic() < until, (step, self.node.log("agent.err")[-3000:])
        assert code == -9, step
        self.step = step

    def lose_power(self, step: str) -> None:
        """Wait until the agent dies at its point, and kill the machine."""
        try:
            self.until_dead(step)
        finally:
            self.node.cut_off()
            self.is_on = False

    def recover(self) -> None:
        """Have an agent finish what the last one left: both GPUs go to pods, reset since this boot and clean."""
        self.start_agent()
        self.until(len(self.names))
        assert sorted(self.admit_at_last(pod) for pod in self.pods) == sorted(self.names), self.step
        for name in self.names:
            assert self.node.board[name].resets(Reset.BUS) > self.counted[name], (self.step, name)
            assert self.node.board[name].is_clean(), (self.step, name)
            self.node.board[name].leave(TENANT)
        for pod in self.pods:
            self.until_named(pod)
        self.agree()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hgx_node(PAIR, packages=image.AGENT, modules=test_hgx_agent.OWN) as node:
        for name in NAMES:
            node.board[name].fail(Fault.POWER_KEEPS_MEMORY)
        yield World(node, NAMES)


@pytest.mark.parametrize(("when", "point"), [pytest.param(*step, id=" ".join(step)) for step in STEPS])
def test_power_lost_at(world: World, when: str, point: str) -> None:
    world.boot(has_driver=when == "unbind")
    if when in {"bind", "unbind", "scrub"}:
        world.start_agent(dying_at=point)
    elif when == "hold":
        is_of_start = point.startswith("ledger.")  # an agent that starts goes by it too
        world.start_agent(dying_at="" if is_of_start else point)
        world.until_free()
        if is_of_start:
            world.restart_agent(dying_at=point)
        world.ask_until_it_dies()
    else:
        world.recover()
        world.restart_agent(dying_at=point)
        world.node.call("kubelet", "end", world.pods[0])
    world.lose_power(f"{when} {point}")


def test_an_agent_killed_while_it_takes_gpus_from_their_driver_leaves_them_to_the_next(world: World) -> None:
    """Killed alone, in the boot after the last loss of power: its machine and the GPUs' drivers are as it left them."""
    world.boot(has_driver=True)
    world.start_agent(dying_at="vfio.unbind-done")
    world.until_dead("killed at vfio.unbind-done")
    first, second = world.drivers()
    assert first in {"", "vfio-pci"}, "the writer that outlives its agent may have written what comes next"
    assert second == NATIVE, "nothing was written to the GPU that comes later"


def test_after_the_last_loss_of_power_everything_is_there(world: World) -> None:
    world.recover()
    assert world.drivers() == ["vfio-pci"] * len(world.names)
    world.end(*world.pods)


def test_how_soon_the_kubelet_hears_of_a_gpu_that_is_gone_and_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gone by its bus, without a word, and gone from it. No figure fails a test; the bar is 1 s, and 2 s back."""
    world.until(len(world.names))
    address, all_of_them = world.node.address["gpu4"], len(world.names)
    told = dict[str, list[float]]()

    def note(what: str, seconds: float) -> None:
        assert seconds >= 0, (what, world.node.log("agent.err")[-3000:])
        told.setdefault(what, []).append(seconds)

    for _ in range(3):
        begun = time.monotonic()
        world.node.board["gpu4"].fail(Fault.OFF_THE_BUS)
        note("ones read", world.node.call("kubelet", "until", RESOURCE, all_of_them - 1, 60))
        told["ones read"][-1] = time.monotonic() - begun
        begun = time.monotonic()
        world.node.board["gpu4"].mend()
        note("answers again", world.node.call("kubelet", "until", RESOURCE, all_of_them, 60))
        told["answers again"][-1] = time.monotonic() - begun
        removed = (f"/sys/bus/pci/devices/{address}/remove", "1", RESOURCE, all_of_them - 1, 60)
        note("removed", world.node.call("kubelet", "until_after", *removed))
        rescanned = ("/sys/bus/pci/rescan", "1", RESOURCE, all_of_them, 60)
        note("scanned for, bound, reset", world.node.call("kubelet", "until_after", *rescanned))
    with capsys.disabled():
        shown = "; ".join(f"{what}: {min(found):.2f} to {max(found):.2f} s" for what, found in told.items())
        print(f"\nto the kubelet's count: {shown}")  # noqa: T201
    assert world.node.board["gpu4"].is_clean()


def test_released_gpus_go_back_to_the_driver_that_they_had(world: World) -> None:
    world.until(len(world.names))
    assert world.node.kill(world.agent) == -9
    released = world.node.fairlead("vfio", "release", *(world.node.address[name] for name in world.names))
    assert (released.code, released.out.count(": released\n")) == (0, 2), released
    assert world.drivers() == [NATIVE] * len(world.names)
    left = world.node.output("cat /sys/bus/pci/devices/*/driver_override").split()
    assert set(left) == {"(null)"}
