"""Faults planted into a real machine: `fairlead doctor` finds each, names what is broken, and says what to do.

Each row plants one fault with the machine's own means (a signal, a file, a mount, a simulated board's driver) and says
what the doctor's finding must be. Rows with a service share one; the others run where none is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from home import Home, make_home

from fairlead.wire.cdi import stamp

# Slow: each of thirty plants breaks a service of its own, a minute and a half in all.
pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

Undo = Callable[[], object]


@dataclass(frozen=True)
class Plant:
    """One fault, and the finding that it must lead to."""

    name: str
    make: Callable[[Home], contextlib.AbstractContextManager[None]]
    check: str
    level: str
    what: str
    """Words of the cause."""
    fix: str
    """Words of the remedy."""


def cdi_folder(home: Home) -> Path:
    return Path(home.ok("status", "-o", "json").data["cdi_folder"])


def tree(home: Home) -> Path:
    return home.state / "silicon" / "root"


def broken(fault: str, *value: str, gpu: int) -> Callable[[Home], contextlib.AbstractContextManager[None]]:
    """Break a simulated board; it stays so until it is recovered, which nobody does here."""

    @contextlib.contextmanager
    def make(home: Home) -> Iterator[None]:
        home.ok("simulate", "fault", fault, *value, "-g", str(gpu))
        yield

    return make


def spec(text: str, name: str, *, mode: int = 0o644) -> Callable[[Home], contextlib.AbstractContextManager[None]]:
    """Put a file beside the service's specs."""

    @contextlib.contextmanager
    def make(home: Home) -> Iterator[None]:
        path = cdi_folder(home) / name
        path.write_text(text)
        path.chmod(mode)
        try:
            yield
        finally:
            path.unlink()

    return make


@contextlib.contextmanager
def second_definition(home: Home) -> Iterator[None]:
    home.start("holder", "-g", "1")  # the spec shows what is held, and no more
    own = cdi_folder(home) / "fairlead.dev-gpu.json"
    with spec(own.read_text(), "nvidia.yaml")(home):
        yield
    home.ok("rm", "-f", "holder")
    time.sleep(0.2)


def foreign(version: str = "0.5.0", **edits: Any) -> str:
    device = {"name": "0", "containerEdits": {"env": ["A=1"], **edits}}
    return json.dumps({"cdiVersion": version, "kind": "vendor.example/nic", "devices": [device]})


@contextlib.contextmanager
def moved(path: Path) -> Iterator[None]:
    """Take a file of the machine away."""
    aside = path.with_name(f"{path.name}.away")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


def missing_node(home: Home) -> contextlib.AbstractContextManager[None]:
    return moved(tree(home) / "dev" / "nvidia7")


@contextlib.contextmanager
def wrong_node(home: Home) -> Iterator[None]:
    path = tree(home) / "dev" / "nvidia6"
    with moved(path):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, 77))
        try:
            yield
        finally:
            path.unlink()


def missing_library(home: Home) -> contextlib.AbstractContextManager[None]:
    (path,) = tree(home).glob("usr/lib/*/libcuda.so.[0-9][0-9]*")
    return moved(path)


@contextlib.contextmanager
def missing_module(home: Home) -> Iterator[None]:
    modules = tree(home) / "proc/modules"
    before = modules.read_text()
    modules.write_text("".join(line for line in before.splitlines(True) if not line.startswith("nvidia_uvm")))
    with contextlib.ExitStack() as stack:
        if (folder := tree(home) / "sys/module/nvidia_uvm").exists():
            stack.enter_context(moved(folder))
        yield
    modules.write_text(before)


def stopped(pid: Callable[[Home], int]) -> Callable[[Home], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def make(home: Home) -> Iterator[None]:
        target = pid(home)
        assert target
        os.kill(target, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(target, signal.SIGCONT)

    return make


def service_pid(home: Home) -> int:
    assert home.process is not None
    return home.process.pid


@contextlib.contextmanager
def container(home: Home, name: str) -> Iterator[int]:
    """A container with one GPU; yields its first process."""
    home.start(name, "-g", "1")
    try:
        (found,) = [one for one in home.containers() if f"-{name}-" in one["Names"][0] and one["Pid"]]
        yield int(found["Pid"])
    finally:
        home.rm(name)


@contextlib.contextmanager
def rules_too_wide(home: Home) -> Iterator[None]:
    # A free GPU, whose spec is kept from when it was held: the ledger publishes none that is free.
    with container(home, "wide") as pid, tempfile.TemporaryDirectory() as kept:
        with container(home, "other"):
            (free,) = home.show("other")["gpu_ids"]
            shutil.copytree("/var/run/cdi", kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock", ".*"))
        home.ok("attach", "--pid", str(pid), "--spec-dir", kept, free)
        yield


@contextlib.contextmanager
def node_gone_inside(home: Home) -> Iterator[None]:
    with container(home, "bare"):
        home.ok("exec", "bare", "--", "sh", "-c", "rm /dev/nvidia[0-9]")
        yield


@contextlib.contextmanager
def network_gone(home: Home) -> Iterator[None]:
    """Take a container's network namespace from under podman, as an unclean end of its network does."""
    with container(home, "adrift"):
        for path in _network_namespaces(home, "adrift"):
            subprocess.run(("umount", "--lazy", path), check=True)
        yield


def _network_namespaces(home: Home, pod: str) -> set[str]:
    names = [one["Names"][0] for one in home.containers() if f"-{pod}-" in one["Names"][0]]
    asked = ("podman", "inspect", "--format={{.NetworkSettings.SandboxKey}}", "--", *names)
    found = set(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split())
    assert found, f"podman has no network namespace for any of {names}"
    return found


@contextlib.contextmanager
def every_gpu_lost(home: Home) -> Iterator[None]:
    for index in range(8):
        home.ok("simulate", "fault", "lost", "-g", str(index))
    yield


@contextlib.contextmanager
def killed(home: Home) -> Iterator[None]:
    home.kill()
    yield


@contextlib.contextmanager
def podman_gone(home: Home) -> Iterator[None]:
    home.extra["FAIRLEAD_ENGINE_PODMAN"] = "nosuchpodman"
    yield
    del home.extra["FAIRLEAD_ENGINE_PODMAN"]


BATCHES: dict[str, tuple[Plant, ...]] = {
    "files, nodes, drivers and rules": (
        Plant("rules too wide", rules_too_wide, "isolation", "fail", "wide.* is not its own", "audit --repair"),
        Plant("node gone inside", node_gone_inside, "isolation", "fail", "bare.*/dev/nvidia", "audit --repair"),
        Plant("broken file", spec("{", "broken.json"), "cdi", "warn", "broken.json", "cdi validate"),
        Plant("newer file", spec(foreign("1.0.0"), "new.json"), "cdi", "fail", "new.json is of CDI 1.0.0", "older"),
        Plant("open file", spec(foreign(), "open.json", mode=0o666), "cdi", "warn", "open.json may be", "chmod go-w"),
        Plant("missing node", missing_node, "driver", "warn", "nvidia7 of GPU 7 is missing: nvidia-mod", "as said"),
        Plant("wrong node", wrong_node, "driver", "warn", "nvidia6 .* is c 195:77, not c 195:6", "as said"),
        Plant("missing library", missing_library, "cdi|driver", "fail|warn", "libcuda", "fairlead"),
        Plant("missing module", missing_module, "driver", "warn", "nvidia_uvm", "as said there"),
    ),
    "two definitions": (
        Plant("second definition", second_definition, "cdi", "fail", "gpu.json and in .*nvidia", "mv .*yaml"),
    ),
    "a container that podman cannot list": (
        Plant("network gone", network_gone, "engine", "warn", "adrift-.* breaks `podman ps`", "rm --force .*-adrift-"),
    ),
    "an engine that is gone": (Plant("engine gone", podman_gone, "engine", "fail", "nosuchpodman", "install"),),
    "a frozen kubelet": (
        Plant("frozen kubelet", stopped(Home.kubelet_pid), "kubelet", "fail", "answer.*T .stopped", "kill -CONT"),
    ),
    "a frozen service": (Plant("frozen service", stopped(service_pid), "service", "fail", "T .stopped", "kill -CONT"),),
    "ill gpus": (
        Plant("rows used up", broken("remap", "failed", gpu=0), "gpus", "fail", "GPU 0 .*RowRemapFailed", "replace"),
        Plant("rows to remap", broken("remap", "pending", gpu=1), "gpus", "warn", "GPU 1 .*RemapPending", "reset -i 1"),
        Plant("heat", broken("temperature", "97", gpu=2), "gpus", "warn", "GPU 2 .* 97 C, limit 95 C", "airflow"),
        Plant("gsp error", broken("xid", "119", gpu=3), "gpus", "fail", "GPU 3 .* XID119.*GSP", "--gpu-reset -i 3"),
        Plant("memory error", broken("ecc", gpu=4), "gpus", "fail", "GPU 4 .* ECCUncorrected", "--gpu-reset -i 4"),
        Plant("lost board", broken("lost", gpu=5), "gpus", "fail", "GPU 5 .* is Lost", "reboot the machine"),
        Plant("xid 79", broken("xid", "79", gpu=6), "gpus", "fail", "GPU 6 .* XID79", "reboot the machine"),
        Plant("hanging board", broken("slow", "3600", gpu=7), "gpus", "fail", "GPU 7 .* is Timeout", "dmesg"),
    ),
    "a driver that asks for a reset": (
        Plant("driver asks", broken("recovery-action", "4", gpu=1), "gpus", "fail", "GPU 1 .*DrainAnd", "reset -i 1"),
    ),
    "no gpu left": (Plant("no gpu left", every_gpu_lost, "plugin", "fail", "0 of 8", "fairlead events"),),
    "a killed service": (Plant("killed service", killed, "service", "warn", "does not answer", "fairlead up"),),
}
"""Faults that are planted together, one batch after the other."""


def setting(key: str, value: str) -> Callable[[Home], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def make(home: Home) -> Iterator[None]:
        home.extra[key] = value
        yield

    return make


def podman_script(script: str) -> Callable[[Home], contextlib.AbstractContextManager[None]]:
    """Have another program answer as podman."""

    @contextlib.contextmanager
    def make(home: Home) -> Iterator[None]:
        path = home.folder / "podman"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        home.extra["FAIRLEAD_ENGINE_PODMAN"] = str(path)
        yield

    return make


@contextlib.contextmanager
def small_disk(home: Home, *, remounted: str = "") -> Iterator[None]:
    """Put the state folder on a disk of its own that is full, or read-only."""
    home.state.mkdir(parents=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(home.state)), check=True)
    try:
        if remounted:
            subprocess.run(("mount", "-o", f"remount,{remounted}", str(home.state)), check=True)
        else:
            with contextlib.suppress(OSError), (home.state / "filling").open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        yield
    finally:
        subprocess.run(("umount", str(home.state)), check=True)


@contextlib.contextmanager
def read_only_disk(home: Home) -> Iterator[None]:
    with small_disk(home, remounted="ro"):
        yield


@contextlib.contextmanager
def damaged_database(home: Home) -> Iterator[None]:
    home.state.mkdir(parents=True)
    (home.state / "state.db").write_bytes(b"this is not a database" * 500)
    yield


@contextlib.contextmanager
def own_spec(**edits: Any) -> Iterator[None]:
    """Leave a spec of ours behind, as a service does that was killed."""
    folder = Path("/var/run/cdi")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fairlead.dev-gpu.json"
    before = path.read_bytes() if path.exists() else None
    document = {
        "cdiVersion": "0.5.0",
        "kind": "fairlead.dev/gpu",
        "devices": [{"name": "GPU-0", "containerEdits": {"env": ["A=1"], **edits}}],
    }
    path.write_text(json.dumps(document))
    mark = stamp.emit_stamp(stamp.Stamp(boot_id="another", driver="nvidia", version="1.2.3"), path.read_bytes())
    stamp.beside(path).write_bytes(mark)
    try:
        yield
    finally:
        stamp.beside(path).unlink()
        path.unlink() if before is None else path.write_bytes(before)


def stale_spec(_home: Home) -> contextlib.AbstractContextManager[None]:
    return own_spec()


def spec_with_hook(_home: Home) -> contextlib.AbstractContextManager[None]:
    return own_spec(hooks=[{"hookName": "createContainer", "path": "/nonexistent/hook"}])


def spec_with_mount(_home: Home) -> contextlib.AbstractContextManager[None]:
    return own_spec(mounts=[{"hostPath": "/nonexistent/libcuda.so", "containerPath": "/usr/lib/libcuda.so"}])


OLD = json.dumps({"host": {"ociRuntime": {"name": "runc"}}, "store": {}, "version": {"Version": "4.0.2"}})
REFUSED = "echo 'Error: cannot resolve /nonexistent: lstat /nonexistent: no such file or directory' >&2; exit 125"
ALONE = (
    Plant("no gpu", setting("X", ""), "silicon", "fail", "no GPU answered", "install the vendor's driver"),
    Plant("no podman", setting("FAIRLEAD_ENGINE_PODMAN", "nosuchpodman"), "engine", "fail", "nosuchpodman", "install"),
    Plant("old podman", podman_script(f"echo '{OLD}'"), "engine", "fail", "podman 4.0.2 does not inject", "podman 4.3"),
    Plant("broken podman", podman_script(REFUSED), "engine", "fail", "cannot resolve", "podman info"),
    Plant(
        "unread folder",
        setting("FAIRLEAD_NODE_CDI_FOLDER", "/tmp/unread"),
        "cdi",
        "fail",
        "not /tmp/unread",
        "node.cdi",
    ),
    Plant("stale spec", stale_spec, "cdi", "warn", "generated in another boot", "cdi generate"),
    Plant("hook gone", spec_with_hook, "cdi", "fail", "calls the hook /nonexistent/hook", "cdi list"),
    Plant("mount gone", spec_with_mount, "cdi", "fail", "mounts /nonexistent/libcuda.so", "cdi list"),
    Plant("full disk", small_disk, "state", "fail", "disk that is full", "df"),
    Plant("read-only disk", read_only_disk, "state", "fail", "mounted read-only", "df"),
    Plant("damaged database", damaged_database, "state", "fail", "state.db", "state repair"),
)


def test_thirty_faults_are_planted() -> None:
    assert len({plant.name for plants in (*BATCHES.values(), ALONE) for plant in plants}) >= 30


@pytest.fixture(scope="module")
def served(image: str) -> Iterator[Home]:
    """A service that looks at its GPUs every second."""
    one = make_home(image)
    one.extra |= {"FAIRLEAD_SILICON_RESCAN_S": "1", "FAIRLEAD_SILICON_CALL_TIMEOUT_S": "1"}
    one.up()
    yield one
    one.close()
    shutil.rmtree(one.folder, ignore_errors=True)


@pytest.fixture
def alone() -> Iterator[Home]:
    """Settings of a machine on which no service runs."""
    one = Home(folder=Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp")), image="")
    yield one
    shutil.rmtree(one.folder)


def find(home: Home, plants: tuple[Plant, ...]) -> None:
    """Ask the doctor until each plant is found."""
    seen: list[dict[str, str]] = []
    left = list(plants)

    def are_found() -> bool:
        seen[:] = home("doctor", "-o", "json").data
        left[:] = [plant for plant in left if not any(_is_found(plant, one) for one in seen)]
        return not left

    def detail() -> str:
        return f"{[plant.name for plant in left]} of {json.dumps(seen, indent=1)}"

    home.until(are_found, what="doctor finds what was planted", timeout_s=20, detail=detail)


def _is_found(plant: Plant, found: dict[str, str]) -> bool:
    return bool(
        re.fullmatch(plant.check, found["check"])
        and re.fullmatch(plant.level, found["level"])
        and re.search(plant.what, found["what"])
        and re.search(plant.fix, found.get("fix", ""))
        and found.get("why")
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_faults_under_a_service_are_found_with_cause_and_fix(served: Home, batch: str) -> None:
    with contextlib.ExitStack() as planted:
        for plant in BATCHES[batch]:
            planted.enter_context(plant.make(served))
        find(served, BATCHES[batch])


@pytest.mark.parametrize("plant", ALONE, ids=lambda plant: plant.name)
def test_a_fault_without_a_service_is_found_with_cause_and_fix(alone: Home, plant: Plant) -> None:
    with plant.make(alone):
        find(alone, (plant,))
