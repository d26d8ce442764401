"""Tenancies churn on a real cluster while every process is killed: no GPU in two hands, none lost, none unverified.

A tenth of what the issue of possession asks of one machine: 20 tenancies with 2 containers each, always.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import churn, node
from tests.cluster.test_tenancies_on_cluster import _SPACE as SPACE
from tests.cluster.test_tenancies_on_cluster import applied, controller, emptied, kubeconfig  # noqa: F401 fixtures
from tests.cluster.verb import Verb, supervised
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]


def account(cluster: home.Cluster, server: api.API, name: str) -> Path:
    """Return a kubeconfig of one of the chart's accounts, on the node: what it is not allowed is denied here too."""
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/fairlead-{name}/token"
    bound = {"apiVersion": "v1", "kind": "Node", "name": cluster.node}
    token = server.create(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}})["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    written = cluster.folder / "configs" / f"{name}.kubeconfig"
    written.write_text(yaml.safe_dump(config))
    return written


@pytest.fixture
def state(cluster: home.Cluster) -> Path:
    return cluster.folder / "churn-state"


@pytest.fixture
def agent(applied: None, cluster: home.Cluster, server: api.API, state: Path) -> Iterator[node.Agent]:  # noqa: F811
    """An agent that keeps a ledger and verifies each GPU between two pods; its boards' firmware is approved."""
    node.define(cluster, "gpudevices", "gpuleases", "firmwarebaselines")
    arguments = (
        *node.PRODUCT,
        "--lease-ledger=on",
        "--lease-reuse=verify",
        "--lease-approvals=1",
        f"--cluster-kubeconfig={account(cluster, server, 'agent')}",
        f"--node-name={cluster.node}",
        f"--state-folder={state}",
        f"--state-run={state}/run",
    )
    one = node.Agent(cluster, arguments)
    one.start()
    approve(state)
    node.until_allocatable(server, cluster.node, 8)
    yield one
    one.stop(signal.SIGTERM)
    node.until_allocatable(server, cluster.node, 0)
    for kind in ("gpuleases", "firmwarebaselines", "gpudevices"):
        server.delete(f"/apis/fairlead.dev/v1alpha1/{kind}")


def approve(state: Path) -> None:
    """Approve the firmware of the boards that the agent saw."""

    def baseline(*words: str) -> str:
        line = (sys.executable, "-m", "fairlead.cli.main", "lease", "baseline", *words, f"--state-folder={state}")
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60).stdout

    deadline = time.monotonic() + 60
    while not (boards := baseline("list", "-o", "name").split()):
        assert time.monotonic() < deadline, "no board was seen"
        time.sleep(0.5)
    for board in boards:
        baseline("approve", board)


@pytest.mark.usefixtures("emptied")
def test_tenancies_churn_and_are_killed_and_no_gpu_is_in_two_hands_lost_or_unverified(
    agent: node.Agent,
    cluster: home.Cluster,
    server: api.API,
    kubeconfig: Path,  # noqa: F811
    state: Path,
    tmp_path: Path,
) -> None:
    ruled = controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")
    words = (f"--cluster-namespace={SPACE}",)
    placing = Verb("scheduler", account(cluster, server, "scheduler"), tmp_path / "scheduler.log", words)
    with supervised(ruled), supervised(placing):
        verbs = {"controller": ruled, "scheduler": placing}
        one = churn.Churn(cluster, agent, verbs, state, seed=int(time.time()))
        found = one.play(tenancies=20, containers=2, seconds=100, pause_s=6, recycle_s=10)
    sys.stderr.write(f"{found}\n")
    for name, text in {"agent": agent.log(), **{name: one.log() for name, one in verbs.items()}}.items():
        sys.stderr.write(f"--- {name}\n{text[-6000:]}\n")  # shown where the test failed
    checker = found["checker"]
    assert checker["good"], found
    assert [*found["seen"], *found["left"], *found["kept back"]] == [], found
    assert found["recycled"]
    assert found["lists"] > 100, found
    assert sum(found["kills"].values()) >= 10
    assert checker["possessions"] >= 10, found
    assert checker["counts"]["handed to another tenancy"] >= 1, found
