"""The page of the docs: a section for each benchmark, which says when it was measured and on what.

A run renews the sections of its benchmarks and leaves the others as they are, since a run of all takes hours: so each
section has a day and a machine of its own. A section is a heading with the benchmark's name, a line that says when, and
a table. What a benchmark of that name no longer exists for is left out, and named to who runs it. Benchmarks without a
section stand in a list, each with why; that is written by hand there, and kept until there is a section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks import frame

_HEAD = """---
hide: [navigation, toc]
---

# Benchmarks

Each section is a benchmark: `python -m benchmarks NAME --write docs/benchmarks.md` measures it and renews its
section alone, `make bench` all. Simulated silicon unless a row says otherwise. A peer that runs here is measured
in the same invocation; else its figure is quoted.

*Bar*: the most that the project allows itself; *holds*: whether ours is within it; *peer*: the
program that does the same today; *ratio*: ours to the peer's. Lower is better, except for figures
per second. Timings never fail a test.
"""
_TABLE = "| what | ours | bar | holds | peer | ratio | source |\n|---|---|---|---|---|---|---|"
_CURVES = """## Placement of shared GPUs

The published trace `default`, which is not in the repository, and the generated one of its shape that a clone
runs: `python -m benchmarks openb --policy all --svg FILE`. Means of three seeds; figures of the first in
[scheduling](design/scheduling.md).

![Allocated GPUs against demand, published trace, nine policies](design/openb-default.svg)

![Allocated GPUs against demand, generated trace, nine policies](design/openb-generated.svg)
"""
"""What `openb` draws; made by hand, since a run takes minutes and the published trace."""
_HEADING = re.compile(r"^## ([a-z0-9.-]+)\n", re.MULTILINE)
"""A benchmark's name; the other headings begin with a capital."""
_WAITING = "## Not measured for this page\n"
_REASON = re.compile(r"^- ([a-z0-9.-]+): (.+)$", re.MULTILINE)
_END = re.compile(r"^## ", re.MULTILINE)
Result = frame.Row | frame.Unmeasured


def section(rows: Sequence[Result], measured: str) -> str:
    """Return what a section says below its heading. Args: measured: when and on what, a sentence."""
    return "\n".join([measured, "", _TABLE, *map(_cells, rows), ""])


def parse(text: str) -> dict[str, str]:
    """Return the sections of a page by the benchmarks' names, each as `section` made it."""
    found = {}
    for match in _HEADING.finditer(text):
        end = _END.search(text, match.end())
        found[match.group(1)] = text[match.end() : end.start() if end else len(text)].strip("\n") + "\n"
    return found


def reasons(text: str) -> dict[str, str]:
    """Return why benchmarks of a page were not measured for it, by name."""
    return dict(_REASON.findall(text.partition(_WAITING)[2].partition("\n## ")[0]))


def emit(sections: Mapping[str, str], known: Sequence[str], why: Mapping[str, str]) -> str:
    """Return the page.

    Args: sections: by the benchmarks' names.   known: those that there are, in their order.
          why: reasons of those without a section, by name.
    """
    shown = [f"## {name}\n\n{sections[name]}" for name in known if name in sections]
    if waiting := [name for name in known if name not in sections]:
        shown.append("\n".join([_WAITING, *(f"- {name}: {why.get(name, 'not run yet')}" for name in waiting), ""]))
    return "\n".join([_HEAD, *shown, _CURVES])


def _cells(row: Result) -> str:
    if isinstance(row, frame.Unmeasured):
        return f"| {row.name} | not measured: {row.why} | | | | | |"
    verdict = {True: "yes", False: "**no**", None: ""}[row.holds]
    bar = "" if row.bar is None else f"{row.bar:.4g} {row.unit}"
    peer = "" if row.peer is None else f"{row.peer_name}: {row.peer:.4g} {row.unit}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return f"| {row.name} | {row.ours:.4g} {row.unit} | {bar} | {verdict} | {peer} | {ratio} | {row.peer_source} |"
