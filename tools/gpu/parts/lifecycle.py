"""What happens to a GPU over time: attached, kept over a killed service, shared, verified, used by a neighbour."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu import workload
from tools.gpu.outcome import Log
from tools.gpu.parts import service

_PLUGIN: Final = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
_SETTLED_S: Final = 15.0


def run(context: contexts.Context, log: Log) -> None:
    """Run the service three times: as it is by default, with replicas, with verification."""
    if not contexts.find("podman", {}):
        log.skip("service", "podman is not on this machine, nor in the pack: `fairlead up` cannot run containers")
        return
    workload.build(context)
    root = workload.make_root(context, context.folder / "image-of-lifecycle")
    with service.up(context, log) as running:
        if running is None:
            return
        context.fairlead("image", "import", str(root), service.IMAGE, timeout_s=60)
        _attach(context, log)
        _neighbour(context, log)
        _start(context, "survivor", *_busy(context, 60))
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


def _has_cuda(context: contexts.Context) -> bool:
    return not context.simulate and workload.build(context) is not None


def _busy(context: contexts.Context, seconds: int) -> Sequence[str]:
    return ("workload", "burn", str(seconds)) if _has_cuda(context) else ("sleep", str(seconds))


def _proof(context: contexts.Context) -> tuple[Sequence[str], str]:
    """Return a command that works on a container's GPU, and what it says where it does."""
    return (("workload", "check"), "right 1048576") if _has_cuda(context) else (("nvidia-smi", "-L"), "GPU 0")


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
    command, wanted = _proof(context)
    _start(context, "plain", "sleep", "300", gpus=0)
    done = context.fairlead("attach", "plain", "0", timeout_s=30)
    if log.judge("attached to a running container", done.returncode == 0, service.end_of(done)):
        audit = context.fairlead("isolate", "audit", "plain", timeout_s=30)
        log.judge("audit of it", audit.returncode == 0, service.end_of(audit))
        if _has_cuda(context):
            # The driver's files came to containers at their start; this one brings them by a folder of its own.
            used = context.fairlead("exec", "plain", "--", *command, timeout_s=30)
            log.note("CUDA in it", service.end_of(used))
        back = context.fairlead("detach", "plain", "0", timeout_s=30)
        log.judge("and taken back", back.returncode == 0, service.end_of(back))
        opened = context.fairlead("exec", "plain", "--", "sh", "-c", ": < /dev/nvidia0", timeout_s=30)
        log.judge("it is closed then", opened.returncode != 0, f"opened: {wanted}" if not opened.returncode else "")
    context.fairlead("rm", "-f", "plain", timeout_s=30)


def _neighbour(context: contexts.Context, log: Log) -> None:
    """A program of the machine, which Fairlead did not start, works on a GPU: the GPU must be nobody else's."""
    program = None if context.simulate else workload.build(context)
    if program is None:
        log.skip(
            "a neighbour on the GPU", "no driver answers here" if context.simulate else workload.build_problem(context)
        )
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
    """The service was killed and began again: the container ran on, has its GPU, and nobody else gets it."""
    shown = context.fairlead("ps", "-o", "json", timeout_s=30).stdout
    log.judge("a container outlives a killed service", "survivor" in shown, shown[-300:])
    held = [one for one in _gpus(context) if one["holders"]]
    log.judge("and has its GPU still", len(held) == 1, f"{len(held)} GPUs are held")
    context.fairlead("rm", "-f", "survivor", timeout_s=30)
    free = _until(lambda: not any(one["holders"] for one in _gpus(context)))
    log.judge("and gives it back", free, context.fairlead("leases", timeout_s=20).stdout)


def _replicas(context: contexts.Context, log: Log) -> None:
    """Two containers work on one GPU at a time."""
    for name in ("one", "two"):
        _start(context, name, *_busy(context, 30))
    held = {holder["container"]: one["gpu"]["index"] for one in _gpus(context) for holder in one["holders"]}
    log.judge("two containers have replicas", {"one", "two"} <= held.keys(), str(held))
    time.sleep(3)
    shown = [context.fairlead("ps", "-o", "name", timeout_s=20).stdout]
    log.judge("and both work", "one" in shown[0] and "two" in shown[0], shown[0])
    context.fairlead("rm", "-f", "one", "two", timeout_s=30)


def _verification(context: contexts.Context, log: Log) -> None:
    """A GPU waits for its board's firmware to be approved, is verified, and its report is signed."""
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
    command, wanted = _proof(context)
    done = context.fairlead("run", "--rm", "-g", "1", service.IMAGE, "--", *command, timeout_s=60)
    log.judge("and is used", wanted in done.stdout, service.end_of(done))
    _until(lambda: not any(one["holders"] for one in _gpus(context)))
    report = context.fairlead("lease", "report", "--verify", timeout_s=20)
    log.judge("its reports are a chain", report.returncode == 0, service.end_of(report))
    log.fact("lease report", context.fairlead("lease", "report", timeout_s=20).stdout)
