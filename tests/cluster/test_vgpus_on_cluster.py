"""vGPUs of a made-up sysfs tree beside the real kubelet: offered by type, given by CDI, withdrawn with their board."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

SMALL, LARGE, MEDIATED = "nvidia.com/NVIDIA_L40S-12Q", "nvidia.com/NVIDIA_L40S-24Q", "nvidia.com/GRID_T4-8Q"
_LOOK = (
    "ls -1 /dev/vfio; ls /dev | grep -c nvidia; tr '\\0' '\\n' < /proc/1/environ | grep PCI_RESOURCE;"
    " (: < /dev/vfio/vfio) 2>&1 | sed 's/.*: //'; echo end; exec sleep 3600"
)


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API, request: pytest.FixtureRequest) -> Iterator[node.Agent]:
    """An agent on simulated boards of the profile that the test names."""
    words = tuple(request.param if word == "h100x8" else word for word in node.PRODUCT)
    told = (f"--cluster-kubeconfig={cluster.kubeconfig}", f"--node-name={cluster.node}")
    one = node.Agent(cluster, (*words, *told, "--health-hold-s=0.5", "--log-format=json"))
    one.start()
    yield one
    one.stop(signal.SIGTERM)
    until(server, cluster, {})


def until(server: api.API, cluster: home.Cluster, wanted: dict[str, int]) -> None:
    """Wait until the node has exactly so much of NVIDIA's resources to give."""

    def reached(items: list[api.Object]) -> bool | None:
        one = next(item for item in items if item["metadata"]["name"] == cluster.node)
        there = one["status"].get("allocatable", {})
        found = {name: int(count) for name, count in there.items() if name.startswith("nvidia.com/") and count != "0"}
        return found == wanted or None

    server.until("/api/v1/nodes", reached, what=f"the node offers {wanted}", timeout_s=60)


def start(space: pods.Space, name: str, resource: str, count: int = 1) -> None:
    container = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _LOOK],
        "resources": {"limits": {resource: str(count)}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})


def seen(space: pods.Space, name: str) -> list[str]:
    space.until_phase(name, "Running")
    found: list[str] = []
    for line in space.server.lines(f"{space.path}/{name}/log", follow="true"):
        if line.strip() == "end":
            return found
        found.append(line.strip())
    raise AssertionError(found)


@pytest.mark.parametrize("agent", ["l40sx2-vgpu"], indirect=True)
def test_virtual_functions_are_given_by_type_each_with_the_nodes_of_its_group(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    until(server, cluster, {SMALL: 2, LARGE: 2})  # their boards are not offered whole
    for name in ("a", "b"):
        start(space, name, SMALL)
    views = {name: seen(space, name) for name in ("a", "b")}
    groups = {view[0] for view in views.values()}
    assert len(groups) == 2
    for view in views.values():
        assert view[1:3] == ["vfio", "0"], view  # nothing of a driver
        [variable] = [line for line in view if line.startswith("PCI_RESOURCE_NVIDIA_COM_NVIDIA_L40S-12Q=0000:")]
        assert "," not in variable
    start(space, "c", SMALL)
    assert "Insufficient" in space.until_unschedulable("c")
    space.delete("a")
    space.until_phase("c", "Running")


@pytest.mark.parametrize("agent", ["t4x2-vgpu"], indirect=True)
def test_mediated_devices_are_given_beside_a_whole_gpu_and_a_fault_of_their_board_withdraws_them(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    until(server, cluster, {MEDIATED: 2, pods.RESOURCE: 1})
    start(space, "both", MEDIATED, 2)
    view = seen(space, "both")
    [variable] = [line for line in view if line.startswith("MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-8Q=")]
    assert len(variable.partition("=")[2].split(",")) == 2
    space.clear()
    fault = (sys.executable, "-m", "fairlead.cli.main", "simulate", "fault")
    cluster.host.run(*fault, "lost", "-g", "0")
    until(server, cluster, {pods.RESOURCE: 1})
    cluster.host.run(*fault, "recover", "-g", "0")
    until(server, cluster, {MEDIATED: 2, pods.RESOURCE: 1})
