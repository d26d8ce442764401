"""The verbs that look, pointed at a real cluster through a kubeconfig: what they show is what the cluster knows.

What runs there is first the agent alone with silicon that a test can break, then everything the chart has.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead import errors
from fairlead.plan.trace import STAGES
from tests.cluster import node, pods
from tests.cluster.program import Program
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_ROOT = Path(__file__).parents[2]
_DEVICES = "/apis/fairlead.dev/v1alpha1/gpudevices"
_SPACE = "fairlead"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{_SPACE}/leases"
_AGENT = f"/apis/apps/v1/namespaces/{_SPACE}/daemonsets/fairlead-agent"


@pytest.fixture
def program(cluster: home.Cluster) -> Program:
    return Program(cluster, cluster.kubeconfig)


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """The agent alone, publishing, with silicon that a test can break."""
    node.define(cluster, "gpudevices")
    arguments = (*node.BREAKABLE, str(cluster.kubeconfig), cluster.node)
    with node.running(node.Agent(cluster, arguments), server) as one:
        yield one
    server.delete(_DEVICES)


def until_gpu(server: api.API, check: Callable[[api.Object], bool], *, what: str) -> api.Object:
    """Wait for a GPU of which `check` holds; one just made has no status yet, which is a second write."""

    def reached(items: list[api.Object]) -> api.Object | None:
        return next((item for item in items if "status" in item and check(item)), None)

    return server.until(_DEVICES, reached, what=what)


def until_event(server: api.API, reason: str, name: str) -> None:
    def reached(items: list[api.Object]) -> bool | None:
        found = [one for one in items if one["involvedObject"]["name"] == name and one["reason"] == reason]
        return True if found else None

    server.until("/api/v1/namespaces/default/events", reached, what=f"{reason} of {name}")


def two_containers(name: str) -> dict[str, Any]:
    def container(called: str, said: str, **more: Any) -> dict[str, Any]:
        script = f"echo {said}; exec sleep 3600"
        command = ["/bin/sh", "-c", script]
        return {"name": called, "image": image.BUSYBOX, "imagePullPolicy": "Never", "command": command, **more}

    wanted = {"limits": {pods.RESOURCE: "2"}}
    containers = [container("main", "from-main", resources=wanted), container("side", "from-side")]
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": containers}}


def headings(text: str) -> list[str]:
    """Return the layers of a trace's lines, as the tree names them."""
    return re.findall(r"^[├└]─ .{20} (\w+)", text, re.M)


def test_a_pod_that_kubectl_made_is_listed_traced_and_read(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space, program: Program
) -> None:
    node.kubectl(
        cluster, "apply", "-f", "-", stdin=yaml.safe_dump({"apiVersion": "v1", "kind": "Pod"} | two_containers("two"))
    )
    space.until_phase("two", "Running")
    until_event(server, "IsolationRead", "two")
    until_event(server, "ContainerStarted", "two")
    until_gpu(server, lambda gpu: bool(gpu["status"].get("holders")), what="a holder")

    (shown,) = program.rows("ps")
    assert (shown["NAME"], shown["STATE"], shown["GPUS"], shown["NODE"]) == ("two", "running", "2", cluster.node)
    gpus = program.rows("gpus", "-o", "wide")
    assert [(row["NODE"], row["GPU"], row["HEALTH"]) for row in gpus] == [
        (cluster.node, str(index), "Healthy") for index in range(8)
    ]
    assert [row["HOLDER"] for row in gpus].count("two") == 2
    (machine,) = program.rows("nodes")
    assert (machine["DEVICES"], machine["TAKEN"]) == (f"{pods.RESOURCE}=8", f"{pods.RESOURCE}=2")
    assert "8 published (8 Healthy), SIMULATED" in program.show("status")
    assert "GPU7" in program.show("topology")
    assert "IsolationRead" in program.show("events", "pod/two")

    traced = program.show("trace", "two")
    layers = headings(traced)
    # what tests/system/test_whole_trace.py sees of `fairlead up`; a second container adds its own start
    assert list(dict.fromkeys(layers)) == list(dict.fromkeys(stage.layer for stage in STAGES))
    assert "not recorded" not in traced
    assert "ENXIO, allowed" in traced
    assert "EPERM, denied by the cgroup" in traced
    assert "from-main" in traced
    side = program.show("trace", "two", "-c", "side", "-n", "default")
    assert "from-side" in side
    assert "Allocate" not in side
    # two programs of one pod write at the same time
    assert sorted(program.show("logs", "two").splitlines()) == ["main | from-main", "side | from-side"]
    assert program.show("logs", "two", "-c", "main") == "from-main\n"
    assert program.show("logs", "two", "-c", "side", "--tail", "1") == "from-side\n"


def test_followed_output_ends_with_the_pod(cluster: home.Cluster, space: pods.Space, program: Program) -> None:
    space.start("short", "echo one; sleep 1; echo two")
    done = program.run("logs", "-f", "short")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n"), done.stderr


def test_a_container_is_run_on_the_cluster_and_removed(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    ran = program.run("run", "--name", "asked", "--entrypoint", "sh", image.BUSYBOX, "--", "-c", "echo ran; exit 3")
    assert (ran.returncode, ran.stdout) == (3, "ran\n"), ran.stderr
    assert program.show("rm", "-f", "asked") == "asked\n"
    space.until_gone("asked")


def test_exec_carries_binary_input_and_output_and_the_exit_code(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    sent = os.urandom(3 << 20)
    done = program.piped("exec", "-i", "stays", "--", "cat", data=sent)
    assert (done.returncode, done.stdout == sent) == (0, True), done.stderr
    ended = program.run("exec", "stays", "--", "sh", "-c", "echo out; exit 7")
    assert (ended.returncode, ended.stdout) == (7, "out\n"), ended.stderr
    missing = program.run("exec", "-c", "other", "stays", "--", "ls")
    assert (missing.returncode, "it has: main" in missing.stderr) == (2, True)


def test_ports_lead_into_the_cluster_and_a_silent_connection_holds_up_no_other(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start(
        "serves", "mkdir /tmp/www; echo inside > /tmp/www/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp/www"
    )
    space.until_phase("serves", "Running")
    said, ours = os.pipe()
    with os.fdopen(said) as output:
        forwarding = program.open("port-forward", "serves", ":8080", terminal=ours)
        os.close(ours)
        try:
            first = output.readline()
            assert first.startswith("Forwarding from 127.0.0.1:"), first + output.read()
            port = int(first.split()[2].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=20):
                for _ in range(3):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
                        assert answer.read() == b"inside\n"
        finally:
            forwarding.send_signal(signal.SIGINT)
            assert forwarding.wait(20) == 0


def test_a_terminal_reaches_into_the_cluster_with_its_size(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    shell = program.open("exec", "-it", "stays", "--", "sh", terminal=theirs)
    os.close(theirs)
    try:
        until_shown(ours, b"stty size\n", b"33 101")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 133, 0, 0))
        shell.send_signal(signal.SIGWINCH)  # the kernel tells only those whose terminal it is
        until_shown(ours, b"stty size\n", b"44 133")
        os.write(ours, b"exit 5\n")
        assert shell.wait(20) == 5
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def until_shown(terminal: int, keys: bytes, wanted: bytes) -> None:
    """Type until something is seen: a size travels beside the keys."""
    seen, deadline = b"", time.monotonic() + 40
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        os.write(terminal, keys)
        while select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 4096)


def test_a_stop_is_an_eviction_and_a_budget_forbids_it(
    cluster: home.Cluster, server: api.API, space: pods.Space, program: Program
) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    label = {"app": "guarded"}
    space.start("stays", "exec sleep 3600")
    server.patch(f"{space.path}/stays", {"metadata": {"labels": label}})
    space.until_phase("stays", "Running")
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": label}}}
    server.create(budgets, budget)
    try:
        refused = program.run("stop", "stays")
        assert (refused.returncode, "disruption budget" in refused.stderr) == (3, True), refused.stderr
        assert "fairlead rm" in refused.stderr
    finally:
        server.delete(f"{budgets}/all")
    stopped = program.run("stop", "--grace", "1", "stays")
    assert (stopped.returncode, stopped.stdout) == (0, "stays\n"), stopped.stderr
    assert "no record" in stopped.stderr
    space.until_gone("stays")


def test_images_are_those_that_nodes_report(cluster: home.Cluster, program: Program) -> None:
    found = json.loads(program.show("image", "ls", "-o", "json"))
    (busybox,) = (one for one in found if image.BUSYBOX in one["names"])
    assert busybox["nodes"] == [cluster.node]
    refused = program.run("image", "rm", image.BUSYBOX)
    assert (refused.returncode, "registry" in refused.stderr) == (2, True)


def test_a_cluster_that_nobody_named_is_looked_at_only(
    cluster: home.Cluster, space: pods.Space, program: Program
) -> None:
    space.start("stays", "exec sleep 3600")
    space.until_phase("stays", "Running")
    env = {"KUBECONFIG": str(program.kubeconfig)}
    for words in (("rm", "-f", "stays"), ("exec", "stays", "--", "true")):
        implied = program.plain(*words, env=env)
        assert (implied.returncode, "was not named" in implied.stderr) == (2, True)
    assert space.get("stays")["status"]["phase"] == "Running"
    assert "stays" in program.plain("ps", env=env).stdout
    attached = program.run("attach", "stays", "0")
    assert (attached.returncode, "--pid" in attached.stderr) == (2, True)


def test_a_fault_is_seen_from_afar(agent: node.Agent, server: api.API, cluster: home.Cluster, program: Program) -> None:
    agent.inject("xid", 3, "79")
    until_gpu(server, lambda gpu: gpu["status"].get("health") == "Unhealthy", what="an unhealthy GPU")
    assert [row["HEALTH"] for row in program.rows("gpus") if row["GPU"] == "3"] == ["Unhealthy (XID79)"]
    _, found = program.findings()
    (said,) = (item["what"] for item in found if item["check"] == "gpus")
    assert f"GPU 3 of node {cluster.node} is Unhealthy (XID79" in said
    agent.inject("recover", 3)
    until_gpu(server, lambda gpu: gpu["spec"]["index"] == 3 and gpu["status"]["health"] == "Healthy", what="it back")


# the doctor, over all that the chart installs


@pytest.fixture
def installed(cluster: home.Cluster, server: api.API, fairlead_image: str) -> Iterator[None]:
    """Everything the chart has, on simulated silicon, up and leading."""
    program = (sys.executable, "-m", "fairlead.cli.main", "manifests", "--simulate", "h100x8")
    options = ("--image", fairlead_image)
    text = subprocess.run((*program, *options), capture_output=True, text=True, check=True, timeout=60).stdout
    node.kubectl(cluster, "apply", "-f", "-", stdin=text)
    try:
        for what in ("daemonset/fairlead-agent", "deployment/fairlead-scheduler", "deployment/fairlead-controller"):
            node.kubectl(cluster, "-n", _SPACE, "rollout", "status", what, "--timeout=100s", timeout_s=120)
        node.until_allocatable(server, cluster.node, 8)
        until_led(server)
        yield
    finally:
        node.kubectl(cluster, "delete", "--ignore-not-found", "--wait", "-f", "-", stdin=text, timeout_s=120)
        node.until_allocatable(server, cluster.node, 0)


def until_led(server: api.API) -> None:
    def led(items: list[api.Object]) -> bool | None:
        held = {item["metadata"]["name"] for item in items if item["spec"].get("holderIdentity")}
        return True if {"fairlead-scheduler", "fairlead-controller"} <= held else None

    server.until(_LEASES, led, what="both leases are held")


def plant_faults(cluster: home.Cluster, server: api.API, space: pods.Space) -> None:
    """Stop the agent, break a GPU, let a lease grow old, and ask for more than there is."""
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}
    server.patch(_AGENT, nowhere)
    node.until_allocatable(server, cluster.node, 0)
    gpu = server.get(_DEVICES)["items"][3]
    ill = {"status": {"health": "Unhealthy", "reason": "XID79", "message": "GPU has fallen off the bus"}}
    server.patch(f"{_DEVICES}/{gpu['metadata']['name']}/status", ill)
    node.kubectl(cluster, "-n", _SPACE, "scale", "deployment/fairlead-scheduler", "--replicas=0")
    node.kubectl(cluster, "-n", _SPACE, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=scheduler")
    old = {"holderIdentity": "gone", "renewTime": "2020-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    server.patch(f"{_LEASES}/fairlead-scheduler", {"spec": old})
    space.start("waits", "true", gpus=9)
    space.until_unschedulable("waits")


def test_the_doctor_is_content_with_a_healthy_cluster_and_finds_what_is_wrong_with_a_sick_one(
    installed: None, cluster: home.Cluster, server: api.API, space: pods.Space, program: Program
) -> None:
    code, found = program.findings()
    assert {item["level"] for item in found} == {"ok"}, found
    assert code == 0

    plant_faults(cluster, server, space)
    code, found = program.findings()
    bad = {item["check"]: item for item in found if item["level"] != "ok"}
    assert code == 1
    assert {check: item["level"] for check, item in bad.items()} == {
        "agent": "fail",
        "nodes": "fail",
        "gpus": "warn",
        "scheduler": "fail",
        "pods": "fail",
    }, found
    agent = " ".join(item["what"] for item in found if item["check"] == "agent")
    assert "selects no node" in agent
    assert "has GPUs and no agent" in agent
    assert "offers none" in bad["nodes"]["what"]
    assert "XID79" in bad["gpus"]["what"]
    assert "of gone is stale" in bad["scheduler"]["what"]
    assert "default/waits waits for 9" in bad["pods"]["what"]
    assert all(item["why"] and item["fix"] for item in bad.values())

    node.kubectl(cluster, "delete", "crd", "gpudevices.fairlead.dev", timeout_s=120)
    _, found = program.findings()
    assert ("crd", "fail") in {(item["check"], item["level"]) for item in found}
    assert "not installed" in program.run("gpus").stderr


def test_the_viewers_role_suffices_and_without_it_the_doctor_names_it(
    installed: None, cluster: home.Cluster, server: api.API, tmp_path: Path
) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    server.create(accounts, {"metadata": {"name": "looker"}})
    token = node.kubectl(cluster, "create", "token", "looker").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    looker = Program(cluster, tmp_path / "config")
    looker.kubeconfig.write_text(yaml.safe_dump(config))
    try:
        code, found = looker.findings()
        said = next(item for item in found if item["check"] == "rights")
        assert (code, said["level"], "list nodes" in said["what"]) == (0, "warn", True)
        assert "fairlead-viewer" in said["fix"]
        unread = {item["check"]: item["why"] for item in found if item["level"] == "skip"}
        assert "list nodes" in unread["nodes"]
        assert "forbidden" in looker.run("gpus").stderr

        role = ("create", "clusterrolebinding", "looker", "--clusterrole=fairlead-viewer")
        node.kubectl(cluster, *role, "--serviceaccount=default:looker")
        code, found = looker.findings()
        # Only an administrator may ask what agents' accounts may do.
        left_out = [item for item in found if item["level"] != "ok"]
        assert (code, [(item["check"], item["level"]) for item in left_out]) == (0, [("agent rights", "skip")]), found
        assert "subjectaccessreviews" in left_out[0]["why"]
        assert len(looker.rows("gpus")) == 8
        agent = json.loads(looker.show("ps", "-n", _SPACE, "-l", "app.kubernetes.io/component=agent", "-o", "json"))
        assert looker.show("logs", "-n", _SPACE, agent[0]["name"])
        refused = looker.run("rm", "-f", "-n", _SPACE, agent[0]["name"])
        assert refused.returncode == 3
    finally:
        server.delete(f"{accounts}/looker")
        node.kubectl(cluster, "delete", "--ignore-not-found", "clusterrolebinding", "looker")


def test_a_server_that_is_away_is_told_soon(cluster: home.Cluster, server: api.API, program: Program) -> None:
    with pytest.raises(errors.NotFound):
        server.get("/none")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = Program(cluster, cluster.folder / "away.config")
    away.kubeconfig.write_text(yaml.safe_dump(config))
    done = away.run("doctor")
    assert done.returncode == 1
    assert "does not answer" in done.stdout
    assert away.run("ps").returncode == 6
