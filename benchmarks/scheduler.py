"""Rows of the scheduling engine: decisions a second at 10,000 nodes of 8 GPUs, growth with nodes, gangs, memory.

The cluster is filled to about 70 % with a generated trace's requests first; then decisions are timed, in pairs with
releases, so that it stays as full. Times are of the processor: the engine waits for nothing, and other work on the
machine is not its own. FGD-class scoring: every decision is the policy's, over every node, by changed rows.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable

from benchmarks import openb_trace
from benchmarks.frame import Row, benchmark
from fairlead.plan.schedule.engine.engine import Engine
from fairlead.plan.schedule.engine.shape import Host, Placement, Shape, counted
from fairlead.plan.schedule.engine.state import State

_KAI = "KAI 0.17, 500 nodes x 8 GPUs, with its API server"
_KAI_SOURCE = "kai-scheduler docs/scale-tests/example-results.json @ab86e6c0"


class _Filled:
    """A cluster at about 70 %, and what is on it."""

    def __init__(self, nodes: int, policy: str = "fgd") -> None:
        trace = openb_trace.generated(nodes=1)
        self.shapes = [shape for shape in trace.requests.values() if shape.cpu_milli <= 96_000]
        hosts = [Host(name=f"n{at:05}", cpu_milli=128_000, memory_mib=786_432, gpus=8) for at in range(nodes)]
        self.engine = Engine(State(hosts), policy, counted(self.shapes))
        self.chance, self.held = random.Random(1), list[tuple[Shape, Placement]]()
        while self.engine.state.taken_milli < 0.7 * self.engine.state.capacity_milli and self.place():
            pass

    def place(self) -> bool:
        shape = self.chance.choice(self.shapes)
        found = self.engine.place(shape)
        if found is not None:
            self.held.append((shape, found))
        return found is not None

    def decisions_per_s(self, count: int = 500) -> float:
        """Time decisions only; each has a release before it."""
        spent = 0.0
        for _ in range(count):
            at = self.chance.randrange(len(self.held))
            self.held[at], self.held[-1] = self.held[-1], self.held[at]
            self.engine.release(*self.held.pop())
            begun = time.thread_time()
            self.place()
            spent += time.thread_time() - begun
        return count / spent


@benchmark("scheduler")
def scheduler() -> Iterable[Row]:
    rates = {}
    for nodes in (1000, 10_000):
        filled = _Filled(nodes)
        rates[nodes] = statistics.median(filled.decisions_per_s() for _ in range(9))
        bar = 5000.0 if nodes == 10_000 else None
        yield Row(name=f"scheduler: FGD decisions, {nodes:,} nodes x 8 GPUs", ours=rates[nodes], unit="1/s", bar=bar)
    yield Row(
        name="scheduler: time of a decision, 10,000 nodes over 1,000",
        ours=rates[1000] / rates[10_000],
        unit="x",
        bar=10,
    )
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row(name="scheduler: memory of the process at 10,000 nodes", ours=memory_mib, unit="MiB", bar=2048)
    yield from _gangs()
    yield from _restart(10_000, 100_000)


def _restart(nodes: int, pods: int) -> Iterable[Row]:
    """Start the live scheduler anew over a full cluster, thrice, each time in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.scheduler_restart", str(nodes), str(pods))
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
    size = f"{nodes:,} nodes, {pods:,} pods"
    seconds, mib = (statistics.median(run[key] for run in runs) for key in ("seconds", "mib"))
    yield Row(name=f"scheduler: first binding after a restart, {size}", ours=seconds, unit="s", bar=30)
    yield Row(name=f"scheduler: memory of the live scheduler, {size}", ours=mib, unit="MiB", bar=2048)


def _gangs() -> Iterable[Row]:
    hosts = [Host(name=f"n{at:05}", cpu_milli=128_000, memory_mib=786_432, gpus=8) for at in range(500)]
    shape = Shape(cpu_milli=4000, gpus=1)
    spent, verdict = [], []
    for _ in range(5):
        engine = Engine(State(hosts), "fairlead", {shape: 9, Shape(gpus=8): 1})
        begun = time.thread_time()
        assert engine.place_gang([shape] * 512) is not None
        spent.append(time.thread_time() - begun)
        # Fits by counting each size alone: only trying tells that the last one does not.
        begun = time.thread_time()
        assert engine.place_gang([shape] * 3488 + [Shape(gpus=8)]) is None
        verdict.append(time.thread_time() - begun)
    yield _beside_kai("gang of 512 placed, 4,000 GPUs", statistics.median(spent), 48.7)
    yield _beside_kai("verdict that a gang cannot fit, 4,000 GPUs", statistics.median(verdict), 249.5)


def _beside_kai(what: str, ours: float, peer: float) -> Row:
    name = f"scheduler: {what}"
    return Row(name=name, ours=ours, unit="s", bar=1, peer=peer, peer_name=_KAI, peer_source=_KAI_SOURCE)
