"""What it costs to find the programs on GPUs that Fairlead did not start: 300 of them, each with a GPU open.

The programs are `sleep`, with `/dev/zero` as the GPU. Timed is a whole look: the walk through /proc and the names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from benchmarks import frame
from fairlead.node.lease.neighbours.finder import Finder

COUNT, ROUNDS = 300, 15
_ZERO = ("c", 1, 5)


async def _look() -> list[float]:
    finder = Finder(None, pod_of=lambda _: "", is_living=lambda _: False)
    finder.update({"GPU-0": frozenset({_ZERO})}, {}, {})  # type: ignore[arg-type]  # ("c", int, int)
    samples = list[float]()
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found = await finder.find(["GPU-0"])
        samples.append(time.perf_counter() - started)
        assert len(found["GPU-0"]) >= COUNT
    return samples


@frame.benchmark("neighbours")
def neighbours_rows() -> Iterator[frame.Row]:
    """Look for 300 programs that were started by no process of ours."""
    script = f"for i in $(seq {COUNT}); do sleep 120 < /dev/zero & done; echo $$; wait"
    with subprocess.Popen(("setsid", "--fork", "bash", "-c", script), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        group = int(child.stdout.readline())
        try:
            samples = asyncio.run(_look())
        finally:
            os.killpg(group, signal.SIGKILL)
    yield frame.Row(
        name=f"all programs on GPUs found and named, {COUNT} of them, p50",
        ours=frame.percentile(samples, 0.5) * 1e3,
        unit="ms",
        bar=200.0,
    )
