"""Run benchmarks and print their rows.

`python -m benchmarks` runs all, `python -m benchmarks NAME…` those of these names (a NAME that is no benchmark's own
stands for all that start so: `store` for `store.list` and `store.informer`), `--list` only names them, `--json` prints
one JSON list, `--write FILE` renews their sections of the docs' page (`page.py`). `python -m benchmarks openb` runs
traces of shared GPUs through the scheduling engine instead (`openb.py`). A row that cannot run says why, and the others
run. The exit code is 1 when a bar does not hold or a benchmark failed.
"""

from __future__ import annotations

import argparse
import datetime
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
    machine_verify,
    neighbours,
    node,
    openb,
    page,
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
    machine_verify,
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


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["openb"]:
        return openb.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="benchmarks", description="measure every row of the budget table")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a benchmark's name, or else the start of several; none: all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also renew these benchmarks' sections of a page")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    given = parser.parse_args(arguments)
    chosen = frame.choose(given.names, list(frame.REGISTRY))
    if unknown := [name for name in given.names if not frame.choose([name], list(frame.REGISTRY))]:
        parser.error(f"no benchmark is called {' or '.join(unknown)} (there are: {', '.join(frame.REGISTRY)})")
    if given.list:
        print("\n".join(chosen))
        return 0
    if given.write and given.names and (text := _read(given.write)) and not page.parse(text):
        parser.error(f"{given.write} is not a page of benchmarks: name another file, or none of them to make it anew")
    found: dict[str, list[page.Result]] = {}
    for name in chosen:
        measured, found[name] = _measured(), []
        for row in frame.rows_of(name):
            found[name].append(row)
            if not given.json:
                print(line(row), flush=True)
        if given.write:  # at once: a later one may be stopped
            _renew(given.write, name, page.section(found[name], measured))
    rows = [row for listed in found.values() for row in listed]
    if given.json:
        print(json.dumps([row.document() for row in rows], indent=2))
    return 1 if any(row.holds is False for row in rows) else 0


def _renew(path: Path, name: str, text: str) -> None:
    """Renew a benchmark's section of a page, and leave the others as they are."""
    known = list(frame.REGISTRY)
    before = _read(path)
    kept = page.parse(before)
    if gone := [one for one in kept if one not in known]:
        print(f"{path}: left out {', '.join(gone)}, since no benchmark is called so", file=sys.stderr)
    path.write_text(page.emit({**kept, name: text}, known, page.reasons(before)))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _measured() -> str:
    """Say when and on what the next benchmark is measured."""
    told = Path("/proc/cpuinfo").read_text().splitlines()
    models = (text.partition(":")[2].strip() for text in told if text.startswith("model name"))
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores ({next(models, platform.machine())}), Python {platform.python_version()}"
    return f"Measured {day} on {machine}, at a load of {os.getloadavg()[0]:.1f}."


def line(row: page.Result) -> str:
    if isinstance(row, frame.Unmeasured):
        return f"{row.name:<58} not measured: {row.why}"
    verdict = {True: "holds", False: "MISSED", None: "-"}[row.holds]
    bar = "" if row.bar is None else f"bar {row.bar:g} {row.unit}"
    ratio = "" if row.ratio is None else f" (x{row.ratio:.2f})"
    peer = "" if row.peer is None else f"{row.peer_name}: {row.peer:g} {row.unit}{ratio}"
    return f"{row.name:<58} {row.ours:>10.3f} {row.unit:<4} {verdict:<7} {bar:<16} {peer}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
