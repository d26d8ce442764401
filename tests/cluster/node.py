"""The agent as a process on a cluster's node, and what the node says of its GPUs."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import pods
from tools.cluster import api, home, machine

_KUBELET = "--node-kubelet-folder=/var/lib/kubelet/device-plugins"
PRODUCT = ("-m", "fairlead.cli.main", "agent", "--silicon-simulate", "h100x8", _KUBELET)
BREAKABLE = (str(Path(__file__).parent / "breakable_agent.py"), "FAULTS")

_DEFINITIONS = Path(__file__).parents[2] / "src/fairlead/chart/crds"


def kubectl(cluster: home.Cluster, *arguments: str, stdin: str = "", timeout_s: float = 60) -> str:
    """Run the cluster's kubectl, which must succeed, and return what it printed."""
    done = subprocess.run(
        cluster.kubectl(*arguments), input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def define(cluster: home.Cluster, *plurals: str) -> None:
    """Tell the API server of kinds of ours, and wait until it serves them."""
    for plural in plurals:
        kubectl(cluster, "apply", "-f", str(_DEFINITIONS / f"{plural}.yaml"))
        kubectl(cluster, "wait", "--for=condition=Established", f"crd/{plural}.fairlead.dev", "--timeout=30s")
        kubectl(cluster, "get", plural)  # it waits while the server's storage of them is being made, and asks again


@dataclass
class Agent:
    """One agent; it may be ended and started again."""

    cluster: home.Cluster
    arguments: tuple[str, ...]
    process: machine.Process | None = None

    @property
    def _log(self) -> Path:
        return self.cluster.log("agent")

    @property
    def _faults(self) -> Path:
        return self.cluster.folder / "faults.sock"

    def start(self) -> None:
        arguments = (str(self._faults) if word == "FAULTS" else word for word in self.arguments)
        self.process = self.cluster.host.start((sys.executable, *arguments), self._log)

    def stop(self, sign: signal.Signals) -> None:
        """End it; SIGKILL leaves its sockets and specs behind."""
        assert self.process is not None
        assert self.process.end(sign, timeout_s=15), self.log()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def registrations(self) -> int:
        """How often it has registered, in all its lives."""
        return self.log().count("registered with the kubelet")

    def until_registered(self, times: int) -> None:
        """Wait for a registration; the outside of another process has no event to wait for."""
        deadline = time.monotonic() + 60
        while self.registrations() < times:
            assert time.monotonic() < deadline, self.log()[-4000:]
            time.sleep(0.05)

    def inject(self, fault: str, gpu: int, value: str = "") -> None:
        """Break a GPU of a breakable agent."""
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(str(self._faults))
            door.sendall(f"{fault} {gpu} {value}\n".encode())
            answer = door.makefile().readline()
        assert answer.startswith("done"), answer


@contextlib.contextmanager
def running(agent: Agent, server: api.API) -> Iterator[Agent]:
    """Start an agent, wait until its GPUs can be had, and end it so that no later agent is taken for it."""
    agent.start()
    until_allocatable(server, agent.cluster.node, 8)
    yield agent
    agent.stop(signal.SIGTERM)
    # what a node said of an agent that is gone would send the next test's pod to a kubelet that has no device
    until_allocatable(server, agent.cluster.node, 0)


def gpus(item: api.Object, what: str) -> int:
    """Return a node's `capacity` or `allocatable` of GPUs."""
    return int(item["status"].get(what, {}).get(pods.RESOURCE, 0))


def until_allocatable(server: api.API, name: str, count: int) -> api.Object:
    """Wait until a node has so many allocatable GPUs, and return it."""

    def reached(items: list[api.Object]) -> api.Object | None:
        return next(
            (one for one in items if one["metadata"]["name"] == name and gpus(one, "allocatable") == count), None
        )

    return server.until("/api/v1/nodes", reached, what=f"{count} GPUs are allocatable", timeout_s=60)
