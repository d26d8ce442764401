"""MIG on one machine, through the embedded kubelet and podman: devices apart, changed beside running work."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from home import Home

pytestmark = pytest.mark.podman

RESOURCE = "nvidia.com/mig-3g.40gb"
FILE = """
version: v1
mig-configs:
  halves: [{devices: [0, 1], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  whole-1: [{devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}]
  whole-0: [{devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}]
"""
PROBE = (
    "for f in /dev/nvidia-caps/*; do (: < $f) 2>&1; done;"
    " for n in {other}; do mknod /tmp/c$n c {major} $n; (: < /tmp/c$n) 2>&1; rm /tmp/c$n; done"
)


@pytest.fixture
def divided(home: Home) -> Home:
    """A service whose first two GPUs are partitioned while it runs."""
    (home.folder / "mig.yaml").write_text(FILE)
    home.extra["FAIRLEAD_SILICON_SIMULATE"] = "h100x8"
    home.up(FAIRLEAD_NODE_MIG_STRATEGY="mixed")
    home.ok("mig", "apply", "-f", str(home.folder / "mig.yaml"), "-c", "halves")
    home.until(lambda: capacity(home, RESOURCE) == 4, what="four MIG devices are offered")
    return home


def capacity(home: Home, resource: str) -> int:
    nodes = home.ok("nodes", "-o", "json").data  # none at first
    return sum(int(one["allocatable"].get(resource, 0)) for one in nodes)


def start(home: Home, name: str) -> dict[str, Any]:
    """Start a pod with one MIG device; returns how it is listed."""
    box = {
        "name": "main",
        "image": home.image,
        "command": ["sleep", "1000"],
        "resources": {"limits": {RESOURCE: 1}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [box]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    path = home.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(pod))
    home.ok("run", "-d", "-f", str(path))
    return home.until_state(name, "running")


def partitions(home: Home) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home.ok("mig", "list", "-o", "json").data
    return found


def gpu_of(home: Home, device: str) -> int:
    """Index of the GPU that a MIG device is on."""
    text = json.dumps
    return int(next(gpu["index"] for gpu in partitions(home) if device in text(gpu)))


def test_containers_get_their_own_instance_and_partitions_change_beside_them(divided: Home) -> None:
    home, file = divided, str(divided.folder / "mig.yaml")
    one, two = start(home, "a"), start(home, "b")
    [mine], [theirs] = one["gpu_ids"], two["gpu_ids"]
    assert mine != theirs

    # The kernel lets a container at its own GPU's node and its own two capability nodes, at no sibling's.
    nodes = {name: home.ok("exec", name, "--", "ls", "/dev/nvidia-caps").out.split() for name in ("a", "b")}
    assert [len(found) for found in nodes.values()] == [2, 2]
    other = " ".join(node.removeprefix("nvidia-cap") for node in set(nodes["b"]) - set(nodes["a"]))
    major = home.ok("exec", "a", "--", "sh", "-c", "stat -c %t /dev/nvidia-caps/* | head -1").out.strip()
    said = home("exec", "a", "--", "sh", "-c", PROBE.format(other=other, major=int(major, 16)))
    assert (said.out + said.err).count("No such device or address") == 2
    assert (said.out + said.err).count("Operation not permitted") == len(other.split()) == 2
    assert mine in home.ok("trace", "a").out
    assert "DIFF" not in home.ok("isolate", "audit", "a", "b").out

    # A fault of an instance takes its device alone; one of the GPU takes the sibling, too.
    gpus = partitions(home)
    fault = next(gpu for gpu in gpus if gpu["index"] == gpu_of(home, mine))
    inside = next(one["id"] for one in fault["instances"] if mine in json.dumps(one))
    before = capacity(home, RESOURCE)
    home.ok("simulate", "fault", "xid", f"95@{inside}", "-g", str(fault["index"]))
    home.until(lambda: capacity(home, RESOURCE) == before - 1, what="one device is unhealthy")

    # What is in use is not ended, its neighbour is changed, and the work goes on.
    neighbour = 1 - fault["index"]
    held = {gpu_of(home, mine), gpu_of(home, theirs)}
    refused = home("mig", "apply", "-f", file, "-c", f"whole-{fault['index']}")
    assert refused.code == 4
    assert mine in refused.err
    if neighbour in held:
        home.rm("b")
    home.ok("mig", "apply", "-f", file, "-c", f"whole-{neighbour}")
    home.until(lambda: capacity(home, "nvidia.com/mig-7g.80gb") == 1, what="the neighbour is one device")
    assert home.show("a")["state"] == "running"
    assert home.ok("exec", "a", "--", "ls", "/dev/nvidia-caps").out.split() == nodes["a"]

    # Drained, the first GPU follows.
    home.ok("mig", "apply", "-f", file, "-c", f"whole-{fault['index']}", "--drain")
    assert home.show("a")["state"] in {"failed", "stopped", "succeeded"}
    home.until(lambda: capacity(home, "nvidia.com/mig-7g.80gb") == 2, what="both are one device")


DRAINED = """
version: v1
mig-configs:
  mine:
  - {devices: [0], mig-enabled: true, mig-devices: {%s}}
  - {devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 2}}
"""


@pytest.mark.slow
def test_a_configuration_drains_the_pods_in_its_way_where_the_settings_say_so(home: Home) -> None:
    file = home.folder / "mig.yaml"
    file.write_text(DRAINED % "3g.40gb: 2")
    home.extra["FAIRLEAD_SILICON_SIMULATE"] = "h100x8"
    home.up(
        FAIRLEAD_NODE_MIG_STRATEGY="mixed",
        FAIRLEAD_NODE_MIG_CONFIG="mine",
        FAIRLEAD_NODE_MIG_CONFIG_FILE=str(file),
        FAIRLEAD_NODE_MIG_DRAIN="always",
    )
    home.until(lambda: capacity(home, RESOURCE) == 4, what="four MIG devices are offered")
    names = ("a", "b", "c")
    on = {name: gpu_of(home, start(home, name)["gpu_ids"][0]) for name in names}
    file.write_text(DRAINED % "7g.80gb: 1")
    home.rm(loose := next(name for name in names if on[name] == 1))  # the agent looks again when holders change
    home.until(lambda: capacity(home, "nvidia.com/mig-7g.80gb") == 1, what="the first GPU is one device")
    left = {name: home.show(name) for name in names if name != loose}
    assert {name: one["state"] == "running" for name, one in left.items()} == {name: on[name] == 1 for name in left}
    ended = [one for name, one in left.items() if on[name] == 0]
    assert ended
    assert {one["reason"] for one in ended} == {"MIGDrained"}
