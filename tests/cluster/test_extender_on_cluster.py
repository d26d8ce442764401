"""The real kube-scheduler asks ours: filter, prioritize, bind and preempt, on a control plane with nodes on paper."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import plane
from tests.cluster import paper, pods
from tools.cluster import api, build, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def control_plane() -> Iterator[home.Cluster]:
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
def server(control_plane: home.Cluster) -> Iterator[api.API]:
    with control_plane.api() as connection:
        connection.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for number in range(4):
            paper.add_node(connection, f"n{number}", gpus=8)
        for name, value in (("low", 1), ("high", 1000)):
            connection.create(
                "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value}
            )
        yield connection


@pytest.fixture(scope="module")
def extended(control_plane: home.Cluster, server: api.API, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our extender in the cluster's machine, kube-scheduler beside it; gives the extender's log."""
    log = tmp_path_factory.mktemp("extender") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = control_plane.host.command(
        sys.executable,
        "-m",
        "fairlead.cli.main",
        "scheduler",
        f"--cluster-kubeconfig={control_plane.kubeconfig}",
        f"--control-extender=127.0.0.1:{port}",
        "--control-policy=packed",
        "--log-level=debug",
    )
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=control_plane.host.environment, stdout=output, stderr=output)
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 100,
        "nodeCacheCapable": True,
        "managedResources": [{"name": pods.RESOURCE}],
    }
    try:
        with plane.kube_scheduler(control_plane, extenders=[extender]):
            yield log
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def space(server: api.API, extended: Path) -> paper.Space:
    """Where kube-scheduler's pods are; what a test leaves there, the next one finds."""
    return paper.Space(server, pods.DEFAULT)


def test_kube_scheduler_packs_where_it_would_spread_and_the_extender_binds(space: paper.Space, extended: Path) -> None:
    for number in range(6):
        space.add(f"small-{number}", schedulerName="default-scheduler", gpus=1, priorityClassName="low")
    nodes = set(space.until_bound(*(f"small-{number}" for number in range(6))))
    for number in range(3):
        space.add(f"whole-{number}", schedulerName="default-scheduler", gpus=8, priorityClassName="low")
    assert len(nodes) == 1
    assert len({*space.until_bound(*(f"whole-{number}" for number in range(3))), *nodes}) == 4
    deadline = time.monotonic() + 10
    while extended.read_text().count('"event": "pod bound"') < 9 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert extended.read_text().count('"event": "pod bound"') == 9


def test_a_refusal_of_the_extender_is_kube_schedulers_refusal(space: paper.Space, extended: Path) -> None:
    space.add("large", schedulerName="default-scheduler", gpus=9)
    assert re.search(r"0/4 nodes are available: .*Insufficient nvidia.com/gpu", space.until_unschedulable("large"))
    space.delete("large")


def test_evictions_are_agreed_to_where_they_make_room(space: paper.Space, extended: Path) -> None:
    space.add("urgent", schedulerName="default-scheduler", gpus=8, priorityClassName="high")
    [where] = space.until_bound("urgent")
    there = [
        one["metadata"]["name"] for one in space.server.get(space.path)["items"] if one["spec"].get("nodeName") == where
    ]
    assert there == ["urgent"]


def test_nothing_listens_for_other_machines(control_plane: home.Cluster, server: api.API) -> None:
    command = [
        sys.executable,
        "-m",
        "fairlead.cli.main",
        "scheduler",
        f"--cluster-kubeconfig={control_plane.kubeconfig}",
    ]
    done = subprocess.run([*command, "--control-extender=:0"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "is not a loopback address" in done.stderr
