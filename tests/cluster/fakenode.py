"""Nodes larger than any machine here, kept Ready by kwok: they take bindings, and nothing runs on them.

Their pods are called Running by kwok as soon as they are bound.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import pods
from tools.cluster import api, home

_NODES = "/api/v1/nodes"
_MARK = {"fairlead.test/fake": "true"}
# by label, not by annotation: kwok takes up a node only when it first sees it, and the server filters by labels


@contextlib.contextmanager
def running(cluster: home.Cluster) -> Iterator[None]:
    """Have kwok look after the nodes that are marked for it, for a block."""
    selector = next("=".join(pair) for pair in _MARK.items())
    command = (
        "kwok",
        f"--config={Path(__file__).with_suffix('.yaml')}",
        f"--kubeconfig={cluster.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={selector}",
        "--node-lease-duration-seconds=40",
    )
    process = cluster.host.start(command, cluster.log("kwok"))
    yield
    assert process.end(signal.SIGTERM, timeout_s=15), cluster.log("kwok").read_text()[-3000:]


@dataclass(frozen=True)
class Nodes:
    """The fake nodes of one block."""

    server: api.API

    def adopt(self, name: str) -> None:
        """Give a node without a kubelet to kwok; returns when pods may be bound to it.

        A manifest says nothing of how many pods a node takes; a kubelet would, so this does.
        """
        taints = self._own_taints(self.server.get(f"{_NODES}/{name}"))
        self.server.patch(f"{_NODES}/{name}", {"metadata": {"labels": _MARK}})
        self.server.patch(f"{_NODES}/{name}/status", {"status": _amounts({"pods": "110"})})

        def ready(items: list[api.Object]) -> bool | None:
            one = next(item for item in items if item["metadata"]["name"] == name)
            conditions = {item["type"]: item["status"] for item in one["status"].get("conditions", [])}
            # the taint that every new node has goes a moment after the condition comes
            return True if conditions.get("Ready") == "True" and self._taints(one) == taints else None

        self.server.until(_NODES, ready, what=f"fake node {name} is ready")

    def add(self, name: str, *, gpus: int, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]] = ()) -> None:
        """Make a node of 64 processors and 256 GiB, and adopt it."""
        amounts = _amounts({"cpu": "64", "memory": "256Gi", "pods": "110", pods.RESOURCE: str(gpus)})
        about = {"name": name, "labels": dict(labels)}
        self.server.create(_NODES, {"metadata": about, "spec": {"taints": list(taints)}, "status": amounts})
        self.adopt(name)

    @staticmethod
    def _taints(one: api.Object) -> list[dict[str, str]]:
        found: list[dict[str, str]] = one["spec"].get("taints", [])
        return found

    def _own_taints(self, one: api.Object) -> list[dict[str, str]]:
        return [taint for taint in self._taints(one) if not taint["key"].startswith("node.kubernetes.io/")]

    def remove(self, *names: str) -> None:
        for name in names:
            self.server.delete(f"{_NODES}/{name}")


def _amounts(amounts: Mapping[str, str]) -> dict[str, Any]:
    return {"capacity": dict(amounts), "allocatable": dict(amounts)}
