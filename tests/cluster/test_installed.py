"""What a user has after the chart's install: the articles' pod as it is, updates under running pods, nothing left.

`test_helm.py` has the release's own life; here is what runs on it, and what a rolling update of the agents does to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.admin import manifests
from tests.cluster import node, pods
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
