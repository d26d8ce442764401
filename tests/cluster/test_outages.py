"""An API server that goes away, loses its memory, hangs up and storms: everybody goes on, and nobody hammers.

Agent, scheduler and controller run through a proxy that notes what they ask, on a cluster of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import node, pods, proxy, verb
from tools.cluster import api, build, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_ROOT: Final = Path(__file__).parents[2]
_DEFINITION: Final = _ROOT / "src/fairlead/chart/crds/gpudevices.yaml"
_ACCESS: Final = _ROOT / "docs/design/cluster-access.md"
_DEVICES: Final = "/apis/fairlead.dev/v1alpha1/gpudevices"
_EVENTS: Final = "/api/v1/namespaces/default/events"
_AWAY_S: Final = 15.0
"""Longer than a lease lives, so that leaders lose theirs."""
_MOST_PER_S: Final = 5.0
"""Requests of one process, on average, while the server refuses or is away: measured were 0.9 to 2.1, and a loop that
does not wait makes hundreds."""
_WHO: Final = ("agent", "scheduler", "controller")


@dataclass
class Plane:
    """A cluster with everything of ours on it."""

    cluster: home.Cluster
    server: api.API
    line: proxy.Proxy
    agent: node.Agent
    verbs: dict[str, verb.Verb]
    lost: set[int] = field(default_factory=set)
    """GPUs that fell off the bus; they stay away, because coming back takes long and is not what is tested here."""

    @property
    def space(self) -> pods.Space:
        return pods.Space(self.server, pods.DEFAULT)

    def start_pod(self, name: str, *, gpus: int) -> None:
        """Create a pod for our scheduler."""
        container = {
            "name": "main",
            "image": "local/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "exec sleep 3600"],
            "resources": {"limits": {pods.RESOURCE: str(gpus)}},
        }
        spec = {"schedulerName": "fairlead", "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.server.create(self.space.path, {"metadata": {"name": name}, "spec": spec})

    def until_running(self, name: str) -> None:
        self.space.until(name, lambda pod: pod["status"]["phase"] == "Running", what="runs", timeout_s=90)

    def until_told(self, name: str, reason: str) -> None:
        """Wait for the scheduler's event about a pod."""

        def told(items: list[api.Object]) -> bool | None:
            about = ((item["involvedObject"].get("name"), item["reason"]) for item in items)
            return True if (name, reason) in about else None

        self.server.until(_EVENTS, told, what=f"{reason} of {name}", timeout_s=90)

    def until_health(self, wanted: dict[int, str]) -> None:
        """Wait until GPUs, by index, are as wanted."""

        def reached(items: list[api.Object]) -> bool | None:
            health = {item["spec"]["index"]: item.get("status", {}).get("health") for item in items}
            return True if all(health.get(index) == state for index, state in wanted.items()) else None

        self.server.until(_DEVICES, reached, what=f"health {wanted}", timeout_s=90)

    def lose(self, gpu: int) -> None:
        """Have a GPU fall off the bus."""
        self.agent.inject("lost", gpu)
        self.lost.add(gpu)

    def until_health_is_true(self) -> None:
        """Wait until every GPUDevice says how its GPU is."""
        self.until_health({index: "Lost" if index in self.lost else "Healthy" for index in range(8)})

    def assert_calm(self, since: float, duration_s: float) -> None:
        """Nobody asked more often than a patient process would."""
        asked = {who: len(self.line.since(since, who)) for who in _WHO}
        sys.stderr.write(f"asked in {duration_s:.0f} s: {asked}\n")
        assert all(count <= _MOST_PER_S * duration_s for count in asked.values()), (asked, duration_s)
        assert all(count > 0 for count in asked.values()), asked

    def wait_s(self, duration_s: float) -> None:
        """Let an outage last: time is what is tested. Nobody of ours may end meanwhile but by a lost lease."""
        deadline = time.monotonic() + duration_s
        while time.monotonic() < deadline:
            assert self.agent.process is not None
            assert self.agent.process.is_alive, self.agent.log()[-3000:]
            time.sleep(0.2)
        for one in self.verbs.values():
            assert set(one.exits) <= {4}, one.log()[-3000:]

    @contextlib.contextmanager
    def server_away(self) -> Iterator[None]:
        """Take the API server away for a block; it serves again afterwards."""
        self.cluster.stop("kube-apiserver", signal.SIGKILL)
        try:
            yield
        finally:
            self.cluster.start("kube-apiserver")
            self.until_ready()

    def until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not self.server.is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def clear(self) -> None:
        """Remove all pods, and wait until scheduler and kubelet have their GPUs back."""
        self.server.delete(self.space.path, grace_s=0)
        self.server.until(self.space.path, lambda items: None if items else True, what="all pods are gone")
        node.until_allocatable(self.server, self.cluster.node, 8 - len(self.lost))


@pytest.fixture(scope="module")
def plane(kubernetes_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    folder = tmp_path_factory.mktemp("outages")
    paths = tuple(build.folder_of(module) for module in build.modules(kubernetes_version, ring=True))
    if missing := [str(path) for path in paths if not path.is_dir()]:
        pytest.fail(f"run tests/cluster/setup.sh {kubernetes_version} first: {missing} are not built")
    home.sweep()
    name = f"o{os.getpid()}-{kubernetes_version.replace('.', '')}"
    cluster = home.up(name, version=kubernetes_version, paths=paths, owned=True)
    try:
        with contextlib.ExitStack() as stack:
            yield _enter(stack, cluster, folder)
    finally:
        cluster.down()


def _enter(stack: contextlib.ExitStack, cluster: home.Cluster, folder: Path) -> Plane:
    server = stack.enter_context(cluster.api())
    server.create("/api/v1/namespaces", {"metadata": {"name": "fairlead"}})
    cluster.host.run(*cluster.kubectl("apply", "-f", str(_DEFINITION)))
    line = stack.enter_context(proxy.Proxy(cluster).running())
    kubeconfigs = {who: line.kubeconfig(who, folder) for who in _WHO}
    arguments = (*node.BREAKABLE, str(kubeconfigs["agent"]), cluster.node)
    agent = stack.enter_context(node.running(node.Agent(cluster, arguments), server))
    verbs = {
        who: stack.enter_context(verb.supervised(verb.Verb(who, kubeconfigs[who], folder / f"{who}.log")))
        for who in ("scheduler", "controller")
    }
    for one in verbs.values():
        one.until_logged('"event": "leading"')
    plane = Plane(cluster, server, line, agent, verbs)
    plane.until_health_is_true()
    return plane


@pytest.fixture(autouse=True)
def tidy(plane: Plane) -> Iterator[None]:
    yield
    for name, text in {"agent": plane.agent.log(), **{who: one.log() for who, one in plane.verbs.items()}}.items():
        sys.stderr.write(f"--- {name}\n{text[-6000:]}\n")  # shown where the test failed
    plane.line.mode, plane.line.cuts = proxy.Mode.PASS, 0
    plane.clear()


def test_a_server_that_is_away_for_longer_than_a_lease(plane: Plane) -> None:
    plane.start_pod("before", gpus=2)
    plane.until_running("before")
    container = pods.container(plane.space.get("before"))
    registrations = plane.agent.registrations()
    with plane.server_away():
        begun = time.monotonic()
        plane.lose(7)
        plane.wait_s(_AWAY_S)
        plane.assert_calm(begun, _AWAY_S)
    assert plane.verbs["scheduler"].exits == [4], plane.verbs["scheduler"].log()[-3000:]
    plane.start_pod("after", gpus=2)
    plane.until_running("after")
    plane.until_told("after", "Scheduled")
    plane.until_health_is_true()
    assert pods.container(plane.space.get("before")) == container
    assert plane.agent.registrations() == registrations


def test_a_server_that_comes_back_with_older_data(plane: Plane) -> None:
    """Scheduler, controller and agent have seen versions that the server has not; the server does not tell them."""
    plane.start_pod("kept", gpus=1)
    plane.until_running("kept")
    data, kept = plane.cluster.folder / "etcd", plane.cluster.folder / "etcd.kept"
    with plane.server_away():
        plane.cluster.stop("etcd")
        shutil.copytree(data, kept)
        plane.cluster.start("etcd")
    for number in range(4):
        plane.start_pod(f"forgotten-{number}", gpus=1)
    for number in range(4):
        plane.until_running(f"forgotten-{number}")
    plane.lose(6)
    plane.until_health_is_true()
    with plane.server_away():
        plane.cluster.stop("etcd")
        shutil.rmtree(data)
        kept.rename(data)
        plane.cluster.start("etcd")
    # told again, although the agent had told it before
    plane.until_health_is_true()
    # what the forgotten pods had is free again, for the scheduler too, which had bound them itself
    plane.start_pod("rest", gpus=7 - len(plane.lost))
    plane.until_told("rest", "Scheduled")
    # The kubelet, not ours, refuses it: it still runs the forgotten ones and waits in silence until the server's
    # versions reach what it has seen.
    plane.cluster.restart("kubelet")


def test_watches_that_are_cut_in_the_middle_of_an_event(plane: Plane) -> None:
    for number in range(6):
        plane.line.cuts = 3
        plane.start_pod(f"cut-{number}", gpus=1)
        plane.until_running(f"cut-{number}")
    assert plane.line.cuts < 3
    watches = [one for one in plane.line.requests if one.who == "scheduler" and one.verb == "watch"]
    assert len(watches) > 2  # both kinds, and again after a cut


@pytest.mark.parametrize(("mode", "gpu"), [(proxy.Mode.THROTTLE, 5), (proxy.Mode.BREAK, 4)], ids=["429", "500"])
def test_a_storm_of_refusals(plane: Plane, mode: proxy.Mode, gpu: int) -> None:
    lives = {who: len(one.exits) for who, one in plane.verbs.items()}
    plane.line.mode = mode
    begun = time.monotonic()
    plane.start_pod("meanwhile", gpus=3)
    plane.lose(gpu)
    plane.wait_s(_AWAY_S)
    plane.assert_calm(begun, time.monotonic() - begun)
    plane.line.mode = proxy.Mode.PASS
    plane.until_running("meanwhile")
    plane.until_told("meanwhile", "Scheduled")
    plane.until_health_is_true()
    # a leader that cannot renew ends, once, and the next one waits
    assert all(len(one.exits) <= lives[who] + 1 for who, one in plane.verbs.items())


def test_a_short_storm_costs_no_lease(plane: Plane) -> None:
    lives = {who: len(one.exits) for who, one in plane.verbs.items()}
    plane.line.mode = proxy.Mode.BREAK
    plane.start_pod("short", gpus=1)
    plane.wait_s(4)
    plane.line.mode = proxy.Mode.PASS
    plane.until_running("short")
    assert {who: len(one.exits) for who, one in plane.verbs.items()} == lives


def test_a_node_that_stops_reporting_has_unknown_gpus_until_it_is_back(plane: Plane) -> None:
    plane.cluster.stop("kubelet")
    # what the node lifecycle controller does after 40 s of silence, done at once
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting."}
    path = f"/api/v1/nodes/{plane.cluster.node}/status"
    conditions = [item for item in plane.server.get(path)["status"]["conditions"] if item["type"] != "Ready"]
    plane.server.patch(path, {"status": {"conditions": [*conditions, ready]}})
    plane.until_health(dict.fromkeys(range(8), "Unknown"))
    plane.cluster.start("kubelet")
    plane.until_health_is_true()


_ROW: Final = re.compile(r"^\| (agent|scheduler|controller) \| ([a-z, ]+) \| ([a-z/]+)[^|]*\|", re.MULTILINE)


def test_nobody_asked_for_more_than_the_page_of_accesses_says(plane: Plane) -> None:
    rows = _ROW.findall(_ACCESS.read_text())
    stated = {(who, verb, kind) for who, verbs, kind in rows for verb in verbs.split(", ")}
    assert {who for who, _, _ in stated} >= set(_WHO)
    # what it may do, everybody who is known may ask
    own = {("create", kind) for kind in ("selfsubjectrulesreviews", "selfsubjectaccessreviews")}
    used = {one for one in plane.line.used() if one[1:] not in own}
    assert used <= stated, sorted(used - stated)
