"""Groups, queues and preemption of `schedulerName: fairlead` on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead import errors
from tests.cluster import paper, pods, verb
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_GPU = pods.RESOURCE
_QUEUES = "/apis/fairlead.dev/v1alpha1/queues"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEFINITION = Path(__file__).parents[2] / "src/fairlead/chart/crds/queues.yaml"


_SETTINGS = ("--control-pod-policies=app=serve:spread",)
_GROUPS = "/apis/scheduling.run.ai/v2alpha2"
_FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_KAI: dict[str, Any] = {
    "metadata": {"name": "podgroups.scheduling.run.ai"},
    "spec": {
        "group": "scheduling.run.ai",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
        "versions": [
            {
                "name": "v2alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _FREE}}},
            }
        ],
    },
}
"""Of KAI, as far as the name goes: its schema is KAI's own."""


def _served(items: list[api.Object]) -> bool | None:
    names = {"queues.fairlead.dev", _KAI["metadata"]["name"]}
    found = [item for item in items if item["metadata"]["name"] in names]
    conditions = [one for item in found for one in item.get("status", {}).get("conditions") or []]
    served = sum(one["type"] == "Established" and one["status"] == "True" for one in conditions)
    return True if served == len(names) else None


@pytest.fixture(scope="module")
def connection(cluster: home.Cluster) -> Iterator[api.API]:
    with cluster.api() as one:
        yield one


@pytest.fixture(scope="module")
def scheduler(cluster: home.Cluster, connection: api.API, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One scheduler, the kind Queue, and two nodes of four GPUs that exist on paper only."""
    paper.ensure_namespace(connection, "fairlead")
    for definition in (yaml.safe_load(_DEFINITION.read_text()), _KAI):
        with contextlib.suppress(errors.Conflict):
            connection.create(_DEFINITIONS, definition)
    connection.until(_DEFINITIONS, _served, what="queues and KAI's PodGroups are served")
    for name in ("gang-a", "gang-b"):
        paper.add_node(connection, name, gpus=4)
    one = verb.Verb("scheduler", cluster.kubeconfig, tmp_path_factory.mktemp("gangs") / "scheduler.log", _SETTINGS)
    with verb.running(one):
        one.until_logged('"event": "leading"')
        yield
    paper.remove_nodes(connection, "gang-a", "gang-b")


@pytest.fixture
def space(connection: api.API, scheduler: None) -> Iterator[paper.Space]:
    with paper.opened(connection) as one:
        yield one


def test_a_gang_that_fits_is_bound_whole_and_one_that_does_not_binds_none_and_says_so(space: paper.Space) -> None:
    space.add("holder", gpus=3)
    space.until_bound("holder")
    names = space.add_gang("four", 4)
    space.until_bound(*names)
    more = space.add_gang("more", 4)
    said = space.until_unschedulable(more[-1], "group")
    assert said.startswith('group "more" is placed as a whole: 1 of 4 pods fit, the next does not: 0/')
    assert not set(more) & space.bound()
    space.server.delete(f"{space.path}/holder", grace_s=0)
    space.until_bound(*more)


def test_two_gangs_that_would_wait_for_each_other_do_not(space: paper.Space) -> None:
    space.add("holder", gpus=4)
    space.until_bound("holder")
    for number in range(4):  # pod by pod each would get two of the four GPUs and wait for ever
        space.add(f"one-{number}", gpus=1, about=paper.member("one", 4))
        space.add(f"two-{number}", gpus=1, about=paper.member("two", 4))
    # Both are whole within a moment, so that either may be the first.
    bound = space.server.until(space.path, _more_than_the_holder, what="pods are bound")
    winner, loser = ("one", "two") if any(name.startswith("one") for name in bound) else ("two", "one")
    space.until_bound(*(f"{winner}-{number}" for number in range(4)))
    space.until_unschedulable(f"{loser}-3", "0 of 4 pods fit")
    assert not any(name.startswith(loser) for name in space.bound())
    for number in range(4):
        space.server.delete(f"{space.path}/{winner}-{number}", grace_s=0)
    space.until_bound(*(f"{loser}-{number}" for number in range(4)))


def _more_than_the_holder(items: list[api.Object]) -> list[str] | None:
    bound = [item["metadata"]["name"] for item in items if "nodeName" in item["spec"]]
    return bound if len(bound) > 1 else None


def test_a_queue_may_borrow_says_how_it_stands_and_is_not_for_others(space: paper.Space) -> None:
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue"}
    mine = {"namespaces": [space.namespace], "deserved": {_GPU: "4"}}
    others = {"namespaces": ["nowhere"], "limit": {_GPU: "4"}}
    space.server.create(_QUEUES, {**kind, "metadata": {"name": "mine"}, "spec": mine})
    space.server.create(_QUEUES, {**kind, "metadata": {"name": "other"}, "spec": others})
    try:
        names = [f"spot-{number}" for number in range(2)]
        for name in names:
            space.add(name, gpus=4, about={"labels": {"kueue.x-k8s.io/queue-name": "mine"}})
        space.until_bound(*names)

        def reported(items: list[api.Object]) -> bool | None:
            found = {item["metadata"]["name"]: item.get("status", {}) for item in items}
            return True if found["mine"].get("allocated", {}).get(_GPU) == "8" else None

        space.server.until(_QUEUES, reported, what="the queue's status", timeout_s=30)
        space.add("denied", gpus=1, about={"labels": {"kueue.x-k8s.io/queue-name": "other"}})
        said = space.until_unschedulable("denied", reason="QueueHolds")
        assert said == f'queue "other" is not for namespace "{space.namespace}"'
    finally:
        for name in ("mine", "other"):
            space.server.delete(f"{_QUEUES}/{name}")


def test_a_queue_and_a_class_of_pods_are_each_placed_by_their_own_policy(space: paper.Space) -> None:
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "serving"}}
    served = {"kueue.x-k8s.io/queue-name": "serving"}
    space.server.create(_QUEUES, {**kind, "spec": {"policy": "spread"}})
    try:
        # One after another, each seen as bound before the next comes: both nodes begin equally empty.
        for one, labels in (("packed", {}), ("queue", served), ("class", {"app": "serve"})):
            nodes = []
            for number in range(2):
                space.add(f"{one}-{number}", gpus=1, about={"labels": labels})
                nodes += space.until_bound(f"{one}-{number}")
            assert (len(set(nodes)) == 1) is (one == "packed"), (one, nodes)
            for number in range(2):
                space.server.delete(f"{space.path}/{one}-{number}", grace_s=0)
        with pytest.raises(errors.FairleadError, match="policy"):
            space.server.create(_QUEUES, {**kind, "metadata": {"name": "bad"}, "spec": {"policy": "dense"}})
    finally:
        space.server.delete(f"{_QUEUES}/serving")


def test_what_a_queue_lent_is_taken_back_from_the_borrower_and_a_budget_is_kept(space: paper.Space) -> None:
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue"}
    for name, spec in (("owner", {"guarantee": {_GPU: "0"}, "deserved": {_GPU: "6"}}), ("spot", {"weight": 1})):
        body = {**kind, "metadata": {"name": name}, "spec": {"namespaces": [space.namespace], **spec}}
        space.server.create(_QUEUES, body)
    budgets = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets"
    rule = {"minAvailable": 4, "selector": {"matchLabels": {"app": "kept"}}}
    space.server.create(budgets, {"metadata": {"name": "kept"}, "spec": rule})

    def queued(queue: str, app: str = "any") -> api.Object:
        return {"labels": {"kueue.x-k8s.io/queue-name": queue, "app": app}}

    try:
        kept = [f"kept-{number}" for number in range(4)]
        for name in kept:
            space.add(name, gpus=1, about=queued("spot", "kept"))
        home_ = set(space.until_bound(*kept))
        assert len(home_) == 1, "packed"
        lent = [f"lent-{number}" for number in range(4)]
        for name in lent:
            space.add(name, gpus=1, about=queued("spot"))
        space.until_bound(*lent)

        def borrows(items: list[api.Object]) -> bool | None:
            found = {item["metadata"]["name"]: item.get("status", {}) for item in items}
            return True if found["spot"].get("allocated", {}).get(_GPU) == "8" else None

        space.server.until(_QUEUES, borrows, what="spot has all there is", timeout_s=30)
        space.add("mine", gpus=3, about=queued("owner"))
        (node,) = space.until_bound("mine")
        assert node not in home_
        assert set(kept) <= space.bound()
        assert len(space.bound() & set(lent)) == 1, "no more end than must"
        events = f"/api/v1/namespaces/{space.namespace}/events"

        def told(items: list[api.Object]) -> list[str] | None:
            found = sorted(item["message"] for item in items if item["reason"] == "Preempted")
            return found if len(found) == 3 else None

        said = space.server.until(events, told, what="three events Preempted")
        assert set(said) == {
            f'ended to make room for {space.namespace}/mine (queue "spot" is beyond its share, "owner" is within)'
        }
        space.add("more", gpus=2, about=queued("owner"))  # within its share, and only those whom the budget keeps
        space.until_unschedulable("more", "Insufficient")
        space.add("one", gpus=1, about=queued("owner"))
        space.until_bound("one")
        assert set(kept) <= space.bound(), "the budget holds"
        assert "more" not in space.bound()
    finally:
        space.server.delete(f"{budgets}/kept")
        for name in ("owner", "spot"):
            space.server.delete(f"{_QUEUES}/{name}")


def test_sub_groups_of_a_podgroup_object_are_bound_all_at_once_or_not_at_all(space: paper.Space) -> None:
    parts = [{"name": "leader", "minMember": 1}, {"name": "workers", "minMember": 3}]
    kind = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": {"name": "train"}}
    groups = f"{_GROUPS}/namespaces/{space.namespace}/podgroups"
    space.server.create(groups, {**kind, "spec": {"minMember": 4, "subGroups": parts}})

    def add(part: str, number: int) -> str:
        labels, told = {"kai.scheduler/subgroup-name": part}, {"pod-group-name": "train"}
        space.add(f"{part}-{number}", gpus=2, about={"labels": labels, "annotations": told})
        return f"{part}-{number}"

    space.add("holder", gpus=1)
    space.until_bound("holder")
    workers = [add("workers", number) for number in range(3)]
    said = space.until_unschedulable(workers[0], reason="GroupIncomplete")
    assert said == 'sub-group "leader" of group "train" is placed as a whole: 0 of 1 pods are there'
    names = [*workers, add("leader", 0)]
    space.until_unschedulable(names[0], "the next does not")
    assert space.bound() == {"holder"}
    space.server.delete(f"{space.path}/holder", grace_s=0)
    space.until_bound(*names)
    space.server.delete(f"{groups}/train")


def test_a_pod_of_higher_priority_gets_room_and_its_victim_is_told_why(space: paper.Space) -> None:
    priority = "/apis/scheduling.k8s.io/v1/priorityclasses"
    space.server.create(priority, {"metadata": {"name": f"high-{space.namespace}"}, "value": 1000})
    try:
        for name in ("low-0", "low-1"):
            space.add(name, gpus=4)
        space.until_bound("low-0", "low-1")
        space.add("urgent", gpus=4, priorityClassName=f"high-{space.namespace}")
        space.until_bound("urgent")
        events = f"/api/v1/namespaces/{space.namespace}/events"

        def told(items: list[api.Object]) -> str | None:
            return next((item["message"] for item in items if item["reason"] == "Preempted"), None)

        said = space.server.until(events, told, what="the event Preempted")
        assert said == f"ended to make room for {space.namespace}/urgent (priority 1000 before 0)"
        assert len(space.bound() & {"low-0", "low-1"}) == 1
    finally:
        space.server.delete(f"{priority}/high-{space.namespace}")


def test_a_group_goes_into_one_rack_by_kueues_annotation_or_waits_with_the_reason(space: paper.Space) -> None:
    rack = "example.com/rack"
    names = [f"rack-{rack}-{number}" for rack in "ab" for number in range(2)]
    for name in names:
        paper.add_node(space.server, name, gpus=2, labels={rack: name[5], "racked": "yes"})
    try:
        told = {"kueue.x-k8s.io/podset-required-topology": rack}

        def add(gang: str, count: int) -> list[str]:
            about = paper.member(gang, count)
            about["annotations"] |= told
            pods_ = [f"{gang}-{number}" for number in range(count)]
            for one in pods_:
                space.add(one, gpus=1, about=about, nodeSelector={"racked": "yes"})
            return pods_

        first = space.until_bound(*add("first", 3))
        assert len({node[5] for node in first}) == 1
        second = space.until_bound(*add("second", 4))
        assert {node[5] for node in second} == {"a", "b"} - {first[0][5]}
        said = space.until_unschedulable(add("third", 2)[0], "one example.com/rack")
        assert "and none takes all 2: the best, " in said
        assert "has room for 1: " in said, (said, _on(space, *names))
    finally:
        space.clear()
        paper.remove_nodes(space.server, *names)


def _on(space: paper.Space, *nodes: str) -> list[tuple[str, str, str]]:
    """Return node, namespace and name of every pod on some nodes, whoever made it."""
    every = space.server.get("/api/v1/pods")["items"]
    found = ((pod["spec"].get("nodeName", ""), pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in every)
    return sorted(one for one in found if one[0] in nodes)
