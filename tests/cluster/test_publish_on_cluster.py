"""What the agent publishes on a real cluster: GPUDevices as kubectl shows them, labels and events of the Node."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors
from tests.cluster import node
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_DEVICES = "/apis/fairlead.dev/v1alpha1/gpudevices"
_EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent that publishes, with silicon that a test can break; its objects are gone afterwards."""
    node.define(cluster, "gpudevices")
    arguments = (*node.BREAKABLE, str(cluster.kubeconfig), cluster.node)
    with node.running(node.Agent(cluster, arguments), server) as one:
        until_health(server, dict.fromkeys(range(8), "Healthy"))
        yield one
    server.delete(_DEVICES)


def until_health(server: api.API, wanted: dict[int, str], *, timeout_s: float = 60) -> list[api.Object]:
    """Wait until the GPUs of these indexes have this health; return all GPUDevices in order of index."""

    def reached(items: list[api.Object]) -> list[api.Object] | None:
        found = {item["spec"]["index"]: item for item in items}
        health = {index: found.get(index, {}).get("status", {}).get("health") for index in wanted}
        return [found[index] for index in sorted(found)] if health == wanted else None

    return server.until(_DEVICES, reached, what=f"health {wanted}", timeout_s=timeout_s)


def until_event(server: api.API, check: Callable[[api.Object], bool], *, what: str) -> api.Object:
    def reached(items: list[api.Object]) -> api.Object | None:
        return next((item for item in items if check(item)), None)

    return server.until(_EVENTS, reached, what=what)


def test_kubectl_shows_every_gpu(agent: node.Agent, cluster: home.Cluster) -> None:
    header, *rows = node.kubectl(cluster, "get", "gpudevices", "--sort-by=.spec.index").splitlines()
    assert header.split() == ["NAME", "NODE", "INDEX", "PRODUCT", "MEMORY", "HEALTH", "HOLDER", "REASON", "AGE"]
    assert [row.split()[1:9] for row in rows] == [
        [cluster.node, str(index), "NVIDIA", "H100", "80GB", "HBM3", "81559Mi", "Healthy"] for index in range(8)
    ]
    wide = node.kubectl(cluster, "get", "gpu", "-o", "wide").splitlines()[0].split()
    assert {"REASON", "UUID", "PCI", "NUMA", "MIG", "DRIVER", "SIMULATED"} <= set(wide)
    chosen = node.kubectl(cluster, "get", "gpus", f"--field-selector=spec.nodeName={cluster.node}", "-o", "name")
    assert len(chosen.split()) == 8
    assert "it is offered to pods" in node.kubectl(cluster, "explain", "gpudevice.status.health")


def test_objects_belong_to_the_node_and_their_status_is_of_their_generation(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    uid = server.get(f"/api/v1/nodes/{cluster.node}")["metadata"]["uid"]
    for item in server.get(_DEVICES)["items"]:
        (owner,) = item["metadata"]["ownerReferences"]
        (condition,) = item["status"]["conditions"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", cluster.node, uid)
        assert (condition["type"], condition["status"]) == ("Healthy", "True")
        assert condition["observedGeneration"] == item["metadata"]["generation"] == 1


def test_the_node_is_labelled_beside_its_kubelets_labels(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    def labelled(items: list[api.Object]) -> dict[str, str] | None:
        labels: dict[str, str] = items[0]["metadata"]["labels"]
        return labels if "nvidia.com/gpu.product" in labels else None

    labels = server.until("/api/v1/nodes", labelled, what="the node is labelled")
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.family"]) == ("8", "hopper")
    assert labels["fairlead.dev/simulated"] == "true"
    assert labels["kubernetes.io/hostname"] == cluster.node
    chosen = node.kubectl(cluster, "get", "nodes", "-l", "nvidia.com/gpu.memory=81559", "-o", "name")
    assert chosen.split() == [f"node/{cluster.node}"]


def test_a_fault_reaches_the_object_and_the_nodes_events_and_so_does_recovery(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    agent.inject("xid", 3, "79")
    broken = until_health(server, {3: "Unhealthy", 2: "Healthy"})[3]
    uuid, reason = broken["spec"]["uuid"], broken["status"]["reason"]
    assert reason == "XID79"
    event = until_event(
        server,
        lambda item: item["reason"] == "DeviceUnhealthy" and uuid in item["message"],
        what=f"an event about {uuid}",
    )
    about = event["involvedObject"]
    assert (about["kind"], about["name"]) == ("Node", cluster.node)
    assert about["uid"] == server.get(f"/api/v1/nodes/{cluster.node}")["metadata"]["uid"]
    assert (event["type"], event["source"]["host"]) == ("Warning", cluster.node)
    told = node.kubectl(cluster, "describe", "node", cluster.node)
    assert any("Warning" in line and "DeviceUnhealthy" in line and uuid in line for line in told.splitlines())

    agent.inject("recover", 3)
    until_health(server, {3: "Healthy"})
    until_event(
        server,
        lambda item: item["reason"] == "DeviceHealthy" and uuid in item["message"],
        what=f"an event about the return of {uuid}",
    )


def test_a_lost_gpu_stays_as_lost_also_for_an_agent_that_never_saw_it(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    agent.inject("lost", 5)
    lost = until_health(server, {5: "Lost"})[5]
    agent.stop(signal.SIGKILL)
    agent.start()
    node.until_allocatable(server, cluster.node, 7)
    after = until_health(server, {5: "Lost", 4: "Healthy"})
    assert len(after) == 8
    assert after[5]["metadata"]["uid"] == lost["metadata"]["uid"]
    agent.inject("recover", 5)
    until_health(server, {5: "Healthy"})


def test_what_happens_while_the_api_server_is_away_is_published_after_its_return(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    registered = agent.registrations()
    cluster.stop("kube-apiserver", signal.SIGKILL)
    agent.inject("xid", 1, "79")
    agent.inject("lost", 6)
    cluster.restart("kubelet")  # the plugin serves it all the same
    agent.until_registered(registered + 1)
    cluster.start("kube-apiserver")
    with cluster.api() as fresh:
        _until_answers(fresh)
        devices = until_health(fresh, {0: "Healthy", 1: "Unhealthy", 6: "Lost"}, timeout_s=90)
        for index in (1, 6):
            uuid = devices[index]["spec"]["uuid"]
            until_event(
                fresh,
                lambda item, uuid=uuid: item["reason"] == "DeviceUnhealthy" and uuid in item["message"],  # type: ignore[misc]
                what=f"the event about {uuid}",
            )
        agent.inject("recover", 1)
        agent.inject("recover", 6)
        until_health(fresh, dict.fromkeys(range(8), "Healthy"))


def _until_answers(server: api.API) -> None:
    """Wait until the API server has its storage again; the outside of another process has no event to wait for."""
    deadline = time.monotonic() + 60
    while True:
        try:
            server.get(_DEVICES)
        except errors.Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
