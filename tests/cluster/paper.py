"""Nodes that exist on paper only, and namespaces whose pods need not run: what the tests of schedulers place."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from fairlead import errors
from tests.cluster import pods
from tools.cluster import api

LABELS: Final = {"paper": "yes"}
"""What these nodes have and no other."""
_NODES = "/api/v1/nodes"
_GPUS = "/apis/fairlead.dev/v1alpha1/gpudevices"
_CONTAINER = {"name": "main", "image": "registry.invalid/none:1"}


def status(amounts: Mapping[str, str]) -> api.Object:
    """Return the status of a node that is Ready; no kubelet reports again."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "on paper"}
    return {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}


def add_node(
    server: api.API,
    name: str,
    *,
    gpus: int,
    labels: Mapping[str, str] | None = None,
    taints: Collection[Mapping[str, str]] = (),
    more: Mapping[str, str] | None = None,
) -> None:
    """Register a node that no machine runs. Args: more: amounts of other resources that it offers."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", pods.RESOURCE: str(gpus), **(more or {})}
    metadata = {"name": name, "labels": LABELS | dict(labels or {})}
    server.create(_NODES, {"metadata": metadata, "spec": {"taints": list(taints)}, "status": status(amounts)})
    # The API server taints every new node as not ready; the node controller that would take that back does not run.
    server.patch(f"{_NODES}/{name}", {"spec": {"taints": list(taints) or None}})


def remove_nodes(server: api.API, *names: str) -> None:
    """Delete nodes."""
    for name in names:
        server.delete(f"{_NODES}/{name}")


def add_gpu(server: api.API, node: str, index: int, kind: str) -> None:
    """Register one of two GPUs of a node as its agent does. Args: kind: the way between them, as GPUDevices name it."""
    spec = {
        "nodeName": node,
        "index": index,
        "minor": index,
        "uuid": f"GPU-{node}-{index}",
        "vendor": "nvidia",
        "product": "paper",
        "memory": "1Gi",
        "simulated": True,
        "pciBusID": f"0000:0{index}:00.0",
        "resource": pods.RESOURCE,
        "links": [{"kind": kind, "gpus": [f"0000:0{1 - index}:00.0"]}],
    }
    name = f"{node}-{index}"
    about = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "GPUDevice", "metadata": {"name": name}}
    server.create(_GPUS, {**about, "spec": spec})
    server.patch(f"{_GPUS}/{name}/status", {"status": {"health": "Healthy"}})


def remove_gpus(server: api.API, *nodes: str) -> None:
    """Delete what `add_gpu` registered."""
    for node in nodes:
        for index in (0, 1):
            with contextlib.suppress(errors.NotFound):
                server.delete(f"{_GPUS}/{node}-{index}")


def ensure_namespace(server: api.API, name: str) -> None:
    """Create a namespace unless it is there."""
    with contextlib.suppress(errors.Conflict):
        server.create("/api/v1/namespaces", {"metadata": {"name": name}})


def member(group: str, count: int) -> api.Object:
    """Return the metadata by which Kueue's users put a pod into a group of so many."""
    labels = {"kueue.x-k8s.io/pod-group-name": group}
    return {"labels": labels, "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(count)}}


class Space(pods.Space):
    """A namespace of pods for our scheduler, which may go to nodes on paper only."""

    def add(
        self,
        name: str,
        *,
        gpus: int = 0,
        more: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> api.Object:
        """Create a pod; `more` are other resources, `about` is more of its metadata, `spec` of its specification."""
        limits = {"cpu": "1m", "memory": "1Mi", **({pods.RESOURCE: str(gpus)} if gpus else {}), **(more or {})}
        body = {
            "schedulerName": "fairlead",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": LABELS,
            "containers": [_CONTAINER | {"resources": {"limits": limits}}],
            **spec,
        }
        return self.server.create(self.path, {"metadata": {"name": name, **(about or {})}, "spec": body})

    def add_gang(self, name: str, count: int) -> list[str]:
        """Create a group of pods of one GPU each, and return their names."""
        names = [f"{name}-{number}" for number in range(count)]
        for one in names:
            self.add(one, gpus=1, about=member(name, count))
        return names

    def until_bound(self, *names: str, timeout_s: float = 30) -> list[str]:
        """Wait until pods have nodes, and return these in the same order."""

        def is_bound(pod: api.Object) -> bool:
            return "nodeName" in pod["spec"]

        return [self.until(name, is_bound, what="is bound", timeout_s=timeout_s)["spec"]["nodeName"] for name in names]

    def bound(self) -> set[str]:
        """Return the names of the pods that have nodes."""
        return {pod["metadata"]["name"] for pod in self.server.get(self.path)["items"] if "nodeName" in pod["spec"]}


@contextlib.contextmanager
def opened(server: api.API) -> Iterator[Space]:
    """Make a namespace of a new name; its pods are gone afterwards."""
    name = server.create("/api/v1/namespaces", {"metadata": {"generateName": "paper-"}})["metadata"]["name"]
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    server.until(accounts, lambda items: True if items else None, what="the service account")
    one = Space(server, name)
    yield one
    server.delete(f"/api/v1/namespaces/{name}")
    one.clear()
