"""Claims on a real node: real kubelet, kube-scheduler and containerd, our driver, simulated GPUs.

Manifests are in the shape of those that come with NVIDIA's driver. What a container may touch is read inside it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import claimpods, node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent whose GPUs claims get, with MIG devices made for them."""
    with claimpods.driver(cluster, server) as one:
        yield one


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
    spec = {"selectors": [{"cel": {"expression": claimpods.CLASSES["gpu.nvidia.com"]}}]}
    server.create(f"{claimpods.RESOURCE}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec})
    with node.running(node.Agent(cluster, arguments), server) as one:
        yield one, file
    for path in (claimpods.SLICES, f"{claimpods.RESOURCE}/deviceclasses", "/apis/fairlead.dev/v1alpha1/gpudevices"):
        server.delete(path)


@pytest.fixture(autouse=True)
def nothing_is_left(server: api.API) -> Iterator[None]:
    yield
    server.delete(claimpods.TEMPLATES)
    server.delete(claimpods.CLAIMS)


def test_a_pod_gets_the_gpus_of_its_claim_and_no_other(agent: node.Agent, server: api.API, space: pods.Space) -> None:
    claimpods.template(server, "two", claimpods.request("gpus", count=2))
    claimpods.start(space, "two", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    seen = claimpods.sight(space, "two")
    assert len(seen.nodes) == 2
    pods.assert_sees(seen, seen.nodes)
    claimpods.start(space, "next", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    assert not claimpods.sight(space, "next").nodes & seen.nodes
    space.delete("two")
    space.delete("next")
    claimpods.template(server, "all", claimpods.request("gpus", count=8))
    claimpods.start(space, "all", [{"name": "gpus"}], source={"resourceClaimTemplateName": "all"})
    assert claimpods.sight(space, "all").nodes == pods.ALL  # what was given back can be had again


def test_two_containers_share_one_claim_or_have_each_its_request(
    agent: node.Agent, server: api.API, space: pods.Space
) -> None:
    claimpods.template(server, "pair", claimpods.request("one"), claimpods.request("two"))
    each = [{"name": "gpus", "request": "one"}], [{"name": "gpus", "request": "two"}], [{"name": "gpus"}]
    claimpods.start(space, "pair", *each, source={"resourceClaimTemplateName": "pair"})
    first, second, both = (claimpods.sight(space, "pair", f"c{at}") for at in range(3))
    assert (len(first.nodes), len(second.nodes)) == (1, 1)
    assert not first.nodes & second.nodes
    assert both.nodes == first.nodes | second.nodes
    pods.assert_sees(first, first.nodes)


def test_a_mig_device_is_made_for_its_claim_and_gone_with_it(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    if not claimpods.has_partitions(cluster):
        pytest.skip("this API server keeps no counters of partitions by itself")
    profile = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    claimpods.template(server, "small", claimpods.request("mig", "mig.nvidia.com", cel=profile))
    for name in ("small-a", "small-b"):
        claimpods.start(space, name, [{"name": "gpus"}], source={"resourceClaimTemplateName": "small"})
        space.until_phase(name, "Running")
    claims = [one for one in server.get(claimpods.CLAIMS)["items"] if one.get("status", {}).get("allocation")]
    devices = [one["status"]["allocation"]["devices"]["results"][0]["device"] for one in claims]
    assert len(set(devices)) == 2
    assert len({name.partition("-mig-")[0] for name in devices}) == 1  # packed on one GPU by kube-scheduler's first fit
    assert all("-mig-1g10gb-19-" in name for name in devices)
    for name in ("small-a", "small-b"):
        space.delete(name)
    claimpods.template(server, "whole", claimpods.request("gpus", count=8))
    claimpods.start(space, "whole", [{"name": "gpus"}], source={"resourceClaimTemplateName": "whole"})
    assert claimpods.sight(space, "whole").nodes == pods.ALL


def test_a_wrong_configuration_is_said_where_the_pod_waits_and_harms_nobody(
    agent: node.Agent, server: api.API, space: pods.Space
) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharin": {}}
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    claimpods.template(server, "wrong", claimpods.request("gpus"), config=config)
    claimpods.template(server, "right", claimpods.request("gpus"))
    claimpods.start(space, "wrong", [{"name": "gpus"}], source={"resourceClaimTemplateName": "wrong"})
    claimpods.start(space, "right", [{"name": "gpus"}], source={"resourceClaimTemplateName": "right"})
    assert len(claimpods.sight(space, "right").nodes) == 1

    def said(items: list[api.Object]) -> api.Object | None:
        return next(
            (one for one in items if "sharin: nothing reads it; meant: sharing?" in one.get("message", "")), None
        )

    event = server.until("/api/v1/namespaces/default/events", said, what="the event of the pod", timeout_s=60)
    assert event["involvedObject"]["name"] == "wrong"


def test_what_kubelet_and_agent_forget_by_force_is_found_again(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    claimpods.template(server, "two", claimpods.request("gpus", count=2))
    claimpods.start(space, "kept", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    kept, was = claimpods.sight(space, "kept").nodes, pods.container(space.get("kept"))
    agent.stop(signal.SIGKILL)
    cluster.restart("kubelet")
    registered = agent.log().count("dra driver registered")
    agent.start()
    claimpods.until_registered(agent, registered + 1)
    claimpods.start(space, "later", [{"name": "gpus"}], source={"resourceClaimTemplateName": "two"})
    assert not claimpods.sight(space, "later").nodes & kept
    assert pods.container(space.get("kept")) == was
    space.delete("kept")
    deadline = time.monotonic() + 60
    while any(cluster.cdi.glob("k8s.gpu.nvidia.com-claim_*.json")) and time.monotonic() < deadline:
        space.delete("later") if space.server.get(space.path)["items"] else time.sleep(0.5)
    assert not list(cluster.cdi.glob("k8s.gpu.nvidia.com-claim_*.json"))


def published(server: api.API) -> set[str]:
    return {
        device["name"]
        for one in server.get(claimpods.SLICES)["items"]
        if one["spec"]["driver"] == "gpu.nvidia.com"
        for device in one["spec"].get("devices") or ()
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
    claimpods.template(server, "six", claimpods.request("gpus", count=6))
    claimpods.start(space, "by-claim", [{"name": "gpus"}], source={"resourceClaimTemplateName": "six"})
    assert claimpods.sight(space, "by-claim").nodes == pods.ALL - held

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
