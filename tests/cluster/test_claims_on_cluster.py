"""Claims on a real node: real kubelet, kube-scheduler and containerd, our driver, simulated GPUs.

Manifests are in the shape of those that come with NVIDIA's driver. What a container may touch is read inside it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_RESOURCE = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCE}/namespaces/default/resourceclaims"
_TEMPLATES = f"{_RESOURCE}/namespaces/default/resourceclaimtemplates"
_SLICES = f"{_RESOURCE}/resourceslices"
_CLASSES = {
    "gpu.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "mig.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'",
}


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent whose GPUs claims get, with MIG devices made for them."""
    node.define(cluster, "gpudevices", "gpuleases")
    state = cluster.folder / "claims-state"
    arguments = (
        *node.PRODUCT,
        "--node-door=claims",
        "--node-claim-partitions",
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--node-name={cluster.node}",
        f"--state-folder={state}",
        f"--state-run={state}/run",
    )
    for name, expression in _CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        server.create(f"{_RESOURCE}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    one = node.Agent(cluster, arguments)
    one.start()
    until_slices(server, 9)  # one for the counters, one for each GPU
    yield one
    one.stop(signal.SIGTERM)
    for path in (_SLICES, f"{_RESOURCE}/deviceclasses", "/apis/fairlead.dev/v1alpha1/gpudevices"):
        server.delete(path)


@pytest.fixture
def moving(cluster: home.Cluster, server: api.API) -> Iterator[tuple[node.Agent, Path]]:
    """An agent, and the configuration file that says which GPUs claims get: none at first."""
    node.define(cluster, "gpudevices", "gpuleases")
    state = cluster.folder / "moving-state"
    file = cluster.folder / "doors.yaml"
    file.write_text("version: v1\n")
    arguments = (
        *node.PRODUCT,
        f"--plugin-config-file={file}",
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--node-name={cluster.node}",
        f"--state-folder={state}",
        f"--state-run={state}/run",
    )
    spec = {"selectors": [{"cel": {"expression": _CLASSES["gpu.nvidia.com"]}}]}
    server.create(f"{_RESOURCE}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec})
    with node.running(node.Agent(cluster, arguments), server) as one:
        yield one, file
    for path in (_SLICES, f"{_RESOURCE}/deviceclasses", "/apis/fairlead.dev/v1alpha1/gpudevices"):
        server.delete(path)


def until_slices(server: api.API, count: int) -> list[api.Object]:
    def reached(items: list[api.Object]) -> list[api.Object] | None:
        ours = [one for one in items if one["spec"]["driver"] == "gpu.nvidia.com"]
        return ours if len(ours) == count else None

    return server.until(_SLICES, reached, what=f"{count} slices are published", timeout_s=60)


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
    server.create(_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}})


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


@pytest.fixture(autouse=True)
def nothing_is_left(server: api.API) -> Iterator[None]:
    yield
    server.delete(_TEMPLATES)
    server.delete(_CLAIMS)


def test_a_pod_gets_the_gpus_of_its_claim_and_no_other(agent: node.Agent, server: api.API, space: pods.Space) -> None:
    template(server, "two", request("gpus", count=2))
    start(space, "two", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    seen = sight(space, "two")
    assert len(seen.nodes) == 2
    pods.assert_sees(seen, seen.nodes)
    start(space, "next", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    assert not sight(space, "next").nodes & seen.nodes
    space.delete("two")
    space.delete("next")
    template(server, "all", request("gpus", count=8))
    start(space, "all", [{"name": "gpus"}], source={"resourceClaimTemplateName": "all"})
    assert sight(space, "all").nodes == pods.ALL  # what was given back can be had again


def test_two_containers_share_one_claim_or_have_each_its_request(
    agent: node.Agent, server: api.API, space: pods.Space
) -> None:
    template(server, "pair", request("one"), request("two"))
    each = [{"name": "gpus", "request": "one"}], [{"name": "gpus", "request": "two"}], [{"name": "gpus"}]
    start(space, "pair", *each, source={"resourceClaimTemplateName": "pair"})
    first, second, both = (sight(space, "pair", f"c{at}") for at in range(3))
    assert (len(first.nodes), len(second.nodes)) == (1, 1)
    assert not first.nodes & second.nodes
    assert both.nodes == first.nodes | second.nodes
    pods.assert_sees(first, first.nodes)


def test_a_mig_device_is_made_for_its_claim_and_gone_with_it(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    profile = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    template(server, "small", request("mig", "mig.nvidia.com", cel=profile))
    for name in ("small-a", "small-b"):
        start(space, name, [{"name": "gpus"}], source={"resourceClaimTemplateName": "small"})
        space.until_phase(name, "Running")
    claims = [one for one in server.get(_CLAIMS)["items"] if one.get("status", {}).get("allocation")]
    devices = [one["status"]["allocation"]["devices"]["results"][0]["device"] for one in claims]
    assert len(set(devices)) == 2
    assert len({name.partition("-mig-")[0] for name in devices}) == 1  # packed on one GPU by kube-scheduler's first fit
    assert all("-mig-1g10gb-19-" in name for name in devices)
    for name in ("small-a", "small-b"):
        space.delete(name)
    template(server, "whole", request("gpus", count=8))
    start(space, "whole", [{"name": "gpus"}], source={"resourceClaimTemplateName": "whole"})
    assert sight(space, "whole").nodes == pods.ALL


def test_a_wrong_configuration_is_said_where_the_pod_waits_and_harms_nobody(
    agent: node.Agent, server: api.API, space: pods.Space
) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharin": {}}
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    template(server, "wrong", request("gpus"), config=config)
    template(server, "right", request("gpus"))
    start(space, "wrong", [{"name": "gpus"}], source={"resourceClaimTemplateName": "wrong"})
    start(space, "right", [{"name": "gpus"}], source={"resourceClaimTemplateName": "right"})
    assert len(sight(space, "right").nodes) == 1

    def said(items: list[api.Object]) -> api.Object | None:
        return next(
            (one for one in items if "sharin: nothing reads it; meant: sharing?" in one.get("message", "")), None
        )

    event = server.until("/api/v1/namespaces/default/events", said, what="the event of the pod", timeout_s=60)
    assert event["involvedObject"]["name"] == "wrong"


def test_what_kubelet_and_agent_forget_by_force_is_found_again(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    template(server, "two", request("gpus", count=2))
    start(space, "kept", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    kept, was = sight(space, "kept").nodes, pods.container(space.get("kept"))
    agent.stop(signal.SIGKILL)
    cluster.restart("kubelet")
    registered = agent.log().count("dra driver registered")
    agent.start()
    until_registered(agent, registered + 1)
    start(space, "later", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    assert not sight(space, "later").nodes & kept
    assert pods.container(space.get("kept")) == was
    space.delete("kept")
    deadline = time.monotonic() + 60
    while any(cluster.cdi.glob("k8s.gpu.nvidia.com-claim_*.json")) and time.monotonic() < deadline:
        space.delete("later") if space.server.get(space.path)["items"] else time.sleep(0.5)
    assert not list(cluster.cdi.glob("k8s.gpu.nvidia.com-claim_*.json"))


def published(server: api.API) -> set[str]:
    return {
        device["name"]
        for one in server.get(_SLICES)["items"]
        if one["spec"]["driver"] == "gpu.nvidia.com"
        for device in one["spec"].get("devices", ())
        if not device.get("taints")
    }


def until_published(server: api.API, count: int) -> set[str]:
    deadline = time.monotonic() + 60
    while len(found := published(server)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def test_a_node_moves_to_claims_and_back_under_running_pods(
    moving: tuple[node.Agent, Path], cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    _, file = moving
    space.start_looking("by-plugin", gpus=2)
    held = space.sight("by-plugin").nodes
    time.sleep(2)  # so that the kubelet's list has named it: a pod that none has named is not known to have ended

    file.write_text("version: v1\nfairlead: {claims: {devices: all}}\n")
    assert until_published(server, 6) == {f"gpu-{number}" for number in pods.ALL - held}
    node.until_allocatable(server, cluster.node, 2)  # what the pod has keeps its door
    template(server, "six", request("gpus", count=6))
    start(space, "by-claim", [{"name": "gpus"}], source={"resourceClaimTemplateName": "six"})
    assert sight(space, "by-claim").nodes == pods.ALL - held

    space.delete("by-plugin")
    until_published(server, 8)
    node.until_allocatable(server, cluster.node, 0)

    file.write_text("version: v1\n")
    node.until_allocatable(server, cluster.node, 2)
    assert published(server) == set()  # nothing new is allocated from what is to leave
    space.start_looking("by-plugin-again", gpus=2)
    assert space.sight("by-plugin-again").nodes == held
    space.delete("by-claim")
    node.until_allocatable(server, cluster.node, 8)
