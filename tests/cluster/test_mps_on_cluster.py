"""A file with `sharing.mps` beside the real kubelet: pods are clients of their GPU's daemon, with its limits."""

from __future__ import annotations

import signal
import sys
import time
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

SHARED = "nvidia.com/gpu.shared"
FILE = """
version: v1
sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0]}]}}
"""
_LOOK = (
    "env | grep CUDA_MPS | sort; ls /mps/pipe; touch /dev/shm/of-this-gpu; ls /dev/shm; ls /dev; echo end; sleep 3600"
)


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent that shares its first GPU by MPS."""
    file = cluster.folder / "mps.yaml"
    file.write_text(FILE)
    arguments = (
        *node.PRODUCT,
        f"--config-file={file}",
        f"--state-folder={cluster.folder / 'mps'}",
        "--log-format=json",
    )
    one = node.Agent(cluster, arguments)
    one.start()
    yield one
    one.stop(signal.SIGTERM)
    until(server, cluster, pods.RESOURCE, 0)


def until(server: api.API, cluster: home.Cluster, resource: str, count: int) -> None:
    def reached(items: list[api.Object]) -> bool | None:
        one = next(item for item in items if item["metadata"]["name"] == cluster.node)
        return int(one["status"].get("allocatable", {}).get(resource, 0)) == count or None

    server.until("/api/v1/nodes", reached, what=f"{count} of {resource}", timeout_s=60)


def start(space: pods.Space, name: str) -> list[str]:
    """Start a pod with one replica; returns what it saw."""
    container = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _LOOK],
        "resources": {"limits": {SHARED: "1"}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})
    space.until_phase(name, "Running")
    found: list[str] = []
    for line in space.server.lines(f"{space.path}/{name}/log", follow="true"):
        if line.strip() == "end":
            return found
        found.append(line.strip())
    raise AssertionError(found)


def test_pods_are_clients_of_their_gpus_daemon_with_its_limits(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    until(server, cluster, SHARED, 4)
    until(server, cluster, pods.RESOURCE, 7)
    for name in ("a", "b"):
        seen = start(space, name)
        assert "CUDA_MPS_PIPE_DIRECTORY=/mps/pipe" in seen
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in seen
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20389M" in seen
        assert {"control", "of-this-gpu", "nvidia0"} <= set(seen)
        assert "nvidia1" not in seen
    # A daemon that dies keeps the replicas back at the kubelet, and comes again.
    cluster.host.run(sys.executable, "-c", _KILL, str(cluster.folder / "mps" / "mps"))
    deadline = time.monotonic() + 30
    while "MPSDaemonDied" not in agent.log():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    until(server, cluster, SHARED, 4)
    space.delete("a")
    space.delete("b")


_KILL = """
import os, signal, sys
from pathlib import Path
[file] = Path(sys.argv[1]).glob("*/pipe/nvidia-cuda-mps-control.pid")
os.kill(int(file.read_text()), signal.SIGKILL)
"""
