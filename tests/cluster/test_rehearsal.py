"""Faults rehearsed on a real cluster, and what an operator sees when the agent, its rights or its resource change.

The chart is installed on simulated silicon; every step is a command that the how-to names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node, pods
from tests.cluster.test_installed import _SPACE, Release, release  # noqa: F401 fixture
from tests.cluster.test_publish_on_cluster import until_event, until_health
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_RENAMED = "fairlead.dev/gpu"
_DAEMONSET = f"/apis/apps/v1/namespaces/{_SPACE}/daemonsets/fairlead-agent"


def fairlead(cluster: home.Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of this tree over the cluster."""
    argv = (sys.executable, "-m", "fairlead.cli.main", "--kubeconfig", str(cluster.kubeconfig), *arguments)
    environment = {"PATH": os.defpath, "HOME": "/nonexistent"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, env=environment)


def doctor(cluster: home.Cluster) -> list[dict[str, Any]]:
    """Return what the doctor finds wrong."""
    found: list[dict[str, Any]] = json.loads(fairlead(cluster, "doctor", "-o", "json").stdout)
    return [one for one in found if one["level"] != "ok"]


def until_offered(server: api.API, name: str, resource: str, count: int) -> None:
    def reached(items: list[api.Object]) -> bool | None:
        found = next(item for item in items if item["metadata"]["name"] == name)
        return True if int(found["status"]["allocatable"].get(resource, "0")) == count else None

    server.until("/api/v1/nodes", reached, what=f"{count} {resource} offered", timeout_s=90)


def test_a_fault_travels_from_the_command_to_the_scheduler_and_back(
    release: Release,  # noqa: F811
    cluster: home.Cluster,
    server: api.API,
) -> None:
    until_health(server, dict.fromkeys(range(8), "Healthy"))
    done = fairlead(cluster, "simulate", "fault", "xid", "79", "--gpu", "3", "--node", cluster.node)
    assert (done.returncode, done.stdout) == (0, f"{cluster.node}: gpu 3: xid 79\n"), done.stderr
    node.until_allocatable(server, cluster.node, 7)
    broken = until_health(server, {3: "Unhealthy", 2: "Healthy"})[3]
    assert broken["status"]["reason"] == "XID79"
    uuid = broken["spec"]["uuid"]

    def about_it(reason: str) -> Callable[[api.Object], bool]:
        return lambda item: item["reason"] == reason and uuid in item["message"]

    until_event(server, about_it("DeviceUnhealthy"), what="an event about the fault")

    # the way of the refusal's hint, in the agent's container
    inside = ("exec", "-n", _SPACE, "daemonset/fairlead-agent", "--", "fairlead")
    said = release.tools.kubectl(*inside, "simulate", "fault", "recover", "--gpu", "3").stdout
    assert said.startswith("gpu 3: recovered")
    node.until_allocatable(server, cluster.node, 8)
    until_health(server, {3: "Healthy"})
    until_event(server, about_it("DeviceHealthy"), what="an event about the recovery")

    refused = fairlead(cluster, "simulate", "fault", "fire", "--gpu", "3", "--node", cluster.node)
    assert refused.returncode != 0
    assert 'no fault "fire" (offered: xid, lost' in refused.stderr
    nowhere = fairlead(cluster, "simulate", "fault", "xid", "79", "--gpu", "3", "--node", "elsewhere")
    assert f'no GPUs are published of node "elsewhere" (simulated: {cluster.node})' in nowhere.stderr


def test_one_key_sorts_the_gpus_of_a_cluster_by_node_and_index(
    release: Release,  # noqa: F811
    cluster: home.Cluster,
    server: api.API,
) -> None:
    until_health(server, dict.fromkeys(range(8), "Healthy"))
    _, *rows = node.kubectl(cluster, "get", "gpudevices", "--sort-by=.spec.nodeIndex").splitlines()
    assert [row.split()[1:3] for row in rows] == [[cluster.node, str(index)] for index in range(8)]


def test_after_a_rename_no_second_pod_gets_the_gpu_of_a_running_one(
    release: Release,  # noqa: F811
    cluster: home.Cluster,
    server: api.API,
    space: pods.Space,
) -> None:
    node.until_allocatable(server, cluster.node, 8)
    space.start_looking("keep", gpus=2)
    kept = space.sight("keep").nodes
    try:
        release.helm("upgrade", f"resource={_RENAMED}")
        until_offered(server, cluster.node, _RENAMED, 6)
        held = until_health(server, {index: "Unhealthy" for index in kept})
        for index in kept:
            status = held[index]["status"]
            assert status["reason"] == "HeldByOtherResource"
            assert "default/keep (container main) has it as nvidia.com/gpu" in status["message"]
            assert status["holders"][0]["resource"] == "nvidia.com/gpu"
        until_event(server, lambda item: item["reason"] == "HeldByOtherResource", what="an event about the rename")
        assert {one["check"] for one in doctor(cluster)} >= {"gpus"}

        rest = pods.looker(0)
        rest["resources"] = {"limits": {_RENAMED: "6"}}
        server.create(space.path, {"metadata": {"name": "renamed"}, "spec": {"containers": [rest]}})
        assert space.sight("renamed").nodes == pods.ALL - kept
        more = {**rest, "resources": {"limits": {_RENAMED: "1"}}}
        server.create(space.path, {"metadata": {"name": "third"}, "spec": {"containers": [more]}})
        assert f"Insufficient {_RENAMED}" in space.until_unschedulable("third")

        node.kubectl(cluster, "delete", "pod", "keep", "--grace-period=0")
        until_offered(server, cluster.node, _RENAMED, 8)
        assert space.sight("third").nodes < kept
    finally:
        space.clear()
        release.helm("upgrade")
        node.until_allocatable(server, cluster.node, 8)


def test_gpus_without_an_agent_are_unknown_until_one_is_back(
    release: Release,  # noqa: F811
    cluster: home.Cluster,
    server: api.API,
) -> None:
    until_health(server, dict.fromkeys(range(8), "Healthy"))

    def select(label: str | None) -> None:
        server.patch(_DAEMONSET, {"spec": {"template": {"spec": {"nodeSelector": {"no.such/node": label}}}}})

    select("here")
    try:
        found = until_health(server, dict.fromkeys(range(8), "Unknown"), timeout_s=120)
        assert {one["status"]["reason"] for one in found} == {"AgentGone"}
        wrong = {one["check"]: one for one in doctor(cluster)}
        assert wrong["agent"]["level"] == "fail"
        assert "its device plugin has gone away" in wrong["nodes"]["why"]
    finally:
        select(None)
        node.until_allocatable(server, cluster.node, 8)
    until_health(server, dict.fromkeys(range(8), "Healthy"))


def test_an_agent_without_its_rights_is_not_ready_and_names_the_right(
    release: Release,  # noqa: F811
    cluster: home.Cluster,
    server: api.API,
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-agent"
    before = server.get(role)["rules"]

    def until_ready(count: int) -> None:
        def reached(items: list[api.Object]) -> bool | None:
            return True if items[0]["status"].get("numberReady", 0) == count else None

        server.until(_DAEMONSET.rpartition("/")[0], reached, what=f"{count} agents are ready", timeout_s=120)

    until_ready(1)
    server.patch(role, {"rules": [rule for rule in before if rule["resources"] != ["gpudevices/status"]]})
    try:
        release.tools.kubectl("-n", _SPACE, "delete", "pod", "-l", "app.kubernetes.io/component=agent")  # it asks anew
        until_ready(0)
        (wrong,) = (one for one in doctor(cluster) if one["check"] == "agent rights")
        assert "update gpudevices/status" in wrong["what"]
    finally:
        server.patch(role, {"rules": before})
        until_ready(1)
