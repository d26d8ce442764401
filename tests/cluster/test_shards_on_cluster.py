"""Two schedulers share a real cluster by node pool: each leads by a lease of its own, and no pod is bound by two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import paper, verb
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_LABEL = "example.com/pool"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/fairlead/leases"


def _binder(items: list[api.Object], name: str) -> list[str]:
    return [one["message"] for one in items if one["reason"] == "Scheduled" and one["involvedObject"]["name"] == name]


def _too_large(space: paper.Space) -> str:
    space.add("q-large", gpus=9, about={"labels": {_LABEL: "b"}})
    return "q-large"


def _explained(cluster: home.Cluster, space: paper.Space, name: str) -> str:
    """Return what the verb says of a pod, by the administrator's kubeconfig."""
    command = [sys.executable, "-m", "fairlead.cli.main", "explain", "-n", space.namespace, name]
    env = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": os.environ["PATH"], "HOME": "/nonexistent"}  # noqa: TID251
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_two_schedulers_place_each_their_own_and_one_that_is_killed_stops_its_pool_alone(
    cluster: home.Cluster, tmp_path: Path
) -> None:
    with cluster.api() as connection:
        paper.ensure_namespace(connection, "fairlead")
        pools = {"pool-a": "a", "pool-b": "b"}
        for name, pool in pools.items():
            paper.add_node(connection, name, gpus=8, labels={_LABEL: pool})
        runs = {
            pool: verb.Verb(
                "scheduler",
                cluster.kubeconfig,
                tmp_path / f"{pool}.log",
                (f"--control-shard-label={_LABEL}", f"--control-shard={pool}"),
            )
            for pool in pools.values()
        }
        try:
            with paper.opened(connection) as space, verb.running(runs["a"]) as first, verb.running(runs["b"]):
                for one in runs.values():
                    one.until_logged('"event": "leading"')
                names = [f"p-{pool}-{number}" for number in range(8) for pool in pools.values()]
                for name in names:
                    space.add(name, gpus=1, about={"labels": {_LABEL: name[2]}})
                nodes = space.until_bound(*names)
                assert all(node == f"pool-{name[2]}" for name, node in zip(names, nodes, strict=True))
                leases = {item["metadata"]["name"] for item in connection.get(_LEASES)["items"]}
                assert {"fairlead-scheduler-a", "fairlead-scheduler-b"} <= leases

                def told(items: list[api.Object]) -> bool | None:
                    return True if all(len(_binder(items, name)) == 1 for name in names) else None

                events = f"/api/v1/namespaces/{space.namespace}/events"
                connection.until(events, told, what="each pod was bound once", timeout_s=30)
                for pool in pools.values():
                    space.server.delete(f"{space.path}/p-{pool}-0", grace_s=0)
                first.stop()
                space.add("q-a", gpus=1, about={"labels": {_LABEL: "a"}})
                space.add("q-b", gpus=1, about={"labels": {_LABEL: "b"}})
                assert space.until_bound("q-b") == ["pool-b"]
                assert "q-a" not in space.bound()
                space.add("q-c", gpus=1, about={"labels": {_LABEL: "c"}})
                assert 'no scheduler runs for pods of example.com/pool "c"' in _explained(cluster, space, "q-c")
                assert f'(of the nodes with {_LABEL} "b")' in _explained(cluster, space, _too_large(space))
                first.start()
                assert space.until_bound("q-a") == ["pool-a"]
        finally:
            paper.remove_nodes(connection, *pools)
