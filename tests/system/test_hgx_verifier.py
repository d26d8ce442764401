"""GPUs that are read in a machine between two tenants, on an HGX node: real VFIO, QEMU with KVM, and the shipped agent.

What stands in: the image's driver (`hgx/verifier.sh` reads registers, one of which plays the firmware's version).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest
import test_hgx_agent
from hgx import image, layout, tenant
from hgx.shown import hgx_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = test_hgx_agent.NAMES
LIMIT_S = 400


class World(test_hgx_agent.World):
    """A node whose agent verifies in machines."""

    held: Mapping[str, str] = MappingProxyType({})
    """GPU by pod, of pods that a test has left to the next one: each verification is a machine's boot."""

    def start_agent(self, *, dying_at: str = "") -> None:
        env = {"FAIRLEAD_DEBUG_CRASH_AT": dying_at, **tenant.verifier_env(self.node)}
        self.agent = self.node.spawn_fairlead("agent", "agent", *test_hgx_agent._AGENT, env=env)

    def wait_log(self, words: str, count: int = 1) -> str:
        """Wait until the agent has logged words so often."""
        until = time.monotonic() + LIMIT_S
        while True:
            log: str = self.node.log("agent.err")
            if log.count(words) >= count:
                return log
            assert time.monotonic() < until, log[-4000:]
            time.sleep(0.5)

    def machines(self) -> list[str]:
        """Return the command lines of verifiers' machines that run."""
        shown = self.node.output("ps -o args | grep '[f]airlead-verifier-' || true")
        return [line for line in shown.splitlines() if "setpriv" not in line and "/bin/sh" not in line]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hgx_node(layout.HGX_H100, modules=test_hgx_agent.OWN, tenants=1, **image.verifying()) as node:
        made = World(node)
        made.begin()
        yield made


def test_gpus_are_read_in_one_machine_and_free_once_their_firmware_is_approved(world: World) -> None:
    world.wait_log("gpus read by a machine")
    log = world.wait_log("BaselineMissing", 3)
    assert log.count("gpus read by a machine") == 1, "three GPUs share a machine"
    listed = world.node.fairlead("lease", "baseline", "list", "-o", "json", "--state-folder", "/state/fairlead")
    (board,) = json.loads(listed.out)
    assert (board["board"], board["seen_only"]) == ("233010de", ["0x96007400", "G520"])
    done = world.node.fairlead("lease", "baseline", "approve", "233010de", "--state-folder", "/state/fairlead")
    assert done.code == 0, done
    world.until(3)
    assert world.machines() == []
    assert {world.stranger(name) for name in NAMES} == {"EBUSY"}


def test_a_gpu_whose_firmware_its_tenant_changed_goes_into_quarantine(world: World) -> None:
    world.until(3)
    name = world.admit("evil")
    world.node.board[name].set_firmware(0x96007401)
    time.sleep(3)
    world.node.call("kubelet", "end", "evil")
    world.wait_log("FirmwareMismatch")
    world.wait_log("0x96007401")  # the sentence of the quarantine comes after the reset's line
    world.until(2)
    world.held = {pod: world.admit(pod) for pod in ("second", "third")}
    assert name not in world.held.values()
    report = world.node.fairlead("lease", "report", "--verify", "-o", "json", "--state-folder", "/state/fairlead")
    assert report.code == 0, report
    assert "FirmwareMismatch" in report.out


def test_an_agent_killed_while_its_machine_runs_takes_it_along_and_reads_again(world: World) -> None:
    assert len(world.held) == 2, "beside one in quarantine"
    time.sleep(3)  # a pod that the kubelet never listed would count as an Allocate whose answer was lost
    for pod in world.held:
        world.node.call("kubelet", "end", pod)
    until = time.monotonic() + LIMIT_S
    while not world.machines():
        assert time.monotonic() < until, world.node.log("agent.err")[-3000:]
        time.sleep(0.3)
    assert world.node.kill(world.agent) == -9
    time.sleep(2)
    assert world.machines() == []
    world.start_agent()
    world.until(2)
    assert {world.stranger(name) for name in world.held.values()} == {"EBUSY"}
    assert all(world.node.board[name].is_clean() for name in world.held.values())
