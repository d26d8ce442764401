"""What a benchmark yields and how it is found: rows, the registry, and small statistics.

A row never hides its bar: `holds` is None where there is no bar, and the peer's figure comes with where it was read.
Where the peer published a range, `peer` is its better end.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NVIDIA_PLUGIN = "NVIDIA k8s-device-plugin v0.20.0"
REFERENCE = "docs/design/peers.md, device plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure beside a peer's; lower is better unless the unit ends in `/s`."""

    name: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    peer_source: str = ""
    bar: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's; None: there is none, or it is 0."""
        return self.ours / self.peer if self.peer else None

    @property
    def holds(self) -> bool | None:
        """Whether the bar is met."""
        if self.bar is None:
            return None
        return self.ours >= self.bar if self.unit.endswith("/s") else self.ours <= self.bar

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {
            "name": self.name,
            "ours": round(self.ours, 4),
            "unit": self.unit,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "peer_source": self.peer_source,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "bar": self.bar,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Rows that this machine cannot measure: they stand in the table with the reason, instead of missing from it."""

    name: str
    why: str
    has_failed: bool = False
    """It could have been measured and broke."""

    @property
    def holds(self) -> bool | None:
        """Nothing was measured, so no bar holds; a benchmark that broke fails."""
        return False if self.has_failed else None

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"name": self.name, "unmeasured": self.why}


def needs(name: str, *programs: str) -> Unmeasured | None:
    """Return why rows that need root and these programs cannot be measured here; None: they can."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    lacking += [program for program in programs if shutil.which(program) is None]
    return Unmeasured(name=name, why=f"needs {', '.join(lacking)}") if lacking else None


Benchmark = Callable[[], Iterable[Row | Unmeasured]]
REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Register a function that yields rows."""

    def add(run: Benchmark) -> Benchmark:
        REGISTRY[name] = run
        return run

    return add


def choose(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the benchmarks that are meant, in their own order: an exact name alone, else all that start so; none: all.

    `scheduler` is not `scheduler-large`, which takes an hour.
    """
    if not names:
        return list(known)
    exact = {name for name in names if name in known}
    starts = tuple(name for name in names if name not in exact)
    return [name for name in known if name in exact or (starts and name.startswith(starts))]


def rows_of(name: str) -> Iterable[Row | Unmeasured]:
    """Yield a benchmark's rows; one that breaks ends in a row that says why, so that the others still run."""
    try:
        yield from REGISTRY[name]()
    except Exception as error:  # noqa: BLE001  (the edge of one benchmark)
        text = " ".join(str(error).split()) or type(error).__name__
        yield Unmeasured(name=name, why=f"failed: {text.replace('|', '/')}", has_failed=True)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; `share` 0.5 is the median."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def best_of(run: Callable[[], object], times: int) -> float:
    """Return the shortest of several runs, in milliseconds: what the code costs, without its neighbours."""
    shortest = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest * 1e3
