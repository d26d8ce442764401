"""CPU and memory of containers that run, changed by `update` and `apply`: read from the kernel, the process goes on."""

from __future__ import annotations

from pathlib import Path

from home import Home

from fairlead.kernel import cgrouplimits
from fairlead.kernel.cgrouplimits import Limits

_MIB = 1 << 20
_POD = """apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "1000"]
    resizePolicy:
    - {resourceName: cpu, restartPolicy: NotRequired}
    - {resourceName: memory, restartPolicy: RestartContainer}
    resources:
      limits: {cpu: CPU, memory: MEMORY, nvidia.com/gpu: GPUS}
"""


def _row(service: Home, name: str) -> tuple[int, str]:
    """Return pid and id of a container that runs."""
    (row,) = [one for one in service.containers() if one["Names"][0].startswith(f"fl-{name}-") and one["Pid"]]
    return row["Pid"], row["Id"]


def _limits(service: Home, name: str) -> Limits:
    return cgrouplimits.of_container(*_row(service, name)).limits()


def _devices(identity: str) -> str:
    lists = Path("/sys/fs/cgroup/devices").rglob(f"*{identity}*/devices.list")
    return "".join(one.read_text() for one in lists)


def test_update_changes_the_kernels_limits_and_nothing_else(service: Home) -> None:
    service.start("sized", "--cpus", "1", "-m", "256m", "-g", "1")
    pid, identity = _row(service, "sized")
    rules = _devices(identity)
    service.ok("update", "sized", "--cpus", "1.5", "-m", "512m")
    assert _limits(service, "sized") == Limits(cpu=1.5, memory_bytes=512 * _MIB)
    assert _row(service, "sized") == (pid, identity)
    assert _devices(identity) == rules
    refused = service("update", "sized", "--cpus", "4000")
    assert (refused.code, "Infeasible" in refused.err) == (5, True), refused
    assert _limits(service, "sized").cpu == 1.5
    assert "keeps its CPU and memory for now: Infeasible" in service.ok("explain", "sized").out
    service.rm("sized")


def test_memory_in_use_is_not_taken_away(service: Home) -> None:
    eats = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); echo full; sleep 1000; echo $x"
    service.start("eater", "--cpus", "1", "-m", "512m", command=("sh", "-c", eats))
    service.until(lambda: "full" in service("logs", "eater").out, what="it holds memory")
    told = service.ok("update", "eater", "-m", "16m")
    assert "below current usage" in told.err
    assert _limits(service, "eater").memory_bytes == 512 * _MIB
    assert "below current usage" in service.show("eater")["resize"]
    service.ok("update", "eater", "-m", "400m")
    assert _limits(service, "eater").memory_bytes == 400 * _MIB
    assert service.show("eater")["resize"] == ""
    service.rm("eater")


def test_apply_resizes_a_pod_as_its_policy_says_and_never_its_gpus(service: Home, tmp_path: Path) -> None:
    def applied(cpu: str, memory: str, gpus: str = "1") -> tuple[int, str]:
        text = _POD.replace("NAME", "grown").replace("IMAGE", service.image)
        text = text.replace("CPU", cpu).replace("MEMORY", memory).replace("GPUS", gpus)
        file = tmp_path / "pod.yaml"
        file.write_text(text)
        done = service("apply", "-f", str(file))
        return done.code, done.out + done.err

    assert applied("1", "256Mi")[0] == 0
    service.until_state("grown", "running")
    pid, gpu = _row(service, "grown")[0], service.show("grown")["gpu_ids"]
    code, said = applied("500m", "256Mi")
    assert (code, "configured" in said) == (0, True), said
    service.until(lambda: _limits(service, "grown").cpu == 0.5, what="its CPUs are other")
    assert _row(service, "grown")[0] == pid
    assert "unchanged" in applied("500m", "256Mi")[1]
    applied("500m", "300Mi")
    service.until(lambda: service.show("grown")["restarts"] == 1, what="it is restarted for its memory")
    service.until_state("grown", "running")
    assert _limits(service, "grown") == Limits(cpu=0.5, memory_bytes=300 * _MIB)
    assert service.show("grown")["gpu_ids"] == gpu
    code, said = applied("500m", "300Mi", "2")
    assert code == 2, said
    assert "only cpu and memory" in said
    service.rm("grown")


def test_a_kubelet_that_was_killed_goes_on_from_what_the_status_says(service: Home) -> None:
    service.start("kept", "--cpus", "1", "-m", "256m")
    service.ok("update", "kept", "--cpus", "0.5")
    service.kill()
    pid, identity = _row(service, "kept")
    cgrouplimits.of_container(pid, identity).write(Limits(cpu=1.0))  # as a systemd does that reads its units again
    service.up()
    service.until(lambda: _limits(service, "kept").cpu == 0.5, what="its limit is written anew")
    assert _row(service, "kept") == (pid, identity)
    service.rm("kept")
