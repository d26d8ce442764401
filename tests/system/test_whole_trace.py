"""One container's way, from the command to what the kernel says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from home import Home

pytestmark = pytest.mark.podman

LAYERS = (
    "silicon",
    "deviceplugin",
    "api",
    "scheduler",
    "kubelet",
    "deviceplugin",
    "cdi",
    "engine",
    "kernel",
    "engine",
    "process",
)


def test_two_gpus_are_what_nvidia_smi_lists(service: Home) -> None:
    result = service.run("-g", "2", "--rm", "--", "nvidia-smi", "-L")
    assert result.code == 0, result.err
    assert re.findall(r"^GPU (\d): NVIDIA H100", result.out, re.M) == ["0", "1"]


def test_the_banner_and_the_table_say_that_silicon_is_simulated(service: Home) -> None:
    assert "SIMULATED" in service.log()
    assert "SIMULATED" in service.run("-g", "1", "--rm", "--", "nvidia-smi").out


def test_a_container_without_gpus_sees_none(service: Home) -> None:
    result = service.run("--rm", "--", "sh", "-c", "ls /dev")
    assert result.code == 0
    assert "nvidia" not in result.out


def test_run_exits_with_the_containers_code(service: Home) -> None:
    assert service.run("--rm", "--", "sh", "-c", "exit 42").code == 42


def test_output_of_both_streams_follows(service: Home) -> None:
    result = service.run("--rm", "--", "sh", "-c", "echo one; echo two >&2; echo three")
    assert {"one", "two", "three"} <= set((result.out + result.err).split())


def test_trace_tells_every_layer_in_order(service: Home) -> None:
    assert service.run("-g", "2", "--name", "traced", "--", "nvidia-smi", "-L").code == 0
    entries = service.ok("trace", "traced", "-o", "json").data["entries"]
    recorded = [entry["step"] for entry in entries if entry["step"] is not None]
    assert [step["layer"] for step in recorded if step["reason"] not in {"DevicesFreed", "FirstOutput"}] == list(LAYERS)
    kernel = next(step for step in recorded if step["layer"] == "kernel")
    granted = {path for path in kernel["facts"]["granted"] if re.fullmatch(r"/dev/nvidia\d", path)}
    assert len(granted) == 2
    opens = kernel["facts"]["opens"]
    assert all(opens[path] == "ENXIO" for path in granted)
    denied = [name for name, answer in opens.items() if name.startswith("195:") and answer == "EPERM"]
    assert len(denied) >= 6
    text = service.ok("trace", "traced").out
    assert "ENXIO" in text
    assert "EPERM" in text


def test_the_articles_pod_runs_as_it_is_written(service: Home) -> None:
    name = "docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04"
    service.podman("tag", service.image, name)
    try:
        manifest = Path(__file__).parents[2] / "examples/articles/gpu-pod.yaml"
        result = service("run", "-f", str(manifest))
        assert result.code == 0, result.err
        assert len(re.findall("H100", result.out)) == 2
    finally:
        service("rm", "-f", "--grace", "0", "gpu-pod")
        service.podman("untag", service.image, name)


def test_logs_exec_stop_and_rm(service: Home) -> None:
    service.start("work", "-g", "1", command=("sh", "-c", "echo hello; exec sleep 1000"))
    service.until(lambda: "hello" in service.ok("logs", "work").out, what="the log shows hello")
    inside = service("exec", "work", "--", "sh", "-c", "ls /dev/nvidia[0-9]; exit 3")
    assert inside.code == 3
    assert len(inside.out.split()) == 1
    service.ok("stop", "work", "--grace", "0")
    assert service.until_state("work", "failed", "stopped", "succeeded")["reason"] == "Stopped"
    service.rm("work")
    service.until(lambda: "work" not in service.ok("ps", "-a", "-o", "name").out, what="work is gone")


def pair(image: str) -> dict[str, Any]:
    """A pod of an init container and two containers that talk over the loopback interface."""
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}], "image": image}
    one_gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}

    def container(name: str, script: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "command": ["sh", "-c", script], **shared, **more}

    first = container("first", "echo ready > /shared/mark; ls /dev/nvidia[0-9]* > /shared/gpus", **one_gpu)
    server = container("server", "nc -l -p 7777 -e cat /shared/mark", **one_gpu)
    client = container("client", "until nc 127.0.0.1 7777; do sleep 0.1; done; cat /shared/gpus")
    spec = {
        "restartPolicy": "Never",
        "volumes": [{"name": "shared", "emptyDir": {}}],
        "initContainers": [first],
        "containers": [server, client],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pair"}, "spec": spec}


def test_containers_of_a_pod_share_a_network_and_start_after_the_init_containers(service: Home) -> None:
    manifest = service.folder / "pair.yaml"
    manifest.write_text(yaml.safe_dump(pair(service.image)))
    followed = service.ok("run", "-f", str(manifest)).out.splitlines()
    assert service.until_state("pair", "succeeded", "failed")["state"] == "succeeded", service.show("pair")
    # What each container wrote is told apart.
    assert [line for line in followed if line.startswith("client | ")][:1] == ["client | ready"]
    out = service.ok("logs", "pair", "-c", "client").out.split()
    assert out[0] == "ready"
    granted = service.show("pair")["gpu_ids"]
    assert len(out) == 2
    assert len(granted) == 1  # the init container's GPU is used again by the server


def test_containers_see_their_own_gpus_and_are_refused_all_others(service: Home) -> None:
    """ENXIO: allowed, no driver behind it. EPERM: refused, even where the container makes the node itself."""
    probe = (
        "for n in 0 1 2 3 4 5 6 7; do"
        ' if [ -e /dev/nvidia$n ]; then echo "own $n $( (: < /dev/nvidia$n) 2>&1)";'
        ' else mknod /tmp/n$n c 195 $n; echo "other $n $( (: < /tmp/n$n) 2>&1)"; rm /tmp/n$n; fi; done'
    )
    seen: dict[str, set[str]] = {}
    for name in ("a", "b"):
        service.start(name, "-g", "2")
        one = next(item for item in service.containers() if item["Labels"]["io.kubernetes.pod.name"] == name)
        # All capabilities, mknod among them; the container's device rules stay in force.
        lines = service.podman("exec", "--privileged", one["Id"], "sh", "-c", probe).splitlines()
        own = [line for line in lines if line.startswith("own")]
        other = [line for line in lines if line.startswith("other")]
        assert (len(own), len(other)) == (2, 6), lines
        assert all("No such device or address" in line for line in own), own
        assert all("Operation not permitted" in line for line in other), other
        seen[name] = {line.split()[1] for line in own}
    assert not seen["a"] & seen["b"]
    for name in ("a", "b"):
        service.rm(name)


def test_cpu_and_memory_limits_are_in_force(service: Home) -> None:
    script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max"
    result = service.run("--rm", "--memory", "64Mi", "--cpus", "0.5", "--", "sh", "-c", script)
    assert str(64 << 20) in result.out


def test_a_start_logs_none_of_its_own_races_as_a_warning(service: Home) -> None:
    # Alone in this file it comes before the node does.
    service.until(lambda: bool(service.ask("/v1/nodes")["items"]), what="the node is there")
    service.until(lambda: service.allocatable() == 8, what="the start is over")
    lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    assert "registered with the kubelet" in {line["event"] for line in lines}
    assert [line for line in lines if line["event"] == "kubelet does not say who holds devices"] == []
    retried = [line for line in lines if line["event"] == "work failed, will retry"]
    assert [line for line in retried if "Node " in line["error"] and "has been modified" in line["error"]] == []
