"""Claims on a real kubelet while the driver is updated, held up and killed: none is given twice, lost or left.

What `tests/contract/test_claims_churn.py` does beside the embedded kubelet. kube-scheduler allocates here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from fairlead import errors
from tests.cluster import claimpods, node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

T = TypeVar("T")

_KUBELET = Path("/var/lib/kubelet")
_DEADLINE_S = 45.0
"""After which a kubelet gives a call up (pkg/kubelet/cm/dra/plugin, PluginClientTimeout)."""


_AGAIN_S = 120.0
"""Within which a kubelet tries a pod again whose claim could not be prepared: it looks at each pod every 60 to 90 s."""


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    with claimpods.driver(cluster, server) as one:
        claimpods.template(server, "one", claimpods.request("gpus"))
        profile = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
        claimpods.template(server, "small", claimpods.request("mig", "mig.nvidia.com", cel=profile))
        yield one
    server.delete(claimpods.TEMPLATES)
    server.delete(claimpods.CLAIMS)


def _registered(cluster: home.Cluster) -> list[str]:
    """Return the registration sockets of our driver, as the kubelet's folder has them."""
    folder = str(_KUBELET / "plugins_registry")
    return [name for name in cluster.host.run("ls", folder).split() if name.startswith("gpu.nvidia.com")]


def _prepared(cluster: home.Cluster) -> list[str]:
    """Return the UIDs of the claims that the kubelet's checkpoint has."""
    text = cluster.host.run("cat", str(_KUBELET / "dra_manager_state"))
    found: list[str] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            found.extend(str(one) for key, one in value.items() if key == "ClaimUID")
            for one in value.values():
                look(json.loads(one) if isinstance(one, str) and one.startswith("{") else one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(json.loads(text))
    return found


def _assert_nothing_is_left(cluster: home.Cluster, server: api.API, space: pods.Space) -> None:
    """Wait until every claim is given back, and have all eight GPUs at once then."""
    _patiently(lambda: server.get(claimpods.CLAIMS))  # whose connection a killed API server has cut
    server.until(claimpods.CLAIMS, lambda items: None if items else True, what="no claim is left", timeout_s=90)
    deadline = time.monotonic() + 90
    while left := [one.name for one in cluster.cdi.glob("k8s.gpu.nvidia.com-claim_*.json")] + _prepared(cluster):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    claimpods.template(server, "whole", claimpods.request("gpus", count=8))
    claimpods.start(space, "whole", [{"name": "gpus"}], source={"resourceClaimTemplateName": "whole"})
    space.until("whole", _runs, what="runs", timeout_s=_AGAIN_S)
    assert claimpods.sight(space, "whole").nodes == pods.ALL
    space.delete("whole")


def _update(agent: node.Agent) -> None:
    """Start a second instance beside an agent, end the first, and wait until the second serves.

    It has the ledger, and so a claim's devices to give, only once the first has ended.
    """
    assert agent.process is not None
    first, registered = agent.process, agent.log().count("dra driver registered")
    agent.start()
    time.sleep(3)  # both are there, and the first serves
    assert first.end(signal.SIGTERM, timeout_s=45), agent.log()[-4000:]  # 15 s for the second to serve, and its calls
    claimpods.until_registered(agent, registered + 1)


@pytest.mark.timeout(240)
def test_an_update_with_two_instances_loses_no_prepare(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    source = {"resourceClaimTemplateName": "one"}
    claimpods.start(space, "kept", [{"name": "gpus"}], source=source)
    kept, was = claimpods.sight(space, "kept").nodes, pods.container(space.get("kept"))
    is_over = threading.Event()

    def come_and_go() -> int:
        count = 0
        while not is_over.is_set() or count < 6:
            name = f"p{count}"
            claimpods.start(space, name, [{"name": "gpus"}], source=source)
            assert not claimpods.sight(space, name).nodes & kept
            space.delete(name)
            count += 1
        return count

    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(come_and_go)
        try:
            for _ in range(2):
                _update(agent)
                assert len(_registered(cluster)) == 1
        finally:
            is_over.set()
        assert coming.result(120) >= 6
    assert pods.container(space.get("kept")) == was
    events = server.get("/api/v1/namespaces/default/events")["items"]
    assert [one for one in events if one["reason"] == "FailedPrepareDynamicResources"] == []
    space.delete("kept")
    _assert_nothing_is_left(cluster, server, space)


@pytest.mark.timeout(300)
def test_a_prepare_that_misses_the_deadline_of_the_kubelet_is_made_up_for(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    """The driver stands still for longer than a call may take: of its two pods one waits, and one is deleted."""
    source = {"resourceClaimTemplateName": "one"}
    assert agent.process is not None
    os.kill(agent.process.pid, signal.SIGSTOP)
    try:
        for name in ("waits", "leaves"):
            claimpods.start(space, name, [{"name": "gpus"}], source=source)

        def missed(items: list[api.Object]) -> api.Object | None:
            return next((one for one in items if _is_missed(one, "waits")), None)

        began = time.monotonic()
        server.until("/api/v1/namespaces/default/events", missed, what="the deadline is missed", timeout_s=90)
        assert time.monotonic() - began > _DEADLINE_S - 10
        server.delete(f"{space.path}/leaves", grace_s=0)
        space.until_gone("leaves")
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)
    space.until("waits", _runs, what="runs", timeout_s=_AGAIN_S)
    waits = claimpods.sight(space, "waits").nodes
    assert len(waits) == 1
    claimpods.start(space, "next", [{"name": "gpus"}], source=source)
    assert not claimpods.sight(space, "next").nodes & waits
    for name in ("waits", "next"):
        space.delete(name)
    _assert_nothing_is_left(cluster, server, space)


def _runs(pod: api.Object) -> bool:
    assert pod["status"].get("phase") in {None, "Pending", "Running"}, pod["status"]
    return bool(pod["status"].get("phase") == "Running")


def _is_settled(pod: api.Object) -> bool:
    """Whether a pod runs, or never will: a kubelet that is killed has the start cancelled that it asked for."""
    states = [one.get("state", {}).get("terminated", {}) for one in pod["status"].get("containerStatuses", ())]
    return any(one.get("reason") == "StartError" for one in states) or _runs(pod)


def _is_missed(event: api.Object, pod: str) -> bool:
    reason, message = event.get("reason"), event.get("message", "")
    return event["involvedObject"]["name"] == pod and "DynamicResources" in str(reason) and "deadline" in message


@dataclass
class Churn:
    """Pods with claims that come and go, by several clients, while what serves them is killed."""

    cluster: home.Cluster
    agent: node.Agent
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    holders: dict[int, str] = field(default_factory=dict)
    """By minor number of a GPU: the pod whose container has it whole, from its look to its deletion."""
    parts: Counter[int] = field(default_factory=Counter)
    """By minor number of a GPU: how many pods have a MIG device of it, likewise."""
    guard: threading.Lock = field(default_factory=threading.Lock)
    is_over: threading.Event = field(default_factory=threading.Event)

    def live(self, number: int) -> None:
        """Have one pod from its making to its end."""
        chance, name = random.Random(self.seed * 10_000 + number), f"c{number}"
        kind = "small" if number % 5 == 0 and claimpods.has_partitions(self.cluster) else "one"
        with self.cluster.api() as server:
            space = pods.Space(server, pods.DEFAULT)
            claim, source = [{"name": "gpus"}], {"resourceClaimTemplateName": kind}
            _patiently(lambda: claimpods.start(space, name, claim, source=source), done=errors.Conflict)
            pod = _patiently(lambda: space.until(name, _is_settled, what="runs", timeout_s=_AGAIN_S))
            if pod is not None and pod["status"]["phase"] == "Running":
                seen = _patiently(lambda: self._look(space, name)) or frozenset()
                with self._having(name, kind, seen):
                    time.sleep(chance.uniform(0, 0.5))
            grace_s = 0 if chance.random() < 0.2 else 1
            _patiently(lambda: server.delete(f"{space.path}/{name}", grace_s=grace_s), done=errors.NotFound)
            _patiently(lambda: space.until_gone(name))

    def _look(self, space: pods.Space, name: str) -> frozenset[int]:
        """Return the GPUs that a container sees; a log that its kubelet's end cut off is read again."""
        lines = list(space.server.lines(f"{space.path}/{name}/log", container="c0"))
        if "looked" not in lines:
            message = f"{name} has said only {lines}"
            raise errors.Unavailable(message, reason="NoLog", hint="read it again")
        return pods.parse_sight(lines).nodes

    @contextlib.contextmanager
    def _having(self, name: str, kind: str, seen: frozenset[int]) -> Iterator[None]:
        """Hold it against what others see meanwhile: a GPU is one pod's, or its MIG devices' pods'."""
        assert len(seen) == 1, f"{name} has {seen}"
        (gpu,) = seen
        with self.guard:
            assert gpu not in self.holders, f"{name} has GPU {gpu} of {self.holders[gpu]}"
            if kind == "one":
                assert not self.parts[gpu], f"{name} has GPU {gpu}, of which {self.parts[gpu]} have MIG devices"
                self.holders[gpu] = name
            else:
                self.parts[gpu] += 1
        try:
            yield
        finally:
            with self.guard:
                if self.holders.pop(gpu, None) is None:
                    self.parts[gpu] -= 1

    def break_things(self) -> None:
        """Kill, restart or update one part after another until the last pod has gone."""
        chance = random.Random(self.seed)
        acts: dict[str, Callable[[], None]] = {
            "agent": self._kill_agent,
            "update": lambda: _update(self.agent),
            "kubelet": lambda: self.cluster.restart("kubelet", signal.SIGKILL),
            "API server": lambda: self.cluster.restart("kube-apiserver", signal.SIGKILL),
        }
        while not self.is_over.wait(chance.uniform(3.0, 9.0)):
            what = chance.choice(["agent", "agent", "update", "kubelet", "API server"])
            acts[what]()
            self.kills[what] += 1

    def _kill_agent(self) -> None:
        self.agent.stop(signal.SIGKILL)
        self.agent.start()


def _patiently(act: Callable[[], T], *, done: type[errors.FairleadError] | None = None) -> T | None:
    """Return what a call comes to once API server and kubelet are there; None: it was `done`, its answer cut off."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return act()
        except (httpx.HTTPError, errors.FairleadError) as error:
            if done is not None and isinstance(error, done):
                return None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # cut by kills
def test_claims_come_and_go_while_driver_kubelet_and_api_server_are_killed(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--claims", 60)
    churn = Churn(cluster, agent, seed=count)
    with ThreadPoolExecutor(15) as workers:
        breaking = workers.submit(churn.break_things)
        lives = [workers.submit(churn.live, number) for number in range(count)]
        try:
            for done in as_completed([breaking, *lives]):
                done.result()
                if all(one.done() for one in lives):
                    break
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            churn.is_over.set()
        breaking.result()
    assert churn.holders == {}
    assert not +churn.parts
    assert sum(churn.kills.values()) >= count // 30, churn.kills
    _assert_nothing_is_left(cluster, server, space)
    print(f"{count} claims: {dict(churn.kills)}")  # noqa: T201 - said with -s: a figure of the run
