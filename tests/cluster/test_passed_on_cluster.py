"""Slots of passed-through GPUs beside the real kubelet: its checkpoint over restarts, `Get`, and sizes that overlap.

The ring's node has no IOMMU, so the board is a made-up tree, and opening a node and a reset are doubles
(`passed_agent.py`); the Fabric Manager is `tests/fabricstub`. The kubelet, the scheduler, containerd and the agent as a
process are real; pods run by runc, and get the slot's CDI device as Kata's shim asks for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import node, pods
from tests.cluster.test_trace_on_cluster import kata_config
from tests.fabricstub import library, manager
from tests.fabricstub.lattice import H100
from tests.katastandin import coldplug
from tests.unit.silicon.vfio import pcitree
from tools.cluster import api, home, image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PREFIX = "nvidia.com/h100-sxm5-80gb"
ALL = {"x1": 8, "x2": 4, "x4": 2, "x8": 1}
STAY = "ls /dev/vfio; exec sleep 3600"


@dataclass
class Board:
    """The node's board, its agent, and what the cluster says of both."""

    cluster: home.Cluster
    server: api.API
    root: Path
    agent: node.Agent

    def sizes(self) -> dict[str, int]:
        """Return how many slots of each size the node says can be given away."""
        found = self.server.get(f"/api/v1/nodes/{self.cluster.node}")["status"].get("allocatable", {})
        return {name.rpartition("-")[2]: int(count) for name, count in found.items() if name.startswith(PREFIX)}

    def until(self, **wanted: int) -> None:
        until = time.monotonic() + 120
        while not wanted.items() <= (seen := self.sizes()).items():
            assert time.monotonic() < until, (seen, self.agent.log()[-3000:])
            time.sleep(0.2)

    def start(self, space: pods.Space, name: str, size: int) -> None:
        container = {
            "name": "main",
            "image": image.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", STAY],
            "resources": {"limits": {f"{PREFIX}-x{size}": "1"}},
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.server.create(space.path, {"metadata": {"name": name}, "spec": spec})

    def ask(self, pod: str) -> list[str]:
        """Return the CDI names of a pod's devices, as Kata's shim asks the kubelet for them.

        A kubelet that has just begun knows no pod for a moment, and refuses: Kata's sandbox is then tried again.
        """
        config = kata_config(self.cluster.device_plugins.parent / "pod-resources" / "kubelet.sock")
        until = time.monotonic() + 60
        while True:
            try:
                return coldplug.ask_devices({coldplug.NAME: pod, coldplug.NAMESPACE: pods.DEFAULT}, config)
            except coldplug.Refused:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def checkpoint(self) -> list[str]:
        """Return the ids of slots in the kubelet's checkpoint."""
        text = self.cluster.device_plugins.joinpath("kubelet_internal_checkpoint").read_text()
        entries: list[dict[str, Any]] = json.loads(text)["Data"]["PodDeviceEntries"] or []
        return sorted(
            one
            for entry in entries
            if entry["ResourceName"].startswith(PREFIX)
            for ids in entry["DeviceIDs"].values()
            for one in ids
        )

    @property
    def active(self) -> list[int]:
        """Return the partitions of several GPUs that are active."""
        return [one for one in manager.switched_on(self.root / "switches") if len(H100.partitions[one]) > 1]

    def until_active(self, *partitions: int) -> None:
        until = time.monotonic() + 60
        while self.active != list(partitions):
            assert time.monotonic() < until, (self.active, self.agent.log()[-3000:])
            time.sleep(0.1)


@pytest.fixture
def board(cluster: home.Cluster, server: api.API, space: pods.Space) -> Iterator[Board]:
    node.define(cluster, "gpudevices", "gpuleases")
    root = cluster.folder / f"board-{time.monotonic_ns()}"
    tree = pcitree.build_hgx(root, driver="vfio-pci", regions=True)
    tree.write("usr/share/misc/pci.ids", pcitree.PCI_IDS)
    library.compile_library(root)
    program = Path(manager.__file__)
    line = (sys.executable, "-I", str(program), f"unix:{root}/fm.sock", "h100", "state", str(root / "switches"))
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as fabric:
        assert fabric.stdout is not None
        assert fabric.stdout.readline() == "ready\n"
        words = (f"--cluster-kubeconfig={cluster.kubeconfig}", f"--node-name={cluster.node}")
        one = node.Agent(cluster, (str(Path(__file__).parent / "passed_agent.py"), str(root), *words))
        made = Board(cluster, server, root, one)
        one.start()
        try:
            made.until(**ALL)
            yield made
            space.clear()
            made.until(**ALL)
            assert made.active == []
        finally:
            one.stop(signal.SIGTERM)
            fabric.kill()
            for plural in ("gpuleases", "gpudevices"):
                server.delete(f"/apis/fairlead.dev/v1alpha1/{plural}")


def test_slots_outlive_restarts_of_kubelet_and_agent_and_the_kubelet_says_whose_they_are(
    board: Board, space: pods.Space
) -> None:
    board.start(space, "four", 4)
    space.until_phase("four", "Running")
    (name,) = board.ask("four")
    resource, _, slot = name.partition("=")
    assert resource == f"{PREFIX}-x4"
    partition = next(one for one, gpus in H100.partitions.items() if slot == f"x4-{'.'.join(map(str, gpus))}")
    assert board.active == [partition]
    assert board.checkpoint() == [slot]
    assert len([line for line in space.log("four").split() if line.isdecimal()]) == 4, "its groups' nodes"
    was = pods.container(space.get("four"))
    board.until(x1=4, x2=2, x4=2, x8=0)

    for restart in ("kubelet", "agent", "both"):
        registered = board.agent.registrations()
        if restart != "kubelet":
            board.agent.stop(signal.SIGKILL)
        if restart != "agent":
            board.cluster.restart("kubelet")
        if restart != "kubelet":
            board.agent.start()
        board.agent.until_registered(registered + 1)
        board.until(x1=4, x2=2, x4=2, x8=0)
        assert board.ask("four") == [name], restart
        assert board.checkpoint() == [slot], restart
        assert board.active == [partition], restart
        assert pods.container(space.get("four")) == was, restart

    board.start(space, "second", 4)
    space.until_phase("second", "Running")
    assert board.ask("second") != [name]
    space.delete("four")
    space.delete("second")
    board.until_active()
    board.until(**ALL)
    assert len((board.root / "resets").read_text().splitlines()) >= 16, "eight before the first tenant, eight after"


def test_sizes_that_share_gpus_are_given_once_whatever_the_scheduler_counts(board: Board, space: pods.Space) -> None:
    """Each size is a resource of its own, so the scheduler may place what the board has not: the ledger decides."""
    for name, size in (("eight", 8), ("left", 4), ("right", 4)):
        board.start(space, name, size)
    until = time.monotonic() + 120
    while True:
        phases = {name: space.get(name)["status"] for name in ("eight", "left", "right")}
        running = {name for name, status in phases.items() if status.get("phase") == "Running"}
        if running in ({"eight"}, {"left", "right"}):
            break
        assert time.monotonic() < until, phases
        time.sleep(0.3)
    for name in phases.keys() - running:
        status = space.get(name)["status"]
        if status.get("phase") == "Failed":  # placed before the node's figures had changed
            assert status["reason"] == "UnexpectedAdmissionError"
            assert PREFIX in status["message"]
        else:
            assert "Insufficient" in space.until_unschedulable(name)
    board.until(x1=0, x8=1 if running == {"eight"} else 0)
    board.start(space, "one", 1)
    assert f"Insufficient {PREFIX}-x1" in space.until_unschedulable("one")
    assert {gpu for one in board.active for gpu in H100.partitions[one]} == set(range(1, 9))
    assert len({one for name in running for one in board.ask(name)}) == len(running)
    space.delete("one")
