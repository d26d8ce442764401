"""Slots of several GPUs on an HGX node: partitions follow the ledger, and a machine has the modules of its own slot.

VFIO, groups, the kubelet's protocol, a tenant's QEMU with KVM and the agent are real in the node. What stands in: the
Fabric Manager and its library (`tests/fabricstub`), which no registry has. It runs beside `fairlead fabric serve`, as
in a Service VM, and is reached by that agent's socket alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hgx import image, layout, tenant
from hgx.function import Reset
from hgx.node import Node, NodeError
from hgx.shown import hgx_node

from tests.fabricstub import library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT_S = 300
PYTHON = Path(sys.executable).resolve()
SWITCHES = "/state/switches.json"
_STUB = Path(library.__file__).parent
_ARTICLE = Path(__file__).parents[1] / "unit/cli/layer/fabric/test_cli_fabric.py"


class World:
    """A node whose agent, kubelet and Fabric Manager a test commands."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.names = {table.module: table.name for table in node.board.layout.gpus() if table.module is not None}
        """Of the board's functions by module."""
        self.env = {"FAIRLEAD_FABRIC_SECRET": "/state/fabric.secret", "FAIRLEAD_FABRIC_LIBRARY": "/stub/libnvfm.so.1"}

    def begin(self) -> None:
        done = self.node.fairlead("vfio", "bind", *(self.node.address[name] for name in self.names.values()))
        assert done.code == 0, done
        self.node.output("umask 077; head -c 32 /dev/urandom | base64 > /state/fabric.secret")
        manager = f"exec {PYTHON} -I /stub/tests/fabricstub/manager.py unix:/run/fm.sock h100 state {SWITCHES}"
        self.node.spawn("manager", manager)
        self.node.wait_for_log("manager", "ready", limit_s=60)
        serve = ("fabric", "serve", "--address", "/run/fm.sock", "--listen", "/run/fabric.sock")
        self.node.spawn_fairlead("serve", *serve, env=self.env)
        self.node.wait_for_log("serve.out", "serving", limit_s=120)
        self.node.call("kubelet", "start")
        words = ("--state-folder", "/state/fairlead", "--node-vfio", "bound", "--node-engine", "containerd://2.2.1")
        env = {"FAIRLEAD_NODE_FABRIC": "on", "FAIRLEAD_FABRIC_AGENT": "/run/fabric.sock"}
        env |= self.env | tenant.verifier_env(self.node)
        self.node.spawn_fairlead("agent", "agent", *words, env=env)

    def sizes(self) -> dict[int, int]:
        """Return how many slots of each size can be given away."""
        seen: dict[str, list[int]] = self.node.call("kubelet", "capacity")
        return {int(name.rpartition("-x")[2]): free for name, (_, free) in seen.items() if "-x" in name}

    def until(self, **wanted: int) -> None:
        """Wait until so many can be given away, as `x4=2`."""
        expected = {int(name[1:]): count for name, count in wanted.items()}
        until, seen = time.monotonic() + LIMIT_S, dict[int, int]()
        while not expected.items() <= (seen := self.sizes()).items():
            assert time.monotonic() < until, (seen, self.node.log("agent.err")[-3000:])
            time.sleep(0.5)

    def admit(self, pod: str, size: int) -> tuple[int, ...]:
        """Admit a pod with a slot; returns its modules."""
        device, *_ = self.node.call("kubelet", "admit", pod, f"nvidia.com/pgpu-x{size}")
        return tuple(int(one) for one in str(device).partition("-")[2].split("."))

    def active(self) -> list[int]:
        """Return the partitions of several GPUs that the switches have."""
        text = self.node.output(f"cat {SWITCHES} 2>/dev/null || echo '[]'")
        return [one for one in json.loads(text) if one < 7]

    def wait_active(self, *partitions: int) -> None:
        until = time.monotonic() + LIMIT_S
        while self.active() != list(partitions):
            assert time.monotonic() < until, (self.active(), self.node.log("agent.err")[-3000:])
            time.sleep(0.3)

    def published(self) -> dict[str, list[str]]:
        """Return the nodes of each device that CDI specs show."""
        found: dict[str, list[str]] = {}
        for text in self.node.output("cat /var/run/cdi/*.json 2>/dev/null || true").split("\n}\n"):
            if text.strip():
                document = json.loads(text + "}")
                found |= {
                    one["name"]: [each["path"] for each in one["containerEdits"]["deviceNodes"]]
                    for one in document["devices"]
                }
        return found

    def wait_published(self, name: str) -> list[str]:
        until = time.monotonic() + LIMIT_S
        while name not in (seen := self.published()):
            assert time.monotonic() < until, (seen, self.node.log("agent.err")[-3000:])
            time.sleep(0.3)
        return seen[name]

    def machines(self) -> list[tuple[int, float]]:
        """Return how many GPUs each verifier's machine has read, and in how many seconds."""
        found = []
        for line in self.node.log("agent.err").splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("event") == "gpus read by a machine":
                found.append((str(told["gpu"]).count(",") + 1, float(told["duration_s"])))
        return found

    def resets(self, modules: tuple[int, ...]) -> list[int]:
        boards = [self.node.board[self.names[module]] for module in modules]
        return [board.resets(Reset.FLR) + board.resets(Reset.BUS) for board in boards]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = library.compile_library(tmp_path_factory.mktemp("nvfm"))
    files = {"stub/libnvfm.so.1": made.read_bytes()}
    parts = image.verifying()
    files |= parts.pop("files")
    files |= {f"stub/tests/fabricstub/{name}": (_STUB / name).read_bytes() for name in ("manager.py", "lattice.py")}
    own = [Path(__file__).parent / "hgx" / "kubelet.py"]
    with hgx_node(layout.HGX_H100, files=files, modules=own, tenants=2, memory_mib=1536, **parts) as node:
        found = World(node)
        found.begin()
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
