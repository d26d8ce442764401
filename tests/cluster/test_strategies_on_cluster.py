"""Every device-list strategy on a real kubelet and containerd: the pod sees its devices, opens them, and no other.

`envvar` and `volume-mounts` say nothing to containerd itself: they are read by the runtime that a RuntimeClass names,
here ours, under the default policy: what the kubelet's checkpoint says was given counts, and nothing else does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.inject import launcher
from tests.cluster import node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_CLASS = "fairlead-test"
_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_HANDLER = """
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
BinaryName = "{program}"
"""


@pytest.fixture
def runtime_class(cluster: home.Cluster, server: api.API) -> Iterator[str]:
    """Our runtime as a handler of containerd's, for pods that ask for it; gone afterwards."""
    folder = cluster.folder / "libexec"
    folder.mkdir(mode=0o755, exist_ok=True)
    launcher.install(folder, config=folder / "no-policy.json")
    config = cluster.site.configs / "containerd.toml"
    before = config.read_text()
    config.write_text(before + _HANDLER.format(name=_CLASS, program=folder / launcher.RUNTIME))
    cluster.restart("containerd")
    server.create(_CLASSES, {"metadata": {"name": _CLASS}, "handler": _CLASS})
    yield _CLASS
    server.delete(f"{_CLASSES}/{_CLASS}")
    config.write_text(before)
    cluster.restart("containerd")


def look(
    space: pods.Space, *, gpus: int, runtime_class: str | None, name: str = "looks", visible: str | None = None
) -> pods.Sight:
    container = pods.looker(gpus)
    container |= {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": visible}]} if visible else {}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    spec |= {"runtimeClassName": runtime_class} if runtime_class else {}
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})
    return space.sight(name)


def given(cluster: home.Cluster, pod: api.Object) -> str:
    """Return the variable that the plugin answered with for a pod, as a neighbour who learned it would write it."""
    checkpoint = json.loads(cluster.host.run("cat", "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"))
    entries = [one for one in checkpoint["Data"]["PodDeviceEntries"] if one["PodUID"] == pod["metadata"]["uid"]]
    return ",".join(one for entry in entries for some in entry["DeviceIDs"].values() for one in some)


@pytest.mark.parametrize(
    "options",
    [
        ("--node-device-list-strategy=cdi-annotations",),
        ("--node-device-list-strategy=cdi-annotations,cdi-cri", "--node-device-id-strategy=index"),
        ("--node-device-list-strategy=cdi-cri", "--node-pass-device-specs"),
    ],
    ids=["annotations", "both, by index", "with device specs"],
)
def test_containerd_honours_cdi_however_it_is_told(
    cluster: home.Cluster, server: api.API, space: pods.Space, options: tuple[str, ...]
) -> None:
    with node.running(node.Agent(cluster, (*node.PRODUCT, *options)), server):
        pods.assert_sees_its_own(look(space, gpus=3, runtime_class=None), 3)
        space.clear()


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "envvar,cdi-cri"])
@pytest.mark.parametrize("ids", ["uuid", "index"])
def test_our_runtime_honours_the_ways_before_cdi(
    cluster: home.Cluster, server: api.API, space: pods.Space, runtime_class: str, strategy: str, ids: str
) -> None:
    options = (f"--node-device-list-strategy={strategy}", f"--node-device-id-strategy={ids}")
    with node.running(node.Agent(cluster, (*node.PRODUCT, *options)), server):
        pods.assert_sees_its_own(look(space, gpus=2, runtime_class=runtime_class), 2)
        space.clear()


def test_who_copies_another_pods_environment_gets_nothing_of_it(
    cluster: home.Cluster, server: api.API, space: pods.Space, runtime_class: str
) -> None:
    options = ("--node-device-list-strategy=envvar",)
    with node.running(node.Agent(cluster, (*node.PRODUCT, *options)), server):
        holder = look(space, gpus=2, runtime_class=runtime_class, name="holder")
        pods.assert_sees_its_own(holder, 2)
        copied = given(cluster, space.get("holder"))
        assert copied.count("GPU-") == 2
        for name, visible in (("copies", copied), ("greedy", "all")):
            sight = look(space, gpus=0, runtime_class=runtime_class, name=name, visible=visible)
            assert sight.nodes == frozenset()
            assert set(sight.opens.values()) == {"EPERM"}
        # containerd keeps both variables, the plugin's first: that one is the container's own.
        both = look(space, gpus=1, runtime_class=runtime_class, name="both", visible=copied)
        pods.assert_sees_its_own(both, 1)
        assert not both.nodes & holder.nodes
        space.clear()


def test_an_init_container_and_its_successor_are_both_given_the_gpu_they_share(
    cluster: home.Cluster, server: api.API, space: pods.Space, runtime_class: str
) -> None:
    # The kubelet allocates for both before it starts the first.
    before = {**pods.looker(1), "name": "before", "command": ["/bin/sh", "-c", pods.LOOK]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "runtimeClassName": runtime_class}
    spec |= {"initContainers": [before], "containers": [pods.looker(1)]}
    with node.running(node.Agent(cluster, (*node.PRODUCT, "--node-device-list-strategy=envvar")), server):
        server.create(space.path, {"metadata": {"name": "two"}, "spec": spec})
        later = space.sight("two")
        earlier = pods.parse_sight(server.text(f"{space.path}/two/log", container="before").splitlines())
        pods.assert_sees_its_own(later, 1)
        assert earlier == later
        space.clear()


def test_without_such_a_runtime_the_environment_gives_nothing(
    cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    options = ("--node-device-list-strategy=envvar",)
    with node.running(node.Agent(cluster, (*node.PRODUCT, *options)), server):
        sight = look(space, gpus=2, runtime_class=None)
        assert sight.nodes == frozenset()
        assert set(sight.opens.values()) == {"EPERM"}
        space.clear()
