"""The chart on a real cluster: installed, changed, rolled back, removed; its roles, levels and policies as they act.

What runs is the image of this tree, on simulated silicon, installed as a user would: by helm, by
`fairlead manifests | kubectl apply -f -`, and by `kubectl apply -k`.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from fairlead.cli.admin import manifests
from fairlead_cdi import yamltext
from tests import tenantpods
from tests.cluster import charts, denials, node, pods
from tools.cluster import api, component, home, image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

_SPACE = "gpus"
_KINDS = ("firmwarebaselines", "gpudevices", "gpuleases", "queues", "tenancies")
_TENANT = {"fairlead.dev/tenancy": "acme"}
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


@dataclass(frozen=True)
class Tools:
    """helm and kubectl, pointed at the cluster."""

    cluster: home.Cluster

    def run(self, *command: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(
            self.cluster.program("helm"), f"--kubeconfig={self.cluster.kubeconfig}", *arguments, check=check
        )

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(*self.cluster.kubectl(*arguments), stdin=stdin, check=check)

    def objects(self) -> set[str]:
        """Return every object of the cluster, but for those that come and go by themselves."""
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
        passing = {
            "events",
            "events.events.k8s.io",
            "endpoints",
            "componentstatuses",
            "apiservices.apiregistration.k8s.io",
        }
        wanted = ",".join(kind for kind in kinds if kind not in passing)
        template = "{{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}\n{{end}}"
        found = self.kubectl("get", wanted, "-A", "-o", f"go-template={template}").stdout.splitlines()
        return {line for line in found if not line.startswith("Lease kube-")}


@pytest.fixture
def tools(cluster: home.Cluster) -> Tools:
    return Tools(cluster)


def _settings(name: str) -> tuple[str, ...]:
    repository, _, tag = name.rpartition(":")
    chosen = {"image.repository": repository, "image.tag": tag, "image.pullPolicy": "Never"}
    texts = [word for key, value in chosen.items() for word in ("--set-string", f"{key}={value}")]
    return (*texts, "--set", "silicon.simulate=h100x8")


def _render(**values: Any) -> tuple[dict[str, Any], ...]:
    return charts.render(values, namespace=_SPACE)


# the whole life


def _agents(found: api.Object) -> tuple[int, int]:
    status = found["status"]
    return status["numberReady"], status["desiredNumberScheduled"]


def _log_level(server: api.API) -> str:
    found = server.get(f"/apis/apps/v1/namespaces/{_SPACE}/daemonsets/fairlead-agent")
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return next(str(item["value"]) for item in env if item["name"] == "FAIRLEAD_LOG_LEVEL")


@pytest.mark.timeout(600)
def test_a_release_is_installed_changed_rolled_back_and_removed_without_a_trace(
    tools: Tools, cluster: home.Cluster, server: api.API, space: pods.Space, fairlead_image: str
) -> None:
    before = tools.objects()
    chosen = ("--namespace", _SPACE, "--wait", "--timeout", "120s")
    where = (str(manifests.CHART), *chosen, *_settings(fairlead_image))

    said = tools.helm("install", "fairlead", *where, "--create-namespace").stdout
    assert "GPUs are SIMULATED (h100x8)" in said
    node.until_allocatable(server, cluster.node, 8)
    assert _agents(server.get(f"/apis/apps/v1/namespaces/{_SPACE}/daemonsets/fairlead-agent")) == (1, 1)
    _assert_a_pod_gets_two(server, space)
    said = tools.helm("test", "fairlead", "--namespace", _SPACE, "--logs", "--timeout", "100s").stdout
    assert "Succeeded" in said
    assert "is simulated, and allowed" in said

    tools.helm("upgrade", "fairlead", *where, "--set", "log.level=debug,trace.readBack=true")
    assert _log_level(server) == "debug"
    node.until_allocatable(server, cluster.node, 8)
    _assert_isolation_is_read_back(server, space)
    tools.helm("rollback", "fairlead", "1", *chosen)
    assert _log_level(server) == "info"
    node.until_allocatable(server, cluster.node, 8)

    tools.helm("uninstall", "fairlead", *chosen)
    node.until_allocatable(server, cluster.node, 0)
    _remove_space(tools, server)
    assert [path.name for path in cluster.cdi.iterdir() if path.name.startswith("fairlead-")] == []
    kinds = tuple(f"{name}.fairlead.dev" for name in _KINDS)
    definitions = {f"CustomResourceDefinition <no value>/{kind}" for kind in kinds}  # helm leaves definitions alone
    left = tools.objects()
    assert definitions <= left
    assert left - before <= definitions
    labels = server.get(f"/api/v1/nodes/{cluster.node}")["metadata"]["labels"]
    assert [name for name in labels if name.startswith(("nvidia.com/", "fairlead.dev/"))] == []
    tools.kubectl("delete", "crd", *kinds)
    assert tools.objects() <= before


def _start_two(server: api.API, space: pods.Space) -> pods.Sight:
    """Have our scheduler place a pod of two GPUs; returns what it saw."""
    spec = {"schedulerName": "fairlead", "terminationGracePeriodSeconds": 0, "containers": [pods.looker(2)]}
    server.create(space.path, {"metadata": {"name": "two"}, "spec": spec})
    return space.sight("two")


def _assert_a_pod_gets_two(server: api.API, space: pods.Space) -> None:
    pods.assert_sees_its_own(_start_two(server, space), 2)
    space.delete("two")


def _assert_isolation_is_read_back(server: api.API, space: pods.Space) -> None:
    sight = _start_two(server, space)
    uid = space.get("two")["metadata"]["uid"]

    def read(items: list[api.Object]) -> api.Object | None:
        about = (item for item in items if item["involvedObject"].get("uid") == uid)
        return next((item for item in about if item["reason"] == "IsolationRead"), None)

    event = server.until("/api/v1/namespaces/default/events", read, what="the agent read the isolation back")
    facts = json.loads(event["metadata"]["annotations"]["fairlead.dev/step"])["facts"]
    assert facts["unread"] == []
    assert {f"/dev/nvidia{gpu}" for gpu in sight.nodes} <= {
        path for path, said in facts["opens"].items() if said == "ENXIO"
    }
    # 254 is the display's node, which is of the driver and of no tenant.
    assert {f"195:{number}" for number in {*range(8), 254} - sight.nodes} == {
        number for number, said in facts["opens"].items() if said == "EPERM"
    }
    space.delete("two")


def _remove_space(tools: Tools, server: api.API) -> None:
    tools.kubectl("delete", "namespace", _SPACE, "--ignore-not-found")
    server.until("/api/v1/namespaces", lambda items: None if _has(items, _SPACE) else True, what=f"{_SPACE} is gone")


def _has(items: list[api.Object], name: str) -> bool:
    return any(item["metadata"]["name"] == name for item in items)


def _until_served(tools: Tools, server: api.API, cluster: home.Cluster) -> None:
    """Wait until everything of the namespace runs, and eight GPUs are offered and published."""
    for name in ("daemonset/fairlead-agent", "deployment/fairlead-scheduler", "deployment/fairlead-controller"):
        tools.kubectl("-n", _SPACE, "rollout", "status", name, "--timeout=100s")
    node.until_allocatable(server, cluster.node, 8)
    assert len(server.get("/apis/fairlead.dev/v1alpha1/gpudevices")["items"]) == 8


@pytest.mark.timeout(400)
def test_the_same_is_applied_drained_and_deleted_without_helm(
    tools: Tools, cluster: home.Cluster, server: api.API, fairlead_image: str
) -> None:
    before = tools.objects()
    program = (sys.executable, "-m", "fairlead.cli.main", "manifests", "-n", _SPACE)
    text = tools.run(*program, "--image", fairlead_image, "--simulate", "h100x8").stdout

    tools.kubectl("apply", "-f", "-", stdin=text)
    _until_served(tools, server, cluster)

    again = tools.kubectl("apply", "-f", "-", stdin=text).stdout.splitlines()
    assert [line for line in again if not line.endswith(" unchanged")] == []

    # the only node there is: its pods go, and nothing keeps them
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    drained = tools.kubectl("drain", cluster.node, *options).stdout
    assert "fairlead-scheduler" in drained
    tools.kubectl("uncordon", cluster.node)

    tools.kubectl("delete", "-f", "-", "--wait", stdin=text)
    node.until_allocatable(server, cluster.node, 0)
    assert tools.objects() <= before


@pytest.mark.timeout(400)
def test_a_folder_of_kustomize_is_applied_in_a_namespace_of_ones_own(
    tools: Tools, cluster: home.Cluster, server: api.API, fairlead_image: str, tmp_path: Path
) -> None:
    before = tools.objects()
    tools.run(sys.executable, "-m", "fairlead.cli.main", "manifests", "--write", str(tmp_path / "out"))
    name, _, tag = fairlead_image.rpartition(":")
    own = {
        "resources": ["../out/kustomize/simulated"],
        "namespace": _SPACE,
        "images": [{"name": "fairlead/fairlead", "newName": name, "newTag": tag}],
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kustomization.yaml").write_text(yamltext.dump(own))

    tools.kubectl("apply", "-k", str(tmp_path / "own"))
    _until_served(tools, server, cluster)
    policies = server.get(_POLICIES)["items"]
    assert _has(policies, "fairlead-own-node")

    tools.kubectl("delete", "-k", str(tmp_path / "own"), "--wait")
    node.until_allocatable(server, cluster.node, 0)
    assert tools.objects() <= before


# what the API server takes


def _text(objects: list[dict[str, Any]]) -> str:
    return "".join(f"---\n{yamltext.dump(item)}" for item in objects)


def test_the_api_server_takes_everything_the_chart_can_write(tools: Tools, server: api.API) -> None:
    machine = {"folder": "/opt/x", "image": f"/opt/x/i@sha256:{'0' * 64}", "emulator": "/opt/x/qemu", "secretName": "s"}
    found = _render(
        runtimeClass={"create": True, "kata": {"create": True, "guestDriver": "580.95.05"}},
        fabric={"machine": machine},
        priorityClasses={"batch": {"value": -100, "preemptionPolicy": "Never", "description": "waits"}},
        trace={"readBack": True},
    )
    server.create("/api/v1/namespaces", {"metadata": {"name": _SPACE}})
    try:
        for text in (_text(list(found)), _text(list(_render(silicon={"simulate": "h100x8"})))):
            done = tools.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
            assert done.stderr == ""
            assert len(done.stdout.splitlines()) == text.count("---\n")
    finally:
        _remove_space(tools, server)


# Pod Security


def _pod_of(kind: str, name: str, **values: Any) -> str:
    (item,) = (item for item in _render(**values) if item["kind"] == kind and item["metadata"]["name"] == name)
    template = item["spec"]["template"]
    metadata = {"name": "one", "labels": template["metadata"]["labels"]}
    return yamltext.dump({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


@pytest.mark.parametrize(
    ("kind", "name", "level", "refusal"),
    [
        ("Deployment", "fairlead-scheduler", "restricted", ""),
        ("Deployment", "fairlead-controller", "restricted", ""),
        ("DaemonSet", "fairlead-agent", "baseline", "hostPath volumes"),
        ("DaemonSet", "fairlead-agent", "privileged", ""),
    ],
)
def test_a_component_needs_the_pod_security_level_that_the_docs_name(
    tools: Tools, server: api.API, kind: str, name: str, level: str, refusal: str
) -> None:
    label = {"pod-security.kubernetes.io/enforce": level}
    server.create("/api/v1/namespaces", {"metadata": {"name": "level", "labels": label}})
    try:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        tools.kubectl("-n", "level", "create", "-f", "-", stdin=yamltext.dump(account))
        pod = _pod_of(kind, name, silicon={"simulate": "h100x8"})
        done = tools.kubectl("-n", "level", "create", "--dry-run=server", "-f", "-", stdin=pod, check=False)
        assert (done.returncode == 0) == (not refusal), done.stderr
        assert refusal in done.stderr
    finally:
        tools.kubectl("delete", "namespace", "level")


# what has been applied; tests from here on share it


@pytest.fixture(scope="module")
def applied(cluster: home.Cluster) -> Iterator[tuple[dict[str, Any], ...]]:
    """Everything but what would run pods, in place and in force, with a tenant's namespace."""
    tools = Tools(cluster)
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "acme", "labels": _TENANT}}]
    found = _render(namespace={"create": True}, dra={"enabled": True})
    at_rest = [item for item in found if item["kind"] not in {"DaemonSet", "Deployment"}]
    handler = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    text = _text([*at_rest, *spaces, handler])
    tools.kubectl("apply", "-f", "-", stdin=text)
    tools.kubectl("wait", "--for=condition=Established", "crd/gpudevices.fairlead.dev", "--timeout=30s")
    tools.kubectl("get", "gpudevices")  # asks again while the kind's storage is made
    with cluster.api() as connection:
        connection.until(_POLICIES, lambda items: _checked(items, _policies(found)), what="policies are checked")
    yield found
    tools.kubectl("delete", "-f", "-", "--wait", stdin=text)


def _policies(found: tuple[dict[str, Any], ...]) -> list[str]:
    return [item["metadata"]["name"] for item in found if item["kind"] == "ValidatingAdmissionPolicy"]


def _checked(items: list[api.Object], ours: list[str]) -> list[api.Object] | None:
    """Return our policies once the server has checked their expressions against the kinds they judge."""
    done = [item for item in items if "typeChecking" in item.get("status", {}) and item["metadata"]["name"] in ours]
    return done if len(done) == len(ours) else None


# roles

_ALLOWED = [
    ("agent", "patch", "nodes", "", ""),
    ("agent", "list", "pods", "", ""),
    ("agent", "update", "pods", "status", "acme"),
    ("agent", "create", "events", "", "acme"),
    ("agent", "patch", "fairlead.dev/gpudevices", "", ""),
    ("agent", "update", "fairlead.dev/gpudevices", "status", ""),
    ("scheduler", "watch", "nodes", "", ""),
    ("scheduler", "create", "pods", "binding", "acme"),
    ("scheduler", "create", "pods", "eviction", "acme"),
    ("scheduler", "update", "pods", "status", "acme"),
    ("scheduler", "create", "coordination.k8s.io/leases", "", _SPACE),
    ("scheduler", "update", "coordination.k8s.io/leases/fairlead-scheduler", "", _SPACE),
    ("scheduler", "list", "fairlead.dev/gpudevices", "", ""),
    ("agent", "create", "fairlead.dev/gpuleases", "", ""),
    ("agent", "update", "fairlead.dev/gpuleases", "status", ""),
    ("agent", "update", "fairlead.dev/firmwarebaselines", "status", ""),
    ("controller", "delete", "fairlead.dev/gpudevices", "", ""),
    ("controller", "delete", "fairlead.dev/gpuleases", "", ""),
    ("controller", "get", "coordination.k8s.io/leases/fairlead-controller", "", _SPACE),
]
_DENIED = [
    *((who, verb, "secrets", "", space) for who in ("agent", "scheduler", "controller")
      for verb in ("get", "list") for space in (_SPACE, "acme", "")),
    *((who, "list", "configmaps", "", _SPACE) for who in ("agent", "scheduler", "controller")),
    *((who, "create", "pods", sub, "acme") for who in ("agent", "scheduler", "controller")
      for sub in ("", "exec", "ephemeralcontainers")),
    *((who, "create", "pods", "eviction", "acme") for who in ("agent", "controller")),
    *((who, "create", "serviceaccounts", "token", _SPACE) for who in ("agent", "scheduler", "controller")),
    *((who, "escalate", "rbac.authorization.k8s.io/clusterroles", "", "") for who in ("agent", "controller")),
    ("agent", "create", "pods", "binding", "acme"),
    ("agent", "delete", "pods", "", "acme"),
    ("agent", "patch", "pods", "", "acme"),
    ("agent", "delete", "nodes", "", ""),
    ("agent", "patch", "nodes", "status", ""),
    ("agent", "get", "coordination.k8s.io/leases/fairlead-scheduler", "", _SPACE),
    ("scheduler", "patch", "nodes", "", ""),
    ("scheduler", "delete", "pods", "", "acme"),
    ("scheduler", "update", "coordination.k8s.io/leases/fairlead-controller", "", _SPACE),
    ("scheduler", "update", "coordination.k8s.io/leases/kube-scheduler", "", "kube-system"),
    ("scheduler", "patch", "fairlead.dev/gpudevices", "", ""),
    ("scheduler", "list", "fairlead.dev/gpuleases", "", ""),
    ("agent", "patch", "fairlead.dev/gpuleases", "", ""),
    ("agent", "patch", "fairlead.dev/firmwarebaselines", "", ""),
    ("controller", "list", "fairlead.dev/firmwarebaselines", "", ""),
    ("controller", "create", "pods", "binding", "acme"),
    ("controller", "update", "pods", "status", "acme"),
    ("controller", "patch", "nodes", "", ""),
    ("controller", "create", "fairlead.dev/gpudevices", "", ""),
]  # fmt: skip


def _may(server: api.API, who: str, verb: str, resource: str, sub: str, space: str) -> bool:
    group, _, rest = resource.partition("/") if "." in resource else ("", "", resource)
    plural, _, name = rest.partition("/")
    asked = {"group": group, "verb": verb, "resource": plural, "subresource": sub, "namespace": space, "name": name}
    user = f"system:serviceaccount:{_SPACE}:fairlead-{who}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{_SPACE}", "system:authenticated"]
    spec = {"user": user, "groups": groups, "resourceAttributes": asked}
    return bool(server.create(_REVIEWS, {"spec": spec})["status"]["allowed"])


def test_each_account_may_do_its_work_and_nothing_else(
    applied: tuple[dict[str, Any], ...], server: api.API, tools: Tools
) -> None:
    assert [row for row in _ALLOWED if not _may(server, *row)] == []
    assert [row for row in _DENIED if _may(server, *row)] == []
    # the same question as a person asks it
    account = f"--as=system:serviceaccount:{_SPACE}:fairlead-scheduler"
    assert tools.kubectl("auth", "can-i", "list", "nodes", account, check=False).stdout.strip() == "yes"
    assert tools.kubectl("auth", "can-i", "list", "secrets", account, check=False).stdout.strip() == "no"


@dataclass(frozen=True)
class Account:
    """The API server as one token sees it."""

    site: component.Site
    token: str

    def said(
        self, method: str, path: str, content: dict[str, Any] | None = None, *, program: str = "a test"
    ) -> tuple[int, str]:
        """Return status and message of one request. Args: program: which says that it asks."""
        kind = {"PATCH": "application/merge-patch+json"}.get(method, "application/json")
        done = httpx.request(
            method,
            f"{self.site.server}{path}",
            content=None if content is None else json.dumps(content),
            headers={"Content-Type": kind, "Authorization": f"Bearer {self.token}", "User-Agent": program},
            verify=ssl.create_default_context(cafile=str(self.site.certificates / "ca.crt")),
            trust_env=False,
        )
        return done.status_code, str(done.json().get("message", ""))


def _token(server: api.API, who: str, pod: api.Object | None = None) -> str:
    about = {} if pod is None else {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", **about}} if about else {}
    path = f"/api/v1/namespaces/{_SPACE}/serviceaccounts/fairlead-{who}/token"
    return str(server.create(path, {"spec": {"expirationSeconds": 600, **bound}})["status"]["token"])


def test_a_verb_that_no_role_has_is_denied_to_the_tokens_holder(
    applied: tuple[dict[str, Any], ...], cluster: home.Cluster, server: api.API, denied: denials.Denials
) -> None:
    account = Account(cluster.site, _token(server, "controller"))
    assert account.said("GET", "/apis/fairlead.dev/v1alpha1/gpudevices")[0] == 200
    secrets = f"/api/v1/namespaces/{_SPACE}/secrets"
    status, said = account.said("GET", secrets)
    assert status == 403
    assert 'cannot list resource "secrets"' in said
    assert denied.take() == []
    account.said("GET", secrets, program="fairlead/1")  # as one of ours, whose denial fails a test
    (found,) = denied.take()
    assert found.startswith(f"{_SPACE}:fairlead-controller: list {secrets}: secrets is forbidden")


# policies


def _spec(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": image.BUSYBOX}], **more}


def _named(pod: tenantpods.Pod) -> tenantpods.Pod:
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "one", **pod.get("metadata", {})}}


class Tenant:
    """Somebody who makes pods in a namespace; nothing of them stays."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def tries(self, pod: tenantpods.Pod, namespace: str = "acme") -> tuple[bool, str]:
        """Return whether a pod is taken, and what was said."""
        pod = _named(pod)
        arguments = ("-n", namespace, "create", "--dry-run=server", "-f", "-")
        done = self._tools.kubectl(*arguments, stdin=json.dumps(pod), check=False)
        return done.returncode == 0, done.stderr

    def until(self, check: Callable[[tuple[bool, str]], bool], pod: tenantpods.Pod, namespace: str = "acme") -> None:
        """Wait until policies are in force: the API server tells nobody when it has begun to use them."""
        deadline = time.monotonic() + 60
        while not check(said := self.tries(pod, namespace)):
            assert time.monotonic() < deadline, said


@pytest.fixture
def tenant(applied: tuple[dict[str, Any], ...], tools: Tools) -> Tenant:
    one = Tenant(tools)
    one.until(lambda said: not said[0], tenantpods.path("/dev"))
    one.until(lambda said: "Warning" in said[1], _ASKING)
    return one


_ASKING: Final = tenantpods.container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])


def test_a_tenants_pod_gets_at_gpus_by_the_allocation_alone(tenant: Tenant) -> None:
    wrong = []
    for pod, words in tenantpods.REFUSED:
        is_taken, said = tenant.tries(pod)
        if is_taken or words not in said or "fairlead-device-access" not in said:
            wrong.append((pod, said))
    assert wrong == []
    for pod in tenantpods.TAKEN:
        assert tenant.tries(pod) == (True, ""), pod
    for pod, _ in tenantpods.UNLISTED_PATHS:
        is_taken, said = tenant.tries(pod)
        assert not is_taken
        assert "is not among those of this namespace ()" in said


@pytest.fixture
def limited(tools: Tools) -> Iterator[str]:
    """A tenant's namespace with lists of images, classes and folders of nodes."""
    about = {"name": "limited", "labels": _TENANT, "annotations": tenantpods.LIMITS}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": about}
    tools.kubectl("create", "-f", "-", stdin=json.dumps(namespace))
    yield "limited"
    tools.kubectl("delete", "namespace", "limited")


def test_a_namespace_limits_the_images_classes_and_folders_of_its_pods(tenant: Tenant, limited: str) -> None:
    wrong = []
    for pod, words in (*tenantpods.UNLISTED, *tenantpods.UNLISTED_PATHS):
        is_taken, said = tenant.tries(pod, namespace=limited)
        # A class that does not exist is refused by the server itself, before any policy.
        if is_taken or (words not in said and "RuntimeClass" not in said):
            wrong.append((pod, said))
    assert wrong == []
    for pod in tenantpods.LISTED:
        assert tenant.tries(pod, namespace=limited) == (True, ""), pod


def test_a_tenants_pod_gets_nothing_more_once_it_is_there(tenant: Tenant, tools: Tools) -> None:
    stays = _named(tenantpods.annotated("example.com/note"))
    stays["spec"]["schedulerName"] = "nobody"
    made = json.loads(tools.kubectl("-n", "acme", "create", "-o", "json", "-f", "-", stdin=json.dumps(stays)).stdout)
    path = "/api/v1/namespaces/acme/pods/one/ephemeralcontainers?dryRun=All"
    try:
        for context, words in (*tenantpods.EPHEMERAL, ({"privileged": False}, "")):
            debug = {"name": "debug", "image": image.BUSYBOX, "securityContext": context}
            with_it = {**made, "spec": {**made["spec"], "ephemeralContainers": [debug]}}
            done = tools.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(with_it), check=False)
            assert ((done.returncode == 0) == (not words), words in done.stderr) == (True, True), (context, done.stderr)
        assert _patched(tools, annotations={"example.com/note": "y"})[0]
        is_taken, said = _patched(tools, annotations={"cdi.k8s.io/gpus": "nvidia.com/gpu=all"})
        assert (is_taken, "annotation cdi.k8s.io/gpus asks an engine for devices" in said) == (False, True), said
    finally:
        tools.kubectl("-n", "acme", "delete", "pod", "one", "--grace-period=0", "--force")


_SWITCHES: Final = {"limits": {"nvidia.com/nvswitch": "4"}}
_WITH_SWITCHES: Final = {"name": "fm", "image": image.BUSYBOX, "resources": _SWITCHES}
_NOT_THEIRS: Final = "container fm (nvidia.com/nvswitch) asks for NVSwitches, which route every tenant's NVLink"


@pytest.fixture
def unlabelled(tools: Tools) -> Iterator[str]:
    """The namespace of the Service VM, which is no tenant's."""
    tools.kubectl("create", "namespace", "service-vm")
    yield "service-vm"
    tools.kubectl("delete", "namespace", "service-vm")


@pytest.mark.parametrize("way", ["container", "init container", "sidecar", "beside GPUs"])
def test_nvswitches_are_refused_to_tenants_pods_and_not_to_the_service_vms(
    tenant: Tenant, unlabelled: str, way: str
) -> None:
    beside = {"limits": {"nvidia.com/nvswitch": "1", "nvidia.com/gpu": "1"}}
    pods_: dict[str, dict[str, Any]] = {
        "container": {"containers": [_WITH_SWITCHES]},
        "init container": _spec(initContainers=[_WITH_SWITCHES]),
        "sidecar": _spec(initContainers=[{**_WITH_SWITCHES, "restartPolicy": "Always"}]),
        "beside GPUs": {"containers": [{**_WITH_SWITCHES, "resources": beside}]},
    }
    is_taken, said = tenant.tries({"spec": pods_[way]})
    assert (is_taken, _NOT_THEIRS in said) == (False, True), said
    assert tenant.tries({"spec": pods_[way]}, namespace=unlabelled) == (True, "")


def test_nvswitches_are_refused_in_every_namespace_but_the_service_vms(
    tenant: Tenant, unlabelled: str, tools: Tools, server: api.API
) -> None:
    found = _render(agent={"settings": {"fabric.vm_namespace": unlabelled}})
    own = [item for item in found if item["metadata"]["name"] == "fairlead-switches"]
    assert [item["kind"] for item in own] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    spec = {"containers": [_WITH_SWITCHES]}
    tools.kubectl("apply", "-f", "-", stdin=_text(own))
    try:
        tenant.until(lambda found: not found[0], {"spec": spec}, namespace="default")
        for asking in (spec, _spec(initContainers=[_WITH_SWITCHES])):
            is_taken, said = tenant.tries({"spec": asking}, namespace="default")
            words = f"asks for nvidia.com/nvswitch, which pods of the namespace {unlabelled} alone may have"
            assert (is_taken, words in said) == (False, True), said
        assert tenant.tries({"spec": spec}, namespace=unlabelled) == (True, "")
        assert tenant.tries({"spec": _spec()}, namespace="default") == (True, "")
        (policy,) = server.until(
            _POLICIES, lambda items: _checked(items, ["fairlead-switches"]), what="the policy is checked"
        )
        assert policy["status"]["typeChecking"] == {}, "the server finds no fault in its expressions"
    finally:
        tools.kubectl("delete", "-f", "-", stdin=_text(own))


def test_nvswitches_are_refused_to_pods_that_a_tenants_deployment_or_job_makes(
    tenant: Tenant, tools: Tools, server: api.API
) -> None:
    """The template is taken, its pods are not, and the reason is where an owner looks for it."""
    template = {"metadata": {"labels": {"app": "fm"}}, "spec": {"containers": [_WITH_SWITCHES]}}
    deployment = {"selector": {"matchLabels": {"app": "fm"}}, "template": template}
    job = {"template": {**template, "spec": {"containers": [_WITH_SWITCHES], "restartPolicy": "Never"}}}
    for kind, group, spec in (("Deployment", "apps/v1", deployment), ("Job", "batch/v1", job)):
        item = {"apiVersion": group, "kind": kind, "metadata": {"name": "fm"}, "spec": spec}
        tools.kubectl("-n", "acme", "create", "-f", "-", stdin=json.dumps(item))
    try:
        _until(lambda: _NOT_THEIRS in _failure(server))
        _until(lambda: any(_NOT_THEIRS in one for one in _events(server, "Job")))
        assert server.get("/api/v1/namespaces/acme/pods?labelSelector=app%3Dfm")["items"] == []
    finally:
        tools.kubectl("-n", "acme", "delete", "deployment,job", "fm", "--cascade=foreground")


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _failure(server: api.API) -> str:
    found = server.get("/apis/apps/v1/namespaces/acme/deployments/fm").get("status", {}).get("conditions", [])
    return next((one["message"] for one in found if one["type"] == "ReplicaFailure"), "")


def _events(server: api.API, kind: str) -> list[str]:
    found = server.get(f"/api/v1/namespaces/acme/events?fieldSelector=involvedObject.kind%3D{kind}")["items"]
    return [one["message"] for one in found if one["reason"] == "FailedCreate"]


def test_no_pod_that_is_there_already_comes_to_nvswitches(tenant: Tenant, tools: Tools) -> None:
    """The ways round the rule: an amount without a limit, a debug container, another size, another spec."""
    half = {"name": "fm", "image": image.BUSYBOX, "resources": {"requests": {"nvidia.com/nvswitch": "4"}}}
    is_taken, said = tenant.tries({"spec": {"containers": [half]}})
    assert (is_taken, "Limit must be set" in said) == (False, True), said
    stays = _named({"spec": {"schedulerName": "nobody", "containers": [{**half, "resources": {}}]}})
    made = json.loads(tools.kubectl("-n", "acme", "create", "-o", "json", "-f", "-", stdin=json.dumps(stays)).stdout)
    grown = {
        **made,
        "spec": {**made["spec"], "containers": [{**made["spec"]["containers"][0], "resources": _SWITCHES}]},
    }
    debugged = {**made, "spec": {**made["spec"], "ephemeralContainers": [{**_WITH_SWITCHES, "name": "debug"}]}}
    pod_level = {**made, "spec": {**made["spec"], "resources": _SWITCHES}}
    try:
        for way, *items in (("/ephemeralcontainers", debugged), ("/resize", grown, pod_level), ("", grown, pod_level)):
            path = f"/api/v1/namespaces/acme/pods/one{way}?dryRun=All"
            same = tools.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(made), check=False)
            assert same.returncode == 0, (way, same.stderr)
            for item in items:
                done = tools.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(item), check=False)
                assert (done.returncode, "is invalid" in done.stderr) == (1, True), (way, done.stdout, done.stderr)
        is_taken, said = tenant.tries({"spec": {**_spec(), "resources": _SWITCHES}})
        assert (is_taken, "nvidia.com/nvswitch" in said) == (False, True), said
    finally:
        tools.kubectl("-n", "acme", "delete", "pod", "one", "--grace-period=0", "--force")


def test_a_device_class_that_stands_for_nvswitches_opens_no_way_to_them(tenant: Tenant, tools: Tools) -> None:
    """By their name a tenant's pod is refused; by the class's own it waits for a device that no driver publishes."""
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "switch.example.com"}}
    spec = {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        "extendedResourceName": "nvidia.com/nvswitch",
    }
    tools.kubectl("create", "-f", "-", stdin=json.dumps({**about, "spec": spec}))
    try:
        is_taken, said = tenant.tries({"spec": {"containers": [_WITH_SWITCHES]}})
        assert (is_taken, _NOT_THEIRS in said) == (False, True), said
        implicit = {"limits": {"deviceclass.resource.kubernetes.io/switch.example.com": "1"}}
        assert tenant.tries({"spec": {"containers": [{**_WITH_SWITCHES, "resources": implicit}]}})[0]
        published = tools.kubectl("get", "resourceslices", "-o", "json").stdout
        assert "nvswitch" not in published.lower()
    finally:
        tools.kubectl("delete", "deviceclass", "switch.example.com")


def test_other_namespaces_are_left_alone(tenant: Tenant) -> None:
    assert tenant.tries(tenantpods.path("/dev"), namespace="default") == (True, "")
    assert tenant.tries(tenantpods.secured(privileged=True), namespace="default") == (True, "")


@pytest.mark.parametrize("namespace", ["acme", "default"])
def test_asking_for_gpus_by_a_variable_is_answered_with_a_warning(tenant: Tenant, namespace: str) -> None:
    is_taken, said = tenant.tries(_ASKING, namespace=namespace)
    assert is_taken
    assert "NVIDIA_VISIBLE_DEVICES in the env of main gives no GPU: the allocation alone decides" in said


# names that are ours

_NOTE: Final = {"fairlead.dev/step": "{}"}
_ABOUT: Final = {"kind": "Pod", "name": "one", "namespace": "acme"}


def _pod_with(**about: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", **about}, "spec": _spec()}


def _event_with(about: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "one", **about}, "involvedObject": _ABOUT, **more}


_FORGED: list[dict[str, Any]] = [
    _pod_with(annotations={"fairlead.dev/devices": "{}"}),
    _pod_with(annotations={"deep.fairlead.dev/x": ""}),
    _pod_with(labels={"fairlead.dev/devices": "x"}),
    _event_with({"annotations": _NOTE}),
    _event_with({}, source={"component": "fairlead-kubelet"}),
    _event_with({}, reportingComponent="fairlead-scheduler", reportingInstance="x"),
]
_HONEST: list[dict[str, Any]] = [
    _pod_with(annotations={"notfairlead.dev/x": "1", "example.com/fairlead.dev": "1"}, labels={"fairlead.dev": "1"}),
    _event_with({"annotations": {"example.com/step": "{}"}}, source={"component": "default-scheduler"}),
]


def _offered(tools: Tools, item: dict[str, Any], *more: str) -> tuple[bool, str]:
    arguments = ("-n", "acme", "create", "--dry-run=server", "-f", "-", *more)
    done = tools.kubectl(*arguments, stdin=json.dumps(item), check=False)
    return done.returncode == 0, done.stderr


def _patched(tools: Tools, **about: Any) -> tuple[bool, str]:
    patch = json.dumps({"metadata": about})
    done = tools.kubectl("-n", "acme", "patch", "pod", "one", "--dry-run=server", "-p", patch, check=False)
    return done.returncode == 0, done.stderr


def test_nobody_but_fairlead_sets_names_of_ours(tenant: Tenant, tools: Tools) -> None:
    deadline = time.monotonic() + 60
    while _offered(tools, _FORGED[0])[0]:
        assert time.monotonic() < deadline
    for item in _FORGED:
        is_taken, said = _offered(tools, item)
        assert not is_taken, item
        assert "only Fairlead itself" in said
    for item in _HONEST:
        assert _offered(tools, item)[0], item
    ours = f"--as=system:serviceaccount:{_SPACE}:fairlead-agent"
    told = _event_with({"annotations": _NOTE}, source={"component": "fairlead-kubelet"})
    assert _offered(tools, told, ours) == (True, "")
    other = "--as=system:serviceaccount:acme:fairlead-agent"
    assert not _offered(tools, told, other, "--as-group=system:masters")[0]


def test_a_pod_gets_no_name_of_ours_by_an_update_or_a_binding(tenant: Tenant, tools: Tools) -> None:
    waits = _pod_with(labels={"app": "x"})
    waits["spec"]["schedulerName"] = "nobody"
    tools.kubectl("-n", "acme", "create", "-f", "-", stdin=json.dumps(waits))
    try:
        assert _patched(tools, labels={"app": "y"})[0]
        for about in ({"annotations": {"fairlead.dev/devices": "{}"}}, {"labels": {"fairlead.dev/devices": "x"}}):
            is_taken, said = _patched(tools, **about)
            assert not is_taken, about
            assert "only Fairlead itself" in said
        target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
        bound = {"name": "one", "namespace": "acme", "annotations": {"fairlead.dev/devices": "{}"}}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": bound, "target": target}
        path = "/api/v1/namespaces/acme/pods/one/binding?dryRun=All"
        done = tools.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding), check=False)
        assert done.returncode != 0
        assert "only Fairlead itself" in done.stderr
    finally:
        tools.kubectl("-n", "acme", "delete", "pod", "one", "--grace-period=0", "--force")


def test_the_server_finds_no_fault_in_the_expressions(applied: tuple[dict[str, Any], ...], server: api.API) -> None:
    ours = _policies(applied)
    found = server.until(_POLICIES, lambda items: _checked(items, ours), what="policies are checked")
    assert [item["status"]["typeChecking"] for item in found] == [{}] * len(ours)


def test_an_agent_may_write_what_belongs_to_its_node_alone(
    applied: tuple[dict[str, Any], ...], cluster: home.Cluster, server: api.API
) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": "other"}})
    here = _running_as_agent(server, cluster.node, "here")
    there = _running_as_agent(server, "other", "there")
    try:
        _assert_own(cluster, server, here, there)
    finally:
        for pod in (here, there):
            server.delete(f"/api/v1/namespaces/{_SPACE}/pods/{pod['metadata']['name']}", grace_s=0)
        server.delete("/api/v1/nodes/other")


def _running_as_agent(server: api.API, where: str, name: str) -> api.Object:
    """Return a pod of the agent's account, bound to a node; it need not run."""
    spec = _spec(nodeName=where, serviceAccountName="fairlead-agent", tolerations=[{"operator": "Exists"}])
    return server.create(f"/api/v1/namespaces/{_SPACE}/pods", {"metadata": {"name": name}, "spec": spec})


def _assert_own(cluster: home.Cluster, server: api.API, here: api.Object, there: api.Object) -> None:
    label = {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}}
    nobody = Account(cluster.site, _token(server, "agent"))
    own = Account(cluster.site, _token(server, "agent", here))
    _until_denied(nobody, f"/api/v1/nodes/{cluster.node}?dryRun=All", label)
    assert "token names no node" in nobody.said("PATCH", f"/api/v1/nodes/{cluster.node}?dryRun=All", label)[1]

    assert own.said("PATCH", f"/api/v1/nodes/{cluster.node}?dryRun=All", label) == (200, "")
    status, said = own.said("PATCH", "/api/v1/nodes/other?dryRun=All", label)
    assert (status, "the agent of node " in said, "may not write objects of other" in said) == (403, True, True)

    for pod, expected in ((here, 200), (there, 403)):
        path = f"/api/v1/namespaces/{_SPACE}/pods/{pod['metadata']['name']}"
        fresh = server.get(path)
        del fresh["metadata"]["resourceVersion"]  # the kubelet writes this status too, at the same time
        assert own.said("PUT", f"{path}/status?dryRun=All", fresh)[0] == expected

    devices = "/apis/fairlead.dev/v1alpha1/gpudevices"
    for where, expected in ((cluster.node, 201), ("other", 403)):
        device = _device(where)
        assert own.said("POST", f"{devices}?dryRun=All", device)[0] == expected
    server.create(devices, _device("other"))
    taken = {"spec": {"nodeName": cluster.node}}
    assert own.said("PATCH", f"{devices}/other.gpu-0?dryRun=All", taken)[0] == 403
    assert own.said("DELETE", f"{devices}/other.gpu-0?dryRun=All")[0] == 403
    _assert_own_slices(cluster, server, own)


def _assert_own_slices(cluster: home.Cluster, server: api.API, own: Account) -> None:
    """Nobody publishes devices of another node, or takes them away: claims would be bound to what is not there."""
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for where, expected in ((cluster.node, 201), ("other", 403)):
        assert own.said("POST", f"{slices}?dryRun=All", _slice(where))[0] == expected
    everywhere = _slice("other")
    everywhere["spec"] |= {"nodeName": None, "allNodes": True}
    assert own.said("POST", f"{slices}?dryRun=All", everywhere)[0] == 403
    server.create(slices, _slice("other"))
    try:
        assert own.said("DELETE", f"{slices}/00000-other?dryRun=All")[0] == 403
    finally:
        server.delete(f"{slices}/00000-other")


def _slice(where: str) -> dict[str, Any]:
    pool = {"name": where, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": where, "pool": pool}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"00000-{where}"},
        "spec": spec,
    }


def _device(where: str) -> dict[str, Any]:
    spec = {
        **{"nodeName": where, "index": 0, "minor": 0, "uuid": "GPU-0", "vendor": "nvidia"},
        **{"product": "NVIDIA H100", "memory": "80Gi", "simulated": True},
    }
    about = {"name": f"{where}.gpu-0"}
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": "GPUDevice", "metadata": about, "spec": spec}


def _until_denied(account: Account, path: str, content: dict[str, Any]) -> None:
    deadline = time.monotonic() + 60
    while account.said("PATCH", path, content)[0] != 403:
        assert time.monotonic() < deadline
