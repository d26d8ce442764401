"""The ring itself: a node that runs pods, clusters side by side, and an end that leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import errors
from tests.cluster import pods
from tools.cluster import api, build, home, machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_OWNER = """
import sys, time
from pathlib import Path
from tools.cluster import home
home.up(sys.argv[1], version=sys.argv[2], paths=tuple(map(Path, sys.argv[3:])), owned=True)
print("up", flush=True)
time.sleep(600)
"""


def test_the_node_is_ready_and_of_the_version_asked_for(
    cluster: home.Cluster, server: api.API, kubernetes_version: str
) -> None:
    one = server.get(f"/api/v1/nodes/{cluster.node}")
    ready = next(item for item in one["status"]["conditions"] if item["type"] == "Ready")
    assert ready["status"] == "True"
    assert one["status"]["nodeInfo"]["kubeletVersion"].startswith(f"v{kubernetes_version}.")
    assert server.get("/version")["gitVersion"].startswith(f"v{kubernetes_version}.")


def test_a_pod_runs_to_its_end_and_its_words_can_be_read(space: pods.Space) -> None:
    space.start("speaks", "echo hello; hostname")
    space.until_phase("speaks", "Succeeded")
    assert space.log("speaks").split() == ["hello", "speaks"]


def test_a_pod_reaches_the_api_server_through_its_service(space: pods.Space) -> None:
    space.start("asks", "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo connected")
    pod = space.until("asks", lambda pod: pod["status"].get("phase") in {"Succeeded", "Failed"}, what="ended")
    assert pod["status"]["phase"] == "Succeeded", space.log("asks")
    assert space.log("asks").split() == ["connected"]


def test_kubectl_of_the_cluster_speaks_to_it(cluster: home.Cluster) -> None:
    done = subprocess.run(cluster.kubectl("get", "nodes", "-o", "name"), capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"node/{cluster.node}"], done.stderr


def test_a_running_pod_survives_the_container_runtime(cluster: home.Cluster, space: pods.Space) -> None:
    space.start("stays", "exec sleep 3600")
    before = pods.container(space.until_phase("stays", "Running"))
    cluster.restart("containerd", signal.SIGKILL)
    # a second pod shows that the kubelet has found the new runtime
    space.start("later", "echo here")
    space.until_phase("later", "Succeeded")
    assert pods.container(space.get("stays")) == before


def test_a_machine_that_is_rebooted_keeps_its_objects_and_runs_pods_again(
    cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start("before", "exec sleep 3600", restart="Always")
    was = pods.container(space.until_phase("before", "Running"))
    (cluster.host.disk / "run" / "mark").touch()

    cluster.reboot()

    assert not (cluster.host.disk / "run" / "mark").exists()
    again = space.until("before", lambda pod: _has_run_again(pod, was), what="runs again")
    assert pods.container(again)[0] != was[0]


def _has_run_again(pod: api.Object, was: tuple[str, int]) -> bool:
    status = pod["status"].get("containerStatuses", [{}])[0]
    return "running" in status.get("state", {}) and int(status["restartCount"]) > was[1]


def test_a_second_cluster_whose_owner_is_killed_runs_beside_the_first_and_is_swept_without_a_trace(
    cluster: home.Cluster, space: pods.Space, kubernetes_version: str
) -> None:
    name = f"{cluster.name}-b"
    paths = [str(build.folder_of(module)) for module in build.modules(kubernetes_version, ring=True)]
    owner = subprocess.Popen(
        (sys.executable, "-c", _OWNER, name, kubernetes_version, *paths),
        stdout=subprocess.PIPE,
        cwd=build.ROOT,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "up\n"
        second = home.find(name)
        with second.api() as connection:
            theirs = pods.Space(connection, pods.DEFAULT)
            theirs.start("stays", "exec sleep 3600")
            theirs.until_phase("stays", "Running")
        space.start("speaks", "echo hello")
        space.until_phase("speaks", "Succeeded")
        running = machine.processes(second.host.number)
        assert len(running) >= 10  # process 1, seven components, a shim, a pause, a sleep
        owner.kill()
        owner.wait(10)

    assert name in home.sweep()

    assert _traces(second, running) == []
    assert cluster.host.init.is_alive
    assert cluster.name not in home.sweep()


def _traces(one: home.Cluster, running: list[machine.Process]) -> list[str]:
    """Return what a cluster left: processes, mounts, links, cgroups, files."""
    alive = [f"process {process.pid}" for process in running if process.is_alive]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(one.folder) in line]
    links = [
        path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(machine.link(one.host.number))
    ]
    cgroups = [str(path) for path in machine.cgroup_folders(one.host.number) if path.exists()]
    return [*alive, *mounts, *links, *cgroups, *([str(one.folder)] if one.folder.exists() else [])]


def test_the_kernels_own_switches_are_as_they_were(cluster: home.Cluster) -> None:
    inside = cluster.host.run("cat", "/proc/sys/kernel/panic", "/proc/sys/vm/overcommit_memory").split()
    assert inside == ["10", "1"]  # what a kubelet wants to see
    outside = [Path("/proc/sys", name).read_text().strip() for name in ("kernel/panic", "vm/overcommit_memory")]
    assert outside != inside


def test_a_cluster_that_does_not_come_up_is_removed_and_says_why(cluster: home.Cluster) -> None:
    name = f"{cluster.name}-c"
    programs = [path for path in map(Path, cluster.host.paths) if not path.parent.name.startswith("kubernetes")]
    before = _links()
    with pytest.raises(errors.Unavailable, match="kube-apiserver") as caught:
        home.up(name, paths=tuple(programs))
    assert caught.value.hint
    with pytest.raises(errors.NotFound):
        home.find(name)
    assert not (home.FOLDER / name).exists()
    # a session beside this one may have made a link meanwhile: then its machine runs
    assert [number for number in _links() - before if not machine.processes(number)] == []


def _links() -> set[int]:
    """Return the numbers of the machines that have a link."""
    return {int(path.name[3:]) for path in Path("/sys/class/net").glob("flc*") if path.name[3:].isdigit()}


def test_a_name_that_is_taken_is_refused_and_harms_nothing(cluster: home.Cluster, server: api.API) -> None:
    with pytest.raises(errors.Conflict, match="there is a cluster"):
        home.up(cluster.name, paths=())
    assert server.is_ready()
