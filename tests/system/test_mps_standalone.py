"""MPS on one machine, through the embedded kubelet and podman: pods with limits, a daemon that dies, a live change."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from home import Home

from fairlead.node.sharing import mpsdaemon

pytestmark = pytest.mark.podman

RESOURCE = "nvidia.com/gpu.shared"
BY_MPS = "sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0]}]}}"
PROBE = "env | grep CUDA_MPS | sort; ls /mps/pipe; touch /dev/shm/mine; ls -d /dev/nvidia[0-9]*"


@pytest.fixture
def shared(home: Home) -> Home:
    """A service whose first GPU is shared by MPS."""
    file = home.folder / "plugin.yaml"
    file.write_text(BY_MPS)
    home.up(FAIRLEAD_PLUGIN_CONFIG_FILE=str(file))
    home.until(lambda: capacity(home) == 4, what="four replicas are offered")
    return home


def capacity(home: Home, resource: str = RESOURCE) -> int:
    nodes = home.ok("nodes", "-o", "json").data  # none at first
    return sum(int(one["allocatable"].get(resource, 0)) for one in nodes)


def daemon(home: Home) -> int:
    """Pid of the one daemon."""
    [base] = (home.state / "mps").iterdir()
    return mpsdaemon.find_daemon(mpsdaemon.Folders(base)) or 0


def ended(pid: int) -> bool:
    """Tell whether a process is gone; init may take its time to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def shown(home: Home) -> dict[str, Any]:
    [found] = home.ok("sharing", "-o", "json").data
    return dict(found)


def test_pods_share_a_gpu_by_mps_and_the_daemon_is_kept_and_let_go(shared: Home) -> None:
    home = shared
    for name in ("a", "b"):
        home.start(name, "-g", f"{RESOURCE}=1")
    said = home.ok("exec", "a", "--", "sh", "-c", PROBE).out
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25\n" in said
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20389M\n" in said
    assert "CUDA_MPS_PIPE_DIRECTORY=/mps/pipe\n" in said
    assert {"control", "/dev/nvidia0"} <= set(said.split())
    assert "/dev/nvidia1" not in said
    # Clients of one daemon share its memory folder, and see none of the node's.
    assert home.ok("exec", "b", "--", "ls", "/dev/shm").out.split() == ["mine"]
    trace = home.ok("trace", "a", "-o", "json").out
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in trace

    found = shown(home)
    assert (found["means"], found["used"], found["replicas"]) == ("mps", 2, 4)
    assert found["limits"] == "20389 MiB, 25% of the threads"
    assert {one["container"] for one in found["holders"]} == {"a", "b"}

    # A daemon that dies takes the replicas with it until the next one answers, and the record says so.
    first = daemon(home)
    os.kill(first, signal.SIGKILL)
    home.until(lambda: daemon(home) not in {0, first}, what="another daemon")
    home.until(lambda: "MPSDaemonDied" in home.ok("events", "-o", "json").out, what="the event")
    home.until(lambda: capacity(home) == 4, what="the replicas are offered again")

    # Another configuration under running pods: the daemon stays for its clients, then the GPU is given whole.
    Path(home.folder / "plugin.yaml").write_text("version: v1\n")
    home.until(lambda: capacity(home, "nvidia.com/gpu") == 7, what="seven whole GPUs, and one that drains")
    assert daemon(home)
    home.rm("a", "b")
    home.until(lambda: capacity(home, "nvidia.com/gpu") == 8, what="all GPUs are whole again")
    assert not list((home.state / "mps").iterdir())
    assert json.loads((home.state / "silicon" / "machine.json").read_text())["gpus"][0]["compute_mode"] == 0


def test_the_service_leaves_no_daemon_and_no_mode_behind(shared: Home) -> None:
    home = shared
    pid = daemon(home)
    home.down()
    assert ended(pid)
    assert json.loads((home.state / "silicon" / "machine.json").read_text())["gpus"][0]["compute_mode"] == 0
    assert not list((home.state / "agent" / "mps").iterdir())


ARTICLE = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: cuda-container
    image: %s
    command: [sleep, "1000"]
    resources: {limits: {%s}}
"""


@pytest.mark.slow
def test_a_pod_gets_the_threads_and_the_memory_that_the_article_asks_for(home: Home) -> None:
    file = home.folder / "plugin.yaml"
    file.write_text("fairlead: {sharing: {mpsAmounts: {devices: [0, 1]}}}\n")
    home.up(FAIRLEAD_PLUGIN_CONFIG_FILE=str(file))
    home.until(lambda: capacity(home, "nvidia.com/mps-core") == 200, what="the threads of two GPUs are offered")

    def start(name: str, limits: str) -> None:
        (home.folder / f"{name}.yaml").write_text(ARTICLE % (name, home.image, limits))
        home.ok("run", "-d", "-f", str(home.folder / f"{name}.yaml"))

    start("whole-pair", "nvidia.com/mps-core: 50, nvidia.com/mps-memory: 8")
    home.until_state("whole-pair", "running")
    said = home.ok("exec", "whole-pair", "--", "sh", "-c", PROBE).out
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50\n" in said
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M\n" in said
    assert said.count("/dev/nvidia") == 1
    [used] = [one for one in home.ok("sharing", "-o", "json").data if one["used"]]
    assert [one["limits"] for one in used["holders"]] == ["8 GiB, 50% of the threads"]
    assert "whole-pair (8 GiB, 50%)" in home.ok("sharing").out

    # The same as flags: whatever the node has for it, the container sees exactly what was asked for.
    home.start("part", "--gpu-memory", "20Gi", "--gpu-compute", "30")
    said = home.ok("exec", "part", "--", "sh", "-c", PROBE).out
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30\n" in said
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M\n" in said
    assert "part (20 GiB, 30%)" in home.ok("sharing").out
    refused = home.run("-d", "--gpu-memory", "20Gi", "--isolation", "mig", "--", "true")
    assert refused.code != 0
    assert "no node offers parts of GPUs by mig (offered: mps)" in refused.err

    # Threads without memory would let the program take all of it: its container does not start, and says why.
    start("half-pair", "nvidia.com/mps-core: 50")
    home.until(lambda: "not for nvidia.com/mps-memory" in home.ok("events", "-o", "json").out, what="the refusal")
    assert home.show("half-pair")["state"] != "running"
