"""Runs inside the virtual machine of `test_machine_reboot.py`: a service with containers, before and after the power.

Nothing is judged here; reports are those of `onboard.py`. What lies below `/state` is on the machine's disk; all else
is memory, as `/run` is on any machine. The first boot ends when its power is lost, the second by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onboard
from onboard import report

STATE = Path("/state")
IMAGE = "localhost/box:1"
ENV = {
    "FAIRLEAD_STATE_FOLDER": "/state/fairlead",
    "FAIRLEAD_STATE_RUN": "/run/fairlead",
    "FAIRLEAD_LOG_FORMAT": "json",
    "FAIRLEAD_ENGINE_PULL": "false",
    "FAIRLEAD_ENGINE_NETWORK": "none",
}
PATIENCE_S = 150.0
WORKLOADS = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: "{IMAGE}", command: [sleep, "100000"]}}]
---
apiVersion: batch/v1
kind: Job
metadata: {{name: sweep}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: "{IMAGE}", command: [sleep, "100000"]}}]
"""


class Connection(http.client.HTTPConnection):
    """One to the service's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect("/run/fairlead/api.sock")


def ask(path: str) -> Any:
    with contextlib.closing(Connection("fairlead")) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for something; one that never comes is reported with what there is, and ends the machine."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if holds():
                return
        time.sleep(0.2)
    with contextlib.suppress(OSError):
        report("there is", containers())
    report(f"not {what}", Path("/run/up/err").read_text()[-3000:])
    raise SystemExit(1)


def containers() -> dict[str, Any]:
    return {one["name"]: one for one in ask("/v1/containers?all=true")["items"]}


def call(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        report(f"failed {argv[0]}", {"argv": argv, "code": done.returncode, "err": (done.stdout + done.stderr)[-800:]})
    return done.stdout


def fairlead(*arguments: str) -> dict[str, Any]:
    return onboard.fairlead(*arguments, env=ENV)


def tell_log() -> None:
    """Report what the service says, again and again: a machine that is cut off is known by it."""
    while True:
        time.sleep(20)
        with contextlib.suppress(OSError):
            report("log", Path("/run/up/err").read_text()[-1500:])


def serve() -> None:
    began = time.monotonic()
    onboard.start("up", "--simulate", "t4x4", folder=Path("/run/up"), env=ENV)
    threading.Thread(target=tell_log, daemon=True).start()
    until("ready", lambda: bool(ask("/v1/nodes")["items"]))
    report("seconds to ready", round(time.monotonic() - began, 1))


def limits(name: str) -> dict[str, str]:
    """Return what the kernel holds a container to, and which process it is."""
    rows = json.loads(call("podman", "ps", "--format", "json", "--filter", f"name=fl-{name}-") or "[]")
    pid = str(rows[0]["Pid"])
    (line,) = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    folder = Path("/sys/fs/cgroup", line.removeprefix("0::/"))
    found = {one: (folder / one).read_text().strip() for one in ("memory.max", "cpu.max") if (folder / one).exists()}
    if not found:  # crun puts the process into a cgroup below
        found = {one: (folder.parent / one).read_text().strip() for one in ("memory.max", "cpu.max")}
    return {**found, "pid": pid}


def resize() -> None:
    """Change sizes of one that runs, on cgroup v2."""
    report("sized", limits("lasting"))
    report("update", fairlead("update", "lasting", "--cpus", "1.5", "-m", "512m"))
    report("resized", limits("lasting"))
    report("too much", fairlead("update", "lasting", "--cpus", "4000"))
    eats = "head -c 40000000 /dev/zero > /dev/shm/a; echo full; sleep 100000"
    fairlead("run", "-d", "--name", "eater", "-m", "128m", IMAGE, "--", "sh", "-c", eats)
    until("full", lambda: "full" in fairlead("logs", "eater")["out"])
    report("below use", fairlead("update", "eater", "-m", "16m"))
    report("eater", limits("eater"))
    report("grown", fairlead("update", "eater", "-m", "160m"))
    report("eater grown", limits("eater"))
    fairlead("rm", "-f", "--grace", "0", "eater")


def first() -> None:
    serve()
    fairlead("run", "--name", "done", IMAGE, "--", "echo", "before")
    keeps = "echo up >> /data/ups; sync; sleep 100000"
    sized = ("--cpus", "1", "-m", "256m")
    fairlead(
        *("run", "-d", "--name", "lasting", "--restart", "always", "-g", "1", "-v", "data:/data", *sized),
        *(IMAGE, "--", "sh", "-c", keeps),
    )
    fairlead("run", "-d", "--name", "single", "-g", "1", IMAGE, "--", "sleep", "100000")
    Path("/run/workloads.yaml").write_text(WORKLOADS)
    report("applied", fairlead("apply", "-f", "/run/workloads.yaml"))
    until("running", lambda: sum(one["state"] == "running" for one in containers().values()) == 4)
    resize()
    (STATE / "begun").touch()
    report("before", containers())
    report("before gpus", ask("/v1/gpus"))
    report("running", True)
    time.sleep(PATIENCE_S)


def second() -> None:
    serve()
    until(
        "back",
        lambda: (
            sum(one["state"] == "running" for one in containers().values()) == 3
            and containers()["single"]["state"] == "failed"
        ),
    )
    report("after", containers())
    report("after gpus", ask("/v1/gpus"))
    report("after limits", limits("lasting"))
    for name in ("single", "lasting"):
        report(f"explain {name}", fairlead("explain", name))
    report("output", fairlead("logs", "done"))
    report("ups", fairlead("exec", "lasting", "--", "cat", "/data/ups"))
    report("job", fairlead("get", "job", "sweep"))
    report("again", fairlead("start", "single"))
    until("single", lambda: containers()["single"]["state"] == "running")
    report("started again", containers()["single"])
    report("up", Path("/run/up/err").read_text()[-4000:])


def main() -> None:
    call("/bin/busybox", "mkdir", "-p", "/state", "/var/lib", "/var/tmp", "/dev/shm", "/dev/pts", "/dev/mqueue")
    for kind, folder in (("tmpfs", "/dev/shm"), ("devpts", "/dev/pts"), ("mqueue", "/dev/mqueue"), ("tmpfs", "/tmp")):
        call("/bin/busybox", "mount", "-t", kind, kind, folder)
    call("/bin/busybox", "mount", "-t", "ext4", "/dev/vda", "/state")
    call("/bin/busybox", "ip", "link", "set", "lo", "up")
    call("/bin/busybox", "hostname", "lab")
    shutil.copy("/etc/containers/storage.conf", "/run/storage.conf")
    report("boot", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    report("cgroup", Path("/sys/fs/cgroup/cgroup.controllers").read_text().split())
    (second if (STATE / "begun").exists() else first)()
    report("done", True)


if __name__ == "__main__":
    main()
