"""Tenancies on a real cluster: closed before they are open, held to their limits, gone without a trace.

The ring's network enforces no policies, which the controller says; what comes after isolation is tested with the word
of an administrator that it does (`--control-tenancy-enforcer`), which `fairlead tenancy test` then finds untrue. What
the policies mean is proved in `tests/unit/plan/tenancy/test_network_policies.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fairlead import errors
from fairlead_cdi import yamltext
from tests.cluster import charts, katahost, node, pods, registry
from tests.cluster.program import Program
from tests.cluster.verb import Verb, running
from tools.cluster import api, home, image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

_SPACE: Final = "gpus"
_TENANCIES: Final = "/apis/fairlead.dev/v1alpha1/tenancies"
_CHECKOUT: Final = Path(__file__).parents[2]
_PAGE: Final = _CHECKOUT / "docs/how-to/virtual-machines.md"
_AT_REST: Final = ("DaemonSet", "Deployment")
_TENANCY_KINDS: Final = "tenancies.fairlead.dev"


@pytest.fixture(scope="module")
def applied(cluster: home.Cluster) -> Iterator[None]:
    """The chart with tenancies, but for what would run pods; its policies are in force."""
    found = charts.render({"tenancies": {"enabled": True}, "namespace": {"create": True}}, namespace=_SPACE)
    at_rest = [item for item in found if item["kind"] not in _AT_REST]
    text = "".join(f"---\n{yamltext.dump(item)}" for item in at_rest)
    node.kubectl(cluster, "apply", "-f", "-", stdin=text)
    node.kubectl(cluster, "wait", "--for=condition=Established", f"crd/{_TENANCY_KINDS}", "--timeout=30s")
    ours = [item["metadata"]["name"] for item in found if item["kind"] == "ValidatingAdmissionPolicy"]

    def checked(items: list[api.Object]) -> bool | None:
        done = [item for item in items if "typeChecking" in item.get("status", {}) and item["metadata"]["name"] in ours]
        warned = [item["status"]["typeChecking"] for item in done if item["status"]["typeChecking"]]
        assert warned == []
        return True if len(done) == len(ours) else None

    with cluster.api() as connection:
        policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        connection.until(policies, checked, what="policies are checked")
        yield
    node.kubectl(cluster, "delete", "-f", "-", "--wait", stdin=text, timeout_s=120)


@pytest.fixture
def kubeconfig(applied: None, cluster: home.Cluster, server: api.API, tmp_path: Path) -> Path:
    """A kubeconfig of the controller's own account: what its role does not allow is denied here too."""
    return kubeconfig_of("controller", cluster, server, tmp_path)


def kubeconfig_of(part: str, cluster: home.Cluster, server: api.API, folder: Path, *, node: str = "") -> Path:
    """Write a kubeconfig of the account that the chart gives a part. Args: node: where it runs, as its token says."""
    path = f"/api/v1/namespaces/{_SPACE}/serviceaccounts/fairlead-{part}/token"
    wanted: dict[str, Any] = {"expirationSeconds": 3600}
    if node:
        uid = server.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        wanted["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    token = server.create(path, {"spec": wanted})["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    written = folder / f"{part}.kubeconfig"
    written.write_text(yaml.safe_dump(config))
    return written


def controller(kubeconfig: Path, folder: Path, *arguments: str) -> Verb:
    own = ("--control-tenancies", f"--cluster-namespace={_SPACE}", "--control-tenancy-resync-s=1", *arguments)
    return Verb("controller", kubeconfig, folder / "controller.log", own)


@pytest.fixture
def program(cluster: home.Cluster) -> Program:
    return Program(cluster, cluster.kubeconfig)


@pytest.fixture
def own_pod(applied: None, server: api.API, fairlead_image: str) -> Iterator[None]:
    """A pod of Fairlead's own image, as a release has them: `tenancy test` takes its image. It need not run."""
    path = f"/api/v1/namespaces/{_SPACE}/pods"
    body = {"containers": [{"name": "main", "image": fairlead_image}], "schedulerName": "nobody"}
    about = {"name": "own", "labels": {"app.kubernetes.io/part-of": "fairlead"}}
    server.create(path, {"metadata": about, "spec": body})
    yield
    server.delete(f"{path}/own", grace_s=0)


@pytest.fixture(autouse=True)
def emptied(applied: None, cluster: home.Cluster, server: api.API) -> Iterator[None]:
    """No tenancy outlives its test, also where no controller is left to end it."""
    yield
    for item in server.get(_TENANCIES)["items"]:
        name = item["metadata"]["name"]
        server.delete(f"{_TENANCIES}/{name}")
        with contextlib.suppress(errors.NotFound):
            server.patch(f"{_TENANCIES}/{name}", {"metadata": {"finalizers": []}})
        if space := item.get("status", {}).get("namespace"):
            node.kubectl(cluster, "delete", "namespace", space, "--ignore-not-found", "--wait", timeout_s=100)


def make(server: api.API, name: str, **spec: Any) -> None:
    server.create(_TENANCIES, {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Tenancy", "metadata": {"name": name},
                               "spec": spec})  # fmt: skip


def ready(item: api.Object) -> dict[str, Any]:
    found: list[dict[str, Any]] = item.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "Ready"), {})


def until(server: api.API, name: str, *, phase: str = "", reason: str = "") -> api.Object:
    def reached(items: list[api.Object]) -> api.Object | None:
        for item in items:
            status = item.get("status", {})
            is_it = item["metadata"]["name"] == name and (not phase or status.get("phase") == phase)
            if is_it and (not reason or ready(item).get("reason") == reason):
                return item
        return None

    return server.until(_TENANCIES, reached, what=f"tenancy {name} is {phase} {reason}", timeout_s=60)


def until_gone(server: api.API, path: str, name: str) -> None:
    def gone(items: list[api.Object]) -> bool | None:
        return True if all(item["metadata"]["name"] != name for item in items) else None

    server.until(path, gone, what=f"{name} is gone", timeout_s=90)


def refusal(space: pods.Space, **more: Any) -> str:
    """Return what the API server says to a pod, "" where it takes it."""
    container = {"name": "main", "image": image.BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "1"]}
    container |= more.pop("container", {})
    body = {"metadata": {"name": "tried"}, "spec": {"containers": [container], **more}}
    try:
        space.server.create(f"{space.path}?dryRun=All", body)
    except errors.FairleadError as error:
        return error.message
    return ""


def test_where_nothing_enforces_policies_it_says_so_and_no_pod_starts(
    kubeconfig: Path, server: api.API, program: Program, cluster: home.Cluster, tmp_path: Path
) -> None:
    with running(controller(kubeconfig, tmp_path)):
        make(server, "red")
        found = until(server, "red", reason="NotEnforced")
        assert f"nothing is known to enforce them on {cluster.node}" in ready(found)["message"]
        space = pods.Space(server, found["status"]["namespace"])
        assert "tenancy red is Pending, not Ready" in refusal(space)
        policies = server.get(f"/apis/networking.k8s.io/v1/namespaces/{space.namespace}/networkpolicies")["items"]
        assert {item["metadata"]["name"] for item in policies} == {"tenancy", "tenancy-closed"}

        done = program.run("tenancy", "test", "red")
        assert done.returncode == 1
        assert 'tenancy "red" is NOT ISOLATED' in done.stdout
        assert "nothing is known to enforce them" in done.stdout
        row = node.kubectl(cluster, "get", "tenancy", "red").splitlines()[1].split()
        assert row[:5] == ["red", "Pending", space.namespace, "False", "NotEnforced"]
        server.delete(f"{_TENANCIES}/red")
        until_gone(server, _TENANCIES, "red")


def test_two_tenancies_are_closed_before_they_are_open_and_leave_nothing(
    kubeconfig: Path, server: api.API, program: Program, tmp_path: Path, own_pod: None
) -> None:
    with running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")):
        said = program.show("tenancy", "create", "red", "--quota", "pods=2")
        assert "Ready" in said
        program.show("tenancy", "create", "blue", "--no-internet")
        (red, blue) = (until(server, name, phase="Ready") for name in ("red", "blue"))
        space = pods.Space(server, red["status"]["namespace"])

        space.start("first", "exec sleep 3600")
        pod = space.until_phase("first", "Running")
        _assert_made_in_order(server, space.namespace, pod)
        assert pod["spec"]["volumes"] == [] if "volumes" in pod["spec"] else True  # no token of the API server
        space.start("second", "exec sleep 3600")
        assert "exceeded quota: tenancy" in refusal(space)
        _assert_hostile_pods_are_refused(pods.Space(server, blue["status"]["namespace"]))

        for chosen in (("--image", image.BUSYBOX), ()):  # by a shell, and by our own image, which has none
            _assert_the_test_finds_what_nothing_enforces(program, *chosen)

        program.show("tenancy", "suspend", "red")
        until(server, "red", phase="Suspended")
        space.until_gone("first")
        assert "tenancy red is Suspended, not Ready" in refusal(space)
        program.show("tenancy", "resume", "red")
        until(server, "red", phase="Ready")

        space.start("again", "exec sleep 3600")
        program.show("tenancy", "delete", "red")
        until_gone(server, "/api/v1/namespaces", space.namespace)
        program.show("tenancy", "create", "red")
        anew = until(server, "red", phase="Ready")["status"]["namespace"]
        assert anew != space.namespace
        assert server.get(f"/api/v1/namespaces/{anew}/pods")["items"] == []
        quotas = server.get(f"/api/v1/namespaces/{anew}/resourcequotas")["items"]
        assert [one["spec"]["hard"] for one in quotas] == [
            {"pods": "500", "persistentvolumeclaims": "100"}
        ]  # settings, and no other


def _assert_made_in_order(server: api.API, namespace: str, pod: api.Object) -> None:
    """Every policy and limit was stored before the first pod: versions of one API server's store are in order."""
    kinds = (
        f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
        f"/api/v1/namespaces/{namespace}/resourcequotas",
    )
    for path in kinds:
        for item in server.get(path)["items"]:
            made = min(item["metadata"]["creationTimestamp"], pod["metadata"]["creationTimestamp"])
            assert made == item["metadata"]["creationTimestamp"]
    policies = server.get(kinds[0])["items"]
    assert len(policies) == 2
    assert all(int(item["metadata"]["resourceVersion"]) < int(pod["metadata"]["resourceVersion"]) for item in policies)


def _assert_hostile_pods_are_refused(space: pods.Space) -> None:
    assert refusal(space) == ""
    assert "privileged" in refusal(space, container={"securityContext": {"privileged": True}})
    assert "hostNetwork" in refusal(space, hostNetwork=True)
    assert "leads past the scheduler" in refusal(space, nodeName="anywhere")
    assert "no token of the API server" in refusal(space, automountServiceAccountToken=True)
    token = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    assert "no token of the API server" in refusal(space, volumes=[token])


def _assert_the_test_finds_what_nothing_enforces(program: Program, *chosen: str) -> None:
    """The administrator's word is not true here: packets come through, and the test says so."""
    done = program.run("tenancy", "test", "blue", *chosen, "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["problem"] == "", found
    assert not found["is_isolated"]
    tried = {(one["source"], one["target"]): one for one in found["attempts"]}
    assert tried["blue", "another container"]["reached"]
    assert tried["blue", "(of no tenancy)"]["reached"]
    assert not tried["blue", "(of no tenancy)"]["expected"]
    assert tried["(of no tenancy)", "blue"]["reached"]
    (left_out,) = found["left_out"]  # the other tenancy has no room for a pod of the trial
    assert left_out.startswith("red: pods ")
    assert "exceeded quota" in left_out
    done = program.run("tenancy", "test", "blue", *chosen)
    assert "not tried: red: pods " in done.stdout
    assert "NOT ISOLATED" in done.stdout


def test_each_container_is_held_to_its_limits_and_a_policy_of_somebody_else_closes_the_namespace(
    kubeconfig: Path, server: api.API, cluster: home.Cluster, tmp_path: Path
) -> None:
    with running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")):
        limits = {"default": {"memory": "64Mi"}, "defaultRequest": {"memory": "32Mi"}, "max": {"memory": "128Mi"}}
        make(server, "red", containers=limits)
        space = pods.Space(server, until(server, "red", phase="Ready")["status"]["namespace"])
        asked = {"resources": {"limits": {"memory": "1Gi"}}}
        assert "maximum memory usage per Container is 128Mi" in refusal(space, container=asked)
        space.start("plain", "exec sleep 3600")
        (container,) = space.get("plain")["spec"]["containers"]
        assert container["resources"] == {"limits": {"memory": "64Mi"}, "requests": {"memory": "32Mi"}}

        spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}
        policies = f"/apis/networking.k8s.io/v1/namespaces/{space.namespace}/networkpolicies"
        server.create(policies, {"metadata": {"name": "open"}, "spec": spec})
        assert "open" in ready(until(server, "red", reason="ForeignPolicy"))["message"]
        server.delete(f"{policies}/open")
        server.delete(f"{policies}/tenancy-closed")
        until(server, "red", phase="Ready")
        server.until(policies, lambda items: len(items) == 2 or None, what="what was deleted is there again")
        node.kubectl(cluster, "delete", "tenancy", "red", "--wait", timeout_s=90)


@pytest.mark.timeout(400)
@pytest.mark.skipif(not registry.PROGRAM.exists(), reason="needs Debian's docker-registry: tests/system/setup.sh")
def test_a_login_is_the_pull_secret_of_the_tenancys_pods_and_of_no_other_tenancys(
    kubeconfig: Path, server: api.API, cluster: home.Cluster, program: Program, tmp_path: Path
) -> None:
    login = ("tenancy", "login", "red", registry.ADDRESS, "-u", registry.USER, "--password-stdin")

    def log_in() -> str:
        done = program.piped(*login, data=f"{registry.PASSWORD}\n".encode())
        return done.stderr.decode() if done.returncode else ""

    own = controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")
    with registry.serving(cluster, "red/train:1") as private, running(own):
        spaces = {}
        for name in ("red", "blue"):
            make(server, name)
            spaces[name] = pods.Space(server, until(server, name, phase="Ready")["status"]["namespace"])
        red = spaces["red"].namespace
        secrets = f"/api/v1/namespaces/{red}/secrets"
        server.create(secrets, {"metadata": {"name": "tenancy-registries"}, "type": "Opaque"})
        said = log_in()
        assert f"the Secret {red}/tenancy-registries is not the tenancy's registry credentials: its type is Op" in said
        assert f"kubectl -n {red} delete secret tenancy-registries" in said
        server.delete(f"{secrets}/tenancy-registries")
        assert log_in() == ""

        def is_named(items: list[api.Object]) -> bool | None:
            return True if any(item.get("imagePullSecrets") for item in items) else None

        server.until(f"/api/v1/namespaces/{red}/serviceaccounts", is_named, what="the account names the secret")
        for name in spaces:
            pull = ("run", "-d", "--name", "train", "-T", name, "--pull=always", private)
            script = ("--", "sh", "-c", "sleep 1; echo ready; exec sleep 3600")
            assert program.run(*pull, *script).returncode == 0
        spaces["red"].until_phase("train", "Running")
        _assert_pull_and_first_output_are_told(program)

        def is_refused(pod: api.Object) -> bool:
            states = [one["state"].get("waiting", {}) for one in pod["status"].get("containerStatuses", [])]
            return any(one.get("reason") in {"ErrImagePull", "ImagePullBackOff"} for one in states)

        spaces["blue"].until("train", is_refused, what="has no credentials for the image")
        shown = program.show("tenancy", "show", "red", "-o", "json")
        assert registry.ADDRESS in shown
        assert registry.PASSWORD not in shown
        for space in spaces.values():
            server.delete(space.path, grace_s=0)


def _assert_pull_and_first_output_are_told(program: Program) -> None:
    """Assert that the start of a container that pulls and writes after a second is divided by both."""
    deadline = time.monotonic() + 30
    while True:
        explained = json.loads(program.show("explain", "-T", "red", "train", "-o", "json"))
        started = {one["name"]: one for one in explained["start"]}
        if "first output" in started:
            break
        assert time.monotonic() < deadline, explained["start"]
        time.sleep(0.5)
    # Without an agent a start is dated to the second: this image is there within less, and then no part is told.
    parts = [one["name"] for one in started["sandbox"]["parts"]]
    assert parts in ([], ["pull", "container"], ["pod", "pull", "container"]), started
    assert 0.9 <= started["first output"]["duration_s"] <= 4, started
    told = program.show("trace", "-T", "red", "train")
    assert "Successfully pulled image" in told
    assert "wrote its first line" in told
    steps = json.loads(program.show("trace", "-T", "red", "train", "-o", "json"))["entries"]
    (pull,) = (one["step"] for one in steps if one["stage"] == "pulled")
    assert 0 < pull["duration_s"] < 30, pull


def test_a_controller_that_was_killed_in_between_is_carried_on_by_the_next_one(
    kubeconfig: Path, server: api.API, tmp_path: Path
) -> None:
    word = "--control-tenancy-enforcer=networkpolicy"
    for point in ("tenancy.namespace-made", "tenancy.policy-applied", "tenancy.quota-applied"):
        dying = controller(kubeconfig, tmp_path, word, f"--debug-crash-at={point}", "--no-control-leader-elect")
        dying.start()
        make(server, "red")
        assert dying.process is not None
        assert dying.process.wait(30) != 0
        assert until(server, "red").get("status", {}).get("phase") != "Ready"
        with running(controller(kubeconfig, tmp_path, word, "--no-control-leader-elect")):
            space = until(server, "red", phase="Ready")["status"]["namespace"]
            server.delete(f"{_TENANCIES}/red")
            until_gone(server, _TENANCIES, "red")
            until_gone(server, "/api/v1/namespaces", space)


def test_an_export_is_bound_to_its_tenancys_claim_to_no_others_and_goes_with_the_tenancy(
    kubeconfig: Path, server: api.API, tmp_path: Path
) -> None:
    """No file is mounted: that needs an NFS server, and a node whose kernel has a client, which the ring's have not."""
    volumes, claims = "/api/v1/persistentvolumes", "/api/v1/persistentvolumeclaims"
    nfs = {"server": "192.0.2.7", "path": "/exports/red", "options": ["vers=4.2"]}
    with running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")):
        make(server, "red", storage={"nfs": nfs})
        space = until(server, "red", phase="Ready")["status"]["namespace"]
        (volume,) = (one for one in server.get(volumes)["items"] if one["metadata"]["name"] == f"{space}-export")
        assert volume["status"]["phase"] == "Bound"
        assert volume["spec"]["nfs"] == {"server": "192.0.2.7", "path": "/exports/red"}
        assert volume["spec"]["mountOptions"] == ["vers=4.2", "nosuid", "nodev"]
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"

        make(server, "blue")
        other = until(server, "blue", phase="Ready")["status"]["namespace"]
        wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}},
                  "storageClassName": "", "volumeName": f"{space}-export"}  # fmt: skip
        server.create(f"/api/v1/namespaces/{other}/persistentvolumeclaims",
                      {"metadata": {"name": "export"}, "spec": wanted})  # fmt: skip

        # A claim is lost: the volume is released, and both are made anew; blue's takes neither.
        server.delete(f"/api/v1/namespaces/{space}/persistentvolumeclaims/export")
        before = volume["metadata"]["uid"]

        def anew(items: list[api.Object]) -> bool | None:
            own = [one for one in items if one["metadata"]["name"] == f"{space}-export"]
            return (
                True if own and own[0]["metadata"]["uid"] != before and own[0]["status"]["phase"] == "Bound" else None
            )

        server.until(volumes, anew, what="the export is made anew and bound", timeout_s=60)

        def settled(items: list[api.Object]) -> bool | None:
            states = {one["metadata"]["namespace"]: one["status"]["phase"] for one in items}
            return True if (states.get(space), states.get(other)) == ("Bound", "Pending") else None

        server.until(claims, settled, what="its own claim has it, and no other")

        server.delete(f"{_TENANCIES}/red")
        until_gone(server, _TENANCIES, "red")
        until_gone(server, volumes, f"{space}-export")
        server.delete(f"{_TENANCIES}/blue")
        until_gone(server, _TENANCIES, "blue")


def test_pods_of_a_tenancy_without_host_users_ask_for_user_namespaces_and_doctor_says_where_there_are_none(
    kubeconfig: Path, server: api.API, program: Program, cluster: home.Cluster, tmp_path: Path
) -> None:
    """No such pod starts here: the ring's nodes have no user namespaces for pods."""
    with running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")):
        program.show("tenancy", "create", "red", "--no-host-users")
        space = pods.Space(server, until(server, "red", phase="Ready")["status"]["namespace"])
        assert "has a user namespace; write spec.hostUsers false" in refusal(space)
        assert refusal(space, hostUsers=False) == ""
        program.show("run", "-d", "-T", "red", "--name", "shut", image.BUSYBOX, "--", "sleep", "600")
        (pod,) = server.get(space.path)["items"]
        assert pod["spec"]["hostUsers"] is False

        handlers = server.get(f"/api/v1/nodes/{cluster.node}")["status"].get("runtimeHandlers", [])
        has = [one.get("features", {}).get("userNamespaces", False) for one in handlers if not one.get("name")]
        if has == [False]:
            space.until("shut", lambda one: one["spec"].get("nodeName"), what="is placed")
            _, found = program.findings()
            words = f"node {cluster.node} cannot give pods user namespaces"
            assert [one for one in found if one["check"] == "user namespaces" and words in one["what"]]


def test_the_api_server_refuses_what_is_not_a_tenancy_and_the_controllers_account_is_confined(
    kubeconfig: Path, server: api.API, cluster: home.Cluster
) -> None:
    for name, words in (
        ("kube-red", "the name is reserved"),
        ("a" * 54, "at most 53 characters"),
        ("a.b", "must be a DNS label"),
    ):
        with pytest.raises(errors.RequestError, match=words):
            make(server, name)
    command = (
        cluster.program("kubectl"),
        f"--kubeconfig={kubeconfig}",
        "delete",
        "namespace",
        _SPACE,
        "--dry-run=server",
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "the controller writes in namespaces of tenancies only" in done.stderr


def test_a_tenancys_isolation_binds_its_pods(
    kubeconfig: Path, server: api.API, program: Program, tmp_path: Path
) -> None:
    """What no node has a handler for is not started here: the classes alone are real, and the policy."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    overhead = {"podFixed": {"cpu": "1", "memory": "10Gi"}}
    made = {"gvisor": {}, "kata-qemu-nvidia-gpu-x1": {"overhead": overhead}, "kata-qemu-nvidia-gpu-x8": {}}
    with running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")):
        done = program.run("run", "-d", "--isolation", "gvisor", image.BUSYBOX, "--", "true")
        assert (done.returncode, 'needs the RuntimeClass "gvisor"' in done.stderr) == (6, True), done.stderr
        for name, more in made.items():
            server.create(classes, {"metadata": {"name": name}, "handler": "nobody", **more})
        try:
            spaces = {}
            for word in ("gvisor", "vm", "none"):
                program.show("tenancy", "create", f"red-{word}", "--isolation", word)
                found = until(server, f"red-{word}", phase="Ready")
                spaces[word] = pods.Space(server, found["status"]["namespace"])
            own = {"gvisor": "gvisor", "vm": "kata-qemu-nvidia-gpu-x1", "none": ""}
            for word, space in spaces.items():
                for other, name in own.items():
                    said = refusal(space, **({"runtimeClassName": name} if name else {}))
                    if other == word:
                        assert said == "", said
                    else:
                        assert f"has isolation {word}, and this one has {other}" in said
                program.show("run", "-d", "-T", f"red-{word}", "--name", "own", image.BUSYBOX, "--", "sleep", "1")
                pod = space.get("own")
                assert pod["spec"].get("runtimeClassName", "") == own[word]
            assert spaces["vm"].get("own")["spec"]["overhead"] == overhead["podFixed"]
            refused = program.run("run", "-T", "red-gvisor", "--isolation", "none", image.BUSYBOX, "--", "true")
            assert (refused.returncode, "has gvisor" in refused.stderr) == (3, True), refused.stderr
        finally:
            for word in ("gvisor", "vm", "none"):
                program.run("tenancy", "delete", "--no-wait", f"red-{word}")
            for name in made:
                server.delete(f"{classes}/{name}")


def observing(cluster: home.Cluster, kubeconfig: Path) -> tuple[str, ...]:
    """Return the arguments of an agent that observes pods, for which every start takes too long."""
    own = ("--control-start-objectives=0=0.001s", f"--node-name={cluster.node}")
    return (*node.PRODUCT, f"--cluster-kubeconfig={kubeconfig}", *own)


def _assert_boot_is_told(program: Program, uptime_s: float) -> None:
    """Assert that a container's start is divided down to the parts of its machine's boot, which add up."""
    deadline = time.monotonic() + 30
    while "StartSlow" not in (told := program.show("trace", "-T", "landon", "own", "-o", "json")):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    explained = json.loads(program.show("explain", "-T", "landon", "own", "-o", "json"))
    started = {one["name"]: one for one in explained["start"]}
    assert list(started)[:3] == ["admission", "slot", "sandbox"], explained["start"]
    parts = {one["name"]: one["duration_s"] for one in started["sandbox"]["parts"]}
    order = ["engine", "QEMU", "firmware", "kernel and init", "container"]
    assert list(parts) == [name for name in order if name in parts]
    assert {"engine", "firmware", "kernel and init", "container"} <= set(parts), explained["start"]
    assert sum(parts.values()) == pytest.approx(started["sandbox"]["duration_s"], abs=0.01)
    # The guest's clock says when its agent began; an emulated one is set to the second.
    inside = parts["kernel and init"] + parts["container"]
    assert inside > uptime_s - 2
    shown = program.show("explain", "-T", "landon", "own")
    assert "its virtual machine: engine " in shown
    assert "virtual machine started" in program.show("trace", "-T", "landon", "own")
    slow = explained["facts"].get("parts", {})
    assert slow == {} or list(slow) == list(parts)


def follow_page(program: Program, cluster: home.Cluster, folder: Path) -> None:
    """Follow what is marked on the page on virtual machines; its tenancy is there, and its image is another one."""
    said = ("--say", f"busybox -- uname={image.BUSYBOX} -- uname", "--say", f"busybox -- id={image.BUSYBOX} -- id")
    words = (*("--marked", "needs a cluster", "--skip", "tenancy create"), *said, _PAGE)
    home_folder = folder / "reader"
    home_folder.mkdir()
    path = ":".join((str(Path(sys.executable).parent), os.defpath))
    env = {
        "HOME": str(home_folder),
        "FAIRLEAD_CLUSTER_KUBECONFIG": str(program.kubeconfig),
        "TERM": "dumb",
        "PATH": path,
    }
    argv = (sys.executable, _CHECKOUT / "tests/system/pages.py", *words)
    done = subprocess.run(argv, cwd=home_folder, env=env, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr


@pytest.fixture
def katas_stand_in(cluster: home.Cluster, server: api.API) -> Iterator[None]:
    """The node's containerd has Kata's stand-in (`tests/katastandin`) for a handler: no registry has Kata."""
    config = cluster.site.configs / "containerd.toml"
    before = config.read_text()
    config.write_text(before + katahost.install(cluster.host, accelerator="tcg"))
    cluster.restart("containerd")
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    server.create(classes, {"metadata": {"name": katahost.HANDLER}, "handler": katahost.HANDLER})
    yield
    server.delete(f"{classes}/{katahost.HANDLER}")
    config.write_text(before)
    cluster.restart("containerd")


def test_a_tenancys_payload_runs_in_a_machine_and_its_phases_name_what_took_longest(
    katas_stand_in: None, cluster: home.Cluster, kubeconfig: Path, server: api.API, program: Program, tmp_path: Path
) -> None:
    """Kubelet, PodResources `Get` and containerd are real; QEMU runs in software, without GPUs."""
    own = kubeconfig_of("agent", cluster, server, tmp_path, node=cluster.node)
    with (
        running(controller(kubeconfig, tmp_path, "--control-tenancy-enforcer=networkpolicy")),
        node.running(node.Agent(cluster, observing(cluster, own)), server),
    ):
        program.show("tenancy", "create", "landon", "--isolation", "vm")
        try:
            space = pods.Space(server, until(server, "landon", phase="Ready")["status"]["namespace"])
            script = "uname -r; cut -d ' ' -f 1 /proc/uptime; ls /var/run/secrets 2>&1; exit 5"
            program.show("run", "-d", "-T", "landon", "--name", "own", image.BUSYBOX, "--", "sh", "-c", script)
            pod = space.until("own", lambda pod: pod["status"].get("phase") == "Failed", what="has ended")
            (status,) = pod["status"]["containerStatuses"]
            assert status["state"]["terminated"]["exitCode"] == 5, pod["status"]
            kernel, uptime, secrets = space.log("own").splitlines()
            assert kernel.endswith("cloud-amd64"), "the guest's own, not the node's"
            assert "No such file" in secrets
            explained = json.loads(program.show("explain", "-T", "landon", "own", "-o", "json"))
            assert explained["isolation"] == "vm"
            spent = {one["name"]: one["duration_s"] for one in explained["phases"]}
            assert max(spent, key=lambda name: spent[name]) == "preparing"
            # Kubernetes' times of a pod are whole seconds.
            assert spent["preparing"] > float(uptime) - 2, "the machine's boot is a part of it"
            _assert_boot_is_told(program, float(uptime))
            follow_page(program, cluster, tmp_path)
            # One whose machine is killed has ended, with a reason, where its tenant looks.
            program.show("run", "-d", "-T", "landon", "--name", "cut", image.BUSYBOX, "--", "sleep", "3600")
            space.until("cut", lambda pod: pod["status"].get("phase") == "Running", what="runs", timeout_s=120)
            kill = "for one in $1/k8s.io/*/emulator.pid; do kill -9 $(cat $one) || true; done"
            cluster.host.run("/bin/sh", "-c", kill, "sh", katahost.STATE)
            pod = space.until("cut", lambda pod: pod["status"].get("phase") == "Failed", what="has ended")
            (status,) = pod["status"]["containerStatuses"]
            ended = status["state"]["terminated"]
            assert (ended["reason"], ended["exitCode"]) == ("Error", 255)
            explained = json.loads(program.show("explain", "-T", "landon", "cut", "-o", "json"))
            assert (explained["state"], explained["reason"]) == ("failed", "Error")
        finally:
            program.run("tenancy", "delete", "landon")
