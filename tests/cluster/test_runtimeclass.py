"""A pod with `runtimeClassName: fairlead` on a node whose containerd our own command configured, no policy beside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_NAMES = ("fairlead", "nvidia")
_BY_ENVIRONMENT = (*node.PRODUCT, "--node-device-list-strategy=envvar")


def runtime(cluster: home.Cluster, *arguments: str) -> str:
    """Run `fairlead runtime …` on the node, for the containerd of this cluster."""
    config = str(cluster.site.configs / "containerd.toml")
    line = (sys.executable, "-m", "fairlead.cli.main", "runtime", *arguments, "--engine", "containerd")
    return cluster.host.run(*line, "--config", config)


@pytest.fixture(scope="module")
def classes(cluster: home.Cluster) -> Iterator[None]:
    """The node is configured and the cluster knows its handlers; afterwards the node is byte for byte as before."""
    folder = cluster.site.configs
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    runtime(cluster, "configure", "--folder", "/var/lib/fairlead/libexec")
    cluster.restart("containerd")
    with cluster.api() as server:
        for name in _NAMES:
            server.create(_CLASSES, {"metadata": {"name": name}, "handler": name})
    yield
    with cluster.api() as server:
        for name in _NAMES:
            server.delete(f"{_CLASSES}/{name}")
    runtime(cluster, "unconfigure")
    cluster.restart("containerd")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def sight(space: pods.Space, name: str, *, runtime_class: str, gpus: int) -> pods.Sight:
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [pods.looker(gpus)]}
    pod = {"metadata": {"name": name}, "spec": {**spec, "runtimeClassName": runtime_class}}
    space.server.create(space.path, pod)
    return space.sight(name)


def test_a_pod_of_our_class_gets_what_the_plugin_put_into_its_environment(
    classes: None, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    with node.running(node.Agent(cluster, _BY_ENVIRONMENT), server):
        two = sight(space, "two", runtime_class="fairlead", gpus=2)
        three = sight(space, "three", runtime_class="nvidia", gpus=3)
        pods.assert_sees_its_own(two, 2)
        pods.assert_sees_its_own(three, 3)
        assert not two.nodes & three.nodes
        space.clear()


def test_a_pod_of_our_class_gets_its_cdi_devices_too(
    classes: None, agent: node.Agent, cluster: home.Cluster, space: pods.Space
) -> None:
    pods.assert_sees_its_own(sight(space, "cdi", runtime_class="fairlead", gpus=2), 2)
    assert "is configured" in runtime(cluster, "check")
