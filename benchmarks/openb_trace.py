"""Traces of shared GPUs: those published by Alibaba, read in place, or made from a seed with their published shape.

A trace is a list of nodes, the requests that are made in it, and for each seed the order of arrival and of the nodes.

Source: the openb trace of Alibaba's GPU clusters (2023), `nodes.json`, `openb_pod_list_*.csv.gz`, `orders/*.txt.gz`;
shares of sizes, fractions and models: Weng et al., USENIX ATC 2023, section 2 and table 1.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.plan.schedule.engine.shape import WHOLE, Host, Shape

_INFLATED = 1.3
"""How much of the cluster's GPUs is asked for in all, where no order of arrival is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One workload on one cluster."""

    name: str
    hosts: tuple[Host, ...]
    requests: Mapping[str, Shape]
    orders: Mapping[int, tuple[tuple[str, ...], tuple[int, ...]]]
    """By seed: names in order of arrival, and for each node its rank among equal ones."""

    def arrival(self, seed: int) -> tuple[list[Shape], list[Host]]:
        """Return the requests in order, and the nodes in the order that breaks ties."""
        names, ranks = self.orders.get(seed) or _shuffled(self, seed)
        order = sorted(range(len(self.hosts)), key=lambda at: ranks[at])
        return [self.requests[name] for name in names], [self.hosts[at] for at in order]


def _shuffled(trace: Trace, seed: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    chance = random.Random(f"{trace.name} {seed}")
    names, ranks = list(trace.requests), list(range(len(trace.hosts)))
    chance.shuffle(ranks)
    wanted = _INFLATED * WHOLE * sum(host.gpus for host in trace.hosts)
    chance.shuffle(names)
    asked = sum(trace.requests[name].total_milli for name in names)
    while asked < wanted:
        names.append(chance.choice(names))
        asked += trace.requests[names[-1]].total_milli
    chance.shuffle(names)
    return tuple(names), tuple(ranks)


def names(folder: Path) -> list[str]:
    """Return the traces that a folder has."""
    return sorted(
        path.name[len("openb_pod_list_") : -len(".csv.gz")] for path in folder.glob("openb_pod_list_*.csv.gz")
    )


def read(folder: Path, name: str) -> Trace:
    """Read a published trace."""
    rows = json.loads((folder / "nodes.json").read_text())
    hosts = tuple(
        Host(name=row[0], cpu_milli=int(row[1]), memory_mib=int(row[2]), gpus=int(row[3]), model=row[4]) for row in rows
    )
    with gzip.open(folder / f"openb_pod_list_{name}.csv.gz", "rt") as lines:
        requests = {row["name"]: _shape(row) for row in csv.DictReader(lines)}
    orders = {}
    for path in sorted((folder / "orders").glob(f"{name}_*.txt.gz")):
        with gzip.open(path, "rt") as text:
            pods, ranks = (line.split()[1:] for line in text.read().strip().split("\n"))
        orders[int(path.name[len(name) + 1 :].partition(".")[0])] = (tuple(pods), tuple(int(rank) for rank in ranks))
    return Trace(name=name, hosts=hosts, requests=requests, orders=orders)


def _shape(row: Mapping[str, str]) -> Shape:
    gpus = int(row["num_gpu"])
    return Shape(
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        gpus=gpus,
        gpu_milli=int(row["gpu_milli"]) if gpus else WHOLE,
        models=frozenset(model for model in (row.get("gpu_spec") or "").split("|") if model),
    )


_NODES: Sequence[tuple[int, int, int, int, str]] = (
    (549, 8, 128000, 786432, "G2"),
    (387, 2, 96000, 524288, "T4"),
    (131, 2, 64000, 262144, "P100"),
    (65, 8, 96000, 524288, "V100"),
    (50, 4, 96000, 393216, "V100"),
    (31, 1, 64000, 262144, "V100"),
)
"""How many of each: GPUs, milli-cpu, MiB, model."""
_SIZES: Mapping[str, int] = {"none": 133, "share": 378, "1": 480, "2": 2, "4": 2, "8": 5}
"""Requests in a thousand, by what they ask for."""
_FRACTIONS = (160, 220, 230, 320, 370, 460, 470, 550, 590, 650, 810)
_CPUS = (2000, 4000, 6000, 8000, 12000, 16000)


def generated(*, nodes: int = 1213, requests: int = 8152, seed: int = 0) -> Trace:
    """Make a trace with the published shape: sizes, fractions and kinds of nodes."""
    chance, kinds = random.Random(seed), [row for row in _NODES for _ in range(row[0])]
    chosen = sorted(chance.choices(kinds, k=nodes), key=lambda row: row[4])
    hosts = tuple(
        Host(name=f"node-{at:05}", gpus=row[1], cpu_milli=row[2], memory_mib=row[3], model=row[4])
        for at, row in enumerate(chosen)
    )
    sizes = chance.choices(list(_SIZES), weights=list(_SIZES.values()), k=requests)
    made = {f"request-{at:05}": _made(size, chance) for at, size in enumerate(sizes)}
    return Trace(name=f"generated-{seed}", hosts=hosts, requests=made, orders={})


def _made(size: str, chance: random.Random) -> Shape:
    cpu = chance.choice(_CPUS)
    plain = Shape(cpu_milli=cpu, memory_mib=2 * cpu)
    if size == "none":
        return plain
    if size == "share":
        return dataclasses.replace(plain, gpus=1, gpu_milli=chance.choice(_FRACTIONS))
    gpus = int(size)
    return Shape(cpu_milli=cpu * gpus, memory_mib=2 * cpu * gpus, gpus=gpus)
