"""The whole story of a tenant's container on an HGX node: its payload lands in a virtual machine with its GPUs alone.

Real in the node: containerd with its shim, VFIO and groups, KVM, vsock, QEMU, the agent with ledger, CDI and verifier,
the kubelet's protocols by Fairlead's embedded kubelet. What stands in: Kata (`tests/katastandin`) and the Fabric
Manager (`tests/fabricstub`), which no registry has, the image with NVIDIA's driver, and a GPU made of vfio-user.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hgx import emulator, katanode, tenant
from hgx.fabricworld import LIMIT_S, PYTHON, SWITCHES, World
from hgx.layout import MODULES
from hgx.node import NodeError

from fairlead.plan.pod.values import environment
from fairlead.plan.sandbox import choice
from fairlead.serve.admission import request
from tests.cluster import katahost
from tests.fabricstub.lattice import H100
from tests.katastandin import waterfall

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

_ARTICLE = Path(__file__).parents[1] / "unit/cli/layer/fabric/test_cli_fabric.py"
SLOT = "nvidia.com/pgpu-x4"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with katanode.running() as found:
        found.until(x1=8, x2=4, x4=2, x8=1)
        # On a busy machine a GPU that was not looked at in time is read once more, by itself.
        assert found.machines()[0][0] == 8, "all are read in one machine before the first tenant"
        yield found


class Tenant:
    """A payload of the article's that runs on the node."""

    def __init__(self, world: World, name: str, resource: str, *, device: str = "", kill_at: str = "") -> None:
        self.world, self.node, self.name = world, world.node, name
        payload = {"container-url": "local/busybox:1", "tenancy": "landon", "command": tenant.LOOK}
        asked = msgspec.json.decode(json.dumps(payload), type=request.ContainerRequest)
        pod = request.pod_of(asked, resource=resource, scheduler_name="")
        self.pod = choice.bound(pod, "vm", "landon")
        (self.main,) = self.pod.spec.containers
        assert list(self.main.resources.limits) == [resource]
        command = list(environment.expand_all(self.main.command, {}))  # as the kubelet does
        words = (name, resource, self.pod.spec.runtime_class_name, command, device, kill_at)
        self.told: dict[str, Any] = self.node.call("crinode", "start", *words, limit_s=500)
        self.sandbox: str = self.told["sandbox"]
        (self.device,) = self.told["ids"]
        """The id of what the kubelet gave it."""

    @property
    def modules(self) -> tuple[int, ...]:
        """Return the modules of its slot: x4-1.2.3.4."""
        return tuple(int(one) for one in self.device.partition("-")[2].split("."))

    def seen(self) -> list[int]:
        """Return the modules that its container has found in the guest."""
        until = time.monotonic() + LIMIT_S
        while "TENANT done" not in (said := self.log()):
            assert time.monotonic() < until, said
            time.sleep(0.3)
        return sorted(gpu.module for gpu in tenant.reports(said))

    def log(self) -> str:
        return self.node.output(f"cat /run/pods/{self.name}/main.log 2>/dev/null || true")

    def kept(self, name: str) -> Any:
        return self.node.call("crinode", "kept", self.sandbox, name)

    def remove(self) -> None:
        self.node.call("crinode", "remove", self.sandbox, limit_s=LIMIT_S)

    def groups(self) -> list[str]:
        world = self.world
        return [
            world.node.call("facts", "nodes", world.node.address[world.names[one]])["group"] for one in self.modules
        ]

    def waterfall(self) -> tuple[list[tuple[str, float]], float]:
        """Return the phases with their seconds, and the wall time; see `waterfall`."""
        calls, inner = ([tuple(one) for one in found] for found in (self.told["calls"], self.kept("phases.json")))
        return waterfall.divide(calls, inner, self.node.call("crinode", "first_output", self.name))


def test_the_managers_partitions_are_the_articles_fifteen_rows(world: World) -> None:
    done = world.node.fairlead("fabric", "list", "--agent", "/run/fabric.sock", env=world.env)
    assert done.code == 0, done
    rows = [line.split() for line in _ARTICLE.read_text().partition('ARTICLE = """\\\n')[2].splitlines()[2:17]]
    assert [line.split()[0::4] for line in done.out.splitlines()[2:]] == [row[0::4] for row in rows]
    assert world.active() == []
    assert world.published() == {}


def test_a_tenants_payload_lands_in_a_machine_of_its_own_with_its_gpus_alone(world: World) -> None:
    first = Tenant(world, "first", SLOT)
    assert first.pod.spec.runtime_class_name == katahost.HANDLER
    partition, other = (1, 2) if first.modules[0] == 1 else (2, 1)
    assert first.modules in {(1, 2, 3, 4), (5, 6, 7, 8)}
    assert partition in world.active(), "the machine starts once its partition is active, and no sooner"
    assert first.seen() == list(first.modules)

    # What the shim was asked, and what it did: the kubelet's device, its CDI entry, a root port for each function.
    name = f"{SLOT}={first.device}"
    assert first.told["cdi"] == [name]
    plugged = first.kept("plugged.json")
    assert plugged["names"] == [name]
    assert sorted(plugged["nodes"]) == sorted(["/dev/vfio/vfio", *first.groups()])
    line = first.kept("line.json")
    passed = [word for word in line if word.startswith("vfio-pci,")]
    assert [f"bus=rp{number}" in word for number, word in enumerate(passed)] == [True] * 4
    addresses = {world.node.address[world.names[one]] for one in first.modules}
    assert {word.split("host=")[1].split(",")[0] for word in passed} == addresses
    assert any(word.startswith("vhost-vsock-pci,") for word in line)
    inspected = first.told["inspected"]
    assert inspected["CDI_devices"] == [{"name": name}]
    assert set(first.groups()) <= {one["path"] for one in inspected["devices"]}

    phases, wall_s = first.waterfall()
    for phase, seconds in phases:
        sys.stdout.write(f"{phase:<14}{seconds:8.2f} s {seconds / wall_s:6.1%}\n")
    assert 0.98 * wall_s <= sum(seconds for _, seconds in phases) <= 1.001 * wall_s

    # A second tenant has the other half, beside; nothing overlaps either.
    second = Tenant(world, "second", SLOT)
    assert second.seen() == list(second.modules)
    assert not set(first.modules) & set(second.modules)
    assert world.active() == sorted((partition, other))
    world.until(x8=0)
    for size in (8, 4, 2, 1):
        with pytest.raises(NodeError):
            world.admit(f"third-{size}", size)
    refused = world.node.call("crinode", "try_container", "second", second.sandbox, first.groups()[0])
    assert "was not plugged in when the machine was made" in refused

    # The end: by force first, so that the machine outlives its pod; then the engine removes it.
    before = world.resets(first.modules)
    world.node.call("kubelet", "end", "first")
    time.sleep(5)
    assert partition in world.active(), "no partition is switched off under a machine"
    assert world.resets(first.modules) == before
    assert name not in {f"{SLOT}={one}" for one in world.published()}, "no other sandbox resolves it"
    first.remove()
    world.wait_active(other)
    world.until(x4=2)
    assert all(now > then for now, then in zip(world.resets(first.modules), before, strict=True))
    assert world.machines()[-1][0] == 4, "the slot's GPUs were read together before the next tenant"
    assert world.admit("third", 4) == first.modules
    world.wait_active(*sorted((partition, other)))
    second.remove()
    time.sleep(3)  # the kubelet lists it
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


def test_kills_of_shim_and_emulator_lose_no_gpu_and_leave_no_partition(world: World) -> None:
    """What `tests/cluster/test_kata_killed.py` does at each step, at two that have a real machine, KVM and VFIO."""
    world.until(x1=8, x2=4, x4=2, x8=1)
    one = Tenant(world, "killed", SLOT, kill_at="made")
    assert any("its process ended without a word" in words for words in one.told["refused"]), one.told["refused"]
    assert one.seen() == list(one.modules), "the machine of the second try has them"
    (partition,) = world.active()
    world.node.output(f"kill -9 {one.kept('emulator.pid')}")
    state, reason, code = world.node.call("crinode", "ended", one.sandbox, LIMIT_S, limit_s=LIMIT_S + 30)
    assert (state, reason, code) == ("CONTAINER_EXITED", "Error", 255)
    assert world.active() == [partition], "the pod is the kubelet's still"
    before = world.resets(one.modules)  # the kernel's own, at the close of the last user, are in it
    one.remove()
    world.node.call("kubelet", "end", "killed")
    world.wait_active()
    world.until(x1=8, x2=4, x4=2, x8=1)
    assert all(now > then for now, then in zip(world.resets(one.modules), before, strict=True))
    assert world.machines()[-1][0] == 4, "they were read together before the next tenant"


MACHINES, TURNS_S = 20, 600.0


def test_partitions_follow_turns_of_tenants_with_machines(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty machines that have their slot's GPUs, beside each other, before and after their pods' end.

    No guest boots in them (`hgx/turns.py`), and their GPUs are reset and scrubbed, and not read in a machine: booting
    is all that would be measured.
    """
    node, modules = world.node, sorted(world.names)
    node.kill(world.agent)
    world.start_agent(is_verifying=False)
    world.until(x1=8, x2=4, x4=2, x8=1)
    addresses = {module: node.address[world.names[module]] for module in modules}
    facts = {
        "addresses": addresses,
        "groups": {module: node.call("facts", "nodes", addresses[module])["group"] for module in modules},
        "keys": {world.key(module): module for module in modules},
        "partitions": H100.partitions,
        "emulator": emulator.program(tenant.MOUNTED / "qemu"),
    }
    told = node.call("turns", "walk", facts, 1, MACHINES, TURNS_S, limit_s=1200)
    with capsys.disabled():
        print(f"\n{told}")  # noqa: T201
    assert told["violations"] == [], node.log("agent.err")[-3000:]
    assert told["machines"] == MACHINES or told["seconds"] > TURNS_S
    assert told["lingered"] > 0
    assert told["looks"] > MACHINES
    assert world.active() == []


def test_the_articles_inspection_shows_the_gpus_name_and_its_node(world: World) -> None:
    """The published DaemonSet's settings: ids count from 0, and the seventh GPU is `=6`."""
    node = world.node
    node.kill(world.agent)
    words = ("--state-folder", "/state/published", "--node-vfio", "bound", "--node-engine", "containerd://2.2.1")
    env = {"FAIRLEAD_NODE_VFIO_NAMES": "index", "FAIRLEAD_LEASE_LEDGER": "off"}
    world.agent = node.spawn_fairlead("published", "agent", *words, env=env)
    until = time.monotonic() + LIMIT_S
    while (seen := node.call("kubelet", "capacity")).get("nvidia.com/gpu") != [8, 8]:
        assert time.monotonic() < until, (seen, node.log("published.err")[-3000:])
        time.sleep(0.5)
    one = Tenant(world, "article", "nvidia.com/gpu", device="6")
    shown = one.told["inspected"]
    assert shown["CDI_devices"] == [{"name": "nvidia.com/gpu=6"}]
    group = node.call("facts", "nodes", node.address["gpu6"])["group"]
    major, minor = node.call("facts", "numbers", [group])[group]
    (device,) = (each for each in shown["devices"] if each["path"] == group)
    assert (device["type"], device["major"], device["minor"]) == ("c", major, minor)
    assert one.kept("plugged.json")["names"] == ["nvidia.com/gpu=6"]
    assert one.seen() == [MODULES[6]]
    one.remove()
