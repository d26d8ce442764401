"""Slots of several GPUs on an HGX node: partitions follow the ledger, and a machine has the modules of its own slot.

VFIO, groups, the kubelet's protocol, a tenant's QEMU with KVM and the agent are real in the node. What stands in: the
Fabric Manager and its library (`tests/fabricstub`), which no registry has. It runs beside `fairlead fabric serve`, as
in a Service VM, and is reached by that agent's socket alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hgx import fabricworld, tenant
from hgx.fabricworld import LIMIT_S, PYTHON, SWITCHES, World
from hgx.node import NodeError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_ARTICLE = Path(__file__).parents[1] / "unit/cli/layer/fabric/test_cli_fabric.py"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with fabricworld.running() as found:
        yield found


def test_eight_gpus_are_read_in_one_machine_before_the_first_tenant(world: World) -> None:
    until = time.monotonic() + LIMIT_S
    while "BaselineMissing" not in (log := world.node.log("agent.err")):
        assert time.monotonic() < until, log[-3000:]
        time.sleep(0.5)
    assert len(world.machines()) == 1
    assert world.machines()[0][0] == 8
    done = world.node.fairlead("lease", "baseline", "approve", "233010de", "--state-folder", "/state/fairlead")
    assert done.code == 0, done
    world.until(x1=8, x2=4, x4=2, x8=1)


def test_the_managers_partitions_are_the_articles_fifteen_rows(world: World) -> None:
    world.until(x1=8, x2=4, x4=2, x8=1)
    done = world.node.fairlead("fabric", "list", "--agent", "/run/fabric.sock", env=world.env)
    assert done.code == 0, done
    rows = [line.split() for line in _ARTICLE.read_text().partition('ARTICLE = """\\\n')[2].splitlines()[2:17]]
    assert [line.split()[0::4] for line in done.out.splitlines()[2:]] == [row[0::4] for row in rows]
    assert world.active() == []
    assert world.published() == {}


def test_a_tenants_machine_sees_its_four_modules_and_the_next_gets_the_disjoint_half(world: World) -> None:
    world.until(x1=8, x2=4, x4=2, x8=1)
    first = world.admit("first", 4)
    assert first in {(1, 2, 3, 4), (5, 6, 7, 8)}
    partition, other = (1, 2) if first[0] == 1 else (2, 1)
    nodes = world.wait_published(f"x4-{'.'.join(map(str, first))}")
    assert world.active() == [partition], "a slot is shown once its partition is active, and no sooner"
    groups = [world.node.call("facts", "nodes", world.node.address[world.names[one]])["group"] for one in first]
    assert sorted(nodes) == sorted(["/dev/vfio/vfio", *groups])
    line = tenant.line([world.node.address[world.names[one]] for one in first], with_iommufd=False, is_staying=True)
    machine = world.node.spawn("machine", f"{line} 2>&1")
    world.node.wait_for_log("machine", "TENANT done", limit_s=300)
    assert sorted(gpu.module for gpu in tenant.reports(world.node.log("machine"))) == list(first)

    second = world.admit("second", 4)
    assert not set(first) & set(second)
    world.wait_active(*sorted((partition, other)))
    world.until(x8=0)
    for size in (8, 4, 2, 1):
        with pytest.raises(NodeError):
            world.admit(f"third-{size}", size)

    before = world.resets(first)
    time.sleep(3)  # the kubelet lists it
    world.node.call("kubelet", "end", "first")  # by force: its machine runs on
    time.sleep(5)
    assert partition in world.active(), "no partition is switched off under a machine"
    assert world.resets(first) == before
    assert world.node.kill(machine) == -9
    world.wait_active(other)
    world.until(x4=2)
    assert all(now > then for now, then in zip(world.resets(first), before, strict=True))
    assert world.machines()[-1][0] == 4, "the slot's GPUs were read together before the next tenant"
    assert world.admit("third", 4) == first
    world.wait_active(*sorted((partition, other)))
    time.sleep(3)
    for pod in ("second", "third"):
        world.node.call("kubelet", "end", pod)
    world.wait_active()
    world.until(x1=8, x2=4, x4=2, x8=1)


def test_no_slot_of_several_is_given_while_the_manager_is_away_and_single_gpus_are(world: World) -> None:
    world.until(x1=8, x2=4, x4=2, x8=1)
    pid = int(world.node.output("ps -o pid,args | grep '[f]abricstub/manager.py' | sed 's/^ *//; s/ .*//'").split()[0])
    world.node.kill(pid)
    world.until(x2=0, x4=0, x8=0)
    assert len(world.admit("single", 1)) == 1
    again = f"exec {PYTHON} -I /stub/tests/fabricstub/manager.py unix:/run/fm.sock h100 restart state {SWITCHES}"
    world.node.spawn("manager", again)
    world.until(x4=1)
    time.sleep(3)
    world.node.call("kubelet", "end", "single")
    world.until(x1=8, x2=4, x4=2, x8=1)
    sys.stdout.write(f"verifiers' machines, GPUs and seconds: {world.machines()}\n")
