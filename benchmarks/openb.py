"""Run a trace of shared GPUs through the scheduling engine: `python -m benchmarks openb`.

Requests arrive in the trace's order and never leave; what does not fit is dropped, as in the paper's simulator. Printed
for each trace and policy: the allocated share of all GPUs at 80 to 130 % demand (the mean over the arrivals in it), the
fragmented share, failures by size, decisions a second. `--json` has every point, `--svg FILE` draws the curves.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import curve, openb_trace
from fairlead.plan.schedule.engine.engine import Engine
from fairlead.plan.schedule.engine.fragmentation import Fragmentation
from fairlead.plan.schedule.engine.policy import POLICIES
from fairlead.plan.schedule.engine.shape import Shape, counted
from fairlead.plan.schedule.engine.state import State
from fairlead.plan.schedule.policy.demand import most_frequent

_SHOWN = (80, 90, 100, 110, 120, 130)
_PUBLISHED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "default": {
        "random": (86.37, 87.54),
        "dotprod": (90.62, 90.85),
        "clustering": (91.65, 91.88),
        "packing": (91.78, 92.00),
        "bestfit": (92.86, 93.08),
        "fgd": (95.23, 95.39),
    }
}
"""Allocated % at 100 and 130 % demand, mean of ten seeds. Source: the FGD repository's expected results, figure 9a."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    trace: str
    policy: str
    seed: int
    allocated: Mapping[int, float]
    """By percent of demand: the mean allocated percent."""
    fragmented: Mapping[int, float]
    """The same of what is fragmented, in percent of all GPUs, for the table of the most frequent requests."""
    failures: Mapping[str, int]
    decisions_per_s: float

    def document(self) -> dict[str, Any]:
        return {
            "trace": self.trace,
            "policy": self.policy,
            "seed": self.seed,
            "allocated_percent": {str(at): round(value, 3) for at, value in self.allocated.items()},
            "fragmented_percent": {str(at): round(value, 3) for at, value in self.fragmented.items()},
            "failures": dict(self.failures),
            "decisions_per_s": round(self.decisions_per_s, 1),
        }


def run(trace: openb_trace.Trace, policy: str, seed: int) -> Result:
    """Place every request of a trace, one after another."""
    arrivals, hosts = trace.arrival(seed)
    state, table = State(hosts), counted(trace.requests.values())
    engine = Engine(state, policy, table, seed=seed)
    measured = Fragmentation(state, most_frequent(table, 0.95))
    asked, spent, failures = 0, 0.0, collections.Counter[str]()
    bins: dict[int, list[float]] = collections.defaultdict(list)
    fragmented: dict[int, float] = {}
    for shape in arrivals:
        asked += shape.total_milli
        begun = time.perf_counter()
        found = engine.place(shape)
        spent += time.perf_counter() - begun
        if found is None:
            failures[_size(shape)] += 1
        at = round(100 * asked / state.capacity_milli)
        if at not in bins:
            fragmented[at] = 100 * measured.cluster() / state.capacity_milli
        bins[at].append(100 * state.taken_milli / state.capacity_milli)
    return Result(
        trace=trace.name,
        policy=policy,
        seed=seed,
        allocated={at: statistics.fmean(values) for at, values in bins.items()},
        fragmented=fragmented,
        failures=failures,
        decisions_per_s=len(arrivals) / spent,
    )


def _size(shape: Shape) -> str:
    if not shape.gpus:
        return "cpu only"
    return "share" if shape.is_share else f"{shape.gpus} GPU"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks openb", description="run a trace through the scheduling engine")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the openb trace; none: a generated one")
    parser.add_argument(
        "--trace", default="default", metavar="NAME,…", help='of the folder; "all": each (default: default)'
    )
    parser.add_argument("--policy", default="fgd,fairlead", metavar="NAME,…", help=f"of {', '.join(POLICIES)}; or all")
    parser.add_argument("--seeds", default="42,43,44", metavar="N,…")
    parser.add_argument("--json", action="store_true", help="print one JSON list with every point")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw allocated share against demand")
    given = parser.parse_args(arguments)
    policies = list(POLICIES) if given.policy == "all" else given.policy.split(",")
    if unknown := [name for name in policies if name not in POLICIES]:
        parser.error(f"no policy is called {', '.join(unknown)} (there are: {', '.join(POLICIES)})")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    results: list[Result] = []
    for trace in _traces(parser, given.traces, given.trace):
        for policy in policies:
            runs = [run(trace, policy, seed) for seed in seeds]
            results += runs
            if not given.json:
                print("\n".join(lines(runs)), flush=True)
    if not given.json and "fgd" in policies:
        print("\n".join(verdicts(results, [one for one in policies if one != "fgd"])))
    if given.svg:
        given.svg.write_text(picture(results))
    if given.json:
        print(json.dumps([one.document() for one in results], indent=2))
    return 0


def _traces(parser: argparse.ArgumentParser, folder: Path | None, wanted: str) -> list[openb_trace.Trace]:
    if folder is None:
        return [openb_trace.generated()]
    there = openb_trace.names(folder)
    chosen = there if wanted == "all" else wanted.split(",")
    if unknown := [name for name in chosen if name not in there]:
        parser.error(f"{folder} has no trace {', '.join(unknown)} (it has: {', '.join(there) or 'none'})")
    return [openb_trace.read(folder, name) for name in chosen]


def lines(runs: Sequence[Result]) -> list[str]:
    """Return what is printed of one trace and policy: means over the seeds."""
    first = runs[0]
    curves = _mean([one.allocated for one in runs])
    frag = _mean([one.fragmented for one in runs])
    at = [str(at) for at in _SHOWN if at in curves]
    found = [f"{first.trace} · {first.policy} · seeds {', '.join(str(one.seed) for one in runs)}"]
    found.append(f"  demand %      {'  '.join(f'{one:>6}' for one in at)}")
    found.append(f"  allocated %   {'  '.join(f'{curves[int(one)]:6.2f}' for one in at)}")
    found.append(f"  fragmented %  {'  '.join(f'{frag[int(one)]:6.2f}' for one in at)}")
    if published := _PUBLISHED.get(first.trace, {}).get(first.policy):
        found.append(f"  published     100 %: {published[0]:.2f}, 130 %: {published[1]:.2f} (mean of ten seeds)")
    sizes = sorted({size for one in runs for size in one.failures})
    failures = (f"{size} {statistics.fmean(one.failures.get(size, 0) for one in runs):.0f}" for size in sizes)
    found.append(f"  failures      {', '.join(failures) or 'none'}")
    return [*found, f"  decisions/s   {statistics.median(one.decisions_per_s for one in runs):.0f}"]


def verdicts(results: Sequence[Result], policies: Sequence[str], *, at: int = 100) -> list[str]:
    """Return for each trace how policies stand beside fgd on the same arrivals; within two of its deviations: a tie."""
    shares = {(one.trace, one.policy, one.seed): one.allocated.get(at) for one in results}
    found, counts = list[str](), collections.Counter[str]()
    for trace in dict.fromkeys(one.trace for one in results):
        for policy in policies:
            seeds = [seed for name, other, seed in shares if (name, other) == (trace, policy)]
            pairs = [(shares[trace, policy, seed], shares[trace, "fgd", seed]) for seed in seeds]
            both = [(own, other) for own, other in pairs if own is not None and other is not None]
            if len(both) < 2:
                continue
            gain = statistics.fmean(own - other for own, other in both)
            spread = 2 * statistics.stdev(other for _, other in both)
            verdict = "ties" if abs(gain) <= spread else "beats" if gain > 0 else "loses to"
            counts[policy] += verdict != "loses to"
            found.append(
                f"{trace}: {policy} {verdict} fgd, {gain:+.2f} points at {at} % (two deviations: {spread:.2f})"
            )
    traces = len({one.trace for one in results})
    return [*found, *(f"{policy} ties or beats fgd on {count} of {traces}" for policy, count in counts.items())]


def _mean(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    shared = sorted(set.intersection(*(set(one) for one in curves)))
    return {at: statistics.fmean(one[at] for one in curves) for at in shared}


def picture(results: Sequence[Result]) -> str:
    """Return the mean curves of every trace and policy from 60 % demand on, as SVG."""
    names = dict.fromkeys((one.trace, one.policy) for one in results)
    curves = {
        f"{trace} {policy}": _mean([one.allocated for one in results if (one.trace, one.policy) == (trace, policy)])
        for trace, policy in names
    }
    drawn = {name: {at: value for at, value in one.items() if at >= 60} for name, one in curves.items()}
    return curve.svg(drawn, title="Allocated GPUs against demand", across="demand, % of all GPUs", up="allocated, %")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
