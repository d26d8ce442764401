"""A machine that goes down with containers running: what comes back, what is lost and why, and what was promised.

The machine is a set of namespaces (processes, mounts, network) on this host's files, with podman's storage and the
service's state in a folder that outlives it. Switching it off kills its process 1, and with it all others at one
moment; the next boot has another boot id, began later, and has an empty `/run`. What the disk had not written yet is
not lost, as where power fails: `cache=writethrough` machines are for that.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from home import BUSYBOX, Home, make_home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(600)]

_BOOT = """
folder=$1
mount -t proc proc /proc
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$folder/stat" /proc/stat
mount -t tmpfs tmpfs /run
mkdir -p /run/lock
mount --bind "$folder/etc" /etc/containers
ip link set lo up
touch "$folder/booted"
exec sleep infinity
"""
_STORAGE = """[storage]
driver="vfs"
runroot="/run/containers"
graphroot="{folder}/containers"
"""
_WORKLOADS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "IMAGE", command: [sleep, "100000"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: sweep}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "IMAGE", command: [sleep, "100000"]}]
"""
_IMAGE = "localhost/box:1"


class Machine:
    """One that is switched on and off."""

    def __init__(self, home: Home) -> None:
        self.home, self.folder = home, home.folder
        shutil.copytree("/etc/containers", self.folder / "etc", symlinks=True)
        (self.folder / "etc/storage.conf").write_text(_STORAGE.format(folder=self.folder))
        self._process: subprocess.Popen[bytes] | None = None
        self._made: set[str] = set()
        """Ids of its containers."""

    def switch_on(self) -> None:
        """Boot it, and start the service."""
        boot = int(time.time())
        lines = Path("/proc/stat").read_text().splitlines()
        text = "".join(f"btime {boot}\n" if line.startswith("btime ") else f"{line}\n" for line in lines)
        (self.folder / "stat").write_text(text)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "booted").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        namespaces = ("--mount", "--pid", "--net", "--fork", "--kill-child", "--propagation", "private")
        argv = ("unshare", *namespaces, "bash", "-euc", _BOOT, "machine", str(self.folder))
        self._process = subprocess.Popen(argv)
        self.home.until((self.folder / "booted").exists, what="it is booted")
        pid = self._process.pid
        first = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        self.home.prefix = ("nsenter", "-t", first, "-m", "-p", "-n", "--")

    def switch_off(self) -> None:
        """Take its power: every process of it is gone at once."""
        if self._process is None:
            return
        self._made |= {one.parent.name for one in (self.folder / "containers/vfs-containers").glob("*/userdata")}
        self._process.kill()  # its child is process 1, which dies with it
        self._process.wait()
        self._process = None
        if self.home.process is not None:
            self.home.process.wait(20)

    def forget(self) -> None:
        """Remove the cgroups that its containers left: a machine that goes down takes them along."""
        for one in self._made:
            for left in Path("/sys/fs/cgroup").glob(f"*/libpod_parent/libpod-{one}"):
                for folder in (*sorted(left.glob("**/"), reverse=True), left):
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def call(self, *argv: str) -> None:
        subprocess.run((*self.home.prefix, *argv), check=True, capture_output=True)


@pytest.fixture
def switched() -> Iterator[Machine]:
    home = make_home(_IMAGE)
    machine = Machine(home)
    try:
        yield machine
    finally:
        machine.switch_off()
        machine.forget()
        shutil.rmtree(home.folder, ignore_errors=True)


def _listed(home: Home) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in home.ask("/v1/containers?all=true")["items"]}


def _is_back(found: dict[str, dict[str, Any]]) -> bool:
    """Return whether the new boot is seen: the service lists first what was before it."""
    again = [found["lasting"], *_of(found, "web-")]
    return (
        all((one["state"], one["restarts"]) == ("running", 1) for one in again)
        and found["single"]["state"] == "failed"
        and [one["state"] for one in _of(found, "sweep-")] == ["failed", "running"]
    )


def _of(found: dict[str, dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    some = (one for name, one in found.items() if name.startswith(prefix))
    return sorted(some, key=lambda one: str(one["created_at"]))


def test_what_was_promised_comes_back_and_the_rest_is_lost_with_the_reason(switched: Machine, tmp_path: Path) -> None:
    home = switched.home
    switched.switch_on()
    _make_image(switched, tmp_path)
    home.up(simulate="t4x4")
    home.ok("run", "--name", "done", _IMAGE, "--", "echo", "before", timeout_s=120)
    keeps = ("sh", "-c", "echo up >> /data/ups; sleep 100000")
    home.start(
        "lasting", "--restart", "always", "-g", "1", "-v", "data:/data", "--cpus", "1", "-m", "256m", command=keeps
    )
    home.ok("update", "lasting", "-m", "300m")
    home.start("single", "-g", "1")
    manifest = tmp_path / "workloads.yaml"
    manifest.write_text(_WORKLOADS.replace("IMAGE", _IMAGE))
    home.ok("apply", "-f", str(manifest))
    home.until(lambda: sum(one["state"] == "running" for one in _listed(home).values()) == 4, what="all four run")
    before = _listed(home)

    switched.switch_off()
    time.sleep(1.1)  # a boot is told by whole seconds
    switched.switch_on()
    home.up(simulate="t4x4")
    home.until(lambda: _is_back(_listed(home)), what="it is as it was promised", timeout_s=120)
    after = _listed(home)

    assert after["lasting"]["uid"] == before["lasting"]["uid"]
    assert after["lasting"]["restarts"] == before["lasting"]["restarts"] + 1
    assert home.ok("exec", "lasting", "--", "cat", "/data/ups").out == "up\nup\n"
    assert len(home.show("lasting")["gpu_ids"]) == 1

    assert (after["single"]["state"], after["single"]["reason"]) == ("failed", "MachineRestarted")
    assert "restarted" in home.ok("explain", "single").out
    home.ok("start", "single")
    home.until_state("single", "running")
    assert set(home.show("single")["gpu_ids"]).isdisjoint(home.show("lasting")["gpu_ids"])

    assert (after["done"]["state"], after["done"]["finished_at"]) == ("succeeded", before["done"]["finished_at"])
    assert home.ok("logs", "done").out == "before\n"

    assert [(one["uid"], one["state"]) for one in _of(after, "web-")] == [(_of(before, "web-")[0]["uid"], "running")]
    tried = _of(after, "sweep-")
    assert [one["state"] for one in tried] == ["failed", "running"]
    assert (tried[0]["uid"], tried[0]["reason"]) == (_of(before, "sweep-")[0]["uid"], "MachineRestarted")
    home.ok("rm", "-f", "--grace", "0", "lasting", "single", "done")


def _make_image(machine: Machine, folder: Path) -> None:
    root = folder / "root"
    (root / "bin").mkdir(parents=True)
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        (root / name).mkdir()
    assert BUSYBOX is not None
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for applet in ("sh", "sleep", "echo", "cat"):
        (root / "bin" / applet).symlink_to("busybox")
    subprocess.run(("tar", "-C", str(root), "-cf", str(folder / "root.tar"), "."), check=True)
    machine.call("podman", "--runtime", "runc", "import", str(folder / "root.tar"), _IMAGE)
