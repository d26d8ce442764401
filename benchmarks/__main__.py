"""Run benchmarks and print their rows.

`python -m benchmarks` runs all, `python -m benchmarks NAME…` those of these names (a NAME that is no benchmark's own
stands for all that start so: `store` for `store.list` and `store.informer`), `--list` only names them,
`--json` prints one JSON list, `--write FILE` makes the page of the docs. `python -m benchmarks openb` runs traces of
shared GPUs through the scheduling engine instead (`openb.py`). A row that cannot run says why, and the others
run. The exit code is 1 when a bar does not hold or a benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import (
    api,
    attacks,
    cdi,
    choose,
    dra,
    dra_cluster,
    dra_prepare,
    fabric,
    frame,
    generate,
    history,
    inject,
    ledger,
    machine_start,
    neighbours,
    node,
    openb,
    pods,
    product,
    scheduler,
    scheduler_cluster,
    store,
    vfio,
)

MODULES = (
    choose,
    dra,
    dra_cluster,
    dra_prepare,
    cdi,
    node,
    generate,
    inject,
    ledger,
    machine_start,
    neighbours,
    history,
    product,
    pods,
    api,
    attacks,
    scheduler,
    scheduler_cluster,
    store,
    vfio,
    fabric,
)

_CURVES = (
    "## Placement of shared GPUs",
    "",
    "The published trace `default`, which is not in the repository, and the generated one of its shape that a clone",
    "runs: `python -m benchmarks openb --policy all --svg FILE`. Means of three seeds; figures of the first in",
    "[scheduling](design/scheduling.md).",
    "",
    "![Allocated GPUs against demand, published trace, nine policies](design/openb-default.svg)",
    "",
    "![Allocated GPUs against demand, generated trace, nine policies](design/openb-generated.svg)",
)
"""What `openb` draws; made by hand, since a run takes minutes and the published trace."""


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["openb"]:
        return openb.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="benchmarks", description="measure every row of the budget table")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a benchmark's name, or else the start of several; none: all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write a page of all rows")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    given = parser.parse_args(arguments)
    chosen = frame.choose(given.names, list(frame.REGISTRY))
    if unknown := [name for name in given.names if not frame.choose([name], list(frame.REGISTRY))]:
        parser.error(f"no benchmark is called {' or '.join(unknown)} (there are: {', '.join(frame.REGISTRY)})")
    if given.list:
        print("\n".join(chosen))
        return 0
    rows: list[frame.Row | frame.Unmeasured] = []
    for name in chosen:
        for row in frame.rows_of(name):
            rows.append(row)
            if not given.json:
                print(line(row), flush=True)
    if given.write:
        given.write.write_text(page(rows))
    if given.json:
        print(json.dumps([row.document() for row in rows], indent=2))
    return 1 if any(row.holds is False for row in rows) else 0


def page(rows: Sequence[frame.Row | frame.Unmeasured]) -> str:
    """Return the rows as a page of the docs."""
    cpu = next(
        (
            text.partition(":")[2].strip()
            for text in Path("/proc/cpuinfo").read_text().splitlines()
            if text.startswith("model name")
        ),
        platform.machine(),
    )
    head = [
        "---",
        "hide: [navigation, toc]",  # seven columns want the whole width
        "---",
        "",
        "# Benchmarks",
        "",
        f"Made by `make bench` on {os.cpu_count()} cores ({cpu}), Python {platform.python_version()}.",
        "Simulated silicon unless a row says otherwise. A peer that runs here is measured in the same",
        "invocation; else its figure is quoted.",
        "",
        "*Bar*: the most that the project allows itself; *holds*: whether ours is within it; *peer*: the",
        "program that does the same today; *ratio*: ours to the peer's. Lower is better, except for figures",
        "per second. Timings never fail a test.",
        "",
        "| what | ours | bar | holds | peer | ratio | source |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_cells(row) for row in rows), "", *_CURVES, ""])


def _cells(row: frame.Row | frame.Unmeasured) -> str:
    if isinstance(row, frame.Unmeasured):
        return f"| {row.name} | not measured: {row.why} | | | | | |"
    verdict = {True: "yes", False: "**no**", None: ""}[row.holds]
    bar = "" if row.bar is None else f"{row.bar:.4g} {row.unit}"
    peer = "" if row.peer is None else f"{row.peer_name}: {row.peer:.4g} {row.unit}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return f"| {row.name} | {row.ours:.4g} {row.unit} | {bar} | {verdict} | {peer} | {ratio} | {row.peer_source} |"


def line(row: frame.Row | frame.Unmeasured) -> str:
    if isinstance(row, frame.Unmeasured):
        return f"{row.name:<58} not measured: {row.why}"
    verdict = {True: "holds", False: "MISSED", None: "-"}[row.holds]
    bar = "" if row.bar is None else f"bar {row.bar:g} {row.unit}"
    ratio = "" if row.ratio is None else f" (x{row.ratio:.2f})"
    peer = "" if row.peer is None else f"{row.peer_name}: {row.peer:g} {row.unit}{ratio}"
    return f"{row.name:<58} {row.ours:>10.3f} {row.unit:<4} {verdict:<7} {bar:<16} {peer}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
