"""The real kube-scheduler and ours are asked the same: on which nodes may this pod run, and why on none?

Nodes and pods are drawn by a seed. A pod is pinned to each node in turn, by a field of its node affinity, so what the
real scheduler binds is exactly the set of nodes that it finds feasible. Ours judges the objects as the API server
lists them at that moment: node by node, and by array. Where no node is left, the reasons are counted too.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from benchmarks import plane
from fairlead import errors
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.constraint import Refusal
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.summary import Summary
from fairlead.plan.schedule.volume import claims
from fairlead.plan.schedule.volume.volumes import NAME, Ask
from fairlead.wire.kubernetes import api as wire
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling import storage
from tests.cluster import paper
from tools.cluster import api, build, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

_PODS = "/api/v1/namespaces/default/pods"
_GPU = "nvidia.com/gpu"
_ZONE, _HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
_NODES = 9


@pytest.fixture(scope="module")
def server() -> Iterator[api.API]:
    """A control plane with the real scheduler; nothing else changes nodes or pods."""
    if why := plane.missing():
        pytest.skip(why)
    home.sweep()
    paths = tuple(build.folder_of(module) for module in build.modules(build.DEFAULT_VERSION))
    one = home.up("agrees", paths=paths, owned=True, has_node=False)
    try:
        with plane.kube_scheduler(one), one.api() as connection:
            connection.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            connection.create("/api/v1/namespaces", {"metadata": {"name": "other", "labels": {"team": "red"}}})
            connection.create("/api/v1/namespaces/other/serviceaccounts", {"metadata": {"name": "default"}})
            _fill(connection, random.Random(12))
            yield connection
    finally:
        one.down()


def _fill(server: api.API, chance: random.Random) -> None:
    for number in range(_NODES):
        name, taints = f"n{number}", []
        if chance.random() < 0.3:
            effect = chance.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
            taints.append({"key": "reserved", "value": chance.choice(["red", "blue"]), "effect": effect})
        labels = {_HOST: name, "size": str(chance.choice([4, 8, 16]))}
        labels |= {_ZONE: f"z{number % 3}"} if number else {}
        labels |= {"disk": chance.choice(["ssd", "hdd"])} if chance.random() < 0.7 else {}
        amounts = {"cpu": chance.choice(["2", "8"]), "memory": chance.choice(["4Gi", "16Gi"])}
        amounts |= {"pods": chance.choice(["4", "110"]), _GPU: str(chance.choice([0, 2, 8]))}
        spec = {"unschedulable": chance.random() < 0.15}
        content = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": paper.status(amounts)}
        server.create("/api/v1/nodes", content)
        cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        taints += [cordoned] if spec["unschedulable"] else []
        server.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints or None}})
    for number in range(2 * _NODES):
        pod = _pod(chance, has_rules=number % 3 == 0)
        namespace = chance.choice(["default", "default", "other"])
        pod["metadata"]["name"] = f"there-{number}"
        pod["spec"]["nodeName"] = f"n{chance.randrange(_NODES)}"
        pod["spec"].pop("nodeSelector", None)
        pod["spec"].pop("topologySpreadConstraints", None)
        server.create(f"/api/v1/namespaces/{namespace}/pods", pod)


def _pod(chance: random.Random, *, has_rules: bool) -> dict[str, Any]:
    """Draw a pod; with rules on other pods, or without."""
    requests = {"cpu": chance.choice(["100m", "1", "1500m", "6"]), "memory": chance.choice(["1Mi", "2Gi", "6Gi"])}
    if chance.random() < 0.4:
        requests[_GPU] = chance.choice(["1", "2", "4", "8"])
    limits = {name: value for name, value in requests.items() if name == _GPU}
    main: dict[str, Any] = {"name": "main", "image": "registry.invalid/none:1"}
    main["resources"] = {"requests": requests, "limits": limits}
    if chance.random() < 0.25:
        main["ports"] = [{"containerPort": 80, "hostPort": chance.choice([80, 81]), "protocol": "TCP"}]
    spec: dict[str, Any] = {"containers": [main], "terminationGracePeriodSeconds": 0}
    if chance.random() < 0.3:
        spec["nodeSelector"] = {"disk": chance.choice(["ssd", "hdd"])}
    if chance.random() < 0.3:
        spec["tolerations"] = [_toleration(chance)]
    if chance.random() < 0.4:
        terms = [{"matchExpressions": [_expression(chance)]} for _ in range(chance.randint(1, 2))]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if has_rules:
        _add_rules(chance, spec)
    labels = {"app": chance.choice(["web", "db"])}
    return {"metadata": {"labels": labels}, "spec": spec}


def _toleration(chance: random.Random) -> dict[str, str]:
    return chance.choice(
        [
            {"operator": "Exists"},
            {"key": "reserved", "operator": "Equal", "value": "red"},
            {"key": "reserved", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
        ]
    )


def _expression(chance: random.Random) -> dict[str, Any]:
    return chance.choice(
        [
            {"key": "disk", "operator": "In", "values": ["ssd"]},
            {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
            {"key": "disk", "operator": "Exists"},
            {"key": "disk", "operator": "DoesNotExist"},
            {"key": "size", "operator": "Gt", "values": ["4"]},
            {"key": "size", "operator": "Lt", "values": ["16"]},
        ]
    )


def _add_rules(chance: random.Random, spec: dict[str, Any]) -> None:
    term: dict[str, Any] = {
        "topologyKey": chance.choice([_ZONE, _HOST]),
        "labelSelector": {"matchLabels": {"app": chance.choice(["web", "db"])}},
    }
    if chance.random() < 0.3:
        named, team = {"kubernetes.io/metadata.name": "other"}, {"team": "red"}
        unlike = {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}
        term["namespaceSelector"] = chance.choice([{}, {"matchLabels": named}, {"matchLabels": team}, unlike])
    match chance.randrange(3):
        case 0:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": chance.choice([1, 2]),
                    "topologyKey": term["topologyKey"],
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": term["labelSelector"],
                }
            ]
        case number:
            kind = "podAffinity" if number == 1 else "podAntiAffinity"
            rules = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            spec["affinity"] = {**spec.get("affinity", {}), **rules}


def _pinned(pod: dict[str, Any], node: str) -> dict[str, Any]:
    found = copy.deepcopy(pod)
    affinity = found["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    found["metadata"]["name"] = f"asked-{node}"
    return found


def _verdicts(server: api.API, pods: list[dict[str, Any]]) -> dict[str, str]:
    """Return by pod the node that the real scheduler bound it to, or what it said; the pods are gone again."""
    for pod in pods:
        server.create(_PODS, pod)
    names = {pod["metadata"]["name"] for pod in pods}

    def judged(items: list[api.Object]) -> dict[str, str] | None:
        said = {item["metadata"]["name"]: _said(item) for item in items if item["metadata"]["name"] in names}
        return said if len(said) == len(names) and all(said.values()) else None

    found = server.until(_PODS, judged, what="the real scheduler's verdict", timeout_s=30)
    for name in names:
        server.delete(f"{_PODS}/{name}", grace_s=0)
    server.until(
        _PODS, lambda items: None if names & {one["metadata"]["name"] for one in items} else True, what="they are gone"
    )
    return found


def _said(pod: api.Object) -> str:
    if node := pod["spec"].get("nodeName"):
        return str(node)
    conditions = pod.get("status", {}).get("conditions", [])
    return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), "")


_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"
_CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
_ASKS: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


def _ensure(server: api.API, path: str, content: dict[str, Any]) -> None:
    with contextlib.suppress(errors.Conflict):  # a test that is tried again finds what its first try made
        server.create(path, content)


def _add_bound_claim(server: api.API, name: str, chance: random.Random) -> None:
    """Create a claim that is bound to a volume of some nodes, or of a zone by the volume's label."""
    expression = chance.choice(
        [
            {"key": _ZONE, "operator": "In", "values": [chance.choice(["z0", "z1", "z2", "z0__z1"])]},
            {"key": _HOST, "operator": "NotIn", "values": ["n1", "n4"]},
            {"key": "disk", "operator": "Exists"},
        ]
    )
    about: dict[str, Any] = {"name": name}
    if chance.random() < 0.4:
        about["labels"] = {_ZONE: chance.choice(["z1", "z0__z2", "z9"])}
    volume: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}
    volume |= {"capacity": {"storage": "1Gi"}, "storageClassName": ""}
    if chance.random() < 0.8:
        volume["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    _ensure(server, _VOLUMES, {"metadata": about, "spec": volume})
    claim = {"storageClassName": "", "volumeName": name, **_ASKS}
    _ensure(server, _CLAIMS, {"metadata": {"name": name, "annotations": _BOUND}, "spec": claim})


def _with_claim(pod: dict[str, Any], claim: str) -> dict[str, Any]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return {**pod, "spec": {**pod["spec"], "volumes": [volume]}}


class Ours:
    """What our scheduler says of the cluster as it is listed now."""

    def __init__(self, server: api.API) -> None:
        pods, nodes = wire.object_decoder(core.Pod), wire.object_decoder(core.Node)
        bound: dict[str, list[core.Pod]] = {}
        for item in server.get("/api/v1/pods")["items"]:
            pod = pods.decode(json.dumps(item))
            bound.setdefault(pod.spec.node_name, []).append(pod)
        listed = [nodes.decode(json.dumps(item)) for item in server.get("/api/v1/nodes")["items"]]
        about = [item["metadata"] for item in server.get("/api/v1/namespaces")["items"]]
        self._spaces = {one["name"]: one.get("labels", {}) for one in about}
        self.claims = claims.Claims(lambda _namespace: ())
        kinds = ((core.PersistentVolumeClaim, _CLAIMS), (storage.PersistentVolume, _VOLUMES))
        for kind, path in (*kinds, (storage.CSINode, _CSI_NODES)):
            for item in server.get(path)["items"]:
                self.claims.note(wire.object_decoder(kind).decode(json.dumps(item)))
        views = (self._view(one, bound.get(one.metadata.name, ())) for one in listed)
        self.views = {one.name: one for one in views}
        self._engine = EngineRankings("packed")
        self._engine.take(self.views, {name: (None, node) for name, node in self.views.items()})

    def _view(self, node: core.Node, pods: Iterable[core.Pod]) -> reference.NodeInfo:
        living = tuple(pods)
        attached = frozenset[tuple[str, str]]().union(*(self.claims.attached(pod) for pod in living))
        return dataclasses.replace(
            reference.node_info(node, living, self._spaces),
            taken_for={NAME: attached},
            limits={NAME: self.claims.limits(node.metadata.name)},
        )

    def place(self, pod: dict[str, Any]) -> Summary:
        about = {**pod["metadata"], "namespace": "default"}
        decoded = wire.object_decoder(core.Pod).decode(json.dumps({**pod, "metadata": about}))
        need = reference.pod_info(decoded, self._spaces)
        volumes = self.claims.look_up(decoded)
        assert not isinstance(volumes, Refusal), volumes
        need = dataclasses.replace(need, asks=(Ask(volumes=volumes, attached=self.claims.attached(decoded)),))
        slow = reference.place(need, self.views.values())
        row = self._engine.of(
            need.among(term for node in self.views.values() for one in node.pods for term in one.terms)
        )
        list(row.refresh(self.views))
        fast = row.summary()
        assert (fast.node, fast.fitting, fast.message) == (slow.node, slow.fitting, slow.message)
        return slow


@pytest.mark.parametrize("seed", range(24))
def test_a_pod_may_run_on_the_same_nodes(server: api.API, seed: int) -> None:
    pod, ours = _pod(random.Random(seed), has_rules=False), Ours(server)
    asked = [_pinned(pod, name) for name in ours.views]
    theirs = {name for name, said in _verdicts(server, asked).items() if name == f"asked-{said}"}
    mine = {one["metadata"]["name"] for one in asked if ours.place(one).fitting}
    assert mine == theirs


@pytest.mark.parametrize("seed", range(300, 312))
def test_a_pod_with_a_bound_claim_may_run_on_the_same_nodes(server: api.API, seed: int) -> None:
    chance = random.Random(seed)
    _add_bound_claim(server, f"data-{seed}", chance)
    pod, ours = _with_claim(_pod(chance, has_rules=False), f"data-{seed}"), Ours(server)
    asked = [_pinned(pod, name) for name in ours.views]
    theirs = {name for name, said in _verdicts(server, asked).items() if name == f"asked-{said}"}
    mine = {one["metadata"]["name"] for one in asked if ours.place(one).fitting}
    assert mine == theirs


_DRIVER = "disk.paper.test"


def _add_disk(server: api.API, name: str) -> None:
    """Create a claim that is bound to a volume which a driver attaches anywhere."""
    volume: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": ""}
    volume["csi"] = {"driver": _DRIVER, "volumeHandle": name}
    volume["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
    _ensure(server, _VOLUMES, {"metadata": {"name": name}, "spec": volume})
    asks = {**_ASKS, "accessModes": ["ReadWriteMany"]}
    claim = {"storageClassName": "", "volumeName": name, **asks}
    _ensure(server, _CLAIMS, {"metadata": {"name": name, "annotations": _BOUND}, "spec": claim})


@pytest.fixture(scope="module")
def disks(server: api.API) -> api.API:
    """Nodes whose driver attaches none to three volumes, some of which pods there have."""
    chance = random.Random(5)
    names = [f"disk-{number}" for number in range(6)]
    for name in names:
        _add_disk(server, name)
    for number in range(_NODES - 2):  # two say nothing
        count = chance.randrange(4)
        driver = {"name": _DRIVER, "nodeID": f"n{number}", "topologyKeys": None, "allocatable": {"count": count}}
        _ensure(server, _CSI_NODES, {"metadata": {"name": f"n{number}"}, "spec": {"drivers": [driver]}})
    for number in range(_NODES):
        pod = _with_claim(_pod(chance, has_rules=False), chance.choice(names[:3]))
        pod["spec"] = {key: value for key, value in pod["spec"].items() if key in {"containers", "volumes"}}
        pod["spec"]["containers"][0].pop("ports", None)
        pod["metadata"]["name"] = f"has-disk-{number}"
        pod["spec"] |= {"nodeName": f"n{number}", "terminationGracePeriodSeconds": 0}
        _ensure(server, _PODS, pod)
    return server


@pytest.mark.parametrize("seed", range(400, 408))
def test_a_pod_with_volumes_that_are_attached_may_run_on_the_same_nodes(disks: api.API, seed: int) -> None:
    chance = random.Random(seed)
    pod = {"metadata": {}, "spec": {**_pod(chance, has_rules=False)["spec"]}}
    pod["spec"] = {"containers": pod["spec"]["containers"], "terminationGracePeriodSeconds": 0}
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
    names = chance.sample([f"disk-{number}" for number in range(6)], chance.randint(1, 3))
    pod["spec"]["volumes"] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    ours, mine, theirs = Ours(disks), set(), set()
    for node in ours.views:  # one after another: each would attach volumes that count for the next
        one = _pinned(pod, node)
        mine |= {node} if ours.place(one).fitting else set()
        theirs |= {node} if _verdicts(disks, [one])[f"asked-{node}"] == node else set()
    assert mine == theirs


@pytest.mark.parametrize("is_there", [False, True])
def test_a_claim_that_is_missing_or_unbound_is_said_alike(server: api.API, is_there: bool) -> None:
    name = "unbound" if is_there else "missing"
    if is_there:
        _ensure(server, _CLAIMS, {"metadata": {"name": name}, "spec": {"storageClassName": "", **_ASKS}})
    _ensure(server, _CLAIMS, {"metadata": {"name": f"other-{name}"}, "spec": {"storageClassName": "", **_ASKS}})
    pod = _with_claim(_pod(random.Random(1), has_rules=False), name)
    pod["metadata"]["name"] = "asked"
    decoded = wire.object_decoder(core.Pod).decode(
        json.dumps({**pod, "metadata": {**pod["metadata"], "namespace": "default"}})
    )
    found = Ours(server).claims.look_up(decoded)
    assert isinstance(found, Refusal)
    assert found.why in _verdicts(server, [pod])["asked"]


@pytest.mark.parametrize("seed", range(100, 124))
def test_a_pod_with_rules_on_others_may_run_on_the_same_nodes(server: api.API, seed: int) -> None:
    pod, ours = _pod(random.Random(seed), has_rules=True), Ours(server)
    mine, theirs = set(), set()
    for name in ours.views:  # one after another: each would count for the next
        one = _pinned(pod, name)
        mine |= {name} if ours.place(one).fitting else set()
        theirs |= {name} if _verdicts(server, [one])[f"asked-{name}"] == name else set()
    assert mine == theirs


_SAID = re.compile(r"(\d+) (?:node\(s\) )?(.*)")
_KINDS = ("taint", "unschedulable", "affinity/selector", "free ports", "Too many pods", "anti-affinity", "pod affinity")


def _counts(message: str) -> Counter[str]:
    """Return how often each kind of reason is given; words that versions write differently are made one."""
    found = Counter[str]()
    reasons = message.partition("nodes are available: ")[2].partition(". ")[0].rstrip(".").split(", ")
    for reason in reasons:
        match = _SAID.fullmatch(reason)
        assert match is not None, message
        kind = next((kind for kind in (*_KINDS, "spread constraints") if kind in match[2]), match[2])
        found[kind] += int(match[1])
    return found


@pytest.mark.parametrize("seed", range(200, 216))
def test_why_a_pod_fits_nowhere_is_counted_alike(server: api.API, seed: int) -> None:
    chance = random.Random(seed)
    pod, ours = _pod(chance, has_rules=seed % 2 == 0), Ours(server)
    resources = pod["spec"]["containers"][0]["resources"]
    resources["requests"]["memory"] = "17Gi"  # more than any node has
    pod["metadata"]["name"] = "asked"
    found = ours.place(pod)
    said = _verdicts(server, [pod])["asked"]
    assert found.node is None
    assert _counts(said) == _counts(found.message)
