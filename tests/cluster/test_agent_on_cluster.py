"""`fairlead agent` beside the real kubelet: registration, grants, isolation, and every restart."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.smoke,
    pytest.mark.timeout(180),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_HOLD = "ls /dev | grep -E '^nvidia[0-9]+$'; echo listed; exec sleep 3600"


def test_the_node_offers_all_eight(agent: node.Agent, cluster: home.Cluster, server: api.API) -> None:
    one = server.get(f"/api/v1/nodes/{cluster.node}")
    assert (node.gpus(one, "capacity"), node.gpus(one, "allocatable")) == (8, 8)


def test_a_pod_of_two_sees_and_opens_its_two_and_no_other(agent: node.Agent, space: pods.Space) -> None:
    space.start_looking("two", gpus=2)
    pods.assert_sees_its_own(space.sight("two"), 2)


def test_a_pod_that_asks_for_none_sees_none(agent: node.Agent, space: pods.Space) -> None:
    space.start_looking("none", gpus=0)
    sight = space.sight("none")
    assert sight.nodes == frozenset()
    assert set(sight.opens.values()) == {"EPERM"}


def test_four_pods_of_two_fill_the_node_and_the_fifth_waits_its_turn(agent: node.Agent, space: pods.Space) -> None:
    names = [f"pair-{index}" for index in range(4)]
    for name in names:
        space.start_looking(name, gpus=2)
    held = {name: space.sight(name).nodes for name in names}
    assert sorted(gpu for nodes in held.values() for gpu in nodes) == sorted(pods.ALL)

    space.start_looking("fifth", gpus=2)
    assert "1 Insufficient nvidia.com/gpu" in space.until_unschedulable("fifth")

    space.delete(names[2])
    assert space.sight("fifth").nodes == held[names[2]]


def test_a_kubelet_that_restarts_finds_the_plugin_and_every_grant(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("before", gpus=2)
    held = space.sight("before").nodes
    was = pods.container(space.get("before"))
    registered = agent.registrations()

    cluster.restart("kubelet")
    agent.until_registered(registered + 1)
    node.until_allocatable(server, cluster.node, 8)

    space.start_looking("after", gpus=6)
    assert space.sight("after").nodes == pods.ALL - held
    assert pods.container(space.get("before")) == was


def test_an_agent_killed_takes_its_gpus_from_the_node_and_brings_them_back(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("holds", gpus=2)
    held = space.sight("holds").nodes
    was = pods.container(space.get("holds"))

    agent.stop(signal.SIGKILL)
    assert node.gpus(node.until_allocatable(server, cluster.node, 0), "capacity") == 8

    agent.start()
    node.until_allocatable(server, cluster.node, 8)
    space.start_looking("later", gpus=6)
    assert space.sight("later").nodes == pods.ALL - held
    assert pods.container(space.get("holds")) == was


def test_an_agent_that_is_stopped_leaves_no_socket_and_no_spec(agent: node.Agent, cluster: home.Cluster) -> None:
    assert any(cluster.cdi.iterdir())
    agent.stop(signal.SIGTERM)
    assert [path.name for path in cluster.cdi.iterdir() if path.suffix in {".json", ".yaml"}] == []
    sockets = [path.name for path in cluster.device_plugins.iterdir() if path.is_socket()]
    assert sockets == ["kubelet.sock"]


def test_a_container_that_crashes_while_its_nodes_agent_is_stopped_comes_again_with_its_gpus(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start("holds", _HOLD, gpus=2, restart="Always")
    held, restarts = pods.container(space.until_phase("holds", "Running"))
    seen = _listed(space)
    agent.stop(signal.SIGTERM)
    cluster.host.run("ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", held.rpartition("/")[2])

    def came_again(pod: api.Object) -> bool:
        state = pod["status"]["containerStatuses"][0]
        return bool(state["restartCount"] > restarts and state.get("ready"))

    space.until("holds", came_again, what="came again")
    assert _listed(space) == seen
    agent.start()
    node.until_allocatable(server, cluster.node, 8)


def _listed(space: pods.Space) -> list[str]:
    """Return the GPUs that the pod `holds` saw in its /dev."""
    found: list[str] = []
    for line in space.server.lines(f"{space.path}/holds/log", follow="true"):
        if line.strip() == "listed":
            assert len(found) == 2
            return found
        found.append(line.strip())
    raise AssertionError(found)


def test_a_broken_gpu_leaves_allocatable_and_comes_back(
    breakable_agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    breakable_agent.inject("xid", 3, "79")
    assert node.gpus(node.until_allocatable(server, cluster.node, 7), "capacity") == 8
    space.start_looking("seven", gpus=7)
    assert space.sight("seven").nodes == pods.ALL - {3}

    breakable_agent.inject("recover", 3)
    node.until_allocatable(server, cluster.node, 8)
