"""What a user has after the chart's install: the articles' pod as it is, updates under running pods, nothing left.

`test_helm.py` has the release's own life; here is what runs on it, and what a rolling update of the agents does to it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.admin import manifests
from tests.cluster import claimpods, denials, node, pods, test_mps_on_cluster
from tests.cluster.test_articles import Kubectl, load_images
from tests.cluster.test_helm import Tools
from tests.cluster.test_proofs import recording, until_reported
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_SPACE = "fairlead-installed"
_SURGE = ("agent.updateStrategy.rollingUpdate.maxSurge=1", "agent.updateStrategy.rollingUpdate.maxUnavailable=0")


class Release:
    """The chart on the cluster, from this tree's image."""

    def __init__(self, tools: Tools, image: str) -> None:
        self.tools = tools
        repository, _, tag = image.rpartition(":")
        chosen = (f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=Never")
        self._where = ("-n", _SPACE, "--wait", "--timeout", "120s")
        self._what = (str(manifests.CHART), "--set", "silicon.simulate=h100x8", "--set", ",".join(chosen))

    def helm(self, verb: str, *values: str) -> None:
        more = tuple(word for value in values for word in ("--set", value))
        what = () if verb == "uninstall" else (*self._what, *more)
        made = ("--create-namespace",) if verb == "install" else ()
        self.tools.helm(verb, "fairlead", *what, *self._where, *made)

    def configure(self, file: str) -> None:
        """Have the agents follow a configuration file."""
        value = f"config.map={json.dumps({'default': file})}"
        self.tools.helm("upgrade", "fairlead", *self._what, "--set-json", value, *self._where)

    def update_agents(self) -> None:
        """Have the DaemonSet replace its pods; returns when the new ones are ready."""
        for words in (("restart",), ("status", "--timeout=100s")):
            self.tools.kubectl("-n", _SPACE, "rollout", words[0], "daemonset/fairlead-agent", *words[1:])


@pytest.fixture(scope="module")
def release(cluster: home.Cluster, fairlead_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """An installed chart; at the end it is gone without a trace on the node."""
    load_images(cluster, tmp_path_factory.mktemp("installed") / "image.tar")
    one = Release(Tools(cluster), fairlead_image)
    one.helm("install")
    with cluster.api() as server:
        node.until_allocatable(server, cluster.node, 8)
        yield one
        one.helm("uninstall")
        node.until_allocatable(server, cluster.node, 0)
        assert server.get("/apis/fairlead.dev/v1alpha1/gpudevices")["items"] == []
        sockets = [path.name for path in cluster.device_plugins.iterdir() if path.is_socket()]
        assert sockets == ["kubelet.sock"]
        assert [path.name for path in cluster.cdi.iterdir() if path.name.startswith("fairlead-")] == []
        one.tools.kubectl("delete", "namespace", _SPACE)
        one.tools.kubectl("delete", "crd", "gpudevices.fairlead.dev")


def test_the_articles_pod_lists_two_gpus_and_its_steps_are_events(
    release: Release, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    Kubectl(cluster).apply("gpu-pod")

    def ended(pod: api.Object) -> bool:
        found = pod["status"].get("containerStatuses", [{}])[0]
        return bool(found.get("lastState", {}).get("terminated") or found.get("state", {}).get("terminated"))

    pod = space.until("gpu-pod", ended, what="ran")
    uid = pod["metadata"]["uid"]

    def told(items: list[api.Object]) -> bool | None:
        reasons = {item["reason"] for item in items if item["involvedObject"].get("uid") == uid}
        return True if {"Scheduled", "DevicesAllocated", "EditsResolved", "ContainerEnded"} <= reasons else None

    server.until("/api/v1/namespaces/default/events", told, what="the steps are events")
    space.until(
        "gpu-pod",
        lambda pod: bool(pod["status"]["containerStatuses"][0]["state"].get("waiting")),
        what="waits to be started again",
    )
    assert space.log("gpu-pod").count("H100") == 2


@pytest.mark.parametrize("values", [(), _SURGE], ids=["one after the other", "the new one first"])
def test_an_update_of_the_agents_leaves_running_pods_their_gpus_and_gives_none_twice(
    release: Release, cluster: home.Cluster, server: api.API, space: pods.Space, values: tuple[str, ...]
) -> None:
    if values:
        release.helm("upgrade", *values)
        node.until_allocatable(server, cluster.node, 8)
    space.start_looking("before", gpus=2)
    held, was = space.sight("before").nodes, pods.container(space.get("before"))
    with recording(cluster) as record:
        release.update_agents()
        node.until_allocatable(server, cluster.node, 8)
        until_reported(server, cluster, 3)
    assert record.values in ([8], [8, 0, 8])
    space.start_looking("after", gpus=6)
    assert space.sight("after").nodes == pods.ALL - held
    assert pods.container(space.get("before")) == was


def _ends(server: api.API) -> list[int]:
    """Return the statuses with which containers of agents that are there ended last."""
    agents = server.get(f"/api/v1/namespaces/{_SPACE}/pods?labelSelector=app.kubernetes.io/component=agent")["items"]
    last = (one.get("lastState", {}) for pod in agents for one in pod["status"].get("containerStatuses", ()))
    return [state["terminated"]["exitCode"] for state in last if "terminated" in state]


def test_a_plugins_folder_that_was_deleted_and_made_anew_is_found_and_pods_get_their_gpus(
    release: Release, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    assert _ends(server) == []
    shutil.rmtree(cluster.device_plugins)
    cluster.restart("kubelet")
    deadline = time.monotonic() + 90
    while not _sockets(cluster) > {"kubelet.sock"}:
        assert time.monotonic() < deadline, _ends(server)
        time.sleep(0.2)
    # The mount of a folder that is gone is renewed by a start alone.
    ends = _ends(server)
    assert ends
    assert 0 not in ends
    node.until_allocatable(server, cluster.node, 8)
    space.start_looking("two", gpus=2)
    pods.assert_sees_its_own(space.sight("two"), 2)


def _sockets(cluster: home.Cluster) -> set[str]:
    folder = cluster.device_plugins
    return {path.name for path in folder.iterdir() if path.is_socket()} if folder.is_dir() else set()


def test_the_scheduler_says_with_its_own_role_how_a_queue_stands(
    release: Release, server: api.API, space: pods.Space
) -> None:
    queues = "/apis/fairlead.dev/v1alpha1/queues"
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "installed"}}
    server.create(queues, {**kind, "spec": {"deserved": {pods.RESOURCE: "4"}}})
    try:
        about = {"name": "queued", "labels": {"kueue.x-k8s.io/queue-name": "installed"}}
        spec = {"schedulerName": "fairlead", "terminationGracePeriodSeconds": 0, "containers": [pods.looker(2)]}
        server.create(space.path, {"metadata": about, "spec": spec})
        pods.assert_sees_its_own(space.sight("queued"), 2)

        def told(items: list[api.Object]) -> bool | None:
            found = {item["metadata"]["name"]: item.get("status", {}) for item in items}
            return True if found["installed"].get("allocated", {}).get(pods.RESOURCE) == "2" else None

        server.until(queues, told, what="the queue's status")
    finally:
        server.delete(f"{queues}/installed")


def test_pods_share_a_gpu_by_mps_as_the_image_runs_its_daemon(
    release: Release, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    release.configure(test_mps_on_cluster.FILE)
    try:
        test_mps_on_cluster.until(server, cluster, test_mps_on_cluster.SHARED, 4)
        seen = test_mps_on_cluster.start(space, "a")
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in seen
        assert {"control", "of-this-gpu", "nvidia0"} <= set(seen)
        space.delete("a")
    finally:
        release.helm("upgrade")
        test_mps_on_cluster.until(server, cluster, test_mps_on_cluster.SHARED, 0)
        node.until_allocatable(server, cluster.node, 8)


def _is_held(lease: api.Object) -> bool:
    return bool(lease.get("status", {}).get("state") in {"Held", "Releasing"})


def _prepared(claims: list[api.Object]) -> list[api.Object] | None:
    """Return what the first claim's status says of its devices, once each is prepared."""
    said = claims[0].get("status", {}).get("devices", []) if claims else []
    done = [one for one in said for found in one.get("conditions", ()) if found["status"] == "True"]
    return said if len(done) == 2 else None


@pytest.fixture
def by_claims(release: Release, cluster: home.Cluster, server: api.API, denied: denials.Denials) -> Iterator[None]:
    """The release with its DRA driver; the device plugin offers no GPU meanwhile."""
    release.helm("upgrade", "dra.enabled=true")
    claimpods.until_slices(server, 1)  # of all whole GPUs
    node.until_allocatable(server, cluster.node, 0)
    yield
    assert denied.take() == []
    # Without its driver a claim cannot be unprepared, and keeps its GPUs.
    leases = "/apis/fairlead.dev/v1alpha1/gpuleases"
    server.until(leases, lambda items: None if any(map(_is_held, items)) else True, what="the claims' GPUs are back")
    release.helm("upgrade")
    node.until_allocatable(server, cluster.node, 8)
    denied.take()  # helm takes the rights before it ends the agent that used them


def test_the_scheduler_allocates_claims_with_its_own_role(
    release: Release, by_claims: None, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    devices = {"requests": [claimpods.request("two", count=2)]}
    path = f"{claimpods.RESOURCE}/namespaces/{space.namespace}"
    server.create(
        f"{path}/resourceclaimtemplates", {"metadata": {"name": "two"}, "spec": {"spec": {"devices": devices}}}
    )
    looker = pods.looker(0)
    del looker["resources"]["limits"]
    looker["resources"]["claims"] = [{"name": "gpus"}]
    claims = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    base = {"schedulerName": "fairlead", "terminationGracePeriodSeconds": 0}
    try:
        spec = {**base, "resourceClaims": claims, "containers": [looker]}
        server.create(space.path, {"metadata": {"name": "claims"}, "spec": spec})
        pods.assert_sees_its_own(space.sight("claims"), 2)
        said = server.until(f"{path}/resourceclaims", _prepared, what="the claim says that it is prepared")
        assert [(one["driver"], one["pool"]) for one in said] == [("gpu.nvidia.com", cluster.node)] * 2
        assert all(one["data"]["gpu"].startswith("GPU-") for one in said)
        # No node has the extended resource: the scheduler makes the claim, allocates it and hands its name to the pod.
        server.create(space.path, {"metadata": {"name": "implied"}, "spec": {**base, "containers": [pods.looker(3)]}})
        pods.assert_sees_its_own(space.sight("implied"), 3)
        assert space.get("implied")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        space.delete("claims")
        space.delete("implied")
        server.until(f"{path}/resourceclaims", lambda items: None if items else True, what="no claim is left")
    finally:
        server.delete(f"{path}/resourceclaimtemplates/two")
