"""Pods with claims on a cluster: made, and what their containers see of the GPUs.

Manifests are in the shape of those that come with NVIDIA's driver. What a container may touch is read inside it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

from tests.cluster import node, pods
from tools.cluster import api, home, image

RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
SLICES = f"{RESOURCE}/resourceslices"
CLASSES = {
    "gpu.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "mig.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'",
}


def has_partitions(cluster: home.Cluster) -> bool:
    """Whether an API server keeps the counters of partitions: DRAPartitionableDevices is beta from 1.36 on."""
    return tuple(int(part) for part in cluster.version.split(".")) >= (1, 36)


@contextlib.contextmanager
def driver(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """Start an agent whose GPUs claims get, with MIG devices made for them where the server keeps their counters.

    At the end it is ended, and what it published is removed.
    """
    node.define(cluster, "gpudevices", "gpuleases")
    state = cluster.folder / "claims-state"
    arguments = (
        *node.PRODUCT,
        "--node-door=claims",
        *(("--node-claim-partitions",) if has_partitions(cluster) else ()),
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--node-name={cluster.node}",
        f"--state-folder={state}",
        f"--state-run={state}/run",
    )
    for name, expression in CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        server.create(f"{RESOURCE}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    one = node.Agent(cluster, arguments)
    one.start()
    try:
        until_slices(server, 9 if has_partitions(cluster) else 1)  # one for the counters, one for each GPU; else one
        yield one
    finally:
        one.stop(signal.SIGTERM)
        for path in (SLICES, f"{RESOURCE}/deviceclasses", "/apis/fairlead.dev/v1alpha1/gpudevices"):
            server.delete(path)


def until_slices(server: api.API, count: int) -> list[api.Object]:
    def reached(items: list[api.Object]) -> list[api.Object] | None:
        ours = [one for one in items if one["spec"]["driver"] == "gpu.nvidia.com"]
        return ours if len(ours) == count else None

    return server.until(SLICES, reached, what=f"{count} slices are published", timeout_s=60)


def until_registered(agent: node.Agent, times: int) -> None:
    """Wait until a kubelet has the driver: slices outlive an agent that is killed for as long as 30 s."""
    deadline = time.monotonic() + 60
    while agent.log().count("dra driver registered") < times:
        assert time.monotonic() < deadline, agent.log()[-4000:]
        time.sleep(0.1)


def template(server: api.API, name: str, *requests: dict[str, Any], config: list[dict[str, Any]] | None = None) -> None:
    devices: dict[str, Any] = {"requests": list(requests)}
    if config:
        devices["config"] = config
    server.create(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}})


def request(name: str, kind: str = "gpu.nvidia.com", *, count: int = 1, cel: str = "") -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": kind, "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def start(space: pods.Space, name: str, *containers: list[dict[str, str]], source: dict[str, str]) -> None:
    """Create a pod each of whose containers looks at the GPUs of its claims, and stays."""
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpus", **source}],
        "containers": [
            {
                "name": f"c{at}",
                "image": image.BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", f"{pods.LOOK}\nexec sleep 3600"],
                "resources": {"claims": claims},
            }
            for at, claims in enumerate(containers)
        ],
    }
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})


def sight(space: pods.Space, name: str, container: str = "c0") -> pods.Sight:
    space.until_phase(name, "Running")
    return pods.parse_sight(space.server.lines(f"{space.path}/{name}/log", follow="true", container=container))
