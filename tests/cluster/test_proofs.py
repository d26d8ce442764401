"""What keeps its GPUs, and who gets them when: restarts, deletions, agents that change places, a refused admission."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_LIST = "ls /dev | grep -E '^nvidia[0-9]+$' | tr '\\n' ' '; echo"


@pytest.fixture(scope="module")
def agent(cluster: home.Cluster) -> Iterator[node.Agent]:
    """One agent for the whole module."""
    with cluster.api() as server, node.running(node.Agent(cluster, node.PRODUCT), server) as one:
        yield one


def container(name: str, script: str, *, gpus: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {pods.RESOURCE: str(gpus)}} if gpus else {},
        **more,
    }


def create(
    space: pods.Space, name: str, *containers: dict[str, Any], about: dict[str, Any] | None = None, **spec: Any
) -> None:
    body = {"terminationGracePeriodSeconds": 0, "containers": list(containers), **spec}
    space.server.create(space.path, {"metadata": {"name": name, **(about or {})}, "spec": body})


def lists(text: str) -> list[frozenset[int]]:
    """Return each line's GPUs, by minor number."""
    return [frozenset(int(word.removeprefix("nvidia")) for word in line.split()) for line in text.splitlines()]


# restarts


def test_an_init_containers_gpus_are_its_pods_and_every_restart_has_them_again(
    agent: node.Agent, space: pods.Space
) -> None:
    volume = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}
    first = container("first", f"({_LIST}) >>/out/seen", gpus=2, **volume)
    script = f"({_LIST}) >>/out/seen; [ $(wc -l </out/seen) -ge 4 ] || exit 1; cat /out/seen"
    main = container("main", script, gpus=2, **volume)
    volumes = [{"name": "out", "emptyDir": {}}]
    create(space, "again", main, initContainers=[first], volumes=volumes, restartPolicy="OnFailure")
    pod = space.until_phase("again", "Succeeded")
    assert pods.container(pod)[1] == 2
    seen = lists(space.log("again"))
    assert len(seen) == 4
    assert len(seen[0]) == 2
    assert set(seen) == {seen[0]}


def test_a_pod_in_crash_loop_back_off_keeps_its_gpus_and_its_share(agent: node.Agent, space: pods.Space) -> None:
    script = f"({_LIST}) >>/out/seen; cat /out/seen; exit 1"
    main = container("main", script, gpus=2, volumeMounts=[{"name": "out", "mountPath": "/out"}])
    create(space, "crashes", main, volumes=[{"name": "out", "emptyDir": {}}], restartPolicy="Always")

    def backs_off(pod: api.Object) -> bool:
        found = pod["status"].get("containerStatuses", [{}])[0]
        waiting = found.get("state", {}).get("waiting", {})
        return bool(found.get("restartCount", 0) >= 1 and waiting.get("reason") == "CrashLoopBackOff")

    space.until("crashes", backs_off, what="backs off")
    first, *others = lists(space.log("crashes"))
    assert len(first) == 2
    assert others
    assert set(others) == {first}
    space.start_looking("six", gpus=6)
    assert space.sight("six").nodes == pods.ALL - first
    space.start_looking("one", gpus=1)
    assert f"Insufficient {pods.RESOURCE}" in space.until_unschedulable("one")


# deletions


def at(pod: api.Object) -> str:
    """Return when a pod's container began, in the kubelet's words."""
    return str(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder that pods write to and we read."""
    folder = tmp_path / "notes"
    folder.mkdir(mode=0o777)
    return folder


def noting(notes: Path) -> dict[str, Any]:
    return {"volumes": [{"name": "notes", "hostPath": {"path": str(notes)}}]}


_MOUNT = {"volumeMounts": [{"name": "notes", "mountPath": "/notes"}]}
_LINGERS = (
    "trap 'ended=1' TERM; while sleep 0.05; do cut -d. -f1,2 /proc/uptime >/notes/n; mv /notes/n /notes/alive; done"
)
_BEGINS = f"cp /proc/uptime /notes/begun; {_LIST}; exec sleep 3600"


def uptime_s(path: Path) -> float:
    return float(path.read_text().split()[0])


def test_while_a_deleted_pods_process_lives_nobody_else_has_its_gpus(
    agent: node.Agent, space: pods.Space, notes: Path
) -> None:
    create(
        space,
        "lingers",
        container("main", _LINGERS, gpus=8, **_MOUNT),
        terminationGracePeriodSeconds=3,
        **noting(notes),
    )
    space.until_phase("lingers", "Running")
    create(space, "next", container("main", _BEGINS, gpus=8, **_MOUNT), **noting(notes))
    space.until_unschedulable("next")
    space.server.delete(f"{space.path}/lingers")
    space.until_phase("next", "Running")
    assert (notes / "alive").exists()
    assert uptime_s(notes / "alive") < uptime_s(notes / "begun")


def test_a_finalizer_keeps_the_object_and_not_the_gpus(agent: node.Agent, space: pods.Space) -> None:
    about = {"finalizers": ["gpu-cleanup.example.com/finalizer"]}
    create(space, "finalized", container("main", "exec sleep 3600", gpus=8), about=about)
    space.until_phase("finalized", "Running")
    space.start_looking("next", gpus=8)
    space.until_unschedulable("next")
    space.server.delete(f"{space.path}/finalized")
    try:
        assert space.sight("next").nodes == pods.ALL
        left = space.get("finalized")
        assert left["metadata"]["deletionTimestamp"]
        assert left["status"]["phase"] == "Failed"
    finally:
        space.server.patch(f"{space.path}/finalized", {"metadata": {"finalizers": None}})


def test_a_pod_deleted_by_force_leaves_its_gpus_to_the_next_while_its_process_may_still_live(
    agent: node.Agent, space: pods.Space, notes: Path
) -> None:
    """The kubelet's way, which we cannot mend from outside: `docs/design/deviceplugin.md`, known flaws."""
    create(
        space,
        "forced",
        container("main", _LINGERS, gpus=8, **_MOUNT),
        terminationGracePeriodSeconds=3,
        **noting(notes),
    )
    space.until_phase("forced", "Running")
    create(space, "next", container("main", f"{pods.LOOK}\nexec sleep 3600", gpus=8))
    space.until_unschedulable("next")
    space.server.delete(f"{space.path}/forced", grace_s=0)
    deleted_s = uptime_s(Path("/proc/uptime"))
    space.until_gone("forced")
    assert space.sight("next").nodes == pods.ALL
    # the process goes on no longer than its grace, however its object went
    last_s = until_silent(notes / "alive")
    assert last_s - deleted_s < 3 + 5


def until_silent(path: Path) -> float:
    """Return what a beating file said last; the outside of another process has no event to wait for."""
    before, deadline = "", time.monotonic() + 30
    while (now := path.read_text()) != before:
        assert time.monotonic() < deadline
        before = now
        time.sleep(1)
    return float(now.split()[0])


# agents that change places


@dataclass
class Record:
    """Every count of allocatable GPUs that the node ever said, without repetitions."""

    cluster: home.Cluster
    values: list[int] = field(default_factory=list)
    seen: int = 0
    """How many states of the node there were."""

    def note(self, items: list[api.Object]) -> None:
        count = next(node.gpus(item, "allocatable") for item in items if item["metadata"]["name"] == self.cluster.node)
        self.seen += 1
        if self.values[-1:] != [count]:
            self.values.append(count)


@contextlib.contextmanager
def recording(cluster: home.Cluster) -> Iterator[Record]:
    """Record the node's allocatable GPUs through a watch, for a block and the status after it."""
    record, ending = Record(cluster), threading.Event()

    def listen() -> None:
        with cluster.api() as connection:

            def noted(items: list[api.Object]) -> bool | None:
                record.note(items)
                return True if ending.is_set() else None

            connection.until("/api/v1/nodes", noted, what="the end of the record", timeout_s=120)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield record
    finally:
        ending.set()
        thread.join(60)
        assert not thread.is_alive()


def until_reported(server: api.API, cluster: home.Cluster, times: int) -> None:
    """Wait until the kubelet has reported its status so many times."""
    heard: set[str] = set()

    def reported(items: list[api.Object]) -> bool | None:
        one = next(item for item in items if item["metadata"]["name"] == cluster.node)
        heard.update(item["lastHeartbeatTime"] for item in one["status"]["conditions"] if item["type"] == "Ready")
        return True if len(heard) > times else None

    server.until("/api/v1/nodes", reported, what=f"{times} reports")


def test_a_rolling_update_dips_once_and_hands_nothing_out_twice(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("before", gpus=2)
    held, was = space.sight("before").nodes, pods.container(space.get("before"))
    with recording(cluster) as record:
        registered = agent.registrations()
        agent.stop(signal.SIGTERM)  # the chart's way: maxUnavailable 1, maxSurge 0
        agent.start()
        agent.until_registered(registered + 1)
        node.until_allocatable(server, cluster.node, 8)
        until_reported(server, cluster, 3)
    assert record.values in ([8], [8, 0, 8])
    space.start_looking("after", gpus=6)
    assert space.sight("after").nodes == pods.ALL - held
    assert pods.container(space.get("before")) == was


def test_of_two_agents_at_once_the_newer_serves_and_the_older_takes_nothing_along(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("before", gpus=2)
    held = space.sight("before").nodes
    newer = node.Agent(cluster, node.PRODUCT)
    with recording(cluster) as record:
        registered = agent.registrations()
        newer.start()
        newer.until_registered(registered + 1)
        until_reported(server, cluster, 3)
        settled = agent.registrations()
        space.start_looking("meanwhile", gpus=2)  # its Allocate waits for the older, which has the ledger, to end
        agent.stop(signal.SIGTERM)
        meanwhile = space.sight("meanwhile").nodes
        agent.process = newer.process  # what the module's last test ends
        until_reported(server, cluster, 3)
        node.until_allocatable(server, cluster.node, 8)
    assert not meanwhile & held
    space.start_looking("after", gpus=4)
    assert space.sight("after").nodes == pods.ALL - held - meanwhile
    assert set(record.values) <= {8, 0}
    assert len(record.values) <= 3, record.values
    assert settled - registered <= 2, agent.log()[-3000:]
    assert agent.log().count("another agent has taken over") == 1
    assert (cluster.cdi / "fairlead.dev-gpu.json").exists()


def test_the_older_serves_again_where_the_newer_was_killed(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    newer = node.Agent(cluster, node.PRODUCT)
    registered = agent.registrations()
    newer.start()
    newer.until_registered(registered + 1)
    until_reported(server, cluster, 2)
    registered = agent.registrations()
    newer.stop(signal.SIGKILL)  # its socket stays behind and answers nobody
    agent.until_registered(registered + 1)
    node.until_allocatable(server, cluster.node, 8)
    space.start_looking("all", gpus=8)
    assert space.sight("all").nodes == pods.ALL


@contextlib.contextmanager
def other_plugin(cluster: home.Cluster, resource: str, how: str) -> Iterator[None]:
    """Have another plugin registered for a block; gone at its end."""
    log = cluster.log(f"plugin-{how}")
    command = (sys.executable, str(Path(__file__).parent / "stale_plugin.py"), resource, how)
    process = cluster.host.start(command, log)
    deadline = time.monotonic() + 30
    while "registered with the kubelet" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    yield
    assert process.end(signal.SIGTERM, timeout_s=15), log.read_text()


def test_another_vendors_plugin_that_leaves_does_not_take_our_gpus_along(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    """As on a node that changes over to us: the kubelet then hangs up on us, not on who left."""
    agent.stop(signal.SIGTERM)
    with other_plugin(cluster, pods.RESOURCE, "healthy"):
        node.until_allocatable(server, cluster.node, 2)
        agent.start()
        node.until_allocatable(server, cluster.node, 8)
        registered = agent.registrations()
    agent.until_registered(registered + 1)
    until_reported(server, cluster, 3)
    node.until_allocatable(server, cluster.node, 8)
    space.start_looking("all", gpus=8)
    assert space.sight("all").nodes == pods.ALL


def test_what_we_refuse_is_told_by_kubectl_describe_in_our_words(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    resource = "example.com/stale"

    def offered(items: list[api.Object]) -> bool | None:
        return True if any(item["status"]["allocatable"].get(resource) == "2" for item in items) else None

    with other_plugin(cluster, resource, "stale"):
        server.until("/api/v1/nodes", offered, what="two devices that are ill by now")
        main = container("main", "true", gpus=0)
        main["resources"] = {"limits": {resource: "2"}}
        create(space, "refused", main, restartPolicy="Never")
        pod = space.until("refused", lambda pod: pod["status"].get("phase") == "Failed", what="is refused")
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        command = cluster.kubectl("describe", "pod", "refused")
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    told = " ".join(shown.split())
    assert 'device "GPU-' in told
    assert "of example.com/stale is unhealthy: XID79" in told
    assert "UnexpectedAdmissionError" in told
