"""`schedulerName: fairlead` on a real API server: bindings, refusals, quotas by admission, and a leader that dies."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from tests.cluster import node, paper, pods, verb
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_NODES = "/api/v1/nodes"
_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/fairlead/leases"
_GPU = pods.RESOURCE


@pytest.fixture(scope="module")
def connection(cluster: home.Cluster) -> Iterator[api.API]:
    with cluster.api() as one:
        yield one


@pytest.fixture(scope="module")
def plane(cluster: home.Cluster, connection: api.API) -> Iterator[None]:
    """The namespace of Fairlead, and nodes that exist on paper only."""
    paper.ensure_namespace(connection, "fairlead")
    node.define(cluster, "gpudevices")
    paper.add_node(connection, "paper-h100", gpus=8, labels={"gpu.count": "8", "gpu.product": "H100"})
    paper.add_node(connection, "paper-t4", gpus=4, labels={"gpu.count": "4", "gpu.product": "T4"})
    taint = {"key": "reserved", "value": "red", "effect": "NoSchedule"}
    paper.add_node(connection, "paper-red", gpus=8, labels={"gpu.count": "8", "gpu.product": "A100"}, taints=(taint,))
    yield
    paper.remove_nodes(connection, "paper-h100", "paper-t4", "paper-red")


@pytest.fixture(scope="module")
def schedulers(
    cluster: home.Cluster, plane: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[verb.Verb]]:
    """Two replicas, the first of them leading."""
    folder = tmp_path_factory.mktemp("schedulers")
    first, second = (
        verb.Verb("scheduler", cluster.kubeconfig, folder / f"{name}.log", (f"--cluster-identity={name}",))
        for name in ("first", "second")
    )
    with verb.running(first):
        first.until_logged('"event": "leading"')
        with verb.running(second):
            second.until_logged('"event": "waiting for the lease"')
            yield [first, second]


@pytest.fixture
def space(connection: api.API, schedulers: list[verb.Verb]) -> Iterator[paper.Space]:
    with paper.opened(connection) as one:
        yield one


def _affinity(*rules: tuple[str, str, list[str]]) -> dict[str, Any]:
    expressions = [{"key": key, "operator": how, "values": values} for key, how, values in rules]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_a_pod_is_bound_where_count_and_product_fit(space: paper.Space) -> None:
    wanted = _affinity(("gpu.count", "Gt", ["4"]), ("gpu.product", "In", ["H100", "A100"]))
    space.add("train", gpus=4, affinity=wanted)
    assert space.until_bound("train") == ["paper-h100"]


def test_the_binding_is_shown_as_kube_scheduler_shows_it(space: paper.Space) -> None:
    pod = space.add("shown", gpus=1)
    [where] = space.until_bound("shown")
    now = space.server.get(f"{space.path}/shown")
    assert [item["status"] for item in now["status"]["conditions"] if item["type"] == "PodScheduled"] == ["True"]

    message = _said(space, pod["metadata"]["uid"])
    assert message == f"Successfully assigned {space.namespace}/shown to {where}"


def test_two_gpus_go_where_agents_say_that_they_are_joined(space: paper.Space) -> None:
    server = space.server
    try:
        for name, kind in (("paper-a", "SYS"), ("paper-joined", "NV")):
            paper.add_node(server, name, gpus=2, labels={"pair": "yes"})
            for index in (0, 1):
                paper.add_gpu(server, name, index, kind)
        # The scheduler hears of pods and of GPUs by different watches, so the first pod may come before the GPUs.
        message, deadline = "", time.monotonic() + 30
        while "joined by NVLink" not in message and time.monotonic() < deadline:
            uid = space.add("pair", gpus=2, nodeSelector={"pair": "yes"})["metadata"]["uid"]
            space.until_bound("pair")
            message = _said(space, uid)
            server.delete(f"{space.path}/pair", grace_s=0)
        words = "paper-joined: GPUs 0 and 1 are free there, joined by NVLink"
        assert message == f"Successfully assigned {space.namespace}/pair to {words}"
    finally:
        paper.remove_nodes(server, "paper-a", "paper-joined")
        paper.remove_gpus(server, "paper-a", "paper-joined")


def test_a_slot_goes_where_the_fabric_manager_has_the_driver_of_the_pods_runtime_class(space: paper.Space) -> None:
    server, slot = space.server, "nvidia.com/paper-x4"
    manager, driver = "fairlead.dev/fabric-manager", "fairlead.dev/guest-driver"
    try:
        about = {"name": "paper-kata", "annotations": {driver: "580.95.05"}}
        server.create(_CLASSES, {"metadata": about, "handler": "kata", "overhead": {"podFixed": {"memory": "1Gi"}}})
        pod = space.add("slot", more={slot: "1"}, runtimeClassName="paper-kata", nodeSelector={"fabric": "yes"})
        uid = pod["metadata"]["uid"]
        space.until_unschedulable("slot")  # by then the scheduler has heard of the class
        paper.add_node(server, "paper-old", gpus=0, labels={"fabric": "yes", manager: "570.158.01"}, more={slot: "1"})
        said = space.until_unschedulable("slot", "node(s) had Fabric Manager 570.158.01")
        assert "and the pod's RuntimeClass boots driver 580.95.05" in said
        assert "install Manager 580.95.05 there" in said
        events = f"/api/v1/namespaces/{space.namespace}/events"

        def told(items: list[api.Object]) -> bool | None:
            own = [item["message"] for item in items if item["involvedObject"].get("uid") == uid]
            return True if any("Fabric Manager 570.158.01" in one for one in own) else None

        server.until(events, told, what="the event FailedScheduling")
        server.patch(f"{_NODES}/paper-old", {"metadata": {"labels": {manager: "580.95.05"}}})
        assert space.until_bound("slot") == ["paper-old"]
    finally:
        paper.remove_nodes(server, "paper-old")
        server.delete(f"{_CLASSES}/paper-kata")


def _said(space: paper.Space, uid: str) -> str:
    def told(items: list[api.Object]) -> str | None:
        return next((item["message"] for item in items if item["involvedObject"].get("uid") == uid), None)

    events = f"/api/v1/namespaces/{space.namespace}/events"
    return str(space.server.until(events, told, what="the event Scheduled"))


def test_what_a_kubelet_refused_is_kept_away_until_the_refused_pod_is_removed(space: paper.Space) -> None:
    server = space.server
    try:
        paper.add_node(server, "paper-numa", gpus=2, labels={"numa": "yes"})
        space.add("refused", gpus=2, nodeSelector={"numa": "yes"})
        assert space.until_bound("refused") == ["paper-numa"]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "no NUMA node", "startTime": now}
        server.patch(f"{space.path}/refused/status", {"status": status})
        space.add("like", gpus=2, nodeSelector={"numa": "yes"})
        space.add("smaller", gpus=1, nodeSelector={"numa": "yes"})
        assert "1 node(s) lately refused such a pod (TopologyAffinityError)" in space.until_unschedulable("like")
        assert space.until_bound("smaller") == ["paper-numa"]
        server.delete(f"{space.path}/smaller", grace_s=0)
        server.delete(f"{space.path}/refused", grace_s=0)
        assert space.until_bound("like") == ["paper-numa"]
    finally:
        paper.remove_nodes(server, "paper-numa")


def test_a_volume_that_waits_for_its_pod_is_made_where_the_pod_is_then_bound(space: paper.Space) -> None:
    """The test is the provisioner and the volume controller; the API server is a real one."""
    server, claims = space.server, f"/api/v1/namespaces/{space.namespace}/persistentvolumeclaims"
    classes, volumes = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"
    about = {"metadata": {"name": "paper-late"}, "provisioner": "paper.test/made"}
    asks = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    server.create(classes, {**about, "volumeBindingMode": "WaitForFirstConsumer"})
    try:
        space.add("user", gpus=1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        assert 'persistentvolumeclaim "data" not found' in space.until_unschedulable("user")
        server.create(claims, {"metadata": {"name": "data"}, "spec": {"storageClassName": "paper-late", **asks}})
        [claim] = server.until(claims, _chosen, what="the node on the claim")
        node = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
        assert "nodeName" not in server.get(f"{space.path}/user")["spec"]
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        spec = {**asks, "storageClassName": "paper-late", "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"}}
        spec |= {"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}}
        del spec["resources"]
        server.create(volumes, {"metadata": {"name": "paper-made"}, "spec": spec})
        done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        server.patch(f"{claims}/data", {"metadata": done, "spec": {"volumeName": "paper-made"}})
        assert space.until_bound("user") == [node]
    finally:
        server.delete(f"{classes}/paper-late")
        with contextlib.suppress(errors.NotFound):
            server.delete(f"{volumes}/paper-made")


def test_a_local_volume_is_given_to_its_claim_and_the_real_volume_controller_binds_them(space: paper.Space) -> None:
    server, claims = space.server, f"/api/v1/namespaces/{space.namespace}/persistentvolumeclaims"
    classes, volumes = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1/persistentvolumes"
    about = {"metadata": {"name": "paper-local"}, "provisioner": "kubernetes.io/no-provisioner"}
    server.create(classes, {**about, "volumeBindingMode": "WaitForFirstConsumer"})
    node = next(one["metadata"]["name"] for one in server.get("/api/v1/nodes")["items"] if _has_gpus(one))
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "paper-local"}
    spec |= {"capacity": {"storage": "2Gi"}, "local": {"path": "/none"}}
    spec |= {"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}}
    try:
        asks = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        server.create(claims, {"metadata": {"name": "data"}, "spec": {"storageClassName": "paper-local", **asks}})
        space.add("user", gpus=1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        space.until_unschedulable("user", "didn't find available persistent volumes to bind")
        server.create(volumes, {"metadata": {"name": "paper-local"}, "spec": spec})
        assert space.until_bound("user") == [node]
        assert server.get(f"{claims}/data")["status"]["phase"] == "Bound"
        assert server.get(f"{claims}/data")["spec"]["volumeName"] == "paper-local"
    finally:
        server.delete(f"{classes}/paper-local")
        with contextlib.suppress(errors.NotFound):
            server.delete(f"{volumes}/paper-local")


def _has_gpus(node: api.Object) -> bool:
    is_paper = all(node["metadata"].get("labels", {}).get(key) == value for key, value in paper.LABELS.items())
    return is_paper and node["status"]["allocatable"].get(pods.RESOURCE, "0") != "0" and not node["spec"].get("taints")


def _chosen(items: list[api.Object]) -> list[api.Object] | None:
    key = "volume.kubernetes.io/selected-node"
    return [one for one in items if key in one["metadata"].get("annotations", {})] or None


def test_a_taint_keeps_out_who_does_not_bear_it(space: paper.Space) -> None:
    wanted = _affinity(("gpu.product", "In", ["A100"]))
    space.add("stranger", gpus=1, affinity=wanted)
    assert "1 node(s) had untolerated taint {reserved: red}" in space.until_unschedulable("stranger")
    bears = {"key": "reserved", "operator": "Equal", "value": "red", "effect": "NoSchedule"}
    space.add("guest", gpus=1, affinity=wanted, tolerations=[bears])
    assert space.until_bound("guest") == ["paper-red"]


def test_a_pod_that_fits_nowhere_waits_with_counts_and_goes_once_there_is_room(space: paper.Space) -> None:
    wanted = _affinity(("gpu.product", "In", ["T4"]))
    space.add("holder", gpus=3, affinity=wanted)
    space.until_bound("holder")
    space.add("waits", gpus=2, affinity=wanted)
    assert space.until_unschedulable("waits") == (
        f"0/4 nodes are available: 1 Insufficient {_GPU}, 1 node(s) had untolerated taint {{reserved: red}}, "
        "2 node(s) didn't match Pod's node affinity/selector."
    )
    space.server.delete(f"{space.path}/holder", grace_s=0)
    assert space.until_bound("waits") == ["paper-t4"]


def test_a_gate_is_honoured(space: paper.Space) -> None:
    space.add("gated", schedulingGates=[{"name": "example.com/wait"}])
    space.add("free")
    space.until_bound("free")
    assert "nodeName" not in space.server.get(f"{space.path}/gated")["spec"]
    space.server.patch(f"{space.path}/gated", {"spec": {"schedulingGates": None}})
    space.until_bound("gated")


def test_a_quota_is_refused_by_the_api_servers_admission_in_the_words_that_one_machine_uses(space: paper.Space) -> None:
    hard = {"requests.nvidia.com/gpu": "2"}
    quotas = f"/api/v1/namespaces/{space.namespace}/resourcequotas"
    space.server.create(quotas, {"metadata": {"name": "gpu-quota"}, "spec": {"hard": hard}})
    space.server.until(
        quotas, lambda items: True if items[0].get("status", {}).get("used") else None, what="the quota is counted"
    )
    space.add("fits", gpus=2)
    space.until_bound("fits")
    with pytest.raises(errors.Denied) as refused:
        space.add("big", gpus=1)
    said = (
        r"pods \"big\" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1, "
        "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
    )
    assert said in refused.value.message


def test_pods_of_other_schedulers_are_left_to_them(space: paper.Space, cluster: home.Cluster) -> None:
    space.add("theirs", schedulerName="nobody")
    space.add("ours")
    space.until_bound("ours")
    assert "nodeName" not in space.server.get(f"{space.path}/theirs")["spec"]


def test_when_the_leader_is_killed_the_other_takes_over_and_nothing_is_bound_twice(
    space: paper.Space, schedulers: list[verb.Verb]
) -> None:
    leader, other = schedulers
    for number in range(6):
        space.add(f"before-{number}", gpus=1)
    space.until_bound(*(f"before-{number}" for number in range(6)))
    assert leader.stop(signal.SIGKILL) == -signal.SIGKILL
    for number in range(6):
        space.add(f"after-{number}", gpus=1)
    space.until_bound(*(f"after-{number}" for number in range(6)), timeout_s=40)
    assert other.is_leading
    assert _holder(space.server) == "second"
    taken: dict[str, int] = {}
    for pod in space.server.get("/api/v1/pods")["items"]:
        for container in pod["spec"]["containers"]:
            gpus = int(container["resources"].get("requests", {}).get(_GPU, 0))
            name = pod["spec"].get("nodeName", "")
            taken[name] = taken.get(name, 0) + gpus
    nodes = {item["metadata"]["name"]: node.gpus(item, "allocatable") for item in space.server.get(_NODES)["items"]}
    assert all(count <= nodes[name] for name, count in taken.items() if name)


def test_a_scheduler_that_is_asked_to_end_lets_go_of_the_lease(
    space: paper.Space, cluster: home.Cluster, schedulers: list[verb.Verb], tmp_path: Path
) -> None:
    successor = verb.Verb("scheduler", cluster.kubeconfig, tmp_path / "third.log", ("--cluster-identity=third",))
    with verb.running(successor):
        successor.until_logged('"event": "waiting for the lease"')
        holder = _holder(space.server)
        leader = schedulers[["first", "second"].index(holder)]
        assert leader.stop() == 0
        space.add("last")
        space.until_bound("last", timeout_s=8)
        assert _holder(space.server) not in {"", holder}


def _holder(server: api.API) -> str:
    leases = server.get(_LEASES)["items"]
    lease = next(item for item in leases if item["metadata"]["name"] == "fairlead-scheduler")
    return str(lease["spec"]["holderIdentity"])
