"""The page "Fairlead on Kubernetes", its commands as printed: helm and kubectl on a real cluster, fairlead beside it.

What a reader completes is completed: the registry (the image is on the node already, and its silicon is simulated), the
image of the example's pod. The part for a cluster without helm is followed by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import node
from tests.cluster.test_helm import Tools
from tools.cluster import api, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_CHECKOUT = Path(__file__).parents[2]
_PAGE = _CHECKOUT / "docs/how-to/kubernetes.md"
_WITHOUT_HELM = ("manifests", "apply -k", "mine/")
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: team}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: local/busybox:1
    command: [sh, -c, "mkdir /work; sleep 1000"]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


class Reader:
    """Somebody who follows the page in a checkout, with a kubeconfig and the programs on PATH."""

    def __init__(self, cluster: home.Cluster, folder: Path) -> None:
        (folder / ".kube").mkdir()
        (folder / ".kube/lab").write_bytes(cluster.kubeconfig.read_bytes())
        (folder / "data").mkdir()
        for name in ("src", "docs"):
            (folder / name).symlink_to(_CHECKOUT / name)
        programs = {Path(sys.executable).parent, *(Path(cluster.program(name)).parent for name in ("helm", "kubectl"))}
        self.folder = folder
        self.environment = {"HOME": str(folder), "KUBECONFIG": str(folder / ".kube/lab"), "TERM": "dumb"}
        self.environment["PATH"] = ":".join((*map(str, programs), os.defpath))

    def follow(self, *chosen: str, registry: str) -> None:
        completed = ("--say", f"REGISTRY/fairlead={registry}", "--say", "image: busybox=image: local/busybox:1")
        self._read(*completed, *chosen, _PAGE)

    def follow_marked(self, page: str, **completed: str) -> None:
        """Follow what is marked on a page because it needs a cluster."""
        said = [part for word, value in completed.items() for part in ("--say", f"{word.replace('_', '-')}={value}")]
        self._read("--marked", "needs a cluster", *said, _CHECKOUT / "docs/how-to" / page)

    def _read(self, *words: str | Path) -> None:
        argv = (sys.executable, _CHECKOUT / "tests/system/pages.py", *words)
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=250
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr


@pytest.fixture
def reader(cluster: home.Cluster, fairlead_image: str, tmp_path: Path) -> Reader:
    assert fairlead_image.startswith("fairlead/fairlead:"), "the page's image is not the one on the node"
    return Reader(cluster, tmp_path)


def test_the_page_works_as_printed_with_helm_and_from_ones_own_machine(
    cluster: home.Cluster, server: api.API, reader: Reader
) -> None:
    tools = Tools(cluster)
    tools.kubectl("label", "node", cluster.node, "accelerator=nvidia")
    # One that a scheduler of an earlier test made anew while it ended (the page says so under "Removing it").
    tools.kubectl("delete", "lease", "--all", "-n", "fairlead", "--ignore-not-found")
    try:
        reader.follow("--only", "helm install", registry="fairlead/fairlead --set silicon.simulate=h100x8")
        node.until_allocatable(server, cluster.node, 8)
        without = [word for part in _WITHOUT_HELM for word in ("--skip", part)]
        reader.follow("--only", "kubectl", *without, registry="fairlead/fairlead")
        tools.kubectl("delete", "pod", "two", "--now")
        # What the rest of the page looks at.
        tools.kubectl("create", "namespace", "team")
        tools.kubectl("apply", "-f", "-", stdin=_POD)
        tools.kubectl("wait", "-n", "team", "pod/train", "--for=condition=Ready", "--timeout=60s")
        reader.follow("--skip", "kubectl", "--skip", "helm", *without, registry="fairlead/fairlead")
    finally:
        tools.kubectl("delete", "namespace", "team", "--ignore-not-found", "--wait=true")
        tools.kubectl("delete", "pod", "two", "--ignore-not-found", "--now")
        tools.kubectl("delete", "clusterrolebinding", "ann-looks", "--ignore-not-found")
        tools.helm("uninstall", "fairlead", "-n", "fairlead", "--wait", "--ignore-not-found")
        tools.kubectl("delete", "namespace", "fairlead", "--ignore-not-found", "--wait=true")
        tools.kubectl("delete", "crd", "gpudevices.fairlead.dev", "--ignore-not-found")
        tools.kubectl("label", "node", cluster.node, "accelerator-")


@pytest.mark.timeout(400)
def test_the_part_without_helm_works_as_printed(cluster: home.Cluster, server: api.API, reader: Reader) -> None:
    tools = Tools(cluster)
    tools.kubectl("label", "node", cluster.node, "accelerator=nvidia")
    deployments = "/apis/apps/v1/namespaces/{}/deployments"
    folders = {"fairlead": "src/fairlead/manifests/hardware", "gpus": "mine"}
    try:
        reader.follow("--only", "fairlead manifests", registry="fairlead/fairlead")
        node.until_allocatable(server, cluster.node, 8)
        for namespace, folder in folders.items():
            reader.follow("--only", f"apply -k {folder}", registry="fairlead/fairlead")
            found = server.get(deployments.format(namespace))["items"]
            assert {item["metadata"]["name"] for item in found} == {"fairlead-scheduler", "fairlead-controller"}
            # The accounts' rights hold in whatever namespace: both report that they may do their work.
            for name in ("deployment/fairlead-scheduler", "deployment/fairlead-controller", "daemonset/fairlead-agent"):
                tools.kubectl("-n", namespace, "rollout", "status", name, "--timeout=100s")
            tools.kubectl("delete", "-k", str(reader.folder / folder), "--wait")
    finally:
        for namespace, folder in folders.items():
            if (reader.folder / folder).exists():
                tools.kubectl("delete", "-k", str(reader.folder / folder), "--ignore-not-found", "--wait", check=False)
            tools.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=true")
        tools.kubectl("label", "node", cluster.node, "accelerator-")


def _give_back(tools: Tools, server: api.API, cluster: home.Cluster) -> None:
    """Take back the page's quarantine; a release goes for nothing while the agent still has it asked for."""
    devices = "/apis/fairlead.dev/v1alpha1/gpudevices"
    (asked,) = (one for one in server.get(devices)["items"] if one["spec"].get("quarantine"))
    name = asked["metadata"]["name"]
    tools.kubectl("patch", "gpudevice", name, "--type=merge", "-p", '{"spec":{"quarantine":null}}')
    release = ("exec", "-n", "fairlead", "ds/fairlead-agent", "--", "fairlead", "lease", "release")
    deadline = time.monotonic() + 60
    while server.get(f"{devices}/{name}")["status"]["health"] != "Healthy":
        assert time.monotonic() < deadline, server.get(f"{devices}/{name}")["status"]
        tools.kubectl(*release, asked["spec"]["uuid"], check=False)
        time.sleep(1)
    node.until_allocatable(server, cluster.node, 8)


def test_what_other_pages_mark_for_a_cluster_works_as_printed(
    cluster: home.Cluster, server: api.API, reader: Reader
) -> None:
    tools = Tools(cluster)
    tools.kubectl("label", "node", cluster.node, "accelerator=nvidia")
    tools.kubectl("delete", "lease", "--all", "-n", "fairlead", "--ignore-not-found")
    reader.environment["FAIRLEAD_CLUSTER_KUBECONFIG"] = str(cluster.kubeconfig)
    chosen = ("silicon.simulate=a100x8", "migStrategy=mixed", "agent.settings.lease\\.ledger=on")
    try:
        values = [word for one in chosen for word in ("--set", one)]
        where = ("-n", "fairlead", "--create-namespace", "--set", "image.repository=fairlead/fairlead")
        tools.helm("install", "fairlead", str(_CHECKOUT / "src/fairlead/chart"), *where, *values)
        node.until_allocatable(server, cluster.node, 8)
        tools.kubectl("rollout", "status", "daemonset/fairlead-agent", "-n", "fairlead", "--timeout=60s")
        tools.kubectl("create", "namespace", "team")
        tools.kubectl("apply", "-f", "-", stdin=_POD)
        tools.kubectl("wait", "-n", "team", "pod/train", "--for=condition=Ready", "--timeout=60s")
        reader.follow_marked("keep-gpus-back.md")
        _give_back(tools, server, cluster)
        reader.follow_marked("scheduling.md", NAMESPACE="team", POD="train")
        tools.kubectl("delete", "namespace", "team", "--wait=true")
        reader.follow_marked("simulate-faults.md", gpu_1=cluster.node)
        reader.follow_marked("mig.md", NODE=cluster.node)
    finally:
        labels = ("nvidia.com/mig.config-", "nvidia.com/mig.config.state-", "fairlead.dev/mig.drain-", "accelerator-")
        tools.kubectl("label", "node", cluster.node, *labels, check=False)
        tools.kubectl("delete", "namespace", "team", "--ignore-not-found", "--wait=true")
        tools.helm("uninstall", "fairlead", "-n", "fairlead", "--wait", "--ignore-not-found")
        tools.kubectl("delete", "namespace", "fairlead", "--ignore-not-found", "--wait=true")
        kinds = (f"{name}.fairlead.dev" for name in ("gpudevices", "gpuleases", "firmwarebaselines"))
        tools.kubectl("delete", "crd", *kinds, "--ignore-not-found")
