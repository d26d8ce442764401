"""Takes a GPU through time: attached, kept over a killed service, shared, verified, used by a neighbour."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu import workload
from tools.gpu.outcome import Log
from tools.gpu.parts import service

_PLUGIN: Final = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
_SETTLED_S: Final = 15.0


def run(context: contexts.Context, log: Log) -> None:
    """Run the service as it is by default, again after it was killed, with replicas, and with verification."""
    if not service.has_engine(log):
        return
    with service.up(context, log) as running:
        if running is None or not service.import_image(context, log, context.folder / "image-of-lifecycle"):
            return
        _attach(context, log)
        _neighbour(context, log)
        _start(context, "survivor", *workload.busy(context, 60))
        running.send_signal(signal.SIGKILL)
        running.wait()
    with service.up(context, log) as running:
        if running is not None:
            _survivor(context, log)
    plugin = context.folder / "plugin.yaml"
    plugin.write_text(_PLUGIN)
    with service.up(context, log, "--plugin-config-file", str(plugin)) as running:
        if running is not None:
            _replicas(context, log)
    with service.up(context, log, "--lease-reuse", "verify", "--lease-approvals", "1") as running:
        if running is not None:
            _verification(context, log)


def _start(context: contexts.Context, name: str, *command: str, gpus: int = 1) -> None:
    asked = ("-g", str(gpus)) if gpus else ()
    context.fairlead("run", "-d", "--name", name, *asked, service.IMAGE, "--", *command, timeout_s=40)
    context.fairlead("wait", name, "--state", "started", timeout_s=40)


def _gpus(context: contexts.Context) -> list[dict[str, Any]]:
    done = context.fairlead("gpus", "-o", "json", timeout_s=30)
    return list(json.loads(done.stdout)["gpus"]) if done.returncode == 0 else []


def _until(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + _SETTLED_S
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _attach(context: contexts.Context, log: Log) -> None:
    """Give a running container a GPU, and take it back."""
    _start(context, "plain", "sleep", "300", gpus=0)
    node = next(iter(_gpus(context)[0]["gpu"]["device_nodes"]))
    done = context.fairlead("attach", "plain", "0", timeout_s=30)
    if log.judge("attached to a running container", done.returncode == 0, service.end_of(done)):
        audit = context.fairlead("isolate", "audit", "plain", timeout_s=30)
        log.judge("audit of it", audit.returncode == 0, service.end_of(audit))
        back = context.fairlead("detach", "plain", "0", timeout_s=30)
        log.judge("and taken back", back.returncode == 0, service.end_of(back))
        opened = context.fairlead("exec", "plain", "--", "sh", "-c", f": < {node}", timeout_s=30)
        log.judge("it is closed then", opened.returncode != 0, f"{node}: {service.end_of(opened)}")
    context.fairlead("rm", "-f", "plain", timeout_s=30)


def _neighbour(context: contexts.Context, log: Log) -> None:
    """Work on a GPU by a program that Fairlead did not start: no container may get that GPU."""
    program = workload.build(context)
    if program is None:
        log.skip("a neighbour on the GPU", workload.build_problem(context))
        return
    child = subprocess.Popen((program, "hold", "60"), stdout=subprocess.PIPE, text=True)
    try:
        if child.stdout is not None:
            child.stdout.readline()
        first = str(_gpus(context)[0]["gpu"]["uuid"])

        def is_kept() -> bool:
            return any(one["health"] != "Healthy" for one in _gpus(context) if one["gpu"]["uuid"] == first)

        log.judge("a GPU with a neighbour is kept back", _until(is_kept), str(_gpus(context)[:1])[-300:])
    finally:
        child.kill()
        child.wait()
    log.judge(
        "and offered again after its end", _until(lambda: all(one["health"] == "Healthy" for one in _gpus(context)))
    )


def _survivor(context: contexts.Context, log: Log) -> None:
    """Look at a container whose service was killed and began again: it ran on, and has its GPU."""
    shown = context.fairlead("ps", "-o", "json", timeout_s=30).stdout
    log.judge("a container outlives a killed service", "survivor" in shown, shown[-300:])
    held = [one for one in _gpus(context) if one["holders"]]
    log.judge("and has its GPU still", len(held) == 1, f"{len(held)} GPUs are held")
    context.fairlead("rm", "-f", "survivor", timeout_s=30)
    free = _until(lambda: not any(one["holders"] for one in _gpus(context)))
    log.judge("and gives it back", free, context.fairlead("leases", timeout_s=20).stdout)


def _replicas(context: contexts.Context, log: Log) -> None:
    """Run two containers on replicas; where one GPU is, they share it."""
    for name in ("one", "two"):
        _start(context, name, *workload.busy(context, 30))
    held = {holder["container"]: one["gpu"]["index"] for one in _gpus(context) for holder in one["holders"]}
    log.judge("two containers have replicas", {"one", "two"} <= held.keys(), str(held))
    time.sleep(3)
    shown = context.fairlead("ps", "-o", "name", timeout_s=20).stdout
    log.judge("and both work", "one" in shown and "two" in shown, shown)
    context.fairlead("rm", "-f", "one", "two", timeout_s=30)


def _verification(context: contexts.Context, log: Log) -> None:
    """Approve the firmware of a board that waits for it, use its GPU, and check the chain of its reports."""
    waits = _until(lambda: any(one["reason"] == "VerifyBaselineMissing" for one in _gpus(context)))
    listed = context.fairlead("lease", "baseline", "list", timeout_s=20)
    log.fact("lease baseline list", listed.stdout)
    if not log.judge("an unknown board waits for approval", waits, service.end_of(listed)):
        return
    for board in {line.split()[0] for line in listed.stdout.splitlines()[1:] if line.strip()}:
        done = context.fairlead("lease", "baseline", "approve", board, timeout_s=20)
        log.judge("its firmware is approved", done.returncode == 0, service.end_of(done))
    well = _until(lambda: bool(_gpus(context)) and all(one["health"] == "Healthy" for one in _gpus(context)))
    log.judge("every GPU passes verification", well, str([(one["health"], one["reason"]) for one in _gpus(context)]))
    command, wanted = workload.proof(context)
    done = context.fairlead("run", "--rm", "-g", "1", service.IMAGE, "--", *command, timeout_s=60)
    log.judge("and is used", wanted in done.stdout, service.end_of(done))
    _until(lambda: not any(one["holders"] for one in _gpus(context)))
    report = context.fairlead("lease", "report", "--verify", timeout_s=20)
    log.judge("its reports are a chain", report.returncode == 0, service.end_of(report))
    log.fact("lease report", context.fairlead("lease", "report", timeout_s=20).stdout)
