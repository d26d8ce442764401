"""Holds schedulers against each other on one real control plane: etcd and an API server, nodes and pods on paper.

Nodes are objects that no kubelet stands behind, so a bound pod stays bound and nothing runs. A round creates the pods
at once while the scheduler is there and idle, counts bindings as a watch reports them, and ends when all pods are bound
or none was for a while. The rate is bound pods over the time from the first creation to the last binding. The figures
of both schedulers come from rounds on the same API server, one after the other, on whatever cores the machine has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from fairlead import errors
from tools.cluster import build, home

_AT_ONCE: Final = 40
"""Requests in flight while nodes and pods are created."""
_QUIET_S: Final = 12.0
"""After so long without a binding a round is over."""
_LONGEST_S: Final = 240.0
"""From the creation of the last pod to the end of a round."""
_SAY_EVERY_S: Final = 10.0
_PAGE: Final = 500
SIZES: Final = (1, 1, 2, 4, 1, 8, 1, 1)
"""GPUs of the pods, over and over."""
PODS: Final = "/api/v1/namespaces/default/pods"
_GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one scheduler did with one set of pods."""

    bound: int
    pending: int
    seconds: float
    memory_mib: float
    """Most that the scheduler's process ever held."""
    processor_s: float
    """What the round took of its processor time, which other work on the machine does not lengthen."""
    overcommitted: int
    """Nodes with more GPUs bound than they have."""

    @property
    def per_s(self) -> float:
        return self.bound / self.seconds if self.seconds else 0.0


def missing() -> str:
    """Return why no control plane can be had here, "" where it can."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [module.name for module in build.modules(build.DEFAULT_VERSION) if not build.folder_of(module).is_dir()]
    return f"needs the programs of tests/cluster/setup.sh: {', '.join(lacking)}" if lacking else ""


P = TypeVar("P", bound="Plane")


class _Bound:
    """Pods that were seen bound, and when the last one was."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.last = 0.0

    def note(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            self.last = time.monotonic()


class Plane:
    """An API server and what is made on it."""

    def __init__(self, cluster: home.Cluster, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self._session = session

    async def call(self, method: str, path: str, content: object = None, *, kind: str = "application/json") -> Any:
        body = None if content is None else json.dumps(content).encode()
        async with self._session.request(method, path, data=body, headers={"Content-Type": kind}) as response:
            found = await response.json(content_type=None)
            if response.status >= 400:
                raise errors.Unavailable(f"{method} {path}: {found}", reason="APIServerSaid")
            return found

    async def prepare(self, nodes: int) -> None:
        """Create what pods need of a namespace, and nodes of 8 GPUs."""
        with contextlib.suppress(errors.Unavailable):
            await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": "fairlead"}})
        account = {"metadata": {"name": "default"}}
        with contextlib.suppress(errors.Unavailable):
            await self.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        await for_all(nodes, self._add_node)

    async def _add_node(self, number: int) -> None:
        await self.add_node(f"paper-{number:05}", f"zone-{number % 4}")

    async def add_node(self, name: str, zone: str = "zone-0") -> None:
        """Register a node that no machine runs."""
        amounts = {"cpu": "128", "memory": "1024Gi", "pods": "110", _GPU: "8"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "on paper"}
        labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
        await self.call(
            "POST",
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": labels},
                "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
            },
        )
        # The API server marks every new node not ready; who looks after nodes would take that back.
        patch = {"spec": {"taints": None}}
        await self.call("PATCH", f"/api/v1/nodes/{name}", patch, kind="application/merge-patch+json")

    async def _add_pod(self, number: int, scheduler: str) -> None:
        limits = {"cpu": "4", "memory": "16Gi", _GPU: str(SIZES[number % len(SIZES)])}
        main = {"name": "main", "image": "registry.invalid/none:1", "resources": {"limits": limits}}
        spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [main]}
        await self.call("POST", PODS, {"metadata": {"name": f"p{number:05}"}, "spec": spec})

    async def clear(self) -> None:
        """Delete every pod and event."""
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        await self.call("DELETE", PODS, options)
        await self.call("DELETE", "/api/v1/namespaces/default/events", options)
        await self.call("DELETE", "/apis/events.k8s.io/v1/namespaces/default/events", options)
        while (await self.call("GET", f"{PODS}?limit=1"))["items"]:  # noqa: ASYNC110  (another process deletes)
            await asyncio.sleep(0.2)

    async def round(self, pods: int, scheduler: str, pid: int) -> Round:
        """Create pods for a scheduler that is there, and return what it did with them."""
        version = (await self.call("GET", f"{PODS}?limit=1"))["metadata"]["resourceVersion"]
        bound = _Bound()
        begun, spent = time.monotonic(), _processor_s(pid)
        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(self._count(bound, version))
            saying = tasks.create_task(_say(bound, pods))
            await for_all(pods, lambda number: self._add_pod(number, scheduler))
            created = time.monotonic()
            while len(bound.names) < pods and time.monotonic() - created < _LONGEST_S:
                # On a loaded machine the watch may be behind for as long as pods are created.
                if time.monotonic() - max(bound.last, created) > _QUIET_S:
                    break
                await asyncio.sleep(0.1)
            counting.cancel()
            saying.cancel()
        return Round(
            bound=len(bound.names),
            pending=pods - len(bound.names),
            seconds=bound.last - begun,
            memory_mib=_most_memory_mib(pid),
            processor_s=_processor_s(pid) - spent,
            overcommitted=await self._overcommitted(),
        )

    async def _count(self, bound: _Bound, since: str) -> None:
        while True:  # an API server ends the watch of a reader that is too slow for it: list, and watch on
            query = f"?watch=1&resourceVersion={since}&timeoutSeconds={int(2 * _LONGEST_S)}"
            async with self._session.get(f"{PODS}{query}", timeout=aiohttp.ClientTimeout(total=None)) as stream:
                async for line in stream.content:
                    # A cheap test instead of a decoder: the watch takes cores that the schedulers are measured on.
                    if b'"nodeName":"' in line:
                        bound.note(line.partition(b'"name":"')[2].partition(b'"')[0].decode())
            async for page in self._pages():
                since = page["metadata"]["resourceVersion"]
                for pod in page["items"]:
                    if pod["spec"].get("nodeName"):
                        bound.note(pod["metadata"]["name"])

    async def _pages(self) -> AsyncIterator[Any]:
        """Yield all pods as pages of one moment: 30,000 at once are 100 MB."""
        further = ""
        while True:
            page = await self.call("GET", f"{PODS}?limit={_PAGE}&continue={further}")
            yield page
            further = page["metadata"].get("continue", "")
            if not further:
                return

    async def _overcommitted(self) -> int:
        taken: dict[str, int] = {}
        async for page in self._pages():
            for pod in page["items"]:
                if node := pod["spec"].get("nodeName"):
                    gpus = pod["spec"]["containers"][0]["resources"]["limits"][_GPU]
                    taken[node] = taken.get(node, 0) + int(gpus)
        return sum(gpus > 8 for gpus in taken.values())


async def _say(bound: _Bound, pods: int) -> None:
    """Write how far a round is now and then: one of 30,000 pods takes minutes, and may be cut off."""
    begun = time.monotonic()
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        seen, seconds = len(bound.names), time.monotonic() - begun
        print(f"{seen} of {pods} pods bound after {seconds:.0f} s", file=sys.stderr, flush=True)


async def for_all(count: int, act: Callable[[int], Any]) -> None:
    """Act for every number, so many at once; the first failure ends them."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await act(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())


def _processor_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _most_memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextlib.asynccontextmanager
async def opened(kind: type[P]) -> AsyncIterator[P]:
    """Bring a control plane up for a block."""
    home.sweep()
    paths = tuple(build.folder_of(module) for module in build.modules(build.DEFAULT_VERSION))
    one = home.up(f"bench{os.getpid()}", paths=paths, owned=True, has_node=False)
    try:
        folder = one.site.certificates
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        limits = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(
            one.site.server, connector=connector, timeout=limits, read_bufsize=2**20
        ) as session:
            yield kind(one, session)
    finally:
        one.down()


@contextlib.contextmanager
def kube_scheduler(cluster: home.Cluster, *, extenders: Sequence[Mapping[str, Any]] = ()) -> Iterator[int]:
    """Run the real one with its default plugins and a client that waits for nothing; gives its pid."""
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": cluster.site.config("kube-scheduler.kubeconfig"),
            "qps": 5000,
            "burst": 5000,
        },
        "extenders": list(extenders),
    }
    path = cluster.site.configs / "kube-scheduler.json"
    path.write_text(json.dumps(config))
    command = ("kube-scheduler", f"--config={path}", "--bind-address=127.0.0.1", "--authentication-skip-lookup")
    process = cluster.host.start(command, cluster.log("kube-scheduler"))
    cluster.processes["kube-scheduler"] = process
    try:
        yield process.pid
    finally:
        cluster.stop("kube-scheduler")


@contextlib.contextmanager
def fairlead_scheduler(cluster: home.Cluster, *arguments: str) -> Iterator[int]:
    """Run ours as an operator would, with its default settings; gives its pid."""
    command = [sys.executable, "-m", "fairlead.cli.main", "scheduler", f"--cluster-kubeconfig={cluster.kubeconfig}"]
    path = cluster.log("fairlead-scheduler")
    with path.open("ab") as log:
        process = subprocess.Popen([*command, *arguments], env={"PATH": os.defpath}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while '"leading"' not in path.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise errors.Unavailable(f"no scheduler: {path.read_text()[-2000:]}", reason="SchedulerFailed")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)
