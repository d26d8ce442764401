"""Runs inside the virtual machine of `test_vfio_machine.py`: does what an operator would and reports what came of it.

Nothing is judged here; reports and command lines are those of `onboard.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onboard import fairlead, report, start

from fairlead.cli.layer.cdi import generate as cdigenerate
from fairlead.cli.layer.cdi import group as cdigroup
from fairlead.cli.layer.cdi import read as cdiread
from fairlead.inject import launcher

GPU, SHARED, SIBLING, OTHER = "0000:00:04.0", "0000:00:05.0", "0000:00:05.1", "0000:00:06.0"
FUNCTIONS = Path("/sys/bus/pci/devices")
GROUPS = Path("/sys/kernel/iommu_groups")
KIND = "amd.com/pgpu"
PROBE = "/bundle/rootfs/bin/probe"
LIMIT_S = 120
LOADED = (cdigroup, cdigenerate, cdiread)
"""The verbs' modules."""


def generate(folder: str) -> dict[str, Any]:
    """Call `cdi generate` for an empty folder; returns what it said and what it wrote."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    done = fairlead("cdi", "generate", "--mode", "vfio-amd", "--format", "json", "--output", folder)
    specs = {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    return {**done, "specs": specs}


def bind(address: str, driver: str) -> None:
    """Bind a function by `driver_override`; an empty driver unbinds it."""
    unbind = FUNCTIONS / address / "driver/unbind"
    if unbind.exists():
        unbind.write_text(address)
    (FUNCTIONS / address / "driver_override").write_text(f"{driver}\n")
    if driver:
        Path("/sys/bus/pci/drivers_probe").write_text(address)


def driver(address: str) -> str:
    link = FUNCTIONS / address / "driver"
    return link.readlink().name if link.is_symlink() else ""


def group(address: str) -> str:
    return (FUNCTIONS / address / "iommu_group").readlink().name


def numbers(address: str) -> tuple[int, int]:
    number = Path("/dev/vfio", group(address)).stat().st_rdev
    return os.major(number), os.minor(number)


def steps(text: str) -> dict[str, Any]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {one["step"]: one for one in found}


def status(address: str) -> dict[str, Any]:
    """Ask the kernel itself about a function's group."""
    done = subprocess.run((PROBE, "status", group(address)), capture_output=True, text=True, check=False)
    return steps(done.stdout)


def run_container(*line: str) -> dict[str, Any]:
    done = subprocess.run(line, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return {"code": done.returncode, "err": done.stderr, "steps": steps(done.stdout)}


def containers() -> None:
    """Run one container through the shim and runc, one that `cdi inject` made ready through crun."""
    config = Path("/bundle/config.json")
    document = json.loads(config.read_text())
    first, second = numbers(OTHER)
    document["process"]["args"] = ["/bin/probe", "use", group(GPU), GPU, group(OTHER), str(first), str(second)]
    who = {"io.kubernetes.cri.sandbox-uid": "uid-1", "io.kubernetes.cri.container-name": "main"}
    asked = {"annotations": {"cdi.k8s.io/vfio_test": f"{KIND}={GPU}", **who}}
    config.write_text(json.dumps({**document, **asked}))
    launcher.install(Path("/opt/bin"), config=Path("/etc/fairlead/runtime.json"))
    shim = f"/opt/bin/{launcher.RUNTIME}"
    # The root file system is the initramfs, from which no runtime can pivot.
    report("runc", run_container(shim, "run", "--no-pivot", "--bundle", "/bundle", "one"))
    config.write_text(json.dumps(document))
    edited = fairlead("cdi", "inject", str(config), f"{KIND}=group{group(GPU)}", "--spec-dir", "/etc/cdi")
    report("inject", {"code": edited["code"], "err": edited["err"]})
    config.write_text(edited["out"])
    report("crun", run_container("/usr/bin/crun", "run", "--no-pivot", "--bundle", "/bundle", "two"))


def wait(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; False: it did not come true in time."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def watch() -> None:
    """Follow `cdi watch` while a group becomes viable and while all are unbound."""
    path = Path("/run/watch/fairlead-amd.com-pgpu.json")

    def names() -> set[str]:
        return {device["name"] for device in json.loads(path.read_text())["devices"]} if path.exists() else set()

    options = ("--mode", "vfio-amd", "--interval", "0.2", "--output", str(path.parent))
    pid = start("cdi", "watch", *options, folder=Path("/run/watcher"))
    seen: dict[str, Any] = {"before": wait(lambda: GPU in names() and SHARED not in names())}
    bind(SIBLING, "")
    seen["viable"] = wait(lambda: {GPU, SHARED} <= names())
    report("viable", {"kernel": status(SHARED), **generate("/run/viable")})
    bind(GPU, "")
    seen["one unbound"] = wait(lambda: SHARED in names() and GPU not in names())
    bind(SHARED, "")
    seen["all unbound"] = wait(lambda: not path.exists())
    os.kill(pid, signal.SIGTERM)
    seen["code"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    report("watch", {**seen, "err": Path("/run/watcher/err").read_text()})


def work() -> None:
    report("groups", {one.name: sorted(each.name for each in (one / "devices").iterdir()) for one in GROUPS.iterdir()})
    report("unbound", generate("/run/unbound"))
    for address in (GPU, SHARED, OTHER):
        bind(address, "vfio-pci")
    functions = (GPU, SHARED, SIBLING, OTHER)
    report("functions", {each: {"group": group(each), "driver": driver(each)} for each in functions})
    report("numbers", {each: numbers(each) for each in (GPU, SHARED, OTHER)})
    report("kernel", {each: status(each) for each in (GPU, SHARED, OTHER)})
    report("bound", generate("/etc/cdi"))
    report("validate", fairlead("cdi", "validate", "--spec-dir", "/etc/cdi"))
    containers()
    watch()
    report("unbound again", generate("/run/again"))
    report("done", time.monotonic())


if __name__ == "__main__":
    work()
