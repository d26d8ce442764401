"""Runs the agent with the embedded kubelet (`fairlead up`) and one container on a GPU, and reads what both report."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu import smi, workload
from tools.gpu.outcome import Log

_READY_S: Final = 30.0
IMAGE: Final = "localhost/fairlead-gpu-check"
_LINE: Final = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\} (\S+)$")
_GPU_NODE: Final = re.compile(r"^/dev/nvidia\d+$")
_BURN_S: Final = 20
_VIEWS: Final[tuple[tuple[str, ...], ...]] = (
    ("gpus", "-o", "json"),
    ("gpus", "-o", "wide"),
    ("topology", "-o", "json"),
    ("doctor", "-o", "json"),
)

# DCGM's field beside dmon's column: name, factor from ours to theirs, tolerance in their unit, and whether it is fixed.
_BESIDE: Final = (
    ("DCGM_FI_DEV_GPU_UTIL", "sm", 1, 40),
    ("DCGM_FI_DEV_POWER_USAGE", "pwr", 1, 150),
    ("DCGM_FI_DEV_GPU_TEMP", "gtemp", 1, 10),
    ("DCGM_FI_DEV_MEMORY_TEMP", "mtemp", 1, 10),
    ("DCGM_FI_DEV_SM_CLOCK", "pclk", 1, 400),
    ("DCGM_FI_DEV_MEM_CLOCK", "mclk", 1, 100),
    ("DCGM_FI_DEV_FB_USED", "fb", 1, 512),
)

# Metrics of nvidia-smi's --gpm-metrics by number, with DCGM's fields: shares of time in percent there, of 1 here.
_GPM: Final = {
    "1": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "2": "DCGM_FI_PROF_SM_ACTIVE",
    "3": "DCGM_FI_PROF_SM_OCCUPANCY",
    "5": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "10": "DCGM_FI_PROF_DRAM_ACTIVE",
    "12": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
}


def run(context: contexts.Context, log: Log) -> None:
    """Start the service, use it as a person would, end it."""
    if not has_engine(log):
        return
    port = _free_port()
    with up(context, log, "--node-metrics", f"127.0.0.1:{port}") as service:
        if service is None:
            return
        listing = _view(context, log)
        if not import_image(context, log, context.folder / "image-root"):
            return
        _first_container(context, log, listing)
        _cuda(context, log)
        _tenants_container(context, log)
        _under_load(context, log, port)
        context.fairlead("rm", "-f", "check", timeout_s=30)


def has_engine(log: Log) -> bool:
    """Return whether containers can be run here; what is missing is written as skipped."""
    if contexts.find("podman", {}):
        return True
    log.skip("service", "podman is not on this machine, nor in the pack: `fairlead up` cannot run containers")
    return False


def import_image(context: contexts.Context, log: Log, root: Path) -> bool:
    """Make the check's image of a new root file system; returns whether the service has it."""
    workload.make_root(context, root)
    made = context.fairlead("image", "import", str(root), IMAGE, timeout_s=60)
    return log.judge("image", made.returncode == 0, end_of(made))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def up(context: contexts.Context, log: Log, *options: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run `fairlead up` for the length of a block; gives its process, None where it did not come up.

    Args: options: further ones.
    """
    said = context.folder / "up.log"
    began, start = time.perf_counter(), said.stat().st_size if said.exists() else 0
    with said.open("ab") as out:
        service = subprocess.Popen(
            (*contexts.fairlead_command(), "up", "--engine-network", "none", *options),
            env=context.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        while service.poll() is None and time.perf_counter() - began < _READY_S:
            if b" is up on " in said.read_bytes()[start:]:
                log.fact("up until ready_ms", round((time.perf_counter() - began) * 1000))
                log.ok("service", "up")
                yield service
                return
            time.sleep(0.05)
        log.fail("service", f"not up: {said.read_text(errors='replace').strip()[-800:]}")
        yield None
    finally:
        done = context.fairlead("down", timeout_s=25)
        if done.returncode:
            service.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(15)
        if service.poll() is None:
            log.fail("down", f"the service did not end: {done.stderr.strip()[-300:]}")
            service.kill()


def _view(context: contexts.Context, log: Log) -> list[dict[str, Any]]:
    """Keep what `gpus`, `topology` and `doctor` say; every fault that doctor names is a check."""
    listing: list[dict[str, Any]] = []
    for words in _VIEWS:
        done = context.fairlead(*words, timeout_s=30)
        log.fact(f"fairlead {' '.join(words)}", done.stdout)
        if words[0] == "doctor":
            for finding in json.loads(done.stdout or "[]"):
                if finding["level"] == "fail":
                    text = "; ".join(str(finding.get(key, "")) for key in ("what", "why", "fix"))
                    log.fail(f"doctor: {finding['check']}", text)
            continue
        log.judge(f"fairlead {' '.join(words)}", done.returncode == 0, done.stderr.strip()[-300:])
        if words[0] == "gpus" and words[-1] == "json" and done.returncode == 0:
            listing = json.loads(done.stdout)["gpus"]
    unwell = [
        f"{one['gpu']['index']}: {one['health']} {one['reason']}" for one in listing if one["health"] != "Healthy"
    ]
    log.judge("every GPU is healthy", bool(listing) and not unwell, "; ".join(unwell))
    return listing


def _first_container(context: contexts.Context, log: Log, listing: list[dict[str, Any]]) -> None:
    """Allocate, start, trace: one GPU, and what the kernel and the process say of it."""
    with log.timed("submit until ended, first container"):
        done = context.fairlead("run", "--name", "first", "-g", "1", IMAGE, "--", "nvidia-smi", "-L", timeout_s=60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    known = [str(one["gpu"]["uuid"]) for one in listing]
    is_one = len(lines) == 1 and any(uuid in lines[0] for uuid in known)
    log.judge("one container, one GPU", is_one, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    trace = context.fairlead("trace", "first", "-o", "json", timeout_s=30)
    log.judge("trace", trace.returncode == 0, trace.stderr.strip()[-300:])
    log.fact("trace", trace.stdout)
    steps = [one["step"] for one in json.loads(trace.stdout or "{}").get("entries", []) if one.get("step")]
    for step in steps:
        if step.get("duration_s") is not None:
            log.fact(f"{step['layer']}: {step['reason']}_ms", round(step["duration_s"] * 1000, 2))
    shown = context.fairlead("trace", "first", timeout_s=30)
    log.fact("trace as shown", shown.stdout)
    opens: dict[str, str] = next((step["facts"]["opens"] for step in steps if step["reason"] == "IsolationRead"), {})
    log.fact("opens", opens)
    wanted = "ENXIO" if context.simulate else "OK"
    gpus = {where: said for where, said in opens.items() if _GPU_NODE.match(where)}
    log.judge("the granted node opens", list(gpus.values()) == [wanted], f"{gpus}; wanted: one that is {wanted}")
    denied = [said for where, said in opens.items() if not where.startswith("/")]
    if len(listing) > 1:
        log.judge("the other GPUs are denied", bool(denied) and set(denied) == {"EPERM"}, f"{denied}")


def _cuda(context: contexts.Context, log: Log) -> None:
    """Calculate in a container of the service, whose image brings nothing of the driver."""
    if workload.build(context) is None:
        log.skip("CUDA in a container", workload.build_problem(context))
        return
    command, wanted = workload.proof(context)
    done = context.fairlead("run", "--rm", "-g", "1", IMAGE, "--", *command, timeout_s=60)
    log.judge("CUDA in a container", wanted in done.stdout, f"exit code {done.returncode}: {end_of(done)}")


def _tenants_container(context: contexts.Context, log: Log) -> None:
    """Use the GPU in a tenancy's container, which has a user namespace: root in it is nobody on the machine."""
    made = context.fairlead("tenancy", "create", "check", "--network", "none", timeout_s=40)
    if made.returncode:
        log.fail("a tenancy", end_of(made), required=False)
        return
    command, wanted = workload.proof(context)
    asked = f"cat /proc/self/uid_map; {' '.join(command)}"
    done = context.fairlead("run", "-T", "check", "--rm", "-g", "1", IMAGE, "--", "sh", "-c", asked, timeout_s=60)
    said = done.stdout.split()
    is_mapped = len(said) > 2 and said[0] == "0" and said[1] != "0"
    log.judge("a tenancy's container has a user namespace", is_mapped, end_of(done))
    log.judge(
        "a tenancy's container works on its GPU", wanted in done.stdout, f"exit code {done.returncode}: {end_of(done)}"
    )
    context.fairlead("tenancy", "delete", "check", timeout_s=40)


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a command said."""
    return (done.stdout + done.stderr).strip()[-500:]


def _under_load(context: contexts.Context, log: Log, port: int) -> None:
    """Compare the exporter with `nvidia-smi dmon` while a kernel runs (on simulated silicon: while a GPU is held)."""
    if not context.simulate and workload.build(context) is None:
        log.skip("metrics under load", workload.build_problem(context))
        return
    program = workload.busy(context, _BURN_S)
    started = context.fairlead("run", "-d", "--name", "check", "-g", "1", IMAGE, "--", *program, timeout_s=40)
    if not log.judge("container under load", started.returncode == 0, started.stderr.strip()[-300:]):
        return
    time.sleep(6)
    said = context.fairlead("logs", "check", timeout_s=20)
    shown = context.fairlead("ps", "-o", "name", timeout_s=20).stdout.split()
    if not log.judge("it runs under load", any("check" in name for name in shown), f"{shown}: {end_of(said)}"):
        return
    page = _metrics(port)
    log.fact("metrics", page)
    if not log.judge("exporter", "DCGM_FI_DEV_GPU_UTIL" in page, page[:200]):
        return
    ours = {(name, _label(labels, "gpu")): float(value) for name, labels, value in _samples(page)}
    held = sorted({_label(labels, "gpu") for _, labels, _ in _samples(page) if _label(labels, "container")})
    log.judge("the holder is named", len(held) == 1, f"GPUs with a container: {held}")
    if not context.smi:
        log.skip("metrics beside dmon", "nvidia-smi was not found")
        return
    _beside_dmon(context, log, ours, held)
    _beside_gpm(context, log, ours, held)
    busy = [ours.get(("DCGM_FI_DEV_GPU_UTIL", one), 0) for one in held]
    log.judge("the GPU under load is busy", any(value > 50 for value in busy), f"{busy} percent", required=False)


def _beside_dmon(context: contexts.Context, log: Log, ours: dict[tuple[str, str], float], held: list[str]) -> None:
    """Compare figures column by column. Args: ours: by DCGM's name and the GPU's index.   held: indices."""
    done = contexts.run((context.smi, "dmon", "-s", "pucmt", "-c", "1"), timeout_s=20)
    log.fact("nvidia-smi dmon", done.stdout)
    rows = {row.get("gpu", ""): row for row in smi.parse_dmon(done.stdout)}
    log.judge("nvidia-smi dmon", bool(rows), done.stderr.strip()[-200:] or done.stdout[:200])
    if context.simulate:
        log.note("metrics of the held GPU", "not compared: the stand-in of nvidia-smi does not know who holds GPUs")
    for index, row in rows.items():
        if context.simulate and index in held:
            continue
        for name, column, factor, within in _BESIDE:
            mine, theirs = ours.get((name, index)), row.get(column, "-")
            _compare(log, f"gpu {index}: {name}", None if mine is None else mine * factor, theirs, within=within)


def _compare(log: Log, name: str, ours: float | None, theirs: str, *, within: float) -> None:
    """Compare a figure with nvidia-smi's; one that either does not tell is a note."""
    if ours is None or not theirs.replace(".", "").isdigit():
        log.note(name, f"ours {ours}, nvidia-smi's {theirs}")
    else:
        log.compare(name, ours, float(theirs), within=within)


def _beside_gpm(context: contexts.Context, log: Log, ours: dict[tuple[str, str], float], held: list[str]) -> None:
    """Compare the profiling figures of the held GPU with those that nvidia-smi reads by the same interface."""
    done = contexts.run((context.smi, "dmon", "--gpm-metrics", ",".join(_GPM), "-c", "2"), timeout_s=20)
    log.fact("nvidia-smi dmon --gpm-metrics", done.stdout + done.stderr)
    rows = [line.split() for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]
    last = {row[0]: row[-len(_GPM) :] for row in rows}
    if context.simulate or not any(index in last for index in held):
        log.skip("profiling beside nvidia-smi", done.stderr.strip()[-200:] or "it told none of the held GPU")
        return
    for index in held:
        for name, theirs in zip(_GPM.values(), last.get(index, ()), strict=False):
            mine = ours.get((name, index))
            percent = None if mine is None else round(mine * 100, 1)
            _compare(log, f"gpu {index}: {name} in percent", percent, theirs, within=10)


def _metrics(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return f"no answer: {error}"


def _samples(page: str) -> list[tuple[str, str, str]]:
    return [(found[1], found[2], found[3]) for line in page.splitlines() if (found := _LINE.match(line))]


def _label(labels: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', labels)
    return found.group(1) if found else ""
