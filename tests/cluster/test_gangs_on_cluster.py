"""Groups, queues and preemption of `schedulerName: fairlead` on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead import errors
from tests.cluster import verb
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_NODES = "/api/v1/nodes"
_GPU = "nvidia.com/gpu"
_QUEUES = "/apis/fairlead.dev/v1alpha1/queues"
_PAPER = {"gangs": "yes"}


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEFINITION = Path(__file__).parents[2] / "src/fairlead/chart/crds/queues.yaml"


def _served(items: list[api.Object]) -> bool | None:
    found = (item for item in items if item["metadata"]["name"] == "queues.fairlead.dev")
    conditions = [one for item in found for one in item.get("status", {}).get("conditions", [])]
    return True if any(one["type"] == "Established" and one["status"] == "True" for one in conditions) else None


class Space:
    """A namespace of its own; nothing in it needs to run."""

    def __init__(self, server: api.API, name: str) -> None:
        self.server, self.name = server, name
        self.pods = f"/api/v1/namespaces/{name}/pods"

    def add(self, name: str, gpus: int = 1, *, about: dict[str, Any] | None = None, **spec: Any) -> None:
        limits = {"cpu": "1m", "memory": "1Mi", _GPU: str(gpus)}
        main = {"name": "main", "image": "registry.invalid/none:1", "resources": {"limits": limits}}
        body = {
            "schedulerName": "fairlead",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": _PAPER,
            "containers": [main],
            **spec,
        }
        self.server.create(self.pods, {"metadata": {"name": name, **(about or {})}, "spec": body})

    def add_gang(self, name: str, count: int, minimum: int | None = None) -> list[str]:
        about = {
            "labels": {"kueue.x-k8s.io/pod-group-name": name},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": str(minimum or count)},
        }
        names = [f"{name}-{number}" for number in range(count)]
        for one in names:
            self.add(one, about=about)
        return names

    def until_bound(self, names: list[str]) -> None:
        def bound(items: list[api.Object]) -> bool | None:
            return True if set(names) <= _bound(items) else None

        self.server.until(self.pods, bound, what=f"{names} are bound", timeout_s=30)

    def until_said(self, name: str, words: str) -> str:
        def said(items: list[api.Object]) -> str | None:
            found = (
                str(one.get("message", ""))
                for item in items
                if item["metadata"]["name"] == name
                for one in item["status"].get("conditions", [])
                if one["type"] == "PodScheduled"
            )
            return next((text for text in found if words in text), None)

        return self.server.until(self.pods, said, what=f"{name} says {words}", timeout_s=30)

    def bound(self) -> set[str]:
        return _bound(self.server.get(self.pods)["items"])


def _bound(items: list[api.Object]) -> set[str]:
    return {item["metadata"]["name"] for item in items if item["spec"].get("nodeName")}


@pytest.fixture(scope="module")
def connection(cluster: home.Cluster) -> Iterator[api.API]:
    with cluster.api() as one:
        yield one


@pytest.fixture(scope="module")
def scheduler(cluster: home.Cluster, connection: api.API, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One scheduler, the kind Queue, and two nodes of four GPUs that exist on paper only."""
    with contextlib.suppress(errors.Conflict):
        connection.create("/api/v1/namespaces", {"metadata": {"name": "fairlead"}})
    definition = yaml.safe_load(_DEFINITION.read_text())
    with contextlib.suppress(errors.Conflict):
        connection.create(_DEFINITIONS, definition)
    connection.until(_DEFINITIONS, _served, what="queues are served")
    for name in ("gang-a", "gang-b"):
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", _GPU: "4"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "on paper"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        connection.create(_NODES, {"metadata": {"name": name, "labels": _PAPER}, "status": status})
        connection.patch(f"{_NODES}/{name}", {"spec": {"taints": None}})
    one = verb.Verb("scheduler", cluster.kubeconfig, tmp_path_factory.mktemp("gangs") / "scheduler.log")
    with verb.running(one):
        one.until_logged('"event": "leading"')
        yield
    for name in ("gang-a", "gang-b"):
        connection.delete(f"{_NODES}/{name}")


@pytest.fixture
def space(connection: api.API, scheduler: None, request: pytest.FixtureRequest) -> Iterator[Space]:
    name = f"g{abs(hash(request.node.nodeid)) % 10**8}"
    connection.create("/api/v1/namespaces", {"metadata": {"name": name}})
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    connection.until(accounts, lambda items: True if items else None, what="the service account")
    yield Space(connection, name)
    connection.delete(f"/api/v1/namespaces/{name}")
    connection.delete(f"/api/v1/namespaces/{name}/pods", grace_s=0)
    connection.until(f"/api/v1/namespaces/{name}/pods", lambda items: None if items else True, what="pods are gone")


def test_a_gang_that_fits_is_bound_whole_and_one_that_does_not_binds_none_and_says_so(space: Space) -> None:
    space.add("holder", 3)
    space.until_bound(["holder"])
    names = space.add_gang("four", 4)
    space.until_bound(names)
    more = space.add_gang("more", 4)
    said = space.until_said(more[-1], "group")
    assert said.startswith('group "more" is placed as a whole: 1 of 4 pods fit, the next does not: 0/')
    assert not set(more) & space.bound()
    space.server.delete(f"{space.pods}/holder", grace_s=0)
    space.until_bound(more)


def test_two_gangs_that_would_wait_for_each_other_do_not(space: Space) -> None:
    space.add("holder", 4)
    space.until_bound(["holder"])
    about = {
        name: {
            "labels": {"kueue.x-k8s.io/pod-group-name": name},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "4"},
        }
        for name in ("one", "two")
    }
    for number in range(4):  # pod by pod each would get two of the four GPUs and wait for ever
        space.add(f"one-{number}", about=about["one"])
        space.add(f"two-{number}", about=about["two"])
    first = [f"one-{number}" for number in range(4)]
    space.until_bound(first)
    space.until_said("two-3", "0 of 4 pods fit")
    assert not any(name.startswith("two") for name in space.bound())
    for name in first:
        space.server.delete(f"{space.pods}/{name}", grace_s=0)
    space.until_bound([f"two-{number}" for number in range(4)])


def test_a_queue_may_borrow_says_how_it_stands_and_is_not_for_others(space: Space) -> None:
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue"}
    mine = {"namespaces": [space.name], "deserved": {_GPU: "4"}}
    others = {"namespaces": ["nowhere"], "limit": {_GPU: "4"}}
    space.server.create(_QUEUES, {**kind, "metadata": {"name": "mine"}, "spec": mine})
    space.server.create(_QUEUES, {**kind, "metadata": {"name": "other"}, "spec": others})
    try:
        names = [f"spot-{number}" for number in range(2)]
        for name in names:
            space.add(name, 4, about={"labels": {"kueue.x-k8s.io/queue-name": "mine"}})
        space.until_bound(names)

        def reported(items: list[api.Object]) -> bool | None:
            found = {item["metadata"]["name"]: item.get("status", {}) for item in items}
            return True if found["mine"].get("allocated", {}).get(_GPU) == "8" else None

        space.server.until(_QUEUES, reported, what="the queue's status", timeout_s=30)
        space.add("denied", 1, about={"labels": {"kueue.x-k8s.io/queue-name": "other"}})
        assert space.until_said("denied", "queue") == f'queue "other" is not for namespace "{space.name}"'
    finally:
        for name in ("mine", "other"):
            space.server.delete(f"{_QUEUES}/{name}")


def test_a_pod_of_higher_priority_gets_room_and_its_victim_is_told_why(space: Space) -> None:
    priority = "/apis/scheduling.k8s.io/v1/priorityclasses"
    space.server.create(priority, {"metadata": {"name": f"high-{space.name}"}, "value": 1000})
    try:
        for name in ("low-0", "low-1"):
            space.add(name, 4)
        space.until_bound(["low-0", "low-1"])
        space.add("urgent", 4, priorityClassName=f"high-{space.name}")
        space.until_bound(["urgent"])
        events = f"/api/v1/namespaces/{space.name}/events"

        def told(items: list[api.Object]) -> str | None:
            return next((item["message"] for item in items if item["reason"] == "Preempted"), None)

        said = space.server.until(events, told, what="the event Preempted")
        assert said == f"ended to make room for {space.name}/urgent (priority 1000 before 0)"
        assert len(space.bound() & {"low-0", "low-1"}) == 1
    finally:
        space.server.delete(f"{priority}/high-{space.name}")
