"""Time and memory on this GPU, beside the same on simulated silicon on this machine."""

from __future__ import annotations

import asyncio
import functools
import statistics
import sys
import time
from collections.abc import Callable

from tools.gpu import context as contexts
from tools.gpu.outcome import Log

_ROUNDS = 5
_PEAK = (
    "import asyncio, resource, sys; from pathlib import Path; from tools.gpu import context as c; "
    "x = c.load(Path(sys.argv[1])); s = x.open_silicon(); asyncio.run(s.scan()); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def run(context: contexts.Context, log: Log) -> None:
    """Measure each, real and simulated; no figure fails the check."""
    simulated = contexts.Context(work=context.work, output=context.output, simulate="h100x8")
    subjects = [("here", context)] if context.simulate else [("here", context), ("simulated 8 x H100", simulated)]
    for name, subject in subjects:
        asyncio.run(_scan(subject, name, log))
        generate = ("cdi", "generate", *(("--simulate", subject.simulate) if subject.simulate else ("--mode", "nvml")))
        _measure(log, f"cdi generate, {name}", functools.partial(_command, subject, *generate))
        _peak(subject, name, log)
    if context.smi and not context.simulate:
        asked = (context.smi, "--query-gpu=persistence_mode", "--format=csv,noheader")
        mode = contexts.run(asked, timeout_s=20).stdout.split()
        log.note("persistence mode", f"{mode}: read, and left as it is")
        _measure(log, "nvidia-smi -L, nobody else on the GPU", lambda: contexts.run((context.smi, "-L"), timeout_s=20))


async def _scan(context: contexts.Context, name: str, log: Log) -> None:
    silicon = context.open_silicon()
    try:
        began = time.perf_counter()
        await silicon.scan()
        log.fact(f"scan, first, {name}_ms", round((time.perf_counter() - began) * 1000, 2))
        took = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            await silicon.scan()
            took.append((time.perf_counter() - began) * 1000)
        log.fact(f"scan, again, {name}_ms", round(statistics.median(took), 2))
        began = time.perf_counter()
        await silicon.sample(within_s=10)
        log.fact(f"sample, {name}_ms", round((time.perf_counter() - began) * 1000, 2))
    finally:
        await silicon.close()


def _command(context: contexts.Context, *words: str) -> None:
    target = context.folder / "timed.json"
    done = context.fairlead(*words, "--output", str(target), "--runtime-config", str(context.folder / "no-shim.json"))
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def _measure(log: Log, name: str, work: Callable[[], object]) -> None:
    took = []
    try:
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            work()
            took.append((time.perf_counter() - began) * 1000)
    except RuntimeError as error:
        log.fail(name, str(error), required=False)
        return
    log.fact(f"{name}_ms", round(statistics.median(took), 1))


def _peak(context: contexts.Context, name: str, log: Log) -> None:
    path = context.folder / "timed-context.json"
    contexts.save(context, path)
    done = contexts.run((sys.executable, "-c", _PEAK, str(path)), env=None, timeout_s=30)
    if done.stdout.strip().isdigit():
        log.fact(f"memory of a process that has scanned, {name}_mib", round(int(done.stdout) / 1024, 1))
    else:
        log.note("memory", f"not measured: {done.stderr.strip()[-200:]}")
