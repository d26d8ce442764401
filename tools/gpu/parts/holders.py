"""Who has a GPU open: by open files, by NVML, by nvidia-smi; a process that is known, and an idle GPU that has none."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.kernel import openfiles
from fairlead.silicon.nvidia import binding
from tools.gpu import context as contexts
from tools.gpu import workload
from tools.gpu.outcome import Log

_GIB = 1 << 30


def run(context: contexts.Context, log: Log) -> None:
    """Look at the idle GPUs, start a holder, look again, end it, look again."""
    for pid, name, opened in _openers(context):
        log.note("already open", f"{name} (pid {pid}) has {', '.join(opened)}")
    program = workload.build(context)
    if program is None:
        log.skip("a process with the GPU open", workload.build_problem(context))
        return
    nodes = {path: path.stat().st_rdev for path in Path("/dev").glob("nvidia[0-9]*")}
    child = subprocess.Popen((program, "hold", "30"), stdout=subprocess.PIPE, text=True)
    try:
        said = child.stdout.readline().strip() if child.stdout else ""
        log.judge("holder", said == "holding", f"pid {child.pid} took 1 GiB")
        numbers: list[openfiles.Number] = [("c", os.major(one), os.minor(one)) for one in nodes.values()]
        found = openfiles.find_holders(child.pid, numbers)
        log.judge("found by its open files", child.pid in {one.pid for one in found}, f"{found}")
        told = _processes()
        memory = {pid: used for pid, used in told if pid == child.pid}
        log.judge("found by NVML, by its pid", bool(memory), f"NVML tells of {told}")
        if memory:
            enough = (memory[child.pid] or 0) >= _GIB
            log.judge("its memory is told", enough, f"{memory[child.pid]} bytes", required=False)
        if context.smi:
            asked = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
            done = contexts.run((context.smi, *asked), timeout_s=15)
            log.note("nvidia-smi", done.stdout.strip())
    finally:
        child.kill()
        child.wait()
    end = time.monotonic() + 5
    while (left := [pid for pid, _ in _processes() if pid == child.pid]) and time.monotonic() < end:
        time.sleep(0.1)
    log.judge("nobody holds it after its end", not left, f"NVML still tells of {left}" if left else "")


def _processes() -> list[tuple[int, int | None]]:
    """Return the compute processes that NVML tells of, with their memory in bytes."""
    opened = binding.Binding(None)
    try:
        nvml = opened.nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found += [(one.pid, one.usedGpuMemory) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return found
    finally:
        opened.shut_down()


def _openers(context: contexts.Context) -> Iterator[tuple[int, str, list[str]]]:
    """Return every process that has a node of the driver open now: the persistence daemon, a monitor."""
    dev = str(context.root / "dev") + "/nvidia"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            links = {str(link.readlink()) for link in (entry / "fd").iterdir()}
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if nodes := sorted(link for link in links if link.startswith(dev)):
            yield int(entry.name), name, nodes
