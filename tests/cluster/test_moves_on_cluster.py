"""Running pods of real ReplicaSets move on a real API server so that a larger pod fits; a dry run says it before."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import paper, pods, verb
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_NODES = ("move-a", "move-b")


@pytest.fixture
def space(cluster: home.Cluster) -> Iterator[paper.Space]:
    """Two nodes of four GPUs that exist on paper only, and a namespace."""
    with cluster.api() as connection:
        paper.ensure_namespace(connection, "fairlead")
        for name in _NODES:
            paper.add_node(connection, name, gpus=4)
        try:
            with paper.opened(connection) as one:
                yield one
                for item in connection.get(f"/apis/apps/v1/namespaces/{one.namespace}/replicasets")["items"]:
                    connection.delete(
                        f"/apis/apps/v1/namespaces/{one.namespace}/replicasets/{item['metadata']['name']}"
                    )
        finally:
            paper.remove_nodes(connection, *_NODES)


def _add_set(space: paper.Space, name: str) -> None:
    limits = {pods.RESOURCE: "2"}
    spec: dict[str, Any] = {
        "schedulerName": "fairlead",
        "nodeSelector": paper.LABELS,
        "terminationGracePeriodSeconds": 0,
    }
    spec["containers"] = [{"name": "main", "image": "registry.invalid/none:1", "resources": {"limits": limits}}]
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    space.server.create(
        f"/apis/apps/v1/namespaces/{space.namespace}/replicasets", {"metadata": {"name": name}, "spec": body}
    )


def _node_of(space: paper.Space, app: str, *, but: str = "") -> tuple[str, str]:
    """Wait until a pod of a ReplicaSet is bound; returns its name and its node."""

    def bound(items: list[api.Object]) -> tuple[str, str] | None:
        found = [(one["metadata"]["name"], one["spec"].get("nodeName", "")) for one in items if _app(one) == app]
        return next((one for one in found if one[1] and one[0] != but), None)

    return space.server.until(space.path, bound, what=f"a pod of {app} is bound", timeout_s=30)


def _app(pod: api.Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app", ""))


@contextlib.contextmanager
def _scheduler(cluster: home.Cluster, folder: Path, name: str, *flags: str) -> Iterator[None]:
    one = verb.Verb("scheduler", cluster.kubeconfig, folder / f"{name}.log", arguments=flags)
    with verb.running(one):
        one.until_logged('"event": "leading"')
        yield


def test_a_replica_moves_for_a_larger_pod_and_one_that_a_budget_keeps_does_not(
    cluster: home.Cluster, space: paper.Space, tmp_path: Path
) -> None:
    young = "--control-defragment-min-runtime-s=0"
    with _scheduler(cluster, tmp_path, "before"):
        _add_set(space, "kept")
        kept = _node_of(space, "kept")
        space.add("holder", gpus=2)
        assert space.until_bound("holder") == [kept[1]]
        _add_set(space, "free")
        first = _node_of(space, "free")
        assert first[1] != kept[1]
        # No pod of it is ready, so none of them may go.
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        budgets = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets"
        space.server.create(budgets, {"metadata": {"name": "kept"}, "spec": budget})
        space.server.delete(f"{space.path}/holder", grace_s=0)
        space.add("big", gpus=4)
        space.until_unschedulable("big", "Insufficient")
    asked = [sys.executable, "-m", "fairlead.cli.main", "scheduler", "--plan-moves", "-o", "json", young]
    planned = subprocess.run(
        [*asked, f"--cluster-kubeconfig={cluster.kubeconfig}"], capture_output=True, text=True, check=True, timeout=60
    )
    (step,) = json.loads(planned.stdout)["steps"]
    assert (step["name"], step["node"], step["waiting"]) == ("big", first[1], True)
    move = {"namespace": space.namespace, "name": first[0], "from": first[1], "to": kept[1]}
    assert step["moves"] == [move]
    assert _node_of(space, "free") == first
    flags = ("--control-defragment=waiting", "--control-defragment-every-s=1", young)
    with _scheduler(cluster, tmp_path, "after", *flags):
        assert space.until_bound("big") == [first[1]]
        assert _node_of(space, "free", but=first[0])[1] == kept[1]
        assert _node_of(space, "kept") == kept
