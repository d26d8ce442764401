"""The agent on an HGX board of NVLink 5: modules that a machine tells, B200's partitions, switches kept apart.

One boot, 3.5 minutes at load 8. Real in the node: VFIO, groups, the kubelet's protocol, the agent, QEMU with
KVM. What stands in: the Fabric Manager and its library (`tests/fabricstub`), the image with NVIDIA's driver
(`hgx/verifier.sh`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hgx import fabricworld, layout
from hgx.fabricworld import LIMIT_S
from hgx.function import Reset
from hgx.node import Node, NodeError

from tests.fabricstub.lattice import B200

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODULES = (1, 2, 3, 4)
"""Those that are passed through, half of the board: a machine that reads eight takes twice as long."""
ALL = {"x1": 4, "x2": 2, "x4": 1}
GPUS = tuple(table.name for table in layout.HGX_B200.gpus())
SWITCHES = "nvidia.com/nvswitch"


class World(fabricworld.World):
    """A B200 board's node, and its four functions that manage switches."""

    def __init__(self, node: Node, lattice: str) -> None:
        super().__init__(node, lattice)
        self.names = {module: name for module, name in self.names.items() if module in MODULES}

    @property
    def bridges(self) -> list[str]:
        return [f"bridge{number}" for number in range(4)]

    def bridge_resets(self) -> list[int]:
        boards = [self.node.board[name] for name in self.bridges]
        return [board.resets(Reset.FLR) + board.resets(Reset.BUS) for board in boards]

    def groups(self, modules: tuple[int, ...]) -> list[str]:
        """Return the nodes of modules as the board has them."""
        addresses = [self.node.address[self.names[module]] for module in modules]
        return [str(self.node.call("facts", "nodes", address)["group"]) for address in addresses]

    def restart_manager(self) -> None:
        """Have another start of the Manager answer; its switches keep what they have."""
        self.node.kill(self.manager)
        self.start_manager("restart")

    def wait_reset(self, modules: tuple[int, ...], before: list[int]) -> None:
        """Wait until the board has counted a reset of each of these GPUs."""
        until = time.monotonic() + LIMIT_S
        while not all(now > then for now, then in zip(self.resets(modules), before, strict=True)):
            assert time.monotonic() < until, (self.resets(modules), before, self.node.log("agent.err")[-3000:])
            time.sleep(0.3)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with fabricworld.running(World, board=layout.HGX_B200, lattice="b200", tenants=2) as found:
        assert isinstance(found, World)
        found.until(**ALL)
        assert [count for count, _ in found.machines()] == [len(MODULES)], (
            "all are read in one machine before the first tenant"
        )
        learned = [line for line in found.node.log("agent.err").splitlines() if "gpu's module learned" in line]
        assert sorted(json.loads(line)["count"] for line in learned) == list(MODULES)
        yield found


def test_functions_that_manage_switches_are_told_by_their_vpd_and_are_no_tenants(world: World) -> None:
    rows = {one["address"]: one for one in json.loads(world.node.fairlead("vfio", "list", "-o", "json").out)}
    kinds = {world.node.address[name]: "switch-bridge" for name in world.bridges}
    kinds |= {world.node.address[name]: "gpu" for name in GPUS}
    assert {address: one["kind"] for address, one in rows.items()} == kinds
    assert {rows[world.node.address[name]]["driver"] for name in world.bridges} == {""}
    assert set(world.node.call("kubelet", "capacity")) == {f"nvidia.com/pgpu-{size}" for size in ALL}
    bound = world.node.fairlead("vfio", "bind", *(world.node.address[name] for name in world.bridges))
    assert bound.code == 0, bound
    printed = world.node.fairlead("fabric", "vm", "--libvirt", "--disk", "/fm.qcow2")
    assert (printed.code, printed.out.count("<hostdev "), printed.err) == (0, 4, "")


def test_gpus_are_reset_once_another_manager_has_begun(world: World) -> None:
    """From here on they are reset and scrubbed, and not read in a machine: its boot is all that would be waited for."""
    world.node.kill(world.agent)
    world.start_agent(is_verifying=False, more={"FAIRLEAD_FABRIC_VM_NAMESPACE": "fabric"})
    world.until(**ALL)
    before, untouched = world.resets(MODULES), world.bridge_resets()
    world.restart_manager()
    world.wait_reset(MODULES, before)
    world.until(**ALL)
    assert world.active() == []
    assert world.bridge_resets() == untouched


def test_a_slots_partition_follows_its_holder_and_its_gpus_come_back_reset(world: World) -> None:
    world.until(**ALL)
    untouched = world.bridge_resets()
    modules = world.admit("first", 2)
    (partition,) = (one for one, members in B200.partitions.items() if members == modules)
    given = world.wait_published(f"x2-{modules[0]}.{modules[1]}")
    assert world.active() == [partition]
    assert sorted(given) == sorted(["/dev/vfio/vfio", *world.groups(modules)]), "the modules that a machine told"
    world.until(x1=2, x2=2, x4=0)
    assert world.node.call("kubelet", "capacity")[SWITCHES] == [4, 4]
    with pytest.raises(NodeError, match="1 of 4 NVSwitches were asked for"):
        world.node.call("kubelet", "admit", "thief", SWITCHES)

    # Another start of the Manager while a tenant has them: every other GPU is reset, these when they come back.
    others = tuple(module for module in MODULES if module not in modules)
    before, held = world.resets(others), world.resets(modules)
    for module in modules:
        world.node.board[world.names[module]].leave(b"left behind!")
    world.restart_manager()
    world.wait_reset(others, before)
    world.until(x1=2, x2=2, x4=0)
    assert world.resets(modules) == held
    assert world.active() == [partition]

    time.sleep(3)  # the kubelet lists it
    world.node.call("kubelet", "end", "first")
    world.wait_active()
    world.until(**ALL)
    world.wait_reset(modules, held)
    assert all(world.node.board[world.names[module]].is_clean() for module in modules)
    assert [name for name in world.published() if name.startswith("x")] == [], "the switches' entries stay"
    assert world.bridge_resets() == untouched
