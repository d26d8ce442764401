"""The articles' own manifests on a real cluster, applied as they are written; what each of them shows is asserted.

Where one asks for more than this machine has, a fake node takes it, bound by kube-scheduler and by ours, and a copy
with smaller figures runs here. What is said of them to users stands in `examples/articles/README.md`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import articles
from tests.cluster import fakenode, node, pods, verb
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_DEFINITION = Path(__file__).parents[2] / "src/fairlead/chart/crds/gpudevices.yaml"
_PLANE = "articles-plane"
_SCHEDULERS = ["default-scheduler", "fairlead"]


class Kubectl:
    """kubectl of the cluster."""

    def __init__(self, cluster: home.Cluster) -> None:
        self._cluster = cluster

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.attempt(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = self._cluster.kubectl(*arguments)
        return subprocess.run(command, input=stdin, check=False, capture_output=True, text=True, timeout=60)

    def apply(self, name: str, *arguments: str) -> str:
        """Apply one of the articles' manifests as it is written."""
        return self("apply", "-f", str(articles.path(name)), *arguments)

    def refused(self, name: str, *arguments: str) -> str:
        done = self.attempt("apply", "-f", str(articles.path(name)), *arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def create(self, manifest: Mapping[str, Any], *arguments: str) -> None:
        self("create", "-f", "-", *arguments, stdin=json.dumps(manifest))


@pytest.fixture(scope="module")
def kubectl(cluster: home.Cluster) -> Kubectl:
    return Kubectl(cluster)


@pytest.fixture(scope="module")
def plane(cluster: home.Cluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An agent that publishes, our scheduler, kwok, and the images' stand-ins."""
    folder = tmp_path_factory.mktemp("articles")
    load_images(cluster, folder / "image.tar")
    kubectl("apply", "-f", str(_DEFINITION))
    kubectl("wait", "--for=condition=Established", "crd/gpudevices.fairlead.dev", "--timeout=30s")
    kubectl("create", "namespace", _PLANE)
    options = (f"--cluster-kubeconfig={cluster.kubeconfig}", f"--node-name={cluster.node}")
    scheduler = verb.Verb("scheduler", cluster.kubeconfig, folder / "ours.log", (f"--cluster-namespace={_PLANE}",))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(cluster.api())
        stack.enter_context(fakenode.running(cluster))
        stack.enter_context(verb.running(scheduler))
        stack.enter_context(node.running(node.Agent(cluster, (*node.PRODUCT, *options)), server))
        yield
    kubectl("delete", "namespace", _PLANE)
    kubectl("delete", "gpudevices", "--all")


def load_images(cluster: home.Cluster, archive: Path) -> None:
    first, *others = articles.IMAGES
    image.write_busybox(archive, first, command=articles.COMMAND, extra=articles.FILES)
    cluster.load_image(archive)
    for name in others:
        cluster.host.run("ctr", "-n", "k8s.io", "images", "tag", "--force", first, name)


@pytest.fixture
def fakes(server: api.API, plane: None) -> Iterator[fakenode.Nodes]:
    """No fake node yet; those made are gone afterwards, with what is bound to them."""
    before = {item["metadata"]["name"] for item in server.get("/api/v1/nodes")["items"]}
    yield fakenode.Nodes(server)
    names = {item["metadata"]["name"] for item in server.get("/api/v1/nodes")["items"]} - before
    found = server.get("/api/v1/pods")["items"]
    # the waiting ones first: they would take the room of those that go, on a node that is about to go
    for pod in sorted(found, key=lambda pod: pod["spec"].get("nodeName", "")):
        if pod["spec"].get("nodeName", "") in {"", *names}:
            about = pod["metadata"]
            server.delete(f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}", grace_s=0)
    fakenode.Nodes(server).remove(*names)


@pytest.fixture
def own_node(cluster: home.Cluster, server: api.API, kubectl: Kubectl, plane: None) -> Iterator[OwnNode]:
    """The real node, which a test may dress as the articles' nodes are."""
    one = OwnNode(cluster.node, kubectl)
    yield one
    one.undress()


class OwnNode:
    """Labels and the articles' taint on the real node."""

    def __init__(self, name: str, kubectl: Kubectl) -> None:
        self._name, self._kubectl = name, kubectl
        self._labels: list[str] = []
        self._is_tainted = False

    def dress(self, *, taint: bool = False, **labels: str) -> None:
        pairs = {name.replace("_", "-"): value for name, value in labels.items()}
        self._labels = list(pairs)
        self._kubectl("label", "node", self._name, *(f"{name}={value}" for name, value in pairs.items()))
        if taint:
            self._is_tainted = True
            self._kubectl("taint", "node", self._name, f"{pods.RESOURCE}=true:NoSchedule")

    def undress(self) -> None:
        for name in self._labels:
            self._kubectl("label", "node", self._name, f"{name}-")
        if self._is_tainted:
            self._kubectl("taint", "node", self._name, f"{pods.RESOURCE}-")


def until_bound(space: pods.Space, name: str) -> str:
    pod = space.until(name, lambda pod: bool(pod["spec"].get("nodeName")), what="is bound")
    return str(pod["spec"]["nodeName"])


def until_said(space: pods.Space, name: str) -> list[str]:
    """Return what a stand-in's container said once it has said all."""
    space.until_phase(name, "Running")
    lines = []
    for line in space.server.lines(f"{space.path}/{name}/log", follow="true"):
        lines.append(line)
        if line.startswith("root:"):
            break
    return lines


def gpus_in(lines: list[str]) -> int:
    return sum(line.startswith("GPU ") and "H100" in line for line in lines)


# gpu-pod, cuda-mem-test


def test_gpu_pod_lists_two_gpus(plane: None, kubectl: Kubectl, space: pods.Space) -> None:
    kubectl.apply("gpu-pod")

    def ended(pod: api.Object) -> bool:
        found = pod["status"].get("containerStatuses", [{}])[0]
        return bool(found.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

    # nothing is wrong with it: it ends with 0, and its policy, which the article leaves to the default, is Always
    pod = space.until("gpu-pod", ended, what="ended and waits to be started again")
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 0
    assert space.log("gpu-pod", previous="true").count("H100") == 2  # its next run may be under way


def test_cuda_mem_test_counts_two_and_succeeds(plane: None, kubectl: Kubectl, space: pods.Space) -> None:
    kubectl.apply("cuda-mem-test")
    space.until_phase("cuda-mem-test", "Succeeded")
    assert space.log("cuda-mem-test").splitlines() == ["Visible GPUs: 2"]


# gpu-workload


@pytest.mark.parametrize("scheduler", _SCHEDULERS)
def test_gpu_workload_goes_to_the_labelled_node_past_its_taint(
    kubectl: Kubectl, space: pods.Space, fakes: fakenode.Nodes, scheduler: str
) -> None:
    manifest = articles.changed(articles.load("gpu-workload"), schedulerName=scheduler)
    if scheduler == "default-scheduler":
        kubectl.apply("gpu-workload")
    else:
        kubectl.create(manifest)
    said = space.until_unschedulable("gpu-workload")
    assert "1 node(s) didn't match Pod's node affinity/selector" in said

    kubectl.apply("gpu-node-1")
    fakes.adopt("gpu-node-1")
    assert until_bound(space, "gpu-workload") == "gpu-node-1"

    kubectl.create(articles.changed(manifest, name="stranger", tolerations=[]))
    assert "1 node(s) had untolerated taint" in space.until_unschedulable("stranger")
    # 8 less the 2 that are bound: seven do not fit, however large the rest of the node is
    greedy = articles.changed(manifest, name="greedy")
    greedy["spec"]["containers"][0]["resources"] = {"limits": {pods.RESOURCE: 7}}
    kubectl.create(greedy)
    assert f"1 Insufficient {pods.RESOURCE}" in space.until_unschedulable("greedy")


def test_a_smaller_gpu_workload_runs(kubectl: Kubectl, space: pods.Space, own_node: OwnNode) -> None:
    own_node.dress(taint=True, accelerator="nvidia-tesla-v100")
    kubectl.create(articles.smaller(articles.load("gpu-workload")))
    said = until_said(space, "gpu-workload")
    assert gpus_in(said) == 2
    assert "CUDA_VISIBLE_DEVICES=all" in said


# optimized-gpu-workload


@pytest.mark.parametrize("scheduler", _SCHEDULERS)
def test_optimized_gpu_workload_goes_where_memory_and_generation_fit(
    kubectl: Kubectl, space: pods.Space, fakes: fakenode.Nodes, scheduler: str
) -> None:
    name = "optimized-gpu-workload"
    # not greater than 32000; of no modern generation; of a generation, but with a number that is none
    for other, memory, generation in (
        ("just-under", "32000", "hopper"),
        ("too-old", "40960", "volta"),
        ("odd", "80GB", "ampere"),
    ):
        fakes.add(other, gpus=8, labels={"gpu-memory": memory, "gpu-generation": generation})
    if scheduler == "default-scheduler":
        kubectl.apply(name)
    else:
        kubectl.create(articles.changed(articles.load(name), schedulerName=scheduler))
    # the real node has the labels by its agent, and is too small
    assert "3 node(s) didn't match Pod's node affinity/selector" in space.until_unschedulable(name)

    fakes.add("fits", gpus=8, labels={"gpu-memory": "81559", "gpu-generation": "hopper"})
    assert until_bound(space, name) == "fits"


def test_a_smaller_optimized_gpu_workload_runs_with_all_eight(
    kubectl: Kubectl, space: pods.Space, own_node: OwnNode
) -> None:
    own_node.dress(gpu_memory="81559", gpu_generation="hopper")
    kubectl.create(articles.smaller(articles.load("optimized-gpu-workload")))
    assert gpus_in(until_said(space, "optimized-gpu-workload")) == 8


def test_the_corrected_one_needs_no_labels_but_those_the_agent_gives(
    plane: None, kubectl: Kubectl, space: pods.Space
) -> None:
    kubectl.create(articles.smaller(articles.load("optimized-gpu-workload-corrected")))
    assert gpus_in(until_said(space, "optimized-gpu-workload")) == 8


# gpu-debug


def test_gpu_debug_is_a_shell_beside_one_gpu_whatever_its_environment_asks_for(
    kubectl: Kubectl, space: pods.Space, own_node: OwnNode
) -> None:
    own_node.dress(taint=True, accelerator="nvidia")
    kubectl.apply("gpu-debug")
    space.until_phase("gpu-debug", "Running")
    assert gpus_in(kubectl("exec", "gpu-debug", "--", "nvidia-smi", "-L").splitlines()) == 1
    shown = kubectl("exec", "gpu-debug", "--", "/bin/bash", "-c", "echo $NVIDIA_VISIBLE_DEVICES; ls /dev")
    assert shown.splitlines()[0] == "void"  # what the pod wrote is overridden: the allocation alone decides
    assert sum(line in {f"nvidia{number}" for number in range(8)} for line in shown.split()) == 1
    space.server.delete(f"{space.path}/gpu-debug", grace_s=1)  # a shell that is process 1 heeds no SIGTERM


# secure-gpu-workload


@pytest.fixture
def restricted(server: api.API, kubectl: Kubectl, plane: None) -> Iterator[pods.Space]:
    """The namespace that the corrected example makes: it enforces `restricted`."""
    kubectl.apply("secure-gpu-namespace")
    accounts = "/api/v1/namespaces/secure/serviceaccounts"
    server.until(accounts, lambda items: True if items else None, what="the service account")
    one = pods.Space(server, "secure")
    yield one
    one.clear()
    kubectl("delete", "namespace", "secure")


def test_secure_gpu_workload_is_taken_where_restricted_is_enforced_and_gpu_pod_is_not(
    kubectl: Kubectl, restricted: pods.Space, fakes: fakenode.Nodes
) -> None:
    said = kubectl.refused("gpu-pod", "-n", "secure")
    assert 'violates PodSecurity "restricted:latest"' in said
    assert "allowPrivilegeEscalation != false" in said
    assert "runAsNonRoot != true" in said

    kubectl.apply("secure-gpu-workload", "-n", "secure")
    assert "1 Insufficient cpu" in restricted.until_unschedulable("secure-gpu-workload")
    fakes.add("fits", gpus=1, labels={})
    assert until_bound(restricted, "secure-gpu-workload") == "fits"


def test_a_smaller_secure_gpu_workload_sees_its_gpu_as_an_ordinary_user(
    kubectl: Kubectl, restricted: pods.Space
) -> None:
    kubectl.create(articles.smaller(articles.load("secure-gpu-workload")), "-n", "secure")
    said = until_said(restricted, "secure-gpu-workload")
    assert said[0] == "1000"
    assert gpus_in(said) == 1
    assert said[-1] == "root: 1"  # its root file system is read-only
    assert restricted.log("secure-gpu-workload").count("Read-only file system") == 1


def test_the_label_on_the_pod_itself_secures_nothing(kubectl: Kubectl, plane: None) -> None:
    insecure = articles.load("gpu-pod")
    insecure["metadata"]["labels"] = articles.load("secure-gpu-workload")["metadata"]["labels"]
    insecure["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    kubectl.create(insecure, "--dry-run=server")


# gpu-quota


@pytest.fixture
def ml_workloads(server: api.API, kubectl: Kubectl, plane: None) -> Iterator[None]:
    kubectl("create", "namespace", "ml-workloads")
    accounts = "/api/v1/namespaces/ml-workloads/serviceaccounts"
    server.until(accounts, lambda items: True if items else None, what="the service account")
    yield
    kubectl("delete", "namespace", "ml-workloads")


def until_counted(server: api.API) -> None:
    path = "/api/v1/namespaces/ml-workloads/resourcequotas"
    server.until(path, lambda items: True if items[0].get("status", {}).get("used") else None, what="is counted")


def eight_gpus(number: int) -> dict[str, Any]:
    """Return the articles' pod of eight GPUs, 32 processors and 128 GiB under another name."""
    return articles.changed(articles.load("optimized-gpu-workload"), name=f"training-{number}")


def test_gpu_quota_as_written_lets_any_number_of_gpus_in(server: api.API, kubectl: Kubectl, ml_workloads: None) -> None:
    kubectl.apply("gpu-quota")
    until_counted(server)
    for number in range(4):
        kubectl.create(eight_gpus(number), "-n", "ml-workloads")  # 32 GPUs, where 16 are the limit
    fifth = json.dumps(eight_gpus(4))
    said = kubectl.attempt("create", "-n", "ml-workloads", "-f", "-", stdin=fifth).stderr
    assert "exceeded quota: gpu-quota, requested: requests.cpu=32,requests.memory=128Gi" in said
    assert "nvidia.com/gpu" not in said


def test_the_corrected_quota_refuses_the_seventeenth_gpu(server: api.API, kubectl: Kubectl, ml_workloads: None) -> None:
    kubectl.apply("gpu-quota-corrected")
    until_counted(server)
    said = kubectl.refused("gpu-pod", "-n", "ml-workloads")
    assert "failed quota: gpu-quota: must specify requests.cpu for: cuda-container; requests.memory for:" in said
    for number in range(2):
        kubectl.create(eight_gpus(number), "-n", "ml-workloads")
    third = json.dumps(eight_gpus(2))
    said = kubectl.attempt("create", "-n", "ml-workloads", "-f", "-", stdin=third).stderr
    assert (
        "exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=8, "
        "used: requests.nvidia.com/gpu=16, limited: requests.nvidia.com/gpu=16"
    ) in said
