"""What a CDI spec costs to make: in the agent, where it is made again at every change, and as a command.

The peer is NVIDIA's generator, built here and run in the same breath on the same fake machine, in its mode
`management`: 10 nodes and a driver of 64 libraries, no NVML, so that neither side waits for a driver. Processor time
counts, because the machine is shared and both only read files.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import ctk, frame
from fairlead.plan.cdi import driverprofile, generate, source
from fairlead.silicon import running
from fairlead.silicon.nvidia.files import modefiles
from fairlead_cdi import emit
from tests.unit.silicon.nvidia.files import moderoot

RUNS = 20


def machine(folder: Path) -> Path:
    root = moderoot.build(folder / "root")
    for number in range(64):
        moderoot.add_library(root, f"libnvidia-part{number}.so.{moderoot.VERSION}", f"libnvidia-part{number}.so.1")
    return root


@frame.benchmark("generate")
def generate_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    if lacking := frame.needs("cdi spec made, and cdi generate"):
        yield lacking
        return
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        root = machine(Path(name))
        program = ctk.build()
        theirs = None if program is None else _cpu_ms(ctk.arguments(program, "management", root, []))
        source = "this run" if theirs else f"{ctk.NAME} not run: needs go, cc and its module"
        peer = {"peer": theirs, "peer_name": ctk.NAME, "peer_source": source}
        ours = _own_cpu_ms(lambda: _make(root))
        yield frame.Row(name="cdi spec made by a running agent, CPU", ours=ours, unit="ms", bar=theirs, **peer)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "fairlead.cli.main", "cdi", "generate", "--mode=management", f"--root={root}"]
        cold = _cpu_ms([*command, "--profile=full", "--format=json"])
        yield frame.Row(name="cdi generate as a command, CPU", ours=cold, unit="ms", bar=120.0, **peer)  # type: ignore[arg-type]
        watched = _own_cpu_ms(lambda: running.fingerprint(root, Path("/")))
        yield frame.Row(
            name="cdi watch: one poll of the files that send no events, CPU", ours=watched, unit="ms", bar=10
        )


def _make(root: Path) -> bytes:
    found = modefiles.scan("management", modefiles.Place(root=root))
    spec = source.mode_spec("management", found, generate.Recipe(profile=driverprofile.FULL))
    if spec is None:
        raise AssertionError(root)
    return emit.emit_json(spec)


def _own_cpu_ms(run: Callable[[], object]) -> float:
    samples = []
    for _ in range(RUNS):
        started = time.process_time()
        run()
        samples.append(time.process_time() - started)
    return statistics.median(samples) * 1e3


def _cpu_ms(command: Sequence[str]) -> float:
    """Return the median processor time of a whole process."""
    samples = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(samples) * 1e3
