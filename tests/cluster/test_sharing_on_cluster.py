"""Sharing beside the real kubelet: configurations switched by label under running pods, MIG, faults, and metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node, paper, pods
from tests.cluster.program import Program
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

SHARED = "nvidia.com/gpu.shared"
HALF = "nvidia.com/mig-3g.40gb"
CONFIG = "nvidia.com/device-plugin.config"
MIG = "nvidia.com/mig.config"
DRAIN = "fairlead.dev/mig.drain"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_BY_TIME = "version: v1\nsharing: {{timeSlicing: {{{more}resources: [{{name: nvidia.com/gpu, replicas: {count}}}]}}}}\n"
FILES = {
    "default": "version: v1\n",
    "ten": _BY_TIME.format(more="", count=10),
    "packed": "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n" + _BY_TIME.format(more="", count=10),
    "renamed": _BY_TIME.format(more="renameByDefault: true, failRequestsGreaterThanOne: true, ", count=4),
    "mixed": "version: v1\nflags: {migStrategy: mixed}\n",
    "single": "version: v1\nflags: {migStrategy: single}\n",
}
MIG_FILE = """
version: v1
mig-configs:
  half-0: [{devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}, {devices: [1], mig-enabled: false}]
  half-01: [{devices: [0, 1], mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  whole-1: [{devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}]
  sevenths: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  none-at-all: [{devices: all, mig-enabled: false}]
"""
_LIST = (
    "ls /dev | grep -E '^nvidia[0-9]+$' | tr '\\n' ' '; echo;"
    " ls /dev/nvidia-caps 2>/dev/null | tr '\\n' ' '; echo; exec sleep 3600"
)


@pytest.fixture(scope="module")
def agent(cluster: home.Cluster) -> Iterator[node.Agent]:
    """One agent for the module, with a folder of configurations and a file of MIG's, that tells the cluster."""
    node.define(cluster, "gpudevices")
    folder = cluster.folder / "plugin-configs"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (cluster.folder / "mig.yaml").write_text(MIG_FILE)
    arguments = (
        *node.PRODUCT,
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--node-name={cluster.node}",
        f"--plugin-config-folder={folder}",
        f"--node-mig-config-file={cluster.folder / 'mig.yaml'}",
        "--health-node-taint=PreferNoSchedule",
        *(["--health-device-taint=NoSchedule"] if serves_taint_rules(cluster) else []),
        "--health-hold-s=0.5",
        "--node-mig-drain=label",
        "--log-format=json",
    )
    with cluster.api() as server, node.running(node.Agent(cluster, arguments), server) as one:
        yield one
        label(server, cluster, **{CONFIG: None, MIG: "none-at-all"})
        until_resources(server, cluster, {pods.RESOURCE: 8})
        label(server, cluster, **{MIG: None})
    with cluster.api() as server:
        server.delete("/apis/fairlead.dev/v1alpha1/gpudevices")


@pytest.fixture(autouse=True)
def whole(agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space) -> Iterator[None]:
    """Every test begins with eight whole GPUs that are well."""
    yield
    space.clear()
    label(server, cluster, **{CONFIG: None, MIG: "none-at-all", DRAIN: None})
    until_resources(server, cluster, {pods.RESOURCE: 8}, timeout_s=150)


def serves_taint_rules(cluster: home.Cluster) -> bool:
    """Whether its release has DeviceTaintRules that no feature gate hides."""
    return cluster.version not in {"1.34", "1.35"}


def label(server: api.API, cluster: home.Cluster, **labels: str | None) -> None:
    server.patch(f"/api/v1/nodes/{cluster.node}", {"metadata": {"labels": labels}})


def until_resources(
    server: api.API, cluster: home.Cluster, wanted: dict[str, int], *, timeout_s: float = 60
) -> api.Object:
    """Wait until the node has exactly so much of NVIDIA's resources to give; names without any count as none."""

    def reached(items: list[api.Object]) -> api.Object | None:
        one = next(item for item in items if item["metadata"]["name"] == cluster.node)
        there = one["status"].get("allocatable", {})
        found = {name: int(count) for name, count in there.items() if name.startswith("nvidia.com/") and count != "0"}
        return one if found == wanted else None

    return server.until("/api/v1/nodes", reached, what=f"the node offers {wanted}", timeout_s=timeout_s)


def until_node(server: api.API, cluster: home.Cluster, check: Any, *, what: str) -> api.Object:
    def reached(items: list[api.Object]) -> api.Object | None:
        one = next(item for item in items if item["metadata"]["name"] == cluster.node)
        return one if check(one) else None

    return server.until("/api/v1/nodes", reached, what=what, timeout_s=60)


def start(space: pods.Space, name: str, resource: str, count: int = 1) -> None:
    container = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _LIST],
        "resources": {"limits": {resource: str(count)}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})


def seen(space: pods.Space, name: str) -> tuple[list[str], list[str]]:
    """Return the GPUs' nodes and the capability nodes that a pod sees, by its own log."""
    space.until_phase(name, "Running")
    lines = space.server.lines(f"{space.path}/{name}/log", follow="true")
    return next(lines).split(), next(lines).split()


def state(server: api.API, cluster: home.Cluster) -> str:
    return str(server.get(f"/api/v1/nodes/{cluster.node}")["metadata"]["labels"].get(f"{MIG}.state", ""))


def inject(cluster: home.Cluster, fault: str, *arguments: str) -> None:
    """Break a GPU as a person at the node does."""
    cluster.host.run(sys.executable, "-m", "fairlead.cli.main", "simulate", "fault", fault, *arguments)


def test_a_label_shares_gpus_under_a_running_pod_and_every_replica_sees_its_gpu_alone(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("before", gpus=1)
    held = space.sight("before").nodes
    was = pods.container(space.get("before"))
    label(server, cluster, **{CONFIG: "ten"})
    until_resources(server, cluster, {pods.RESOURCE: 70})  # what a pod has whole is not shared under it
    for name in ("a", "b"):
        space.start_looking(name, gpus=1)
    sights = {name: space.sight(name) for name in ("a", "b")}
    for sight in sights.values():
        pods.assert_sees_its_own(sight, 1)
    assert sights["a"].nodes != sights["b"].nodes  # distributed
    assert not held & (sights["a"].nodes | sights["b"].nodes)
    assert pods.container(space.get("before")) == was
    space.delete("before")
    until_resources(server, cluster, {pods.RESOURCE: 80})
    trace = json.loads(Program(cluster, cluster.kubeconfig).show("trace", "a", "-o", "json"))
    (gpu,) = sights["a"].nodes
    devices = server.get("/apis/fairlead.dev/v1alpha1/gpudevices")["items"]
    uuid = next(item["spec"]["uuid"] for item in devices if item["spec"]["minor"] == gpu)
    others = {item["spec"]["uuid"] for item in devices} - {uuid}
    text = json.dumps([entry for entry in trace["entries"] if entry["stage"] in {"allocated", "edits"}])
    assert uuid in text
    assert not any(other in text for other in others)


def test_metrics_name_every_pod_that_shares_a_gpu(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    label(server, cluster, **{CONFIG: "packed"})
    until_resources(server, cluster, {pods.RESOURCE: 80})
    for name in ("a", "b"):
        space.start_looking(name, gpus=1)
    assert space.sight("a").nodes == space.sight("b").nodes
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9400/metrics').read().decode())"
    (gpu,) = space.sight("a").nodes
    page = cluster.host.run(sys.executable, "-c", script)
    lines = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{") and 'pod="' in line]
    named = {line.split('pod="')[1].split('"')[0] for line in lines if f'device="nvidia{gpu}"' in line}
    assert named == {"a", "b"}


def test_xid_79_marks_ten_of_ten_replicas_and_the_node_says_why(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    label(server, cluster, **{CONFIG: "ten"})
    until_resources(server, cluster, {pods.RESOURCE: 80})
    inject(cluster, "xid", "79", "-g", "3")
    until_resources(server, cluster, {pods.RESOURCE: 70})

    def is_marked(one: api.Object) -> bool:
        found = {item["type"]: item for item in one["status"]["conditions"]}.get("fairlead.dev/GPUHealthy", {})
        taints = [item for item in one["spec"].get("taints", []) if item["key"] == "fairlead.dev/gpu-unhealthy"]
        said = (found.get("status"), found.get("reason"))
        return said == ("False", "XID79") and [t["value"] for t in taints] == ["XID79"]

    one = until_node(server, cluster, is_marked, what="the node is marked")
    assert any(item["type"] == "Ready" and item["status"] == "True" for item in one["status"]["conditions"])
    for number in range(4):
        start(space, f"p{number}", pods.RESOURCE)
    assert all(seen(space, f"p{number}")[0] != ["nvidia3"] for number in range(4))
    inject(cluster, "recover", "-g", "3")
    until_resources(server, cluster, {pods.RESOURCE: 80})

    def is_clear(one: api.Object) -> bool:
        found = {item["type"]: item for item in one["status"]["conditions"]}["fairlead.dev/GPUHealthy"]
        return found["status"] == "True" and not one["spec"].get("taints")

    until_node(server, cluster, is_clear, what="the node is clear")


def test_an_ill_gpu_of_nvidias_dra_driver_is_tainted_as_long_as_it_is_ill(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    if not serves_taint_rules(cluster):
        pytest.skip("this release has no DeviceTaintRules by default")
    rules, slices = (f"/apis/resource.k8s.io/{part}" for part in ("v1beta2/devicetaintrules", "v1/resourceslices"))
    # What NVIDIA's driver would publish of its fourth GPU. No such driver is here, so that a pod with a claim could
    # neither start nor end: it is for a node on paper, whose pods need no kubelet.
    pool = {"name": cluster.node, "generation": 1, "resourceSliceCount": 1}
    published = {"driver": "gpu.nvidia.com", "nodeName": "paper-dra", "pool": pool, "devices": [{"name": "gpu-3"}]}
    server.create(slices, {"metadata": {"name": "of-another-driver"}, "spec": published})
    paper.add_node(server, "paper-dra", gpus=0)
    try:
        inject(cluster, "xid", "79", "-g", "3")
        server.until(rules, lambda items: items or None, what="the device is tainted")
        (rule,) = server.get(rules)["items"]
        assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": cluster.node, "device": "gpu-3"}
        assert (rule["spec"]["taint"]["value"], rule["spec"]["taint"]["effect"]) == ("XID79", "NoSchedule")
        claim(space, "waits")
        space.until_unschedulable("waits", "cannot allocate all claims")
        inject(cluster, "recover", "-g", "3")
        server.until(rules, lambda items: True if not items else None, what="the taint goes with the fault")
        space.until("waits", lambda pod: pod["spec"].get("nodeName") == "paper-dra", what="has the device that is well")
    finally:
        inject(cluster, "recover", "-g", "3")
        space.clear()
        server.delete(_CLAIMS)
        server.delete(slices)
        paper.remove_nodes(server, "paper-dra")


def claim(space: pods.Space, name: str) -> None:
    """Start a pod that claims any device of NVIDIA's driver, by kube-scheduler."""
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "of-another-driver"}}
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    space.server.delete(classes)
    space.server.create(classes, {"metadata": {"name": "of-another-driver"}, "spec": {"selectors": [selector]}})
    space.server.create(_CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": [wanted]}}})
    spec = {
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": paper.LABELS,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": image.BUSYBOX, "resources": {"claims": [{"name": "gpu"}]}}],
    }
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})


def test_a_renamed_resource_takes_the_place_of_the_whole_gpus_and_refuses_two(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    label(server, cluster, **{CONFIG: "renamed"})
    until_resources(server, cluster, {SHARED: 32})
    start(space, "one", SHARED)
    assert len(seen(space, "one")[0]) == 1
    start(space, "two", SHARED, 2)
    refused = space.until("two", lambda pod: pod["status"].get("phase") == "Failed", what="is refused")
    assert "UnexpectedAdmissionError" in refused["status"]["reason"]
    assert SHARED in refused["status"]["message"]


def test_a_label_divides_a_gpu_and_its_neighbour_while_pods_work(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    label(server, cluster, **{CONFIG: "mixed", MIG: "half-0"})
    until_resources(server, cluster, {pods.RESOURCE: 7, HALF: 2})
    assert state(server, cluster) == "success"
    for name in ("a", "b"):
        start(space, name, HALF)
    views = {name: seen(space, name) for name in ("a", "b")}
    assert {tuple(gpus) for gpus, _ in views.values()} == {("nvidia0",)}
    assert [len(caps) for _, caps in views.values()] == [2, 2]
    assert not set(views["a"][1]) & set(views["b"][1])
    was = pods.container(space.get("a"))

    label(server, cluster, **{MIG: "half-01"})
    until_resources(server, cluster, {pods.RESOURCE: 6, HALF: 4})
    label(server, cluster, **{MIG: "whole-1"})
    until_resources(server, cluster, {pods.RESOURCE: 6, HALF: 2, "nvidia.com/mig-7g.80gb": 1})
    assert pods.container(space.get("a")) == was
    assert space.get("a")["status"]["phase"] == "Running"

    # what a pod has is not taken from it: the state says failed, and why stands in an event
    label(server, cluster, **{MIG: "none-at-all"})
    failed = until_node(
        server,
        cluster,
        lambda one: one["metadata"]["labels"].get(f"{MIG}.state") == "failed",
        what="the change is refused",
    )
    assert failed["metadata"]["labels"][MIG] == "none-at-all"
    assert space.get("b")["status"]["phase"] == "Running"

    # the node's label lets it: they are evicted, and only they
    space.start_looking("whole", gpus=1)
    space.sight("whole")
    label(server, cluster, **{DRAIN: "true"})
    until_node(
        server,
        cluster,
        lambda one: one["metadata"]["labels"].get(f"{MIG}.state") == "success",
        what="the change is made",
    )
    left = {one["metadata"]["name"] for one in server.get(space.path)["items"]}
    assert left == {"whole"}
    until_resources(server, cluster, {pods.RESOURCE: 8})


def test_alike_mig_devices_are_gpus_under_the_single_strategy(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    label(server, cluster, **{CONFIG: "single", MIG: "sevenths"})
    one = until_resources(server, cluster, {pods.RESOURCE: 56})
    start(space, "a", pods.RESOURCE)
    gpus, caps = seen(space, "a")
    assert (len(gpus), len(caps)) == (1, 2)
    until_node(
        server,
        cluster,
        lambda one: one["metadata"]["labels"].get("nvidia.com/gpu.product", "").endswith("-MIG-1g.10gb"),
        what="the product names the profile",
    )
    assert one["metadata"]["labels"]["nvidia.com/mig.strategy"] in {"single", "mixed"}


def test_a_part_of_a_gpu_is_a_mig_device_whatever_the_strategy_calls_it(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    user = Program(cluster, cluster.kubeconfig)

    def ask(name: str, *part: str) -> str:
        done = user.run("run", "-d", "--name", name, *part, "--pull=never", image.BUSYBOX, "sh", "-c", _LIST)
        return done.stderr if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    label(server, cluster, **{CONFIG: "single", MIG: "halves"})
    until_resources(server, cluster, {pods.RESOURCE: 16}, timeout_s=150)  # eight GPUs are divided
    assert "nvidia.com/gpu=1: 39.5 GiB and 42% of a GPU, isolated by MIG" in ask("single", "--gpu-memory", "8Gi")
    gpus, caps = seen(space, "single")
    assert (len(gpus), len(caps)) == (1, 2)
    refused = ask("larger", "--gpu-memory", "60Gi", "--isolation", "mig")
    assert refused.startswith("5: ")
    assert "the largest is nvidia.com/gpu=1: 39.5 GiB" in refused
    assert "no node offers parts of GPUs by mps" in ask("by-mps", "--gpu-compute", "10", "--isolation", "mps")
    space.clear()

    label(server, cluster, **{CONFIG: "mixed"})
    until_resources(server, cluster, {HALF: 16})
    said = ask("mixed", "--gpu-compute", "10", "--isolation", "mig")
    assert "nvidia.com/mig-3g.40gb=1: 39.5 GiB and 42% of a GPU, isolated by MIG" in said
    assert [len(found) for found in seen(space, "mixed")] == [1, 2]
