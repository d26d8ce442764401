"""Runs containers by raw runc and crun on the first GPU, and asks the kernel and the driver what they may do.

Where a driver stands behind the nodes, an open that the device cgroup allows succeeds; on simulated silicon it ends in
ENXIO, since no driver is there to answer. One that the cgroup denies ends in EPERM on both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fairlead.model.gpu import GPU, Inventory
from fairlead.silicon.sim import elf
from fairlead.wire.text import ldcache
from fairlead_cdi import errors as cdi_errors
from tools.gpu import bundle as bundles
from tools.gpu import context as contexts
from tools.gpu import workload
from tools.gpu.outcome import Log
from tools.gpu.parts import specs

_LOOK: Final = r"""
try() { if (: < "$1") 2>/tmp/why; then echo "$2 OK"; else echo "$2 $(cat /tmp/why)"; fi; }
for node in $GRANTED; do try $node granted:$node; done
mkdir -p /tmp/made
for pair in $DENIED; do
  mknod /tmp/made/$pair c ${pair%:*} ${pair#*:} 2>/tmp/why && try /tmp/made/$pair denied:$pair ||
    echo "denied:$pair mknod $(cat /tmp/why)"
done
"""
_ENXIO, _EPERM = "No such device or address", "Operation not permitted"
_TORCH: Final = (
    "import torch; a = torch.arange(1024., device='cuda'); print('devices', torch.cuda.device_count()); "
    "print('right', int((a * 2).sum().item()) == 1047552)"
)
_MAJOR: Final = 195
_DRIVER: Final = "/driver"
_LISTED: Final = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc")


def run(context: contexts.Context, log: Log) -> None:
    """Run every runtime that is here, both ways in."""
    inventory = asyncio.run(context.scan())
    if not (context.folder / "cdi-tenant").exists():
        specs.generate(context, log, "tenant", context.folder / "cdi-tenant")
    if not inventory.gpus:
        log.fail("gpus", "no GPU answered, so no container was given one")
        return
    if os.geteuid() != 0:
        log.fail("root", "containers are made by root: run the check as root")
        return
    if workload.build(context) is None:
        log.skip("CUDA program", workload.build_problem(context))
    for runtime in ("runc", "crun"):
        if not contexts.find(runtime, {}):
            log.skip(runtime, "it is not on this machine, nor in the pack")
            continue
        for way in ("shim", "edits"):
            bench = bundles.Bench(context=context, runtime=runtime, way=way)
            try:
                _run_bench(bench, inventory, log)
            except (OSError, subprocess.SubprocessError, cdi_errors.CDIError) as error:
                log.fail(bench.name, f"{type(error).__name__}: {error}")
    _torch(context, inventory.gpus[0], log)


def _spec(context: contexts.Context) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted((context.folder / "cdi-tenant").glob("*.json"))]
    return next((one for one in found if one.get("kind") == bundles.KIND), {})


def _parts_of(document: dict[str, Any], device: str) -> Iterator[dict[str, Any]]:
    yield document.get("containerEdits", {})
    for one in document.get("devices", []):
        if one["name"] == device:
            yield one.get("containerEdits", {})


def _run_bench(bench: bundles.Bench, inventory: Inventory, log: Log) -> None:
    bench.prepare()
    gpu = inventory.gpus[0]
    device, document = str(gpu.index), _spec(bench.context)
    edits = list(_parts_of(document, device))
    mounts = [mount["containerPath"] for one in edits for mount in one.get("mounts", [])]
    nodes = [node["path"] for one in edits for node in one.get("deviceNodes", [])]
    root = workload.make_root(bench.context, bench.folder / "root")

    smi = next((path for path in mounts if path.endswith("/nvidia-smi")), "")
    if smi:
        with log.timed(f"first start, {bench.name}"):
            done = bench.run(bench.bundle("smi", root, (smi, "-L"), device=device))
        lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
        is_one = len(lines) == 1 and str(gpu.uuid) in lines[0]
        log.judge(f"{bench.name}: nvidia-smi -L shows one GPU, the granted one", is_one, _said(done))
    else:
        log.fail(f"{bench.name}: nvidia-smi", "the spec mounts none")

    _ask_kernel(bench, root, gpu, inventory, nodes, log)
    if (root / "bin/workload").exists():
        for what, wanted in (("query", "devices 1"), ("check", "right 1048576")):
            done = bench.run(bench.bundle(what, root, ("workload", what), device=device))
            log.judge(f"{bench.name}: CUDA {what}", wanted in done.stdout, _said(done))
    if bench.way == "shim":
        _ask_linker(bench, root, log)
        _ask_compat(bench, device, log)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}"


def _ask_kernel(bench: bundles.Bench, root: Path, gpu: GPU, inventory: Inventory, nodes: list[str], log: Log) -> None:
    """Open what was granted, and device numbers that were not: a GPU's beside it, and the driver's other nodes."""
    granted = [node for node in nodes if bundles.is_device(bench.context.root / node.lstrip("/"))]
    here = {(bench.context.root / node.lstrip("/")).stat().st_rdev for node in granted}
    minors = {one.minor for one in inventory.gpus} - {gpu.minor} or {gpu.minor + 1}
    denied = [f"{_major(bench.context)}:{minor}" for minor in sorted(minors)[:7]]
    denied += [f"{_major(bench.context)}:254", "1:1"]
    denied = [pair for pair in denied if os.makedev(*map(int, pair.split(":"))) not in here]
    env = (f"GRANTED={' '.join(granted)}", f"DENIED={' '.join(denied)}")
    done = bench.run(bench.bundle("look", root, ("sh", "-c", _LOOK), device=str(gpu.index), env=env))
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("granted:", "denied:")))
    allowed = _ENXIO if bench.context.simulate else "OK"
    for node in granted:
        said = answers.get(f"granted:{node}", "no answer")
        log.judge(f"{bench.name}: {node} opens", allowed in said, f"{said}; wanted: {allowed}")
    for pair in denied:
        said = answers.get(f"denied:{pair}", f"no answer: {_said(done)}")
        log.judge(f"{bench.name}: device {pair} is denied", _EPERM in said, f"{said}; wanted: {_EPERM}")


def _major(context: contexts.Context) -> int:
    found = next(iter(sorted((context.root / "dev").glob("nvidia[0-9]*"))), None)
    return os.major(found.stat().st_rdev) if found else _MAJOR


def _ask_linker(bench: bundles.Bench, root: Path, log: Log) -> None:
    """The hook has written a cache in which the container's linker finds the driver."""
    path = root / "etc/ld.so.cache"
    if not path.exists():
        log.fail(f"{bench.name}: linker's cache", "the hook wrote no /etc/ld.so.cache in the container")
        return
    known = {entry.soname for entry in ldcache.parse_ldcache(path.read_bytes())}
    wanted = {"libcuda.so.1", "libnvidia-ml.so.1"}
    log.judge(f"{bench.name}: linker's cache knows the driver", wanted <= known, f"missing: {sorted(wanted - known)}")


def _ask_compat(bench: bundles.Bench, device: str, log: Log) -> None:
    """An image's own libcuda goes first where it is newer than the driver, and only there."""
    for word, version, is_first in (("newer", "9999.1", True), ("older", "1.1", False)):
        root = workload.make_root(bench.context, bench.folder / f"root-{word}")
        place = root / "usr/local/cuda/compat"
        place.mkdir(parents=True)
        (place / f"libcuda.so.{version}").write_bytes(elf.library("libcuda.so.1", remark="a test's"))
        (place / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
        done = bench.run(bench.bundle(f"compat-{word}", root, ("true",), device=device))
        text = "".join(path.read_text() for path in sorted((root / "etc/ld.so.conf.d").glob("*.conf")))
        is_there = "/cuda/compat" in text
        name = f"{bench.name}: an image's {word} libcuda {'goes first' if is_first else 'is left alone'}"
        log.judge(name, done.returncode == 0 and is_there is is_first, f"{_said(done)}; folders: {text.split()}")


def _torch(context: contexts.Context, gpu: GPU, log: Log) -> None:
    """Run this machine's PyTorch in a container: its folders are mounted read-only, the GPU comes by the edits."""
    python = contexts.find("python3", dict(os.environ))
    asked = "import importlib.util, sys; print(importlib.util.find_spec('torch') is not None)"
    has_torch = bool(python) and "True" in contexts.run((python, "-c", asked), timeout_s=20).stdout
    runtime = contexts.find("runc", {}) or contexts.find("crun", {})
    if context.simulate or not has_torch or not runtime:
        log.skip("PyTorch", "this machine has no python3 with torch, no runtime, or no real GPU")
        return
    bench = bundles.Bench(context=context, runtime=Path(runtime).name, way="edits")
    root = bench.folder / "torch-root"
    mounts = [
        {"destination": place, "source": place, "type": "bind", "options": ["rbind", "ro"]}
        for place in _LISTED
        if Path(place).exists()
    ]
    for mount in mounts:
        (root / str(mount["destination"]).lstrip("/")).mkdir(parents=True, exist_ok=True)
    for part in ("dev", "proc", "sys", "tmp", "root", "driver"):
        (root / part).mkdir(parents=True, exist_ok=True)
    try:
        made = bench.bundle("torch", root, (python, "-c", _TORCH), device=str(gpu.index))
        document = json.loads((made / "config.json").read_text())
        edits = [mount for mount in document["mounts"] if mount not in mounts]
        system = [
            mount
            for mount in edits
            if mount["destination"] in ("/proc", "/sys", "/dev") or mount["destination"].startswith(("/dev/", "/sys/"))
        ]
        # The machine's folders are mounted whole and read-only: what the edits bring gets a place of its own.
        own = {
            f"{_DRIVER}/{Path(mount['destination']).name}": mount
            for mount in edits
            if mount not in system and ".so" in mount["destination"]
        }
        document["mounts"] = [*system, *mounts, *({**mount, "destination": place} for place, mount in own.items())]
        document["process"]["env"] += [f"LD_LIBRARY_PATH={_DRIVER}", "HOME=/tmp"]
        (made / "config.json").write_text(json.dumps(document))
        done = bench.run(made, timeout_s=40)
    except (OSError, subprocess.SubprocessError, cdi_errors.CDIError) as error:
        log.fail("PyTorch", f"{type(error).__name__}: {error}", required=False)
        return
    is_right = "devices 1" in done.stdout and "right True" in done.stdout
    log.judge("PyTorch works on the granted GPU", is_right, _said(done), required=False)
