"""Pods of several containers on gVisor under podman: one sandbox and network, devices and ends are each one's own.

The slow ones take 300 s on a busy machine of two cores.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import socketserver
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gvisorhome
import pytest
from home import COMMAND, Home, make_home

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
NODES = "for i in 0 1 2 3 4 5 6 7 ctl; do cat /dev/nvidia$i; done 2>&1 | grep -c 'No such device or address'"


@pytest.fixture(scope="module")
def gvisor(image: str) -> Iterator[Home]:
    gvisorhome.programs()
    one = make_home(image)
    gvisorhome.with_own_configuration(one)
    gvisorhome.configure(one, f"nvproxy-driver-version={gvisorhome.KNOWN}")
    one.up()
    yield one
    one.clear()
    for name in one("tenancy", "list", "-o", "name").out.split():
        one("tenancy", "delete", name)
    one.close()
    one.forget_networks()
    shutil.rmtree(one.folder, ignore_errors=True)
    assert not sandboxes()


def sandboxes() -> list[str]:
    """Return what the handler remembers of containers in sandboxes."""
    with contextlib.suppress(FileNotFoundError):
        return [one.name for one in Path("/run/fairlead-gvisor").iterdir()]
    return []


def container(home: Home, name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": home.image, "command": ["sh", "-c", script], **more}


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}


def apply(home: Home, name: str, *items: dict[str, Any], **spec: Any) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"runtimeClassName": "gvisor", "restartPolicy": "Never", "containers": [*items], **spec},
    }
    file = home.folder / f"{name}.json"
    file.write_text(json.dumps(pod))
    home.ok("apply", "-f", str(file))


def logs(home: Home, name: str, container: str) -> str:
    return home("logs", "-c", container, name).out


def until_said(home: Home, name: str, container: str, text: str) -> None:
    home.until(
        lambda: text in logs(home, name, container),
        what=f"{container} says {text!r}",
        detail=lambda: logs(home, name, container) + home("trace", name).out,
    )


def test_containers_share_a_kernel_and_localhost_and_only_one_has_the_gpu(gvisor: Home) -> None:
    serve = f"echo first: $(cat /shared/word); {NODES}; nc -l -p 8000 -e dmesg; sleep 1000"
    ask = f"{NODES}; until nc localhost 8000 </dev/null | grep gVisor; do sleep 0.2; done; sleep 1000"
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    apply(
        gvisor,
        "pair",
        container(gvisor, "main", serve, **gpus(2), **shared),
        container(gvisor, "side", ask),
        initContainers=[container(gvisor, "init", "dmesg | head -1; echo word >/shared/word", **shared)],
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    until_said(gvisor, "pair", "side", "Starting gVisor")
    assert "Starting gVisor" in logs(gvisor, "pair", "init")
    assert logs(gvisor, "pair", "main").splitlines()[:2] == ["first: word", "3"]  # two GPUs and the control device
    assert logs(gvisor, "pair", "side").splitlines()[0] == "0"
    (root,) = [one for one in gvisor.containers() if "-sandbox-" in one["Names"][0]]
    words = Path(f"/proc/{root['Pid']}/cmdline").read_bytes().split(b"\0")
    assert words[0] == b"runsc-sandbox"
    steps = json.loads(gvisor.ok("trace", "pair", "-o", "json").out)["entries"]
    read = [one["step"]["facts"] for one in steps if one["step"]["reason"] == "IsolationRead"]
    assert [one["container"] for one in read] == ["main"]
    named = {node["path"] for node in read[0]["nodes"]}
    assert len([path for path in named if path.removeprefix("/dev/nvidia").isdecimal()]) == 2
    gvisor.rm("pair")
    gvisor.until(lambda: not sandboxes(), what="nothing of the pod is left")


@pytest.mark.slow
def test_each_container_has_its_own_processes_output_and_end_and_one_is_restarted_alone(gvisor: Home) -> None:
    apply(
        gvisor,
        "ends",
        container(gvisor, "falls", "echo round; sleep 2; exit 3"),
        container(gvisor, "stays", "trap 'echo bye; exit 0' TERM; while :; do sleep 0.2; done"),
        restartPolicy="OnFailure",
    )
    gvisor.until(lambda: restarts(gvisor, "ends", "falls") >= 2, what="one container is restarted", timeout_s=60)
    assert restarts(gvisor, "ends", "stays") == 0
    gvisor.until(lambda: gvisor("exec", "-c", "falls", "ends", "--", "true").code == 0, what="it runs again")
    processes = gvisor.ok("exec", "-c", "stays", "ends", "--", "ps").out
    assert "bye" in processes
    assert "round" not in processes
    assert "Starting gVisor" in gvisor.ok("exec", "-c", "stays", "ends", "--", "dmesg").out
    assert gvisor("exec", "-c", "stays", "ends", "--", "sh", "-c", "exit 9").code == 9
    done = subprocess.run(
        (*gvisor.prefix, "podman", "kill", "-s", "TERM", engine_name(gvisor, "ends", "stays")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.returncode == 0
    until_said(gvisor, "ends", "stays", "bye")
    gvisor.rm("ends")


def restarts(home: Home, pod: str, name: str) -> int:
    """Return which attempt of a container is the newest."""
    numbers = [
        int(one["Names"][0].rpartition("-")[2])
        for one in home.containers()
        if one["Names"][0].startswith(f"fl-{pod}-{name}-")
    ]
    return max(numbers, default=0)


def gofers() -> list[tuple[int, str]]:
    """Return the pids and command lines of gVisor's gofers on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_text().replace("\0", " ")
            if line.startswith("runsc-gofer "):
                found.append((int(folder.name), line))
    return found


def engine_id(home: Home, pod: str, name: str) -> str:
    own = engine_name(home, pod, name)
    (one,) = [str(one["Id"]) for one in home.containers() if one["Names"][0] == own]
    return one


def engine_name(home: Home, pod: str, name: str) -> str:
    found = [one for one in home.containers() if one["Names"][0].startswith(f"fl-{pod}-{name}-") and one["Pid"]]
    (one,) = [str(one["Names"][0]) for one in found]
    return one


@pytest.mark.slow
def test_a_service_that_is_killed_finds_the_pod_as_it_is_and_ends_it(gvisor: Home) -> None:
    free = gvisor.free_gpus()
    lives = "trap 'exit 0' TERM; echo up; while :; do sleep 0.2; done"
    apply(gvisor, "survives", container(gvisor, "main", lives, **gpus(1)), container(gvisor, "side", lives))
    until_said(gvisor, "survives", "side", "up")
    before = {one["Id"] for one in gvisor.containers() if one["Pid"]}
    gvisor.kill()
    gvisor.up()
    gvisor.until_state("survives", "running")
    assert {one["Id"] for one in gvisor.containers() if one["Pid"]} == before
    assert gvisor.free_gpus() == free - 1
    assert gvisor.ok("exec", "-c", "main", "survives", "--", "echo", "in").out == "in\n"
    gvisor.ok("stop", "survives")
    gvisor.until(lambda: gvisor.free_gpus() == free, what="its GPU is free again", timeout_s=60)
    gvisor.rm("survives")
    gvisor.until(lambda: not gvisor.containers(), what="podman has nothing of it")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["kubelet.after-sandbox", "kubelet.after-create", "kubelet.before-start"])
def test_a_service_that_is_killed_between_two_steps_of_a_start_finishes_it(gvisor: Home, point: str) -> None:
    gvisor.kill()
    deaths = gvisor.log().count('"kubelet ended')
    gvisor.up(FAIRLEAD_DEBUG_CRASH_AT=point)
    main = container(gvisor, "main", "echo up; sleep 1000", **gpus(1))
    apply(gvisor, "half", main, container(gvisor, "side", "sleep 1000"))
    gvisor.until(lambda: gvisor.log().count('"kubelet ended') > deaths, what=f"its kubelet dies at {point}")
    gvisor.kill()
    gvisor.up()
    until_said(gvisor, "half", "main", "up")
    gvisor.until_state("half", "running")
    assert logs(gvisor, "half", "main") == "up\n"
    assert len([one for one in gvisor.containers() if one["Pid"]]) == 3
    gvisor.rm("half")
    gvisor.until(lambda: not gvisor.containers() and not sandboxes(), what="nothing of it is left")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["start", "start and end", "watcher"])
def test_a_container_whose_podman_died_with_the_service_is_known_for_what_it_is(gvisor: Home, end: str) -> None:
    """`podman start`, killed between the runtime's work and podman's own database; or what held it is gone."""
    gvisor.kill()
    deaths = gvisor.log().count('"kubelet ended')
    gvisor.up(FAIRLEAD_DEBUG_CRASH_AT="kubelet.before-start")
    lasts = "0" if end == "start and end" else "1000"
    side = container(gvisor, "side", "sleep 1000")
    apply(gvisor, "doubt", container(gvisor, "main", f"echo up; sleep {lasts}"), side)
    gvisor.until(lambda: gvisor.log().count('"kubelet ended') > deaths, what="its kubelet dies")
    gvisor.kill()
    (row,) = [one for one in gvisor.containers() if "-sandbox-" not in one["Names"][0]]
    (program,) = (gvisor.folder / "libexec").rglob("fairlead-gvisor")
    graph = Path(gvisor.podman("info", "--format", "{{.Store.GraphRoot}}").strip())
    bundle = graph / "overlay-containers" / row["Id"] / "userdata"
    if end == "watcher":
        subprocess.run(("kill", "-9", str(row["Pid"])), check=True)
    else:
        (bundle / "fairlead-start").write_bytes(b"")
        subprocess.run((program, "start", row["Id"]), check=True)
    gvisor.up()
    gvisor.until_state("doubt", "running", timeout_s=60)
    until_said(gvisor, "doubt", "main", "up")
    if end == "start":
        assert engine_name(gvisor, "doubt", "main").endswith("-0")
        assert logs(gvisor, "doubt", "main") == "up\n"
    gvisor.rm("doubt")
    gvisor.until(lambda: not gvisor.containers() and not sandboxes(), what="nothing of it is left")


@pytest.mark.slow
def test_a_sandbox_that_is_killed_takes_its_containers_and_they_start_in_a_new_one(gvisor: Home) -> None:
    lives = "echo up; sleep 1000"
    apply(gvisor, "killed", container(gvisor, "main", lives), container(gvisor, "side", lives), restartPolicy="Always")
    until_said(gvisor, "killed", "side", "up")
    (root,) = [one for one in gvisor.containers() if "-sandbox-" in one["Names"][0]]
    subprocess.run(("kill", "-9", str(root["Pid"])), check=True)

    def is_new() -> bool:
        found = [one for one in gvisor.containers() if one["Pid"]]
        return len(found) == 3 and root["Pid"] not in {one["Pid"] for one in found}

    gvisor.until(is_new, what="both run in a new sandbox", timeout_s=60, detail=lambda: gvisor("trace", "killed").out)
    gvisor.rm("killed")


@pytest.mark.parametrize("count", [0, 1])
def test_a_tenancys_pod_is_on_gvisor_with_users_of_its_own(gvisor: Home, count: int) -> None:
    gvisor.folder.chmod(0o711)  # others can pass where a handler is installed, and where GPUs have their nodes
    gvisor("tenancy", "create", "red", "--isolation", "gvisor")
    space = json.loads(gvisor.ok("tenancy", "show", "red", "-o", "json").out)["namespace"]
    ask = "until nc localhost 8000 </dev/null | grep gVisor; do sleep 0.2; done; sleep 1000"
    main = container(
        gvisor, "main", f"id -u; {NODES}; nc -l -p 8000 -e dmesg; sleep 1000", **(gpus(1) if count else {})
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": space},
        "spec": {"restartPolicy": "Never", "containers": [main, container(gvisor, "side", ask)]},
    }
    file = gvisor.folder / "theirs.json"
    file.write_text(json.dumps(pod))
    gvisor.ok("apply", "-n", space, "-f", str(file))
    gvisor.until(
        lambda: "Starting gVisor" in gvisor("logs", "-n", space, "-c", "side", "theirs").out,
        what="side reads from main",
        detail=lambda: gvisor("trace", "-n", space, "theirs").out,
    )
    nodes = "2" if count else "0"
    assert gvisor("logs", "-n", space, "-c", "main", "theirs").out.splitlines() == ["0", nodes]
    steps = json.loads(gvisor.ok("trace", "-n", space, "theirs", "-o", "json").out)["entries"]
    made = [one["step"]["facts"]["first_user_id"] for one in steps if one["stage"] == "created"]
    (gofer,) = [pid for pid, line in gofers() if f"/{engine_id(gvisor, 'theirs', 'main')}/" in line]
    root = int(Path(f"/proc/{gofer}/uid_map").read_text().split()[1])
    assert made == [root, root]
    assert root  # nobody on the machine
    gvisor.ok("rm", "-f", "--grace", "0", "-n", space, "theirs")


@pytest.mark.slow
def test_probes_and_the_pods_address_reach_containers_on_gvisor(gvisor: Home) -> None:
    listens = "mkdir -p /www; echo ok >/www/index.html; httpd -p 8080 -h /www; sleep 1000"
    probe = {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1}
    lone = container(gvisor, "main", listens, readinessProbe=probe)
    apply(gvisor, "lone", lone)
    apply(gvisor, "both", lone, container(gvisor, "side", "sleep 1000", readinessProbe={"tcpSocket": {"port": 8080}}))
    gvisor.until(
        lambda: is_ready(gvisor, "lone"), what="one alone is ready", detail=gvisor.ok("trace", "lone").out.strip
    )
    gvisor.until(lambda: is_ready(gvisor, "both"), what="both are ready", detail=gvisor.ok("trace", "both").out.strip)
    gvisor.rm("lone", "both")


def test_a_port_of_a_pod_on_gvisor_is_reached_and_the_hosts_own_is_not(gvisor: Home) -> None:
    listens = "mkdir -p /www; echo inside >/www/index.html; httpd -p 8080 -h /www; echo up; sleep 1000"
    apply(gvisor, "served", container(gvisor, "main", listens), container(gvisor, "side", "sleep 1000"))
    until_said(gvisor, "served", "main", "up")
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as ours:
        outside = ours.server_address[1]
        with forwarded(gvisor, "served", 8080) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert answer.read() == b"inside\n"
        with forwarded(gvisor, "served", outside) as port, socket.create_connection(("127.0.0.1", port)) as one:
            assert one.recv(1) == b""  # the host's loopback has this port, and the pod has not
        ours.socket.settimeout(0)
        with pytest.raises(BlockingIOError):
            ours.socket.accept()
    gvisor.rm("served")


@contextlib.contextmanager
def forwarded(home: Home, name: str, port: int) -> Iterator[int]:
    """Give the port of this machine that leads to a container's."""
    words = (*home.prefix, *COMMAND, "port-forward", name, f"0:{port}")
    with subprocess.Popen(words, env=home.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(re.findall(r":(\d+)", line)[0])
        finally:
            process.terminate()


def is_ready(home: Home, name: str) -> bool:
    shown = json.loads(home.ok("get", "pods", name, "-o", "json").out)
    shown = shown["items"][0] if "items" in shown else shown
    status = shown["status"]
    return bool(status.get("podIP")) and all(one["ready"] for one in status["containerStatuses"])
