"""Pods of many tenancies on a real cluster, made and deleted by several clients, while everything is killed.

What `tests/system/churn.py` does on one machine, at a tenth of its size. `tests/system/churncheck.py` judges, which
shares nothing with the product; the ring's network enforces no policies, so no packets are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.node.deviceplugin import podresources
from tests.cluster import node, pods, verb
from tools.cluster import api, home, image

CHECKER: Final = Path(__file__).parents[1] / "system" / "churncheck.py"
MARK: Final = "t-churn"
"""What the namespaces of the tenancies begin with."""
TENANCIES: Final = "/apis/fairlead.dev/v1alpha1/tenancies"
DEVICES: Final = "/apis/fairlead.dev/v1alpha1/gpudevices"
KINDS: Final = {"agent": 3, "scheduler": 2, "controller": 2, "kubelet": 2, "containerd": 1, "shim": 2, "container": 4}
"""What is killed, and how often in proportion."""
_BUNDLES: Final = "io.containerd.runtime.v2.task/k8s.io"
_ENDED: Final = {"Succeeded", "Failed"}
_EXITS: Final = {-signal.SIGKILL, verb.LEASE_LOST}
_ENOUGH: Final = 8
"""So many pods with GPUs must have run; the machine may be slow."""
_MORE_S: Final = 120.0
END_S: Final = 300.0
"""How long after the last kill a tenancy has ended or stands. The namespace controller of Kubernetes tries again after
5, 10, 20, 40 and then 60 s each where requests of its own fail: five failures in a row take 135 s, six 195 s."""


@dataclass
class Churn:
    """One churn; `play` is the whole of it."""

    cluster: home.Cluster
    agent: node.Agent
    verbs: dict[str, verb.Verb]
    state: Path
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    saw: Counter[str] = field(default_factory=Counter)
    """How the pods of the clients stood when they were last looked at."""
    seen: list[str] = field(default_factory=list)
    """What must not be, beside what the checker finds."""
    ran: int = 0
    """Pods with GPUs that were seen to run."""
    recycled: int = 0
    longest_end_s: float = 0.0
    """How long the end of a tenancy took at most."""
    lists: int = 0
    """How often the kubelet's list was read beside the agent."""
    fell: Counter[str] = field(default_factory=Counter)
    """What ended by itself and was started again: a kubelet does where its runtime is away at its start."""
    struck_at: float = 0.0
    """When something was last killed; monotonic."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by who ends or starts a process of the cluster's machine."""
    over: threading.Event = field(default_factory=threading.Event)
    """No more is made, and nothing more is killed."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Nothing is kept running any longer."""

    def play(self, *, tenancies: int, containers: int, seconds: float, pause_s: float, recycle_s: float) -> Any:
        """Churn for a while; return what the checker says and what was left."""
        names = [f"churn{number}" for number in range(tenancies)]
        with self.cluster.api() as server:
            for name in names:
                self.make(server, name)
            assert self.until(lambda: len(named(server, DEVICES)) == 8), "the agent publishes no GPUs"
            gpus = [item["spec"] for item in server.get(DEVICES)["items"]]
            order = ",".join(one["uuid"] for one in sorted(gpus, key=lambda one: one["index"]))
            bundles = self.cluster.host.disk / "run" / "containerd" / _BUNDLES
            line = (sys.executable, "-I", str(CHECKER), f"--state={self.state}", f"--mark={MARK}", f"--gpus={order}")
            where = (f"--bundles={bundles}", "--without-packets")
            keeper = threading.Thread(target=self.keep)
            keeper.start()
            with subprocess.Popen((*line, *where), stdout=subprocess.PIPE) as checker:
                try:
                    self.churn(names, containers, seconds, pause_s, recycle_s)
                    return self.end(server, checker, names)
                finally:
                    self.ended.set()
                    keeper.join(60)
                    checker.kill()

    def churn(self, names: list[str], containers: int, seconds: float, pause_s: float, recycle_s: float) -> None:
        """Have clients at work in every tenancy, and kill meanwhile."""
        lives = [(name, number) for name in names for number in range(containers)]
        threads = [threading.Thread(target=self.live, args=one) for one in lives]
        threads.append(threading.Thread(target=self.recycle, args=(names, recycle_s)))
        threads.append(threading.Thread(target=lambda: asyncio.run(self.list_all())))
        chance, deadline = random.Random(self.seed), time.monotonic() + seconds
        for one in threads:
            one.start()
        try:
            while time.monotonic() < deadline or (self.ran < _ENOUGH and time.monotonic() < deadline + _MORE_S):
                time.sleep(chance.uniform(0.5, pause_s))
                self.strike(chance)
        finally:
            self.over.set()
            for one in threads:
                one.join(2 * END_S + 60)

    # clients

    def make(self, server: api.API, name: str) -> None:
        """Make a tenancy, none of that name being there, and wait until it is ready."""
        body = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Tenancy", "metadata": {"name": name}, "spec": {}}
        self.insist(lambda: server.create(TENANCIES, body), errors.Conflict)
        path = f"{TENANCIES}/{name}"
        if not self.until(lambda: bool(server.get(path)["status"]["phase"] == "Ready"), END_S):
            self.seen.append(f"tenancy {name} is not ready after {END_S:g} s: {self.standing(server, name)}")

    def standing(self, server: api.API, name: str) -> str:
        """Return what is in the way of a tenancy: what its status, its namespace and its pods say."""
        said: dict[str, Any] = {}
        with contextlib.suppress(errors.FairleadError, KeyError):
            found = server.get(f"{TENANCIES}/{name}")
            said["tenancy"] = {"deleted": found["metadata"].get("deletionTimestamp"), **found.get("status", {})}
            space = found["status"]["namespace"]
            said["namespace"] = server.get(f"/api/v1/namespaces/{space}")["status"]
            for pod in server.get(f"/api/v1/namespaces/{space}/pods")["items"]:
                kept = {key: pod["metadata"].get(key) for key in ("deletionTimestamp", "finalizers")}
                said[pod["metadata"]["name"]] = {**kept, "phase": pod["status"].get("phase")}
        return json.dumps({"at": time.strftime("%FT%TZ", time.gmtime()), **said})

    def live(self, tenancy: str, number: int) -> None:
        """Have one pod after another in a tenancy, let each live a moment, and delete it."""
        chance = random.Random(f"{self.seed}-{tenancy}-{number}")
        with self.cluster.api() as server:
            while not self.over.is_set():
                name = f"p{number}x{chance.randrange(10**9)}"
                with contextlib.suppress(errors.FairleadError, KeyError):  # tenancies and servers come and go here
                    space = server.get(f"{TENANCIES}/{tenancy}")["status"]["namespace"]
                    self.one(server, f"/api/v1/namespaces/{space}/pods", name, chance)
                self.over.wait(chance.uniform(0.2, 2.0))

    def one(self, server: api.API, path: str, name: str, chance: random.Random) -> None:
        seconds, gpus = chance.choice((1, 3, 1000)), chance.choice((0, 0, 1, 1, 1, 2))
        container = {
            "name": "main",
            "image": image.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", f"exec sleep {seconds}"],
            "resources": {"limits": {pods.RESOURCE: str(gpus)} if gpus else {}},
        }
        spec = {"schedulerName": "fairlead", "restartPolicy": "Never", "containers": [container]}
        server.create(path, {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 1}})
        deadline = time.monotonic() + chance.uniform(5.0, 30.0)
        status: api.Object = {}
        while time.monotonic() < deadline and status.get("phase") not in {"Running", *_ENDED}:
            self.over.wait(1.0)
            status = server.get(f"{path}/{name}")["status"]
        self.ran += bool(gpus) and status.get("phase") in {"Running", "Succeeded"}
        self.saw[f"{status.get('phase', 'nothing')} {status.get('reason', '')}".strip()] += 1
        self.over.wait(chance.uniform(0.0, 2.5))
        self.insist(lambda: server.delete(f"{path}/{name}"), errors.NotFound)

    async def list_all(self) -> None:
        """Read the kubelet's list all the time, as monitors do: it loses count of what it gives away meanwhile."""
        client = podresources.Client(self.cluster.device_plugins.parent / "pod-resources" / "kubelet.sock")
        while not self.over.is_set():
            with contextlib.suppress(errors.FairleadError):  # it is killed too, and may be asked too often
                await client.list_holdings()
                self.lists += 1
            await asyncio.sleep(0.02)
        await client.close()

    def recycle(self, names: list[str], every_s: float) -> None:
        """Delete a tenancy with what runs in it and make it again under its name."""
        chance = random.Random(self.seed + 1)
        with self.cluster.api() as server:
            while not self.over.wait(every_s):
                name = chance.choice(names)
                if self.remove(server, name):
                    self.make(server, name)
                    self.recycled += 1

    def remove(self, server: api.API, name: str) -> bool:
        """Delete a tenancy; returns whether it has ended."""
        begun = time.monotonic()
        self.insist(lambda: server.delete(f"{TENANCIES}/{name}"), errors.NotFound)
        is_gone = self.until(lambda: name not in named(server, TENANCIES), END_S)
        self.longest_end_s = max(self.longest_end_s, time.monotonic() - begun)
        if not is_gone:
            self.seen.append(f"tenancy {name} has not ended after {END_S:g} s: {self.standing(server, name)}")
        return is_gone

    def insist(self, attempt: Any, enough: type[errors.FairleadError]) -> None:
        """Try until it is done, or was done before: a request that nobody answered may have been carried out."""

        def tried() -> bool:
            try:
                attempt()
            except enough:
                return True
            return True

        if not self.until(tried):
            self.seen.append("a request is never answered")

    def until(self, holds: Any, timeout_s: float = 120) -> bool:
        """Ask again and again, also while nobody answers; False: not within the time, which each kill begins anew."""
        begun = time.monotonic()
        while time.monotonic() < max(begun, self.struck_at) + timeout_s:
            with contextlib.suppress(errors.FairleadError, KeyError):
                if holds():
                    return True
            time.sleep(0.5)
        return False

    # what is killed

    def strike(self, chance: random.Random) -> None:
        kind = chance.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        with self.turn:
            if kind == "agent":
                self.agent.stop(signal.SIGKILL)
                self.agent.start()
            elif kind in self.verbs:
                self.verbs[kind].kill()
            elif kind in self.cluster.processes:
                self.cluster.restart(kind, signal.SIGKILL)
            else:
                found = self.processes("containerd-shim" if kind == "shim" else "sleep")
                if not found:
                    return
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
            self.kills[kind] += 1
            self.struck_at = time.monotonic()

    def keep(self) -> None:
        """Start what ended by itself on the cluster's machine, as a service manager does, until all is over."""
        while not self.ended.wait(1.0):
            with self.turn:
                for name in [name for name, one in self.cluster.processes.items() if not one.is_alive]:
                    self.fell[name] += 1
                    self.cluster.start(name)
                if self.agent.process is not None and not self.agent.process.is_alive:
                    self.fell["agent"] += 1
                    self.agent.start()

    def fallen(self) -> list[str]:
        """Return what of the product ended by itself and may not: a verb may where it has lost its lease."""
        found = ["agent"] * self.fell["agent"]
        for name, one in self.verbs.items():
            found += [f"{name}: status {status}" for status in one.exits if status not in _EXITS]
        return found

    def processes(self, program: str) -> list[int]:
        """Return the processes of the cluster's machine whose program's name begins so."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    is_there = f"/{self.cluster.host.cgroup}/" in (path / "cgroup").read_text()
                    if is_there and words[0].rpartition(b"/")[2].startswith(program.encode()):
                        found.append(int(path.name))
        return found

    # afterwards

    def end(self, server: api.API, checker: subprocess.Popen[bytes], names: list[str]) -> dict[str, Any]:
        """Delete everything; return what the checker says, and what is left."""
        for name in names:
            self.insist(lambda name=name: server.delete(f"{TENANCIES}/{name}"), errors.NotFound)
        left = [] if self.until(lambda: not named(server, TENANCIES), END_S) else named(server, TENANCIES)
        self.until(lambda: not spaces(server), END_S)
        self.until(lambda: all(state == "Free" for state in self.ledger().values()))
        kept = {key: state for key, state in self.ledger().items() if state != "Free"}
        checker.send_signal(signal.SIGTERM)
        judged = json.loads(checker.communicate(timeout=120)[0])
        node.until_allocatable(server, self.cluster.node, 8)
        return {
            "seed": self.seed,
            "kills": dict(self.kills),
            "clients saw": dict(self.saw),
            "recycled": self.recycled,
            "longest end, s": round(self.longest_end_s),
            "lists": self.lists,
            "ended by themselves": {**self.fell, **{name: Counter(one.exits) for name, one in self.verbs.items()}},
            "seen": [*self.seen, *self.fallen()],
            "left": [*left, *spaces(server)],
            "kept back": kept,
            "checker": judged,
        }

    def ledger(self) -> dict[str, str]:
        """Return each GPU's state in the node's ledger."""
        line = (sys.executable, "-m", "fairlead.cli.main", "leases", "-o", "json", f"--state-folder={self.state}")
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
        return {one["gpu"]: one["state"] for one in json.loads(done.stdout)}


def named(server: api.API, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in server.get(path)["items"]]


def spaces(server: api.API) -> list[str]:
    return [name for name in named(server, "/api/v1/namespaces") if name.startswith(MARK)]
