"""The real kube-scheduler asks ours: filter, prioritize, bind and preempt, on a control plane with nodes on paper."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plane
from tools.cluster import api, build, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PODS = "/api/v1/namespaces/default/pods"
_GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def cluster() -> Iterator[home.Cluster]:
    if why := plane.missing():
        pytest.skip(why)
    home.sweep()
    paths = tuple(build.folder_of(module) for module in build.modules(build.DEFAULT_VERSION))
    one = home.up("extended", paths=paths, owned=True, has_node=False)
    try:
        yield one
    finally:
        one.down()


@pytest.fixture(scope="module")
def server(cluster: home.Cluster) -> Iterator[api.API]:
    with cluster.api() as connection:
        connection.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for number in range(4):
            amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", _GPU: "8"}
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "on paper"}
            status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
            connection.create("/api/v1/nodes", {"metadata": {"name": f"n{number}"}, "status": status})
            connection.patch(f"/api/v1/nodes/n{number}", {"spec": {"taints": None}})
        for name, value in (("low", 1), ("high", 1000)):
            connection.create(
                "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value}
            )
        yield connection


@pytest.fixture(scope="module")
def extended(cluster: home.Cluster, server: api.API, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our extender in the cluster's machine, kube-scheduler beside it; gives the extender's log."""
    log = tmp_path_factory.mktemp("extender") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = cluster.host.command(
        sys.executable,
        "-m",
        "fairlead.cli.main",
        "scheduler",
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--control-extender=127.0.0.1:{port}",
        "--control-policy=packed",
        "--log-level=debug",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=cluster.host.environment, stdout=output, stderr=output)
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 100,
        "nodeCacheCapable": True,
        "managedResources": [{"name": _GPU}],
    }
    try:
        with plane.kube_scheduler(cluster, extenders=[extender]):
            yield log
    finally:
        process.terminate()
        process.wait(20)


def _add(server: api.API, name: str, gpus: int, **spec: Any) -> None:
    main = {"name": "main", "image": "registry.invalid/none:1", "resources": {"limits": {_GPU: str(gpus)}}}
    body = {"terminationGracePeriodSeconds": 0, "containers": [main], **spec}
    server.create(_PODS, {"metadata": {"name": name}, "spec": body})


def _until_bound(server: api.API, name: str) -> str:
    def bound(items: list[api.Object]) -> str | None:
        return next((one["spec"].get("nodeName") for one in items if one["metadata"]["name"] == name), None)

    return server.until(_PODS, bound, what=f"{name} is bound", timeout_s=40)


def test_kube_scheduler_packs_where_it_would_spread_and_the_extender_binds(server: api.API, extended: Path) -> None:
    for number in range(6):
        _add(server, f"small-{number}", 1, priorityClassName="low")
    nodes = {_until_bound(server, f"small-{number}") for number in range(6)}
    for number in range(3):
        _add(server, f"whole-{number}", 8, priorityClassName="low")
    assert len(nodes) == 1
    assert len({_until_bound(server, f"whole-{number}") for number in range(3)} | nodes) == 4
    deadline = time.monotonic() + 10
    while extended.read_text().count('"event": "pod bound"') < 9 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert extended.read_text().count('"event": "pod bound"') == 9


def test_a_refusal_of_the_extender_is_kube_schedulers_refusal(server: api.API, extended: Path) -> None:
    _add(server, "large", 9)

    def refused(items: list[api.Object]) -> str | None:
        for item in items:
            for one in item.get("status", {}).get("conditions", []):
                if item["metadata"]["name"] == "large" and one["type"] == "PodScheduled":
                    return str(one["message"])
        return None

    assert re.search(r"0/4 nodes are available: .*Insufficient nvidia.com/gpu", server.until(_PODS, refused, what="no"))
    server.delete(f"{_PODS}/large", grace_s=0)


def test_evictions_are_agreed_to_where_they_make_room(server: api.API, extended: Path) -> None:
    _add(server, "urgent", 8, priorityClassName="high")
    where = _until_bound(server, "urgent")
    there = [one["metadata"]["name"] for one in server.get(_PODS)["items"] if one["spec"].get("nodeName") == where]
    assert there == ["urgent"]


def test_nothing_listens_for_other_machines(cluster: home.Cluster, server: api.API) -> None:
    command = [sys.executable, "-m", "fairlead.cli.main", "scheduler", f"--cluster-kubeconfig={cluster.kubeconfig}"]
    done = subprocess.run([*command, "--control-extender=:0"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "is not a loopback address" in done.stderr
