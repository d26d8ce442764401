"""The whole story of a tenant's container on an HGX node: its payload lands in a virtual machine with its GPUs alone.

Real in the node: containerd with its shim, VFIO and groups, KVM, vsock, QEMU, the agent with ledger, CDI and verifier,
the kubelet's protocols by Fairlead's embedded kubelet. What stands in: Kata (`tests/katastandin`) and the Fabric
Manager (`tests/fabricstub`), which no registry has, the image with NVIDIA's driver, and a GPU made of vfio-user.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hgx import katanode, tenant
from hgx.fabricworld import LIMIT_S, World
from hgx.layout import MODULES
from hgx.node import NodeError

from fairlead.plan.pod import environment
from fairlead.plan.sandbox import choice
from fairlead.serve.admission import request
from tests.cluster import katahost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOT = "nvidia.com/pgpu-x4"
SUBPHASES = ["devices", "QEMU", "firmware", "kernel", "init"]
"""What the stand-in tells of a sandbox."""
ENGINE = "engine"
"""What is left of the engine's call for it: containerd, its shim, the runtime's start."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with katanode.running() as found:
        until = time.monotonic() + LIMIT_S
        while "BaselineMissing" not in (log := found.node.log("agent.err")):
            assert time.monotonic() < until, log[-3000:]
            time.sleep(0.5)
        done = found.node.fairlead("lease", "baseline", "approve", "233010de", "--state-folder", "/state/fairlead")
        assert done.code == 0, done
        found.until(x1=8, x2=4, x4=2, x8=1)
        yield found


class Tenant:
    """A payload of the article's that runs on the node."""

    def __init__(self, world: World, name: str, resource: str, *, device: str = "") -> None:
        self.world, self.node, self.name = world, world.node, name
        payload = {"container-url": "local/busybox:1", "tenancy": "landon", "command": tenant.LOOK}
        asked = msgspec.json.decode(json.dumps(payload), type=request.ContainerRequest)
        pod = request.pod_of(asked, resource=resource, scheduler_name="")
        self.pod = choice.bound(pod, "vm", "landon")
        (self.main,) = self.pod.spec.containers
        assert list(self.main.resources.limits) == [resource]
        command = list(environment.expand_all(self.main.command, {}))  # as the kubelet does
        words = (name, resource, self.pod.spec.runtime_class_name, command, device)
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
        """Return the phases with their seconds, and the wall time: from the request until the container has written.

        Each phase is between two stamps of one component: the engine's client, the stand-in, the engine's log.
        """
        calls: list[tuple[str, float, float]] = [tuple(one) for one in self.told["calls"]]
        inner: list[tuple[str, float, float]] = [tuple(one) for one in self.kept("phases.json")]
        (sandbox,) = (one for one in calls if one[0] == "sandbox")
        assert [name for name, _, _ in inner] == SUBPHASES
        for (_, _, end), (_, begin, _) in itertools.pairwise(inner):
            assert begin == end
        assert sandbox[1] <= inner[0][1] <= inner[-1][2] <= sandbox[2], "the runtime works within the engine's call"
        output = self.node.call("crinode", "first_output", self.name)
        found = [(name, end - begin) for name, begin, end in calls if name != "sandbox"]
        found += [(name, end - begin) for name, begin, end in inner]
        found.append((ENGINE, sandbox[2] - sandbox[1] - sum(end - begin for _, begin, end in inner)))
        found.append(("first output", max(0.0, output - calls[-1][2])))
        return found, max(output, calls[-1][2]) - calls[0][1]


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


def test_the_articles_inspection_shows_the_gpus_name_and_its_node(world: World) -> None:
    """The published DaemonSet's settings: ids count from 0, and the seventh GPU is `=6`."""
    node = world.node
    node.kill(world.agent)
    for pod in ("second", "third"):
        node.call("kubelet", "end", pod)
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
